// The sliced product's CUDA handler: checks shapes, then launches (sliced_matmul_launch.cuh).
#include <cuda_runtime.h>

#include <string>

#include "product_args.h"
#include "sliced_matmul_launch.cuh"
#include "xla/ffi/api/ffi.h"

namespace jaxmd {
namespace {

namespace ffi = xla::ffi;
constexpr char kWho[] = "jaxmd.sliced_matmul";

// a [S, .., m, k], b [S, .., k, n] -> c [S, .., m, n]
ffi::Error sliced_matmul_cuda(cudaStream_t stream, ffi::Buffer<ffi::F64> a, ffi::Buffer<ffi::F64> b,
                              ffi::ResultBuffer<ffi::F64> c) {
  const Dimensions dims = a.dimensions();
  ProductShape shape;
  JAXMD_CHECK(product_shape(kWho, dims, b.dimensions(), &shape));
  if (dims.size() < 3) return invalid(kWho, "a has shape " + shape_text(dims) + "; wanted [S, .., m, k].");
  JAXMD_CHECK(expect_shape(kWho, "the result", c->dimensions(), dims, dims.size() - 1, {shape.n}));

  const int64_t size = c->element_count(), slices = dims[0];
  if (size == 0) return ffi::Error::Success();
  cudaError_t status;
  if (shape.k == 0) {
    status = cudaMemsetAsync(c->typed_data(), 0, size * sizeof(double), stream);
  } else {
    constexpr int64_t kLargest = (int64_t{1} << 31) - 256;  // the kernels count in int, to the next tile's edge
    if (shape.m > kLargest || shape.n > kLargest || shape.k > kLargest || shape.batch > kLargest ||
        slices * (shape.k / 16 + 1) > kLargest) {
      return invalid(kWho, "a has shape " + shape_text(dims) + " and b has shape " + shape_text(b.dimensions()) +
                               "; wanted m, n, k and S * batch below 2^31, S * k below 2^35.");
    }
    status = launch_sliced_matmul({a.typed_data(), b.typed_data(), c->typed_data(), slices, shape.batch / slices,
                                   int(shape.m), int(shape.n), int(shape.k)},
                                  stream);
  }
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error(ffi::ErrorCode::kInternal, std::string(kWho) + ": " + cudaGetErrorString(status) + ".");
}

}  // namespace
}  // namespace jaxmd

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_sliced_matmul_cuda, jaxmd::sliced_matmul_cuda,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F64>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F64>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F64>>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
