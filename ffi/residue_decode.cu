// The residue decoder's CUDA handler: checks shapes, then launches (residue_decode.cuh).
#define JAXMD_ISA cuda

#include <algorithm>
#include <string>

#include "product_args.h"
#include "residue_decode.cuh"
#include "residue_launch.cuh"
#include "xla/ffi/api/ffi.h"

namespace jaxmd {
namespace cuda {
namespace {

namespace ffi = xla::ffi;
constexpr char kWho[] = "jaxmd.residue_decode";

bool starts_on_16_bytes(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

template <int kWords, int kGroup, bool kAligned>
cudaError_t launch(const DecodeTask& task, cudaStream_t stream) {
  const auto kernel = residue_decode_kernel<kWords, kGroup, kAligned>;
  static KernelOnDevices devices(reinterpret_cast<const void*>(kernel));
  int ordinal;
  const DeviceLimits& device = current_device(&ordinal);
  if (device.status != cudaSuccess) return device.status;
  cudaFuncAttributes attributes;
  const cudaError_t status = devices.prepare(ordinal, device, &attributes);
  if (status != cudaSuccess) return status;
  const DecodeLayout<kWords, kGroup> layout(task);
  const int room = device.shared - static_cast<int>(attributes.sharedSizeBytes) - layout.warps;
  const int warps = std::min(decode_threads(kWords) / 32, room / layout.size);
  if (warps < 1) return cudaErrorNotSupported;
  const int threads = 32 * warps, shared = layout.warps + warps * layout.size;
  const int64_t entries = int64_t{warps} * kDecodeTile;
  const int64_t blocks = (task.entries + entries - 1) / entries;
  const int64_t most =
      int64_t{device.multiprocessors} * KernelOnDevices::resident_blocks(attributes, device, threads, shared);
  kernel<<<static_cast<unsigned>(std::min(blocks, most)), threads, shared, stream>>>(task);
  return cudaGetLastError();
}

constexpr int kMostBytes = 18 * 16;

template <int kWords, int kGroup>
cudaError_t launch(const DecodeTask& task, cudaStream_t stream) {
  const bool aligned = task.entries % 4 == 0 && starts_on_16_bytes(task.small) && starts_on_16_bytes(task.wide);
  return aligned ? launch<kWords, kGroup, true>(task, stream) : launch<kWords, kGroup, false>(task, stream);
}

cudaError_t launch(const DecodeTask& task, cudaStream_t stream) {
  const int words = (task.bytes + 15) / 16;  // of each of four parts
  if (words <= 1) return launch<1, 1>(task, stream);
  if (words <= 2) return launch<2, 2>(task, stream);
  if (words <= 3) return launch<3, 3>(task, stream);
  if (words <= 4) return launch<4, 4>(task, stream);
  if (words <= 5) return launch<5, 5>(task, stream);
  if (words <= 7) return launch<7, 7>(task, stream);
  if (words <= 10) return launch<10, 5>(task, stream);
  if (words <= 14) return launch<14, 7>(task, stream);
  return launch<18, 6>(task, stream);
}

// small, wide, row, column, moduli, quotients, slices, product, combine -> limbs
ffi::Error residue_decode(cudaStream_t stream, int64_t beta, int64_t low, int64_t bits, ffi::RemainingArgs args,
                          ffi::RemainingRets rets) {
  DecodeTask task;
  Dimensions small, wide, row, column, moduli, quotients, slices, product, combine, c;
  if (args.size() != 9) return invalid(kWho, std::to_string(args.size()) + " arguments; wanted 9.");
  JAXMD_CHECK((operand<ffi::S8, int8_t>(args, 0, &small, &task.small)));
  JAXMD_CHECK((operand<ffi::S16, int16_t>(args, 1, &wide, &task.wide)));
  JAXMD_CHECK((operand<ffi::S32, int32_t>(args, 2, &row, &task.row)));
  JAXMD_CHECK((operand<ffi::S32, int32_t>(args, 3, &column, &task.column)));
  JAXMD_CHECK((operand<ffi::S32, int32_t>(args, 4, &moduli, &task.moduli)));
  JAXMD_CHECK((operand<ffi::F64, double>(args, 5, &quotients, &task.quotients)));
  JAXMD_CHECK((operand<ffi::F64, double>(args, 6, &slices, &task.slices)));
  JAXMD_CHECK((operand<ffi::F64, double>(args, 7, &product, &task.product)));
  JAXMD_CHECK((operand<ffi::S32, int32_t>(args, 8, &combine, &task.combine)));
  JAXMD_CHECK(result_limbs(kWho, rets, &c, &task.out));
  const size_t rank = c.size();
  if (rank < 2) return invalid(kWho, "results have shape " + shape_text(c) + "; wanted at least two axes.");
  if (small.size() != rank + 1 || wide.size() != rank + 1 || combine.size() != 2 || moduli.size() != 1 ||
      combine[1] != 3 || moduli[0] != small[0] + combine[0] || wide[0] != 3 * combine[0] || moduli[0] > 1024) {
    return invalid(kWho, "residues have shapes " + shape_text(small) + " and " + shape_text(wide) + ", moduli " +
                             shape_text(moduli) + ", combine " + shape_text(combine) +
                             "; wanted [n1, .., m, n], [3 n2, .., m, n], [n1 + n2] and [n2, 3], n1 + n2 <= 1024.");
  }
  int64_t rows = 1;
  for (size_t i = 0; i < rank; ++i) {
    if (small[i + 1] != c[i] || wide[i + 1] != c[i]) {
      return invalid(kWho, "residues of shapes " + shape_text(small) + " and " + shape_text(wide) +
                               " differ from results of shape " + shape_text(c) + ".");
    }
    if (i + 1 < rank) rows *= c[i];
  }
  task.m = c[rank - 2];
  task.n = c[rank - 1];
  task.entries = rows * task.n;
  JAXMD_CHECK(expect_shape(kWho, "row", row, c, rank - 2, {task.m}));
  JAXMD_CHECK(expect_shape(kWho, "column", column, c, rank - 2, {task.n}));
  const bool table = product.size() == 1 && slices.size() == 2 && slices[0] == product[0] && slices[1] == moduli[0] &&
                     quotients.size() == 1 && quotients[0] == moduli[0] && product[0] >= 1 && product[0] <= 256;
  if (!table || beta < 1 || beta > (combine[0] > 0 ? 44 : 52) || low < 0 || low > 4096 || bits < 1 || bits > 1055) {
    return invalid(kWho, "slices have shape " + shape_text(slices) + ", product " + shape_text(product) +
                             ", quotients " + shape_text(quotients) + ", beta is " + std::to_string(beta) + ", low " +
                             std::to_string(low) + ", bits " + std::to_string(bits) +
                             "; wanted [c, N], [c] and [N], c <= 256, 1 to 52 (44 with two-digit moduli), 0 to 4096, "
                             "1 to 1055.");
  }
  if (task.n >= (int64_t{1} << 31) - 64 || rows >= int64_t{1} << 32) {
    return invalid(kWho, "results have shape " + shape_text(c) + "; wanted n below 2^31 and fewer than 2^32 rows.");
  }
  task.ones = static_cast<int>(small[0]);
  task.pairs = static_cast<int>(combine[0]);
  task.count = static_cast<int>(product[0]);
  task.beta = static_cast<int>(beta);
  task.low = static_cast<int>(low);
  task.bits = static_cast<int>(bits);
  task.bytes = decode_bytes(task.ones, task.pairs, task.beta, task.count);
  if (task.bytes > kMostBytes) {
    return invalid(kWho, "the product of the moduli may have " + std::to_string(8 * task.bytes) +
                             " bits; wanted at most " + std::to_string(8 * kMostBytes) + ".");
  }
  if (task.entries == 0) return ffi::Error::Success();
  const cudaError_t status = launch(task, stream);
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error(ffi::ErrorCode::kInternal, std::string(kWho) + ": " + cudaGetErrorString(status) + ".");
}

}  // namespace
}  // namespace cuda
}  // namespace jaxmd

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_residue_decode_cuda, jaxmd::cuda::residue_decode,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()
                                  .Attr<int64_t>("beta")
                                  .Attr<int64_t>("low")
                                  .Attr<int64_t>("bits")
                                  .RemainingArgs()
                                  .RemainingRets(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
