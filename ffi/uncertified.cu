// jaxmd_uncertified on CUDA: the entries of a product in residues for which its words may be too short.
//
// Operands: leading limbs of A [.., m, k] and B [.., k, n], grids s32 [.., m] and [.., n].
// Attributes: factor f64, by which the terms of an entry are multiplied for the least magnitude that is certified;
//   most, the count beyond which flags need not be right.
// Results: flags s8 [.., m, n]; count s64 [], how many, or kUnsure and more where that is not sure; scratch: bfloat16
//   magnitudes u16 [.., m, kp] and [.., kp, np], terms s32 [.., m] and [.., n].
// Two launches and two clears: magnitudes (uncertified_magnitudes.cuh), then their product (uncertified_product.cuh);
// `uncertified` of jaxmd/_magnitudes.py says why that is enough. Never captured in a CUDA graph: see certificate.cu.
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "product_args.h"
#include "uncertified_magnitudes.cuh"
#include "uncertified_product.cuh"

namespace jaxmd {
namespace cuda {
namespace {

namespace ffi = xla::ffi;

constexpr const char* kName = "jaxmd_uncertified";

cudaError_t launch_halves(cudaStream_t stream, const HalfTask& task) {
  const int64_t blocks_b = task.batch * quotient(task.np, 64) * quotient(task.kp, kHalfSlab);
  halves_kernel<<<static_cast<unsigned>(task.blocks_a + blocks_b), kHalfThreads, 0, stream>>>(task);
  return cudaGetLastError();
}

cudaError_t launch_flags(cudaStream_t stream, const FlagTask& task, int64_t batch) {
  constexpr int64_t kMost = 65535;
  const cudaError_t allowed =  // asked of each device
      cudaFuncSetAttribute(flags_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kFlagShared);
  if (allowed != cudaSuccess) return allowed;
  const int64_t rows = quotient(task.m, kFlagTile);
  for (int64_t z = 0; z < batch; z += kMost) {
    for (int64_t i = 0; i < rows; i += kMost) {
      FlagTask part = task;
      part.x += (z * task.m + i * kFlagTile) * task.kp;
      part.y += z * task.kp * task.np;
      part.terms_a += z * task.m + i * kFlagTile;
      part.terms_b += z * task.n;
      part.flag += (z * task.m + i * kFlagTile) * task.n;
      part.m = task.m - i * kFlagTile;
      const dim3 grid(static_cast<unsigned>(quotient(task.n, kFlagTile)),
                      static_cast<unsigned>(std::min(kMost, rows - i)),
                      static_cast<unsigned>(std::min(kMost, batch - z)));
      flags_kernel<<<grid, kFlagThreads, kFlagShared, stream>>>(part);
    }
  }
  return cudaGetLastError();
}

ffi::Error uncertified(cudaStream_t stream, double factor, int64_t most, ffi::Buffer<ffi::F64> a,
                       ffi::Buffer<ffi::F64> b, ffi::Buffer<ffi::S32> row, ffi::Buffer<ffi::S32> column,
                       ffi::Result<ffi::Buffer<ffi::S8>> flag,
                       ffi::Result<ffi::Buffer<ffi::S64>> count, ffi::Result<ffi::Buffer<ffi::U16>> x,
                       ffi::Result<ffi::Buffer<ffi::U16>> y, ffi::Result<ffi::Buffer<ffi::S32>> terms_a,
                       ffi::Result<ffi::Buffer<ffi::S32>> terms_b) {
  ProductShape s;
  const Dimensions shape = a.dimensions();
  JAXMD_CHECK(product_shape(kName, shape, b.dimensions(), &s));
  const size_t keep = shape.size() - 2;
  const int64_t kp = quotient(s.k, kFlagStep) * kFlagStep, np = quotient(s.n, 8) * 8;
  JAXMD_CHECK(expect_shape(kName, "row", row.dimensions(), shape, keep, {s.m}));
  JAXMD_CHECK(expect_shape(kName, "column", column.dimensions(), shape, keep, {s.n}));
  JAXMD_CHECK(expect_shape(kName, "flag", flag->dimensions(), shape, keep, {s.m, s.n}));
  JAXMD_CHECK(expect_shape(kName, "count", count->dimensions(), shape, 0, {}));
  JAXMD_CHECK(expect_shape(kName, "x", x->dimensions(), shape, keep, {s.m, kp}));
  JAXMD_CHECK(expect_shape(kName, "y", y->dimensions(), shape, keep, {kp, np}));
  JAXMD_CHECK(expect_shape(kName, "terms_a", terms_a->dimensions(), shape, keep, {s.m}));
  JAXMD_CHECK(expect_shape(kName, "terms_b", terms_b->dimensions(), shape, keep, {s.n}));
  auto* const counted = reinterpret_cast<unsigned long long*>(count->typed_data());
  cudaError_t status = cudaMemsetAsync(counted, 0, sizeof(int64_t), stream);
  if (status == cudaSuccess && s.batch * s.m * s.n > 0) {
    status = cudaMemsetAsync(terms_b->typed_data(), 0, terms_b->element_count() * sizeof(int32_t), stream);
    const HalfTask halves = {{a.typed_data(), row.typed_data(), x->typed_data(), terms_a->typed_data(), s.m},
                             {b.typed_data(), column.typed_data(), y->typed_data(), terms_b->typed_data(), s.n},
                             counted, s.batch, s.k, kp, np, quotient(s.batch * s.m, 8)};
    if (status == cudaSuccess) status = launch_halves(stream, halves);
    const FlagTask flags = {x->typed_data(), y->typed_data(), terms_a->typed_data(), terms_b->typed_data(),
                            flag->typed_data(), counted, static_cast<unsigned long long>(most), s.m, s.n, kp, np,
                            static_cast<float>(factor)};
    if (status == cudaSuccess) status = launch_flags(stream, flags, s.batch);
  }
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string(kName) + ": " + cudaGetErrorString(status));
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_uncertified_cuda, uncertified,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Attr<double>("factor")
                                  .Attr<int64_t>("most")
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S8>>()
                                  .Ret<ffi::Buffer<ffi::S64>>()
                                  .Ret<ffi::Buffer<ffi::U16>>()
                                  .Ret<ffi::Buffer<ffi::U16>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());

}  // namespace cuda
}  // namespace jaxmd
