// jaxmd_certificate on CUDA: grids of both operands, and whether they are settled and magnitudes reach `bound`.
//
// Operands: limbs of A [.., m, k], then of B [.., k, n].
// Results: row s32 [.., m], column s32 [.., n], certified pred [], shift s32 [.., k] (zeros), and scratch: exponents of
//   slabs s32 [.., m, parts] and [.., parts, n], magnitudes s8 [.., m, kp] and [.., n, kp]; with kp = 0 the limbs need
//   only be settled.
// Two launches, grids with magnitudes and the least product, or three where k was cut in slabs, each while the one
// before it ends. Each kernel's header says what it computes; together they are `settled_exponents`, `shared_exponent`
// (jaxmd/_slices.py), `magnitudes` and `least` (jaxmd/_magnitudes.py).
// Never captured in a CUDA graph, and so the branch on its answer is not either: XLA records a graph again whenever its
//   buffers have moved, which takes longer than all the rest of a small product.
#define JAXMD_ISA cuda

#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "certificate_least.cuh"
#include "certificate_magnitudes.cuh"
#include "kernel_launch.cuh"
#include "product_args.h"

namespace jaxmd {
namespace cuda {
namespace {

namespace ffi = xla::ffi;

constexpr const char* kName = "jaxmd_certificate";

constexpr int64_t kGridBlocks = 128;  // of either operand: all of both are resident at once

// Warps a row: as few as make that many blocks, and no more than have four entries a lane.
int warps_of_row(int64_t rows, int64_t slab, int64_t parts) {
  int warps = 1;
  while (warps < kGridWarps && 128 * warps < slab && rows * warps * parts < kGridBlocks * kGridWarps) warps *= 2;
  return warps;
}

// Columns a block: as many as leave that many blocks, because longer pieces of a row come faster.
int columns_of_block(int64_t batch, int64_t columns) {
  int width = kMostColumns;
  while (width > 8 && batch * quotient(columns, width) < kGridBlocks) width /= 2;
  return width;
}

cudaError_t launch_grids(cudaStream_t stream, const GridTask& task) {
  const int limbs = std::max(task.a.x.count, task.b.x.count);
  const auto kernel = limbs == 1   ? grids_kernel<1>
                      : limbs == 2 ? grids_kernel<2>
                      : limbs <= 4 ? grids_kernel<4>
                      : limbs <= 8 ? grids_kernel<8>
                                   : grids_kernel<kMaxProductLimbs>;
  if (task.kp == 0) {
    const cudaError_t status = cudaMemsetAsync(task.certified, 1, 1, stream);
    if (status != cudaSuccess) return status;
  }
  const unsigned blocks = std::max(1u, task.a.blocks * task.a.parts + task.b.blocks * task.b.parts);
  const cudaError_t status = launch_early(stream, kernel, blocks, kGridThreads, 0, task);
  if (status != cudaSuccess) return status;
  const unsigned rows = task.a.parts > 1 ? task.a.blocks : 0, columns = task.b.parts > 1 ? task.b.blocks : 0;
  if (rows + columns == 0) return cudaSuccess;
  return launch_early(stream, combine_kernel, rows + columns, kGridThreads, 0, task, rows);
}

// A block walks over so many tiles that two blocks a multiprocessor remain.
cudaError_t launch_least(cudaStream_t stream, LeastTask task, int64_t batch) {
  constexpr int64_t kBlocks = 264, kMost = 65535;
  const bool narrow = task.kp <= 256;
  const auto kernel = narrow ? least_kernel<8> : least_kernel<16>;
  const int64_t tiles = quotient(task.n, narrow ? kLeastColumns<8> : kLeastColumns<16>);
  const int64_t rows = quotient(task.m, kLeastRows);
  task.tiles = std::clamp<int64_t>(tiles * rows * batch / kBlocks, 1, 64);
  for (int64_t z = 0; z < batch; z += kMost) {
    for (int64_t y = 0; y < rows; y += kMost) {
      LeastTask part = task;
      part.u += (z * task.m + y * kLeastRows) * task.kp;
      part.v += z * task.n * task.kp;
      part.m -= y * kLeastRows;
      const dim3 grid(static_cast<unsigned>(quotient(tiles, task.tiles)),
                      static_cast<unsigned>(std::min(kMost, rows - y)),
                      static_cast<unsigned>(std::min(kMost, batch - z)));
      const cudaError_t status = launch_early(stream, kernel, grid, kLeastThreads, 0, part);
      if (status != cudaSuccess) return status;
    }
  }
  return cudaSuccess;
}

ffi::Error certificate(cudaStream_t stream, int64_t lhs_limbs, int64_t bound, ffi::RemainingArgs args,
                       ffi::Result<ffi::Buffer<ffi::S32>> row,
                       ffi::Result<ffi::Buffer<ffi::S32>> column, ffi::Result<ffi::Buffer<ffi::PRED>> certified,
                       ffi::Result<ffi::Buffer<ffi::S32>> shift, ffi::Result<ffi::Buffer<ffi::S32>> part_a,
                       ffi::Result<ffi::Buffer<ffi::S32>> part_b, ffi::Result<ffi::Buffer<ffi::S8>> u,
                       ffi::Result<ffi::Buffer<ffi::S8>> v) {
  GridTask grids;
  Dimensions a, b;
  ProductShape shape;
  const int64_t rhs_limbs = static_cast<int64_t>(args.size()) - lhs_limbs;
  JAXMD_CHECK(operand_limbs(kName, args, 0, lhs_limbs, &a, &grids.a.x));
  JAXMD_CHECK(operand_limbs(kName, args, lhs_limbs, rhs_limbs, &b, &grids.b.x));
  JAXMD_CHECK(product_shape(kName, a, b, &shape));
  const size_t keep = a.size() - 2;
  const int64_t kp = u->dimensions().size() == a.size() ? u->dimensions()[keep + 1] : 0;
  const int64_t parts_a = part_a->dimensions().size() == a.size() ? part_a->dimensions()[keep + 1] : 0;
  const int64_t parts_b = part_b->dimensions().size() == a.size() ? part_b->dimensions()[keep] : 0;
  if (kp % 32 != 0 || kp > kMostMagnitudes || parts_a < 1 || parts_b < 1) {
    return invalid(kName, "scratch has " + std::to_string(kp) + " magnitudes, " + std::to_string(parts_a) + " and " +
                              std::to_string(parts_b) + " slabs; wanted a multiple of 32 up to 512, and 1 or more.");
  }
  JAXMD_CHECK(expect_shape(kName, "row", row->dimensions(), a, keep, {shape.m}));
  JAXMD_CHECK(expect_shape(kName, "column", column->dimensions(), a, keep, {shape.n}));
  JAXMD_CHECK(expect_shape(kName, "certified", certified->dimensions(), a, 0, {}));
  JAXMD_CHECK(expect_shape(kName, "shift", shift->dimensions(), a, keep, {shape.k}));
  JAXMD_CHECK(expect_shape(kName, "part_a", part_a->dimensions(), a, keep, {shape.m, parts_a}));
  JAXMD_CHECK(expect_shape(kName, "part_b", part_b->dimensions(), a, keep, {parts_b, shape.n}));
  JAXMD_CHECK(expect_shape(kName, "u", u->dimensions(), a, keep, {shape.m, kp}));
  JAXMD_CHECK(expect_shape(kName, "v", v->dimensions(), a, keep, {shape.n, kp}));

  grids.certified = certified->typed_data();
  grids.shift = shift->typed_data();
  grids.batch = shape.batch;
  grids.k = shape.k;
  grids.kp = static_cast<int>(kp);
  grids.a.part = part_a->typed_data();
  grids.a.exponent = row->typed_data();
  grids.a.out = u->typed_data();
  grids.a.rows = shape.m;
  grids.a.parts = static_cast<unsigned>(parts_a);
  grids.a.slab = quotient(shape.k, parts_a);
  grids.a.width = warps_of_row(shape.batch * shape.m, grids.a.slab, parts_a);
  grids.a.blocks = static_cast<unsigned>(quotient(shape.batch * shape.m, kGridWarps / grids.a.width));
  grids.b.part = part_b->typed_data();
  grids.b.exponent = column->typed_data();
  grids.b.out = v->typed_data();
  grids.b.rows = shape.n;
  grids.b.parts = static_cast<unsigned>(parts_b);
  grids.b.slab = quotient(shape.k, parts_b);
  grids.b.width = columns_of_block(shape.batch, shape.n);
  grids.b.groups = static_cast<unsigned>(quotient(shape.n, grids.b.width));
  grids.b.blocks = static_cast<unsigned>(shape.batch * grids.b.groups);

  cudaError_t status = launch_grids(stream, grids);
  if (status == cudaSuccess && kp * shape.batch * shape.m * shape.n > 0) {
    status = launch_least(stream, {u->typed_data(), v->typed_data(), certified->typed_data(), shape.m, shape.n, 1,
                                   static_cast<int>(kp), static_cast<int>(bound)}, shape.batch);
  }
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string(kName) + ": " + cudaGetErrorString(status));
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_certificate_cuda, certificate,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Attr<int64_t>("lhs_limbs")
                                  .Attr<int64_t>("bound")
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::PRED>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S8>>()
                                  .Ret<ffi::Buffer<ffi::S8>>());

}  // namespace cuda
}  // namespace jaxmd
