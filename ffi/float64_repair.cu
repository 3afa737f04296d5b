// jaxmd_float64_repair on CUDA: entries of c = fl(A B) that overflowed or lost terms become exact sums, rounded.
//
//   repaired:  c_ij inf or nan;  or |c_ij| < 2^-900, if terms may have got lost: the lowest exponents e of A and f of
//   B, 0 if above it, have e + f < -900; a few such entries in any case. And -0 becomes +0.
//
// Operands: a [.., m, k], b [.., k, n], then the limbs of c [.., m, n], which the results alias.
// One launch, made for the common case: a block on each multiprocessor with all its loads in flight (n = 1024: one
//   round of them); one that sees nothing ends without having written a byte. On Hopper and later it is launched while
//   the product still ends, and waits for that on the GPU. A second launch, for what the first may have seen, would
//   cost every product a microsecond; so would a barrier or a count of the blocks that are done.
// Tiling: units of 64 entries, unit u to block u mod W, W odd, so that a row or a column of entries to repair spreads
//   over many blocks. A block that saw something repairs its own share, a warp an entry (exact_entry.cuh).
// The question about A and B takes one pass over both. No block should make it alone, and none can wait for others,
//   which may not run yet. So those that ask help each other: A and B are cut into at most 512 slices; a block looks
//   which answers are there, works on slices without one, the first of them its own, and leaves the answers for all.
//   Two that work on one slice find the same. If all blocks ask (a triangular factor, the identity), each has a few
//   slices to read; if one does, it reads all of them.
//   Answers lie in the module, marked with the number of the call: those of other calls are of no use and do no harm.
//   So nothing has to be cleared, and streams may run this side by side.
// Never captured in a CUDA graph, which would repeat the number of the call; and to record it again whenever buffers
//   have moved takes longer than the launch.
// Exact: exact.h. Terms that get lost make an entry wrong by less than k 2^-1074, which counts below 2^-900 only.
// Cost: one pass over c.
#define JAXMD_ISA cuda

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "exact_entry.cuh"
#include "exact_launch.cuh"
#include "kernel_launch.cuh"
#include "product_args.h"

