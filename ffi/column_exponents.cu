// jaxmd_column_exponents on CUDA: f_j = the largest of settled_exponents (jaxmd/_slices.py) in column j of B.
//
// Shapes: limbs [.., k, n], result s32 [.., n]; below kZeroExponent where a column holds zeros only.
// Tiling: a lane has a column, a block 32 of them in a slab of kSlab rows, its warps every eighth row; then the warps'
//   maxima meet in shared memory, and the slabs' in global memory by atomicMax, whose order does not matter.
// Exact: integers, from the bits of the limbs.
// Cost: one pass over B at the speed of memory. XLA writes the exponents of all entries first, which takes twice as long.
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "product_args.h"

namespace jaxmd {
namespace {

namespace ffi = xla::ffi;

constexpr const char* kName = "jaxmd_column_exponents";
constexpr int kZeroExponent = -16384, kUnsettled = 16384;
constexpr int kWarps = 8, kSlab = 256;  // rows

struct ColumnTask {
  LimbPointers<const double> x;
  int32_t* exponent;
  int64_t batch, k, n;
};

__device__ bool nonzero(uint64_t bits) { return bits << 1 != 0; }

// Whether a limb y after x settles x: half the distance to the next number bounds it.
__device__ bool settles(uint64_t x, uint64_t y, bool last) {
  constexpr uint64_t kFraction = (uint64_t{1} << 52) - 1;
  const int ex = static_cast<int>(x >> 52) & 0x7ff, ey = static_cast<int>(y >> 52) & 0x7ff;
  int gap = (x & kFraction) == 0 && ((x ^ y) >> 63) != 0 ? 55 : 54;
  if (last && (y & kFraction) == 0 && (x & 1) == 0) --gap;
  return ey + gap <= ex || !nonzero(y);
}

__device__ int exponent_of(uint64_t x, uint64_t next) {
  const int biased = static_cast<int>(x >> 52) & 0x7ff;
  const uint64_t fraction = x & ((uint64_t{1} << 52) - 1);
  if (!nonzero(x)) return kZeroExponent;
  if (biased == 0) return 64 - __clzll(static_cast<long long>(fraction)) - 1074;
  return biased - 1022 - (fraction == 0 && nonzero(next) && ((x ^ next) >> 63) != 0 ? 1 : 0);
}

// kLimbs, or 0 for any count.
template <int kLimbs>
__device__ int largest_in_slab(const ColumnTask& task, int64_t batch, int64_t first, int64_t j) {
  const int count = kLimbs == 0 ? task.x.count : kLimbs;
  const int64_t end = min(task.k, first / kSlab * kSlab + kSlab);
  int best = 2 * kZeroExponent;
#pragma unroll 4
  for (int64_t l = first; l < end; l += kWarps) {
    const int64_t at = (batch * task.k + l) * task.n + j;
    const auto limb = [&](int i) { return static_cast<uint64_t>(__double_as_longlong(task.x.limb[i][at])); };
    uint64_t x = limb(0), next = count > 1 ? limb(1) : 0;
    const int e = exponent_of(x, next);
    bool settled = (x >> 52 & 0x7ff) != 0x7ff;
#pragma unroll
    for (int i = 1; i < count; ++i) {
      settled &= settles(x, next, i + 1 == count);
      x = next;
      if (i + 1 < count) next = limb(i + 1);
    }
    best = max(best, settled ? e : kUnsettled);
  }
  return best;
}

template <int kLimbs>
__global__ void __launch_bounds__(32 * kWarps) column_exponents_kernel(const __grid_constant__ ColumnTask task) {
  __shared__ int best_of_warp[kWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t j = blockIdx.x * int64_t{32} + lane;
  for (int64_t batch = blockIdx.z; batch < task.batch; batch += gridDim.z) {
    for (int64_t slab = blockIdx.y; slab * kSlab < task.k; slab += gridDim.y) {
      int best = j < task.n ? largest_in_slab<kLimbs>(task, batch, slab * kSlab + warp, j) : 0;
      __syncthreads();  // warp 0 may still read what the slab before left
      best_of_warp[warp][lane] = best;
      __syncthreads();
      if (warp != 0 || j >= task.n) continue;
#pragma unroll
      for (int w = 1; w < kWarps; ++w) best = max(best, best_of_warp[w][lane]);
      atomicMax(task.exponent + batch * task.n + j, best);
    }
  }
}

ffi::Error column_exponents(cudaStream_t stream, ffi::RemainingArgs args, ffi::ResultBuffer<ffi::S32> result) {
  ColumnTask task;
  Dimensions shape;
  JAXMD_CHECK(operand_limbs(kName, args, 0, static_cast<int64_t>(args.size()), &shape, &task.x));
  if (shape.size() < 2) return invalid(kName, "limbs have shape " + shape_text(shape) + "; wanted (.., k, n).");
  task.k = shape[shape.size() - 2];
  task.n = shape[shape.size() - 1];
  JAXMD_CHECK(expect_shape(kName, "the result", result->dimensions(), shape, shape.size() - 2, {task.n}));
  task.exponent = result->typed_data();
  const int64_t columns = static_cast<int64_t>(result->element_count());
  if (columns == 0) return ffi::Error::Success();
  task.batch = columns / task.n;
  // 0x80808080 is below every exponent
  cudaError_t status = cudaMemsetAsync(task.exponent, 0x80, columns * sizeof(int32_t), stream);
  if (status == cudaSuccess && task.k > 0) {
    constexpr int64_t kMost = 65535;  // of the grid's second and third dimension
    const dim3 grid(static_cast<unsigned>((task.n + 31) / 32),
                    static_cast<unsigned>(std::min(kMost, (task.k + kSlab - 1) / kSlab)),
                    static_cast<unsigned>(std::min(kMost, task.batch)));
    const auto kernel = task.x.count == 1   ? column_exponents_kernel<1>
                        : task.x.count == 2 ? column_exponents_kernel<2>
                        : task.x.count == 4 ? column_exponents_kernel<4>
                                            : column_exponents_kernel<0>;
    kernel<<<grid, 32 * kWarps, 0, stream>>>(task);
    status = cudaGetLastError();
  }
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string(kName) + ": " + cudaGetErrorString(status));
}

}  // namespace
}  // namespace jaxmd

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_column_exponents_cuda, jaxmd::column_exponents,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()
                                  .RemainingArgs()
                                  .Ret<xla::ffi::Buffer<xla::ffi::S32>>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
