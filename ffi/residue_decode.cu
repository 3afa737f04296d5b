// The residue decoder's CUDA handler: checks shapes, then launches (residue_decode.cuh).
#define JAXMD_ISA cuda

#include <algorithm>
#include <string>

#include "product_args.h"
#include "residue_decode.cuh"
#include "kernel_launch.cuh"
#include "xla/ffi/api/ffi.h"

namespace jaxmd {
namespace cuda {
namespace {

namespace ffi = xla::ffi;
constexpr char kWho[] = "jaxmd.residue_decode";

bool starts_on_16_bytes(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

template <int kWords, bool kAligned>
cudaError_t launch(const DecodeTask& task, cudaStream_t stream) {
  using Layout = DecodeLayout<kWords>;
  const auto kernel = residue_decode_kernel<kWords, kAligned>;
  static KernelOnDevices devices(reinterpret_cast<const void*>(kernel));
  int ordinal;
  const DeviceLimits& device = current_device(&ordinal);
  if (device.status != cudaSuccess) return device.status;
  cudaFuncAttributes attributes;
  const cudaError_t status = devices.prepare(ordinal, device, &attributes);
  if (status != cudaSuccess) return status;
  const int tables = Layout(task.bytes).tables;
  const int room = device.shared - static_cast<int>(attributes.sharedSizeBytes) - tables;
  const int warps = std::min(decode_threads(kWords) / 32, room / Layout::kOwn);
  if (warps < 1) return cudaErrorNotSupported;
  const int threads = 32 * warps, shared = tables + warps * Layout::kOwn;
  const int64_t entries = warps * kDecodeTile, blocks = (task.entries + entries - 1) / entries;
  const int64_t most =
      int64_t{device.multiprocessors} * KernelOnDevices::resident_blocks(attributes, device, threads, shared);
  kernel<<<static_cast<unsigned>(std::min(blocks, most)), threads, shared, stream>>>(task);
  return cudaGetLastError();
}

struct Kernel {
  cudaError_t (*launch)(const DecodeTask& task, cudaStream_t stream) = nullptr;
  int tables = 0;  // bytes
};

// For integers of 4 `words` words; none where it doesn't take so many residues.
template <int kWords>
bool choose(const DecodeTask& task, int64_t words, Kernel* kernel) {
  using Layout = DecodeLayout<kWords>;
  const Layout layout(task.bytes);
  if (words != kWords || layout.steps > Layout::kSteps) return false;
  const bool aligned = task.entries % 4 == 0 && starts_on_16_bytes(task.residues);
  *kernel = {aligned ? launch<kWords, true> : launch<kWords, false>, layout.tables};
  return true;
}
template <int... kWords>
Kernel choose_among(const DecodeTask& task, int64_t words) {
  Kernel kernel;
  (choose<kWords>(task, words, &kernel) || ...);
  return kernel;
}

// residues, row, column, tables -> limbs
ffi::Error residue_decode(cudaStream_t stream, int64_t bits, int64_t words, int64_t raised, ffi::RemainingArgs args,
                          ffi::RemainingRets rets) {
  DecodeTask task;
  const int32_t* tables;
  Dimensions residues, row, column, table, c;
  if (args.size() != 4) return invalid(kWho, std::to_string(args.size()) + " arguments; wanted 4.");
  JAXMD_CHECK((operand<ffi::S8, int8_t>(args, 0, &residues, &task.residues)));
  JAXMD_CHECK((operand<ffi::S32, int32_t>(args, 1, &row, &task.row)));
  JAXMD_CHECK((operand<ffi::S32, int32_t>(args, 2, &column, &task.column)));
  JAXMD_CHECK((operand<ffi::S32, int32_t>(args, 3, &table, &tables)));
  JAXMD_CHECK(result_limbs(kWho, rets, &c, &task.out));
  const size_t rank = c.size();
  if (rank < 2) return invalid(kWho, "results have shape " + shape_text(c) + "; wanted at least two axes.");
  if (residues.size() != rank + 1 || residues[0] < 4 || residues[0] > 1024) {
    return invalid(kWho, "residues have shape " + shape_text(residues) +
                             "; wanted [bytes, .., m, n] and 4 to 1024 bytes.");
  }
  int64_t rows = 1;
  for (size_t i = 0; i < rank; ++i) {
    if (residues[i + 1] != c[i]) {
      return invalid(kWho, "residues of shape " + shape_text(residues) + " differ from results of shape " +
                               shape_text(c) + ".");
    }
    if (i + 1 < rank) rows *= c[i];
  }
  const int64_t m = c[rank - 2], n = c[rank - 1], most = (int64_t{1} << 32) - (int64_t{1} << 22);
  JAXMD_CHECK(expect_shape(kWho, "row", row, c, rank - 2, {m}));
  JAXMD_CHECK(expect_shape(kWho, "column", column, c, rank - 2, {n}));
  if (rows == 0 || n == 0) return ffi::Error::Success();
  if (n >= int64_t{1} << 31 || rows > most / n) {
    return invalid(kWho, "results have shape " + shape_text(c) + "; wanted at most 2^32 - 2^22 entries, n below 2^31.");
  }
  task.rows = static_cast<uint32_t>(rows);
  task.m = static_cast<uint32_t>(m);
  task.n = static_cast<uint32_t>(n);
  task.entries = static_cast<uint32_t>(rows * n);
  task.batch_of_row = static_cast<uint32_t>(std::min((int64_t{1} << 32) / m, (int64_t{1} << 32) - 1));
  task.bytes = static_cast<int>(residues[0]);
  const Kernel kernel = choose_among<1, 2, 3, 4, 5, 7, 10, 14, 18>(task, words);
  if (kernel.launch == nullptr || table.size() != 1 || 4 * table[0] != kernel.tables || bits < 1 || bits > 1055 ||
      raised < 0 || raised >= 16 * words || !starts_on_16_bytes(tables)) {
    return invalid(kWho, "tables have shape " + shape_text(table) + ", bits is " + std::to_string(bits) + ", words " +
                             std::to_string(words) + ", raised " + std::to_string(raised) + " for residues " +
                             shape_text(residues) + "; wanted those of _residue_tables.py.");
  }
  task.tables = reinterpret_cast<const uint4*>(tables);
  task.bits = static_cast<int>(bits);
  task.lowest = static_cast<int>(-2 * bits - 8 * raised);
  const cudaError_t status = kernel.launch(task, stream);
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error(ffi::ErrorCode::kInternal, std::string(kWho) + ": " + cudaGetErrorString(status) + ".");
}

}  // namespace
}  // namespace cuda
}  // namespace jaxmd

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_residue_decode_cuda, jaxmd::cuda::residue_decode,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()
                                  .Attr<int64_t>("bits")
                                  .Attr<int64_t>("words")
                                  .Attr<int64_t>("raised")
                                  .RemainingArgs()
                                  .RemainingRets(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