namespace jaxmd {
namespace cuda {
namespace {

namespace ffi = xla::ffi;

constexpr const char* kName = "jaxmd_float64_repair";
constexpr int kThreads = 512, kWarps = kThreads / kLanes;
constexpr int kMostWarps = 6;      // of a block, that sum exactly
constexpr int kUnit = 2 * kLanes;  // entries that a warp reads with one load
constexpr int kAhead = 8;          // such loads in flight
constexpr int kFew = 16;           // small entries of a block that are not worth a question
constexpr int kTiny = -900;
constexpr int kSlices = kThreads;
constexpr int64_t kLeastSlice = 8 * kThreads;

struct RepairTask {
  ExactProduct product;
  int64_t entries, entries_a, entries_b;
  int64_t slice;         // entries of a slice; slices of A come first
  int slices_a, slices;  // of A; of A and B
  int warps;             // of a block, that sum exactly
  uint64_t call;
};

// Lowest exponent of each slice: call · 2^11 − exponent.
constexpr int kExponentBits = 11;
__device__ uint64_t lowest_of_slice[kSlices];

__device__ inline bool is_small(double x) { return fabs(x) < 0x1p-900; }

// At least kOdd for what this kernel is about, at least kOddAndSmall if |x| < 2^-900, from the upper half of x.
constexpr unsigned kOdd = (0x7ffu << 20) - (static_cast<unsigned>(kTiny + 1023) << 20), kOddAndSmall = 1u << 31;
__device__ inline unsigned oddness(double x) {
  return (static_cast<unsigned>(__double2hiint(x)) & 0x7fffffffu) - (static_cast<unsigned>(kTiny + 1023) << 20);
}

// use(unit, x) for kGroup units at a time, unit, unit + step, …: the lane's entries of unit + u·step are x[2 u] and
// x[2 u + 1], 1.0 beyond the last.
constexpr int kGroup = 4;
template <class Use>
__device__ inline void for_units(const RepairTask& task, int64_t unit, int64_t step, Use use) {
  const double* const c = task.product.c.limb[0];
  for (; unit * kUnit < task.entries; unit += kGroup * step) {
    double x[2 * kGroup];
#pragma unroll
    for (int t = 0; t < 2 * kGroup; ++t) {
      const int64_t i = (unit + t / 2 * step) * kUnit + 2 * (threadIdx.x % kLanes) + t % 2;
      x[t] = i < task.entries ? c[i] : 1.0;
    }
    use(unit, x);
  }
}

// The least exponent e <= 0 with |x| < 2^e among nonzero x of a slice, by `threads` threads; 0 if there is none.
__device__ inline int lowest_exponent(const RepairTask& task, int slice, int thread, int threads) {
  constexpr int kLoads = 8;
  const bool of_b = slice >= task.slices_a;
  const double* const x = (of_b ? task.product.b : task.product.a).limb[0];
  const int64_t begin = (slice - (of_b ? task.slices_a : 0)) * task.slice;
  const int64_t end = min(begin + task.slice, of_b ? task.entries_b : task.entries_a);
  uint64_t least = bits_of(1.0) - 1;  // |x| as an integer, less one: zero is the largest
  for (int64_t i = begin + thread; i < end; i += kLoads * threads) {
    double value[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) value[u] = i + u * threads < end ? __ldg(x + i + u * threads) : 0.0;
#pragma unroll
    for (int u = 0; u < kLoads; ++u) least = min(least, (bits_of(value[u]) & ~(uint64_t{1} << 63)) - 1);
  }
  int e;
  frexp(from_bits(least + 1), &e);
  return min(e, 0);
}

// Whether terms of the product may have got lost, by the whole block.
__device__ inline bool may_have_lost(const RepairTask& task) {
  __shared__ int chosen[kWarps], counted[kWarps], lowest[2][kWarps];
  volatile uint64_t* const answers = lowest_of_slice;
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  // A thread minds a slice, the first thread the first of the slices that are the block's own.
  const int first = static_cast<int>(int64_t{blockIdx.x} * task.slices / gridDim.x);
  const int slice = (first + static_cast<int>(threadIdx.x)) % task.slices;
  const bool minds = threadIdx.x < task.slices;
  int answer = minds ? 1 : 0;  // 1: not known
  for (int at_once = 2;; at_once = min(2 * at_once, kWarps)) {
    if (answer > 0) {
      const uint64_t word = answers[slice];
      if (word >> kExponentBits == task.call) answer = -static_cast<int>(word & ((1u << kExponentBits) - 1));
    }
    const unsigned unknown = __ballot_sync(kAll, answer > 0);
    if (lane == 0) counted[warp] = __popc(unknown);
    __syncthreads();
    int rank = __popc(unknown & ((1u << lane) - 1)), all = 0;
    for (int w = 0; w < kWarps; ++w) {
      rank += w < warp ? counted[w] : 0;
      all += counted[w];
    }
    if (all == 0) break;
    if (answer > 0 && rank < at_once) chosen[rank] = slice;
    __syncthreads();
    const int warps = kWarps / at_once, group = warp / warps;  // for a slice
    const bool works = group < all;
    if (works) {
      const int mine = lowest_exponent(task, chosen[group], threadIdx.x % (warps * kLanes), warps * kLanes);
      const int least = __reduce_min_sync(kAll, mine);
      if (lane == 0) lowest[0][warp] = least;
    }
    __syncthreads();
    if (works && threadIdx.x % (warps * kLanes) == 0) {
      int least = 0;
      for (int w = 0; w < warps; ++w) least = min(least, lowest[0][warp + w]);
      answers[chosen[group]] = task.call << kExponentBits | static_cast<unsigned>(-least);
    }
    __syncthreads();
  }
  const bool of_b = slice >= task.slices_a;
  for (int side = 0; side < 2; ++side) {
    const int least = __reduce_min_sync(kAll, minds && of_b == (side == 1) ? answer : 0);
    if (lane == 0) lowest[side][warp] = least;
  }
  __syncthreads();
  int least[2] = {0, 0};
  for (int w = 0; w < kWarps; ++w) {
    for (int side = 0; side < 2; ++side) least[side] = min(least[side], lowest[side][w]);
  }
  return least[0] + least[1] < kTiny;
}

// What a block does that saw something; `asks` if it is to help with the answer, whatever its share.
__device__ __noinline__ void repair_share(const RepairTask& task, bool asks, int64_t* shared) {
  __shared__ int counted[kWarps];
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int64_t blocks = gridDim.x, block = blockIdx.x;
  double* const c = task.product.c.limb[0];
  int small = 0;
  for_units(task, warp * blocks + block, kWarps * blocks, [&](int64_t unit, const double* x) {
#pragma unroll
    for (int t = 0; t < 2 * kGroup; ++t) {
      small += is_small(x[t]);
      if (x[t] == 0 && signbit(x[t])) c[(unit + t / 2 * kWarps * blocks) * kUnit + 2 * lane + t % 2] = 0.0;
    }
  });
  small = __reduce_add_sync(kAll, small);
  if (lane == 0) counted[warp] = small;
  __syncthreads();
  int all = 0;
  for (int w = 0; w < kWarps; ++w) all += counted[w];
  const bool lost = (asks || all > kFew) && may_have_lost(task);
  if (warp >= task.warps) return;

  const bool with_small = lost || all <= kFew;
  int64_t* const words = shared + warp * kExactWords * kLanes;
  for (int t = 0; t < kExactWords; ++t) words[t * kLanes + lane] = 0;
  __syncwarp();
  for_units(task, block, blocks, [&](int64_t unit, const double* x) {
    unsigned mine = 0;
#pragma unroll
    for (int t = 0; t < 2 * kGroup; ++t) {
      mine |= static_cast<unsigned>(!is_finite(x[t]) || (with_small && is_small(x[t]))) << t;
    }
    if (lane % task.warps != warp) mine = 0;
    for (int t = 0; t < 2 * kGroup; ++t) {
      for (unsigned owners = __ballot_sync(kAll, mine >> t & 1); owners != 0; owners &= owners - 1) {
        const int64_t entry = (unit + t / 2 * blocks) * kUnit + 2 * (__ffs(owners) - 1) + t % 2;
        exact_entry(task.product, entry, lane, words);
      }
    }
  });
}

__global__ void __launch_bounds__(kThreads) repair_kernel(const __grid_constant__ RepairTask task) {
  extern __shared__ int64_t shared[];  // [warps][134][lane 32]
  wait_for_earlier_kernels();
  // Of a small product every block looks at all entries, so that all of them help to read A and B, however deep.
  const bool whole = task.entries <= kWarps * kAhead * kUnit;
  const int blocks = whole ? 1 : gridDim.x, block = whole ? 0 : blockIdx.x;
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes, units = static_cast<int>(task.entries / kUnit);
  const double* const c = task.product.c.limb[0];
  unsigned most = 0;
  for (int unit = warp * blocks + block; unit < units; unit += kAhead * kWarps * blocks) {
    double2 x[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int64_t at = min(unit + u * kWarps * blocks, units - 1);
      x[u] = reinterpret_cast<const double2*>(c)[at * kLanes + lane];
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) most = max(most, max(oddness(x[u].x), oddness(x[u].y)));
  }
  const int64_t last = int64_t{units} * kUnit + threadIdx.x;  // of an incomplete unit
  if (last < task.entries && units % blocks == block) most = max(most, oddness(c[last]));

  if (__syncthreads_or(most >= kOdd) == 0) return;
  repair_share(task, whole && __syncthreads_or(most >= kOddAndSmall) != 0, shared);
}

cudaError_t launch(cudaStream_t stream, RepairTask& task) {
  static KernelOnDevices kernel(reinterpret_cast<const void*>(repair_kernel));
  static std::atomic<uint64_t> calls{0};
  int ordinal;
  const DeviceLimits& device = current_device(&ordinal);
  if (device.status != cudaSuccess) return device.status;
  cudaFuncAttributes attributes;
  const cudaError_t status = kernel.prepare(ordinal, device, &attributes);
  if (status != cudaSuccess) return status;

  const ProductShape& shape = task.product.shape;
  task.entries_a = shape.batch * shape.m * shape.k;
  task.entries_b = shape.batch * shape.k * shape.n;
  task.slice = std::max(kLeastSlice, quotient(task.entries_a + task.entries_b, kSlices - 2));
  task.slices_a = static_cast<int>(quotient(task.entries_a, task.slice));
  task.slices = std::max(1, task.slices_a + static_cast<int>(quotient(task.entries_b, task.slice)));
  const int room = device.shared - static_cast<int>(attributes.sharedSizeBytes);
  task.warps = std::max(1, std::min(kMostWarps, room / kSharedBytes));
  task.call = ++calls;

  const int64_t most = (device.multiprocessors - 1) | 1;  // odd
  const int64_t wanted = std::max(quotient(task.entries, kUnit), int64_t{task.slices});
  const unsigned blocks = static_cast<unsigned>(std::min(most, wanted));
  return launch_early(stream, repair_kernel, blocks, kThreads, task.warps * kSharedBytes, task);
}

ffi::Error float64_repair(cudaStream_t stream, int64_t limbs, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  RepairTask task;
  ExactProduct& product = task.product;
  LimbPointers<const double> given;
  Dimensions a, b, c, result;
  JAXMD_CHECK(operand_limbs(kName, args, 0, 1, &a, &product.a));
  JAXMD_CHECK(operand_limbs(kName, args, 1, 1, &b, &product.b));
  JAXMD_CHECK(product_shape(kName, a, b, &product.shape));
  JAXMD_CHECK(operand_limbs(kName, args, 2, limbs, &c, &given));
  JAXMD_CHECK(expect_shape(kName, "c", c, a, a.size() - 2, {product.shape.m, product.shape.n}));
  JAXMD_CHECK(result_limbs(kName, rets, &result, &product.c));
  JAXMD_CHECK(expect_shape(kName, "the result", result, c, c.size(), {}));
  if (product.c.count != given.count) return invalid(kName, "as many limbs of c as results are wanted.");
  task.entries = product.shape.batch * product.shape.m * product.shape.n;
  if (task.entries == 0) return ffi::Error::Success();
  if (reinterpret_cast<uintptr_t>(product.c.limb[0]) % 16 != 0) return invalid(kName, "c is not aligned to 16 bytes.");
  cudaError_t status = copy_given_limbs(stream, product.c, given, task.entries);
  if (status == cudaSuccess) status = launch(stream, task);
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
