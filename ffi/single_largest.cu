// jaxmd_single_largest, the search before a single-precision product: checks shapes, clears, launches.
#include "single_largest.cuh"

#include <string>

#include "product_args.h"
#include "xla/ffi/api/ffi.h"

namespace jaxmd {
namespace cuda {
namespace {

namespace ffi = xla::ffi;
constexpr char kLargestWho[] = "jaxmd_single_largest";

// a [.., m, k], b [.., k, n] -> row [.., m], column [.., n]
ffi::Error single_largest(cudaStream_t stream, ffi::Buffer<ffi::F32> a, ffi::Buffer<ffi::F32> b,
                          ffi::ResultBuffer<ffi::S32> row, ffi::ResultBuffer<ffi::S32> column) {
  ProductShape s;
  JAXMD_CHECK(product_shape(kLargestWho, a.dimensions(), b.dimensions(), &s));
  const size_t lead = a.dimensions().size() - 2;
  JAXMD_CHECK(expect_shape(kLargestWho, "the first result", row->dimensions(), a.dimensions(), lead, {s.m}));
  JAXMD_CHECK(expect_shape(kLargestWho, "the second result", column->dimensions(), a.dimensions(), lead, {s.n}));
  const LargestProblem p = {a.typed_data(), b.typed_data(), row->typed_data(), column->typed_data(), s.batch, s.m, s.n,
                            s.k};
  const int64_t blocks_a = largest_blocks_a(p), blocks = blocks_a + largest_blocks_b(p);
  if (blocks >= int64_t{1} << 31 || s.k % 4 != 0 || s.n % 4 != 0) {
    return invalid(kLargestWho, "a has shape " + shape_text(a.dimensions()) + " and b has shape " +
                                    shape_text(b.dimensions()) + "; wanted k and n multiples of 4, and fewer than " +
                                    "2^31 blocks of 2^15 entries.");
  }
  cudaError_t status = cudaSuccess;
  if (row->size_bytes() > 0) status = cudaMemsetAsync(p.row, 0, row->size_bytes(), stream);
  if (status == cudaSuccess && column->size_bytes() > 0) {
    status = cudaMemsetAsync(p.column, 0, column->size_bytes(), stream);
  }
  if (status == cudaSuccess && blocks > 0) {
    single_largest_kernel<<<static_cast<unsigned>(blocks), kLargestThreads, 0, stream>>>(
        p, static_cast<uint32_t>(blocks_a));
    status = cudaGetLastError();
  }
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error(ffi::ErrorCode::kInternal, std::string(kLargestWho) + ": " + cudaGetErrorString(status) + ".");
}

}  // namespace
}  // namespace cuda
}  // namespace jaxmd

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_single_largest_cuda, jaxmd::cuda::single_largest,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::S32>>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
