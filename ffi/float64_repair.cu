// jaxmd_float64_repair on CUDA: entries of c = fl(A B) that overflowed or lost terms become exact sums, rounded.
//
//   repaired:  c_ij inf or nan;  or |c_ij| < 2^-900, if entries of A and B are so small that terms may have got lost:
//   the lowest exponents e of A and f of B, 0 if above it, have e + f < -900. And -0 becomes +0.
//
// Operands: a [.., m, k], b [.., k, n], then the limbs of c [.., m, n], which the results alias; scratch s32 [kBlocks]
//   for what blocks see in c, and [2 kBlocks] for the lowest exponents that they see in A and B.
// Three launches: `scan_kernel` looks at c, `lowest_kernel` at A and B, `repair_kernel` sums. The second and the third
//   end at once unless the first saw something. No host waits for that, and nothing has to be cleared before.
//   Never captured in a CUDA graph: to record it again whenever buffers have moved takes longer than these launches.
// Exact: exact.h. Terms that get lost make an entry wrong by less than k 2^-1074, which counts below 2^-900 only.
// Cost: one pass over c, and two launches of nothing.
#define JAXMD_ISA cuda

#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "exact_entry.cuh"
#include "exact_launch.cuh"
#include "product_args.h"

namespace jaxmd {
namespace cuda {
namespace {

namespace ffi = xla::ffi;

constexpr const char* kName = "jaxmd_float64_repair";
constexpr int kBlocks = 264, kThreads = 512;  // of the two kernels that look
constexpr int kTiny = -900;
enum Seen : int { kNothing = 0, kNotFinite = 1, kSmall = 2 };

struct RepairTask {
  ExactProduct product;
  int32_t *seen, *lowest;  // [kBlocks], [2][kBlocks]
  int64_t entries, entries_a, entries_b;
};

__device__ inline int seen_in(double x) {
  return !is_finite(x) ? kNotFinite : fabs(x) < 0x1p-900 ? kSmall : kNothing;
}

__global__ void __launch_bounds__(kThreads) scan_kernel(const __grid_constant__ RepairTask task) {
  constexpr int kAhead = 4;
  const int64_t threads = int64_t{kBlocks} * kThreads;
  double* const c = task.product.c.limb[0];
  int seen = kNothing;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < task.entries; i += kAhead * threads) {
    double x[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) x[u] = i + u * threads < task.entries ? c[i + u * threads] : 1.0;
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      seen |= seen_in(x[u]);
      if (x[u] == 0 && signbit(x[u])) c[i + u * threads] = 0.0;
    }
  }
  const int bad = __syncthreads_or(seen & kNotFinite), small = __syncthreads_or(seen & kSmall);
  if (threadIdx.x == 0) task.seen[blockIdx.x] = (bad != 0 ? kNotFinite : 0) | (small != 0 ? kSmall : 0);
}

// The least exponent e <= 0 with |x| < 2^e among nonzero finite x; 0 if there is none.
__device__ inline int lowest_exponent(double x) {
  if (x == 0 || !is_finite(x)) return 0;
  int e;
  frexp(x, &e);
  return min(e, 0);
}

__global__ void __launch_bounds__(kThreads) lowest_kernel(const __grid_constant__ RepairTask task) {
  __shared__ int lowest_of_warp[kThreads / 32];
  const int mine = threadIdx.x < kBlocks ? task.seen[threadIdx.x] : 0;
  if (__syncthreads_or(mine & kSmall) == 0) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int side = 0; side < 2; ++side) {
    const double* const x = (side == 0 ? task.product.a : task.product.b).limb[0];
    const int64_t entries = side == 0 ? task.entries_a : task.entries_b, step = int64_t{kBlocks} * kThreads;
    int lowest = 0;
#pragma unroll 4
    for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < entries; i += step) {
      lowest = min(lowest, lowest_exponent(__ldg(x + i)));
    }
    lowest = __reduce_min_sync(kAll, lowest);
    __syncthreads();
    if (lane == 0) lowest_of_warp[warp] = lowest;
    __syncthreads();
    if (threadIdx.x != 0) continue;
    for (int w = 1; w < kThreads / 32; ++w) lowest = min(lowest, lowest_of_warp[w]);
    task.lowest[side * kBlocks + blockIdx.x] = lowest;
  }
}

