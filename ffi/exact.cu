// jaxmd_exact_matmul on CUDA: C_ij = canonical limbs of Σ_l A_il·B_lj, exact, for the entries with flag_ij ≠ 0.
//
// Shapes: a limbs [.., m, k], b limbs [.., k, n], flag s8 [.., m, n], c limbs [.., m, n]; results alias c.
// Tiling: a warp an entry; lane t takes the terms l ≡ t mod 32 into a fixed-point number of its own. The 32 numbers
//   interleave in shared memory, word [134][lane 32], 34 KB a block of one warp, six blocks an SM: no bank conflicts
//   and no atomics. Then lane t sums the rows i ≡ t mod 32, and lane 0 settles the carries and rounds. Warp w looks at
//   the groups of flags w, w + W, w + 2W, … with W odd, so that a flagged row, column or diagonal spreads over all.
// Exact: exact.h; a lane adds at most 2^25 products between two carry passes, so a row sum stays below 2^62.
// Cost: without flags one pass over them; a flagged entry about k·Na·Nb/32 steps of some 100 cycles, with six warps
//   an SM in flight, and 5 µs for rounding.
// Source: exact.h.
#define JAXMD_ISA cuda

#include <algorithm>

#include <cuda_runtime.h>

#include "exact.h"
#include "exact_args.h"

