// jaxmd_tensorcore_issue: one tensor-core instruction for each case, by name, so that jaxmd/tensorcore can be held
// against the hardware.
//
// Shapes: a [.., M, k], b [.., 8, k] (k last), c and d [.., M, 8], as unsigned integers; M = 64 for wgmma, 8 for m8n8k4,
//   else 16. The kernels are in tensorcore_mma.cuh and tensorcore_wgmma.cuh.
#include <cuda_runtime.h>

#include <string>
#include <string_view>

#include "product_args.h"
#include "tensorcore_wgmma.cuh"

namespace jaxmd {
namespace {

namespace ffi = xla::ffi;

using Launch = void(const IssueBuffers&, const IssueOptions&, cudaStream_t);

unsigned blocks(int64_t wanted) { return static_cast<unsigned>(wanted < 4096 ? wanted : 4096); }

template <class Mma>
void launch_mma(const IssueBuffers& p, const IssueOptions&, cudaStream_t stream) {
  issue_mma_kernel<Mma><<<blocks((p.cases + 3) / 4), 128, 0, stream>>>(p);
}
template <int kRows, int kDepth>
void launch_double(const IssueBuffers& p, const IssueOptions&, cudaStream_t stream) {
  issue_double_kernel<Doubles<kRows, kDepth>><<<blocks((p.cases + 3) / 4), 128, 0, stream>>>(p);
}
template <class Wgmma>
void launch_wgmma(const IssueBuffers& p, const IssueOptions& o, cudaStream_t stream) {
  const unsigned grid = blocks(p.cases);
  const int accumulate = o.accumulate ? 1 : 0;
  if (o.registers) {
    o.negate ? issue_wgmma_kernel<Wgmma, true, true><<<grid, 128, 0, stream>>>(p, accumulate)
             : issue_wgmma_kernel<Wgmma, true, false><<<grid, 128, 0, stream>>>(p, accumulate);
  } else {
    o.negate ? issue_wgmma_kernel<Wgmma, false, true><<<grid, 128, 0, stream>>>(p, accumulate)
             : issue_wgmma_kernel<Wgmma, false, false><<<grid, 128, 0, stream>>>(p, accumulate);
  }
}

struct Instruction {
  std::string_view name;
  int sm;           // the least architecture
  int rows, k;      // M, and products of one output
  int ab, cd;       // bytes of an entry of A and B, of C and D
  Launch* launch;
  bool integer = false;
};

#define JAXMD_FP8_ROWS(types, Name)                                                               \
  {"mma.m16n8k32.f32." types ".f32", 90, 16, 32, 1, 4, launch_mma<F32##Name>},                    \
      {"mma.m16n8k32.f16." types ".f16", 90, 16, 32, 1, 2, launch_mma<F16##Name>},                \
      {"wgmma.k32.f32." types, 90, 64, 32, 1, 4, launch_wgmma<WgF32##Name>},                      \
      {"wgmma.k32.f16." types, 90, 64, 32, 1, 2, launch_wgmma<WgF16##Name>}
#define JAXMD_BYTE_ROWS(types, Name)                                                              \
  {"mma.m16n8k16.s32." types ".s32", 80, 16, 16, 1, 4, launch_mma<Name##K16>, true},              \
      {"mma.m16n8k32.s32." types ".s32", 80, 16, 32, 1, 4, launch_mma<Name##K32>, true},          \
      {"mma.m16n8k16.s32." types ".s32.satfinite", 80, 16, 16, 1, 4, launch_mma<Name##K16Clamp>, true}, \
      {"mma.m16n8k32.s32." types ".s32.satfinite", 80, 16, 32, 1, 4, launch_mma<Name##K32Clamp>, true}, \
      {"wgmma.k32.s32." types, 90, 64, 32, 1, 4, launch_wgmma<Wg##Name>, true},                   \
      {"wgmma.k32.s32." types ".satfinite", 90, 64, 32, 1, 4, launch_wgmma<Wg##Name##Clamp>, true}

constexpr Instruction kInstructions[] = {
    {"mma.m16n8k8.f32.f16.f16.f32", 80, 16, 8, 2, 4, launch_mma<F32F16K8>},
    {"mma.m16n8k16.f32.f16.f16.f32", 80, 16, 16, 2, 4, launch_mma<F32F16K16>},
    {"mma.m16n8k8.f16.f16.f16.f16", 80, 16, 8, 2, 2, launch_mma<F16F16K8>},
    {"mma.m16n8k16.f16.f16.f16.f16", 80, 16, 16, 2, 2, launch_mma<F16F16K16>},
    {"mma.m16n8k8.f32.bf16.bf16.f32", 80, 16, 8, 2, 4, launch_mma<Bf16K8>},
    {"mma.m16n8k16.f32.bf16.bf16.f32", 80, 16, 16, 2, 4, launch_mma<Bf16K16>},
    {"mma.m16n8k4.f32.tf32.tf32.f32", 80, 16, 4, 4, 4, launch_mma<Tf32K4>},
    {"mma.m16n8k8.f32.tf32.tf32.f32", 80, 16, 8, 4, 4, launch_mma<Tf32K8>},
    {"mma.m8n8k4.f64.f64.f64.f64", 80, 8, 4, 8, 8, launch_double<8, 4>},
    {"mma.m16n8k4.f64.f64.f64.f64", 90, 16, 4, 8, 8, launch_double<16, 4>},
    {"mma.m16n8k8.f64.f64.f64.f64", 90, 16, 8, 8, 8, launch_double<16, 8>},
    {"mma.m16n8k16.f64.f64.f64.f64", 90, 16, 16, 8, 8, launch_double<16, 16>},
    {"wgmma.k16.f32.f16.f16", 90, 64, 16, 2, 4, launch_wgmma<WgF32F16>},
    {"wgmma.k16.f16.f16.f16", 90, 64, 16, 2, 2, launch_wgmma<WgF16F16>},
    {"wgmma.k16.f32.bf16.bf16", 90, 64, 16, 2, 4, launch_wgmma<WgBf16>},
    {"wgmma.k8.f32.tf32.tf32", 90, 64, 8, 4, 4, launch_wgmma<WgTf32>},
    JAXMD_FP8_ROWS("e4m3.e4m3", E4m3E4m3),
    JAXMD_FP8_ROWS("e4m3.e5m2", E4m3E5m2),
    JAXMD_FP8_ROWS("e5m2.e4m3", E5m2E4m3),
    JAXMD_FP8_ROWS("e5m2.e5m2", E5m2E5m2),
    JAXMD_BYTE_ROWS("s8.s8", S8S8),
    JAXMD_BYTE_ROWS("u8.u8", U8U8),
    JAXMD_BYTE_ROWS("s8.u8", S8U8),
    JAXMD_BYTE_ROWS("u8.s8", U8S8),
};

constexpr const char* kWho = "jaxmd_tensorcore_issue";

ffi::Error expect(const char* what, const ffi::AnyBuffer& x, Dimensions like, int64_t rows, int64_t columns,
                  int bytes) {
  JAXMD_CHECK(expect_shape(kWho, what, x.dimensions(), like, like.size() - 2, {rows, columns}));
  if (x.element_count() != 0 && static_cast<int64_t>(x.size_bytes() / x.element_count()) != bytes) {
    return invalid(kWho, std::string(what) + " does not have entries of " + std::to_string(bytes) + " bytes.");
  }
  return ffi::Error::Success();
}

ffi::Error issue(cudaStream_t stream, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer c,
                 ffi::Result<ffi::AnyBuffer> d, std::string_view instruction, int64_t registers, int64_t accumulate,
                 int64_t negate) {
  const Instruction* found = nullptr;
  for (const Instruction& i : kInstructions) {
    if (i.name == instruction) found = &i;
  }
  if (found == nullptr) return invalid(kWho, "no instruction " + std::string(instruction) + ".");
  int device = 0, major = 0, minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  const bool wgmma = found->rows == 64;
  if (10 * major + minor < found->sm || (wgmma && major != 9)) {
    return invalid(kWho, std::string(instruction) + " does not run on compute capability " + std::to_string(major) +
                             "." + std::to_string(minor) + ".");
  }
  if (!wgmma && (registers == 0 || accumulate == 0 || negate != 0)) {
    return invalid(kWho, "mma.sync takes A from registers, adds C, and has no sign.");
  }
  if (found->integer && negate != 0) return invalid(kWho, "integers have no sign to choose.");
  const Dimensions like = a.dimensions();
  if (like.size() < 2) return invalid(kWho, "a has shape " + shape_text(like) + "; wanted [.., M, k].");
  JAXMD_CHECK(expect("a", a, like, found->rows, found->k, found->ab));
  JAXMD_CHECK(expect("b", b, like, 8, found->k, found->ab));
  JAXMD_CHECK(expect("c", c, like, found->rows, 8, found->cd));
  JAXMD_CHECK(expect("d", *d, like, found->rows, 8, found->cd));
  const int64_t cases = c.element_count() / (found->rows * 8);
  if (cases == 0) return ffi::Error::Success();
  const IssueBuffers buffers{static_cast<const uint8_t*>(a.untyped_data()), static_cast<const uint8_t*>(b.untyped_data()),
                             static_cast<const uint8_t*>(c.untyped_data()), static_cast<uint8_t*>(d->untyped_data()),
                             cases};
  found->launch(buffers, {registers != 0, accumulate != 0, negate != 0}, stream);
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string(kWho) + ": " + cudaGetErrorString(status));
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_tensorcore_issue_cuda, issue,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<std::string_view>("instruction")
                                  .Attr<int64_t>("registers")
                                  .Attr<int64_t>("accumulate")
                                  .Attr<int64_t>("negate"),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace jaxmd