// What has to be repaired, by one warp.
__device__ inline int to_repair(const RepairTask& task, int lane) {
  int seen = kNothing;
#pragma unroll
  for (int i = 0; i < (kBlocks + 31) / 32; ++i) {
    if (i * 32 + lane < kBlocks) seen |= task.seen[i * 32 + lane];
  }
  seen = static_cast<int>(__reduce_or_sync(kAll, static_cast<unsigned>(seen)));
  if ((seen & kSmall) == 0) return seen;
  int lowest[2] = {0, 0};
  for (int side = 0; side < 2; ++side) {
    for (int i = lane; i < kBlocks; i += 32) lowest[side] = min(lowest[side], task.lowest[side * kBlocks + i]);
  }
  const bool lost = __reduce_min_sync(kAll, lowest[0]) + __reduce_min_sync(kAll, lowest[1]) < kTiny;
  return lost ? seen : seen & ~kSmall;
}

// A warp a block; warp w takes the 32 entries from 32 (w + W i) on, W odd.
__global__ void __launch_bounds__(kLanes) repair_kernel(const __grid_constant__ RepairTask task) {
  extern __shared__ int64_t shared[];  // [134][lane 32]
  const int lane = threadIdx.x;
  const int wanted = to_repair(task, lane);
  if (wanted == kNothing) return;
  for (int t = 0; t < kExactWords; ++t) shared[t * kLanes + lane] = 0;
  __syncwarp();
  for (int64_t base = blockIdx.x * int64_t{kLanes}; base < task.entries; base += gridDim.x * int64_t{kLanes}) {
    const bool mine = base + lane < task.entries && (seen_in(task.product.c.limb[0][base + lane]) & wanted) != 0;
    for (unsigned owners = __ballot_sync(kAll, mine); owners != 0; owners &= owners - 1) {
      exact_entry(task.product, base + __ffs(owners) - 1, lane, shared);
    }
  }
}

ffi::Error float64_repair(cudaStream_t stream, int64_t limbs, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  RepairTask task;
  ExactProduct& product = task.product;
  LimbPointers<const double> given;
  Dimensions a, b, c;
  JAXMD_CHECK(operand_limbs(kName, args, 0, 1, &a, &product.a));
  JAXMD_CHECK(operand_limbs(kName, args, 1, 1, &b, &product.b));
  JAXMD_CHECK(product_shape(kName, a, b, &product.shape));
  JAXMD_CHECK(operand_limbs(kName, args, 2, limbs, &c, &given));
  JAXMD_CHECK(expect_shape(kName, "c", c, a, a.size() - 2, {product.shape.m, product.shape.n}));
  product.c.count = static_cast<int>(limbs);
  for (int64_t i = 0; i < limbs; ++i) {
    auto limb = rets.get<ffi::Buffer<ffi::F64>>(i);
    if (limb.has_error()) return limb.error();
    JAXMD_CHECK(expect_shape(kName, "the result", (*limb)->dimensions(), c, c.size(), {}));
    product.c.limb[i] = (*limb)->typed_data();
  }
  auto seen = rets.get<ffi::Buffer<ffi::S32>>(limbs), lowest = rets.get<ffi::Buffer<ffi::S32>>(limbs + 1);
  if (seen.has_error()) return seen.error();
  if (lowest.has_error()) return lowest.error();
  JAXMD_CHECK(expect_shape(kName, "seen", (*seen)->dimensions(), c, 0, {kBlocks}));
  JAXMD_CHECK(expect_shape(kName, "lowest", (*lowest)->dimensions(), c, 0, {2, kBlocks}));
  task.seen = (*seen)->typed_data();
  task.lowest = (*lowest)->typed_data();
  const ProductShape& shape = product.shape;
  task.entries = shape.batch * shape.m * shape.n;
  task.entries_a = shape.batch * shape.m * shape.k;
  task.entries_b = shape.batch * shape.k * shape.n;
  if (task.entries == 0) return ffi::Error::Success();

  int64_t most;
  cudaError_t status = prepare_exact_sums(stream, product.c, given, task.entries, &most);
  if (status == cudaSuccess) {
    const int64_t warps = std::min(most, (task.entries + kLanes - 1) / kLanes);
    scan_kernel<<<kBlocks, kThreads, 0, stream>>>(task);
    lowest_kernel<<<kBlocks, kThreads, 0, stream>>>(task);
    repair_kernel<<<static_cast<unsigned>(warps), kLanes, kSharedBytes, stream>>>(task);
    status = cudaGetLastError();
  }
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string(kName) + ": " + cudaGetErrorString(status));
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_float64_repair_cuda, float64_repair,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Attr<int64_t>("limbs")
                                  .RemainingArgs()
                                  .RemainingRets());

}  // namespace cuda
}  // namespace jaxmd
