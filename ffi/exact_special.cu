// jaxmd_exact_special on CUDA: C_ij = Σ_l a_il·b_lj by the rules of IEEE 754 where inf or nan is in row i or column j.
//
// Operands: a [.., m, k], b [.., k, n], exponents of rows s32 [.., m] and columns s32 [.., n], kUnsettled where they hold
//   inf or nan, pred [] whether none does, and limbs of c [.., m, n]. Results alias c.
// Tiling: a warp an entry (exact_entry.cuh), a block of one warp. All warps look through the exponents and share the
//   entries of a row or column that they find among them, one in gridDim.x each.
// Exact: exact.h.
// Cost: nothing but the launch where there is neither inf nor nan. Never captured in a CUDA graph: see exact.cu.
#define JAXMD_ISA cuda

#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "exact_entry.cuh"
#include "exact_launch.cuh"
#include "kernel_launch.cuh"
#include "product_args.h"
#include "settled.h"

namespace jaxmd {
namespace cuda {
namespace {

namespace ffi = xla::ffi;

constexpr const char* kName = "jaxmd_exact_special";

struct SpecialTask {
  ExactProduct product;
  const int32_t *row, *column;
  const bool* settled;
};

// visit(q) for all q < count with exponent[q] = kUnsettled, by all lanes together.
template <class Visit>
__device__ inline void each_unsettled(const int32_t* exponent, int64_t count, int lane, const Visit& visit) {
  constexpr int kAhead = 8;
  for (int64_t base = 0; base < count; base += kAhead * kLanes) {
    unsigned mask = 0;
#pragma unroll
    for (int h = 0; h < kAhead; ++h) {
      const int64_t at = base + h * kLanes + lane;
      mask |= static_cast<unsigned>(at < count && __ldg(exponent + at) == kUnsettled) << h;
    }
#pragma unroll 1
    for (unsigned owners; (owners = __ballot_sync(kAll, mask != 0)) != 0;) {
      const int owner = __ffs(owners) - 1;
      visit(base + (__ffs(__shfl_sync(kAll, mask, owner)) - 1) * kLanes + owner);
      if (lane == owner) mask &= mask - 1;
    }
  }
}

// The first of the numbers that are this warp's when number 0 is that of warp `start`, modulo all warps.
__device__ inline int64_t first_of_warp(int64_t start) {
  const int64_t warps = gridDim.x;
  return (blockIdx.x + warps - start % warps) % warps;
}

__global__ void __launch_bounds__(kLanes) special_kernel(const __grid_constant__ SpecialTask task) {
  extern __shared__ int64_t shared[];  // [134][lane 32]
  wait_for_earlier_kernels();
  if (*task.settled) return;
  const ProductShape& s = task.product.shape;
  const int lane = threadIdx.x;
  const int64_t warps = gridDim.x;
  for (int t = 0; t < kExactWords; ++t) shared[t * kLanes + lane] = 0;
  __syncwarp();
  each_unsettled(task.row, s.batch * s.m, lane, [&](int64_t i) {
    for (int64_t j = first_of_warp(i * s.n); j < s.n; j += warps) exact_entry(task.product, i * s.n + j, lane, shared);
  });
  each_unsettled(task.column, s.batch * s.n, lane, [&](int64_t column) {
    const int64_t batch = column / s.n, j = column % s.n;
    for (int64_t i = first_of_warp(column); i < s.m; i += warps) {
      if (task.row[batch * s.m + i] == kUnsettled) continue;  // done with its row
      exact_entry(task.product, (batch * s.m + i) * s.n + j, lane, shared);
    }
  });
}

ffi::Error exact_special(cudaStream_t stream, ffi::Buffer<ffi::F64> a, ffi::Buffer<ffi::F64> b,
                         ffi::Buffer<ffi::S32> row, ffi::Buffer<ffi::S32> column, ffi::Buffer<ffi::PRED> settled,
                         ffi::RemainingArgs args, ffi::RemainingRets rets) {
  SpecialTask task;
  ExactProduct& product = task.product;
  LimbPointers<const double> given;
  Dimensions c, results;
  const Dimensions shape = a.dimensions();
  JAXMD_CHECK(product_shape(kName, shape, b.dimensions(), &product.shape));
  JAXMD_CHECK(result_limbs(kName, rets, &results, &product.c));
  JAXMD_CHECK(operand_limbs(kName, args, 0, product.c.count, &c, &given));
  const ProductShape& s = product.shape;
  const size_t keep = shape.size() - 2;
  JAXMD_CHECK(expect_shape(kName, "row", row.dimensions(), shape, keep, {s.m}));
  JAXMD_CHECK(expect_shape(kName, "column", column.dimensions(), shape, keep, {s.n}));
  JAXMD_CHECK(expect_shape(kName, "settled", settled.dimensions(), shape, 0, {}));
  JAXMD_CHECK(expect_shape(kName, "c", c, shape, keep, {s.m, s.n}));
  JAXMD_CHECK(expect_shape(kName, "the result", results, shape, keep, {s.m, s.n}));
  product.a.count = product.b.count = 1;
  product.a.limb[0] = a.typed_data();
  product.b.limb[0] = b.typed_data();
  task.row = row.typed_data();
  task.column = column.typed_data();
  task.settled = settled.typed_data();
  const int64_t entries = s.batch * s.m * s.n;
  if (entries == 0) return ffi::Error::Success();

  int ordinal;
  const DeviceLimits& device = current_device(&ordinal);
  cudaError_t status = device.status;
  if (status == cudaSuccess) status = copy_given_limbs(stream, product.c, given, entries);
  if (status == cudaSuccess) {
    const int64_t most = int64_t{6} * device.multiprocessors - 1;
    const dim3 grid(static_cast<unsigned>(std::min(most, entries)));
    status = launch_early(stream, special_kernel, grid, kLanes, kSharedBytes, task);
  }
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string(kName) + ": " + cudaGetErrorString(status));
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_exact_special_cuda, exact_special,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .RemainingArgs()
                                  .RemainingRets());

}  // namespace cuda
}  // namespace jaxmd