namespace jaxmd {
namespace cuda {
namespace {

namespace ffi = xla::ffi;

constexpr const char* kName = "jaxmd_exact_matmul";
constexpr int kLanes = 32;
constexpr unsigned kAll = 0xffffffffu;
constexpr int kSharedBytes = kExactWords * kLanes * static_cast<int>(sizeof(int64_t));
static_assert(kSharedBytes <= 48 * 1024, "more must be asked for");
constexpr int64_t kLaneRun = int64_t{1} << 25;

// Adds lane's share of the dot product; returns whether a limb was inf or nan, and the range of words touched.
__device__ bool accumulate(const ExactJob& job, int64_t row, int64_t column, int lane, int64_t* word, int* first,
                           int* last) {
  const int64_t run = kLaneRun / (job.a.count * job.b.count);
  int64_t steps = 0;
  bool special = false;
  for (int64_t l = lane; l < job.shape.k; l += kLanes) {
    if (++steps % run == 0) {
      settle(word, kLanes);
      *last = kExactWords - 1;
    }
    for (int i = 0; i < job.a.count; ++i) {
      const double x = job.a.limb[i][row + l];
      const Factor a = unpack(x);
      special |= !is_finite(x);
      for (int g = 0; g < job.b.count; ++g) {
        const double y = job.b.limb[g][column + l * job.shape.n];
        const Factor b = unpack(y);
        special |= !is_finite(y);
        if (special || a.mantissa == 0 || b.mantissa == 0) continue;
        add_product(word, kLanes, a, b);
        const int at = first_word(a, b);
        *first = min(*first, at);
        *last = max(*last, at + 4);
      }
    }
  }
  return special;
}

__device__ double special_entry(const ExactJob& job, int64_t row, int64_t column, int lane, int64_t* word) {
  int seen = kNone;
  for (int64_t l = lane; l < job.shape.k; l += kLanes) {
    const auto load_a = [&](int i) { return job.a.limb[i][row + l]; };
    const auto load_b = [&](int g) { return job.b.limb[g][column + l * job.shape.n]; };
    seen |= special_term(classify(load_a, job.a.count, word, kLanes), classify(load_b, job.b.count, word, kLanes));
  }
  return special_value(__reduce_or_sync(kAll, static_cast<unsigned>(seen)));
}

// One entry by one warp. All words are zero before and after.
__device__ void exact_entry(const ExactJob& job, int64_t entry, int lane, int64_t* shared) {
  const ProductShape& s = job.shape;
  const int64_t batch = entry / (s.m * s.n), i = entry / s.n, j = entry % s.n;  // i counts rows over the batch
  const int64_t row = i * s.k, column = batch * s.k * s.n + j;
  int64_t* const word = shared + lane;
  int first = kExactWords, last = -1;
  if (__any_sync(kAll, accumulate(job, row, column, lane, word, &first, &last))) {
    const double value = special_entry(job, row, column, lane, word);
    for (int t = 0; t < kExactWords; ++t) word[t * kLanes] = 0;
    for (int g = lane; g < job.c.count; g += kLanes) job.c.limb[g][entry] = g == 0 ? value : 0.0;
    __syncwarp();
    return;
  }
  first = __reduce_min_sync(kAll, first);
  last = min(__reduce_max_sync(kAll, last) + 2, kExactWords - 1);  // the carry of 2^62 reaches two words on
  __syncwarp();
  for (int t = first + lane; t <= last; t += kLanes) {
    int64_t sum = 0;
    for (int q = 0; q < kLanes; ++q) sum += shared[t * kLanes + ((q + lane) & 31)];
    shared[t * kLanes] = sum;
  }
  __syncwarp();
  if (lane == 0) {
    settle(shared, kLanes, first);
    const bool negative = shared[(kExactWords - 1) * kLanes] < 0;
    round_to_limbs(ExactDigits{shared, kLanes}, kExactWords, kExactLow, negative, negative, job.c.count,
                   [&](int g, double x) { job.c.limb[g][entry] = x; });
    // A negative sum has its sign in every word above.
    for (int t = last + 1; t < kExactWords; ++t) shared[t * kLanes] = 0;
  }
  __syncwarp();
  for (int t = first; t <= last; ++t) word[t * kLanes] = 0;
  __syncwarp();
}

// Group g of flags is [g·kGroup, (g + 1)·kGroup); flags are 16-byte aligned when kGroup is 32.
template <int kGroup>
__device__ unsigned flags_of_group(const int8_t* flag, int64_t group, int64_t entries) {
  if (group * kGroup >= entries) return 0;
  if constexpr (kGroup == 1) return flag[group] != 0;
  unsigned mask = 0;
  if ((group + 1) * kGroup <= entries) {
    const uint4* const p = reinterpret_cast<const uint4*>(flag + group * kGroup);
    const uint4 v[2] = {p[0], p[1]};
    if ((v[0].x | v[0].y | v[0].z | v[0].w | v[1].x | v[1].y | v[1].z | v[1].w) == 0) return 0;
    const int8_t* const bytes = reinterpret_cast<const int8_t*>(v);
#pragma unroll
    for (int t = 0; t < kGroup; ++t) mask |= static_cast<unsigned>(bytes[t] != 0) << t;
  } else {
    for (int64_t t = group * kGroup; t < entries; ++t) mask |= static_cast<unsigned>(flag[t] != 0) << (t % kGroup);
  }
  return mask;
}

template <int kGroup>
__global__ void __launch_bounds__(kLanes) exact_matmul_kernel(const __grid_constant__ ExactJob job) {
  extern __shared__ int64_t shared[];  // [134][lane 32]
  constexpr int kAhead = 4;            // groups a lane reads at once, to hide the latency of the scan
  const int lane = threadIdx.x;
  const int64_t entries = job.shape.batch * job.shape.m * job.shape.n, warps = gridDim.x;
  const int64_t groups = (entries + kGroup - 1) / kGroup;
  bool cleared = false;
  for (int64_t base = blockIdx.x; base < groups; base += warps * kLanes * kAhead) {
    unsigned mask[kAhead];
#pragma unroll
    for (int h = 0; h < kAhead; ++h) {
      mask[h] = flags_of_group<kGroup>(job.flag, base + (lane + h * kLanes) * warps, entries);
    }
#pragma unroll
    for (int h = 0; h < kAhead; ++h) {
      for (unsigned owners; (owners = __ballot_sync(kAll, mask[h] != 0)) != 0;) {
        if (!cleared) {
          for (int t = 0; t < kExactWords; ++t) shared[t * kLanes + lane] = 0;
          __syncwarp();
          cleared = true;
        }
        const int owner = __ffs(owners) - 1;
        const int bit = __ffs(__shfl_sync(kAll, mask[h], owner)) - 1;
        exact_entry(job, (base + (owner + h * kLanes) * warps) * kGroup + bit, lane, shared);
        if (lane == owner) mask[h] &= mask[h] - 1;
      }
    }
  }
}

template <int kGroup>
cudaError_t launch_exact_matmul(cudaStream_t stream, const ExactJob& job, int64_t warps) {
  exact_matmul_kernel<kGroup><<<static_cast<unsigned>(warps), kLanes, kSharedBytes, stream>>>(job);
  return cudaGetLastError();
}

ffi::Error exact_matmul(cudaStream_t stream, int64_t lhs_limbs, int64_t rhs_limbs, ffi::RemainingArgs args,
                        ffi::RemainingRets rets) {
  ExactJob job;
  JAXMD_CHECK(exact_arguments(kName, lhs_limbs, rhs_limbs, args, rets, &job));
  const int64_t entries = job.shape.batch * job.shape.m * job.shape.n;
  if (entries == 0) return ffi::Error::Success();
  cudaError_t status = cudaSuccess;
  for (int i = 0; i < job.c.count && status == cudaSuccess; ++i) {
    if (job.c.limb[i] == job.given.limb[i]) continue;
    status = cudaMemcpyAsync(job.c.limb[i], job.given.limb[i], entries * sizeof(double), cudaMemcpyDeviceToDevice,
                             stream);
  }
  int device = 0, multiprocessors = 0;
  if (status == cudaSuccess) status = cudaGetDevice(&device);
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (status == cudaSuccess) {
    const int64_t most = int64_t{6} * multiprocessors - 1;  // odd
    const bool few = entries <= most * kLanes;
    const int64_t groups = few ? entries : (entries + 31) / 32;
    const int64_t warps = std::min(groups, most);
    const bool aligned = reinterpret_cast<uintptr_t>(job.flag) % 16 == 0;
    status = few || !aligned ? launch_exact_matmul<1>(stream, job, std::min(entries, most))
                             : launch_exact_matmul<32>(stream, job, warps);
  }
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string(kName) + ": " + cudaGetErrorString(status));
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_exact_matmul_cuda, exact_matmul,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Attr<int64_t>("lhs_limbs")
                                  .Attr<int64_t>("rhs_limbs")
                                  .RemainingArgs()
                                  .RemainingRets(),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace cuda
}  // namespace jaxmd
