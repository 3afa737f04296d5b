// The residue encoder's CUDA handler: checks shapes, then launches (residue_encode.cuh).
#define JAXMD_ISA cuda

#include <algorithm>
#include <string>

#include "product_args.h"
#include "residue_encode.cuh"
#include "residue_encode_short.cuh"
#include "kernel_launch.cuh"
#include "xla/ffi/api/ffi.h"

namespace jaxmd {
namespace cuda {
namespace {

namespace ffi = xla::ffi;
constexpr char kWho[] = "jaxmd.residue_encode";

using Kernel = void (*)(EncodeTask);

// As many blocks as the device holds at once, but no more than `blocks`.
template <Kernel kernel>
cudaError_t launch(const EncodeTask& task, int64_t blocks, int shared, cudaStream_t stream) {
  static KernelOnDevices devices(reinterpret_cast<const void*>(kernel));
  int ordinal;
  const DeviceLimits& device = current_device(&ordinal);
  if (device.status != cudaSuccess) return device.status;
  cudaFuncAttributes attributes;
  const cudaError_t status = devices.prepare(ordinal, device, &attributes);
  if (status != cudaSuccess) return status;
  const int64_t most =
      int64_t{device.multiprocessors} * KernelOnDevices::resident_blocks(attributes, device, kEncodeThreads, shared);
  kernel<<<static_cast<unsigned>(std::min(blocks, most)), kEncodeThreads, shared, stream>>>(task);
  return cudaGetLastError();
}

int64_t tiles_of(const EncodeTask& task, int rows) {
  return task.batch * ((task.rows + rows - 1) / rows) * ((task.kp + kEncodeSpan - 1) / kEncodeSpan);
}

template <int kWords, int kLimbs, int kTiles>
cudaError_t launch_short(const EncodeTask& task, cudaStream_t stream) {
  constexpr int kWarps = kEncodeThreads / 32;
  const int rows = short_rows(task.transposed), shared = short_shared(kWords, rows);
  const int64_t blocks = (tiles_of(task, rows) + kWarps - 1) / kWarps;
  return task.transposed
             ? launch<residue_encode_short_kernel<kWords, kLimbs, kTiles, true>>(task, blocks, shared, stream)
             : launch<residue_encode_short_kernel<kWords, kLimbs, kTiles, false>>(task, blocks, shared, stream);
}

template <int kSteps, bool kWhole, int kWords = 0, int kLimbs = 0>
cudaError_t launch_long(const EncodeTask& task, cudaStream_t stream) {
  const int shared = EncodeLayout(task.ones, task.pairs, task.bits).size;
  return launch<residue_encode_kernel<kSteps, kWhole, kWords, kLimbs>>(task, tiles_of(task, kEncodeRows), shared,
                                                                       stream);
}

cudaError_t launch(const EncodeTask& task, cudaStream_t stream) {
  const int words = word_count(task.bits), limbs = task.limbs.count, tiles = (task.ones + 15) / 16;
  if (task.pairs == 0 && tiles >= 1 && tiles <= 3 && words <= 4 && limbs <= (words <= 2 ? 1 : 2)) {
    if (words <= 2 && tiles == 1) return launch_short<2, 1, 1>(task, stream);
    if (words <= 2 && tiles == 2) return launch_short<2, 1, 2>(task, stream);
    if (words > 2 && limbs == 1) return launch_short<4, 1, 3>(task, stream);
    if (words > 2) return tiles <= 2 ? launch_short<4, 2, 2>(task, stream) : launch_short<4, 2, 3>(task, stream);
  }
  if (words == 7 && limbs == 4) return launch_long<1, true, 7, 4>(task, stream);
  if (words == 14 && limbs == 8) return launch_long<2, true, 14, 8>(task, stream);
  if (words == 27 && limbs == 16) return launch_long<4, true, 27, 16>(task, stream);
  const int steps = EncodeLayout(task.ones, task.pairs, task.bits).steps;
  if (steps == 1) return launch_long<1, true>(task, stream);
  if (steps == 2) return launch_long<2, true>(task, stream);
  if (steps <= 4) return launch_long<4, true>(task, stream);
  return launch_long<2, false>(task, stream);
}

// limbs, exponent, shift, weights, moduli -> residues
ffi::Error residue_encode(cudaStream_t stream, int64_t bits, int64_t pairs, int64_t side, ffi::RemainingArgs args,
                          ffi::Result<ffi::Buffer<ffi::S8>> out) {
  EncodeTask task;
  Dimensions x, exponent, shift, weights, moduli;
  const int64_t limbs = static_cast<int64_t>(args.size()) - 4;
  JAXMD_CHECK(operand_limbs(kWho, args, 0, limbs, &x, &task.limbs));
  JAXMD_CHECK((operand<ffi::S32, int32_t>(args, limbs, &exponent, &task.exponent)));
  JAXMD_CHECK((operand<ffi::S32, int32_t>(args, limbs + 1, &shift, &task.shift)));
  JAXMD_CHECK((operand<ffi::S32, int32_t>(args, limbs + 2, &weights, &task.weights)));
  JAXMD_CHECK((operand<ffi::S32, int32_t>(args, limbs + 3, &moduli, &task.moduli)));
  const size_t rank = x.size();
  if (rank < 2 || (side != 0 && side != 1)) {
    return invalid(kWho, "limbs of shape " + shape_text(x) + " and side " + std::to_string(side) +
                             "; wanted at least two axes and side 0 or 1.");
  }
  task.transposed = side == 1;
  task.rows = x[side == 0 ? rank - 2 : rank - 1];
  task.k = x[side == 0 ? rank - 1 : rank - 2];
  task.kp = (task.k + 15) / 16 * 16;
  task.batch = 1;
  for (size_t i = 0; i + 2 < rank; ++i) task.batch *= x[i];
  JAXMD_CHECK(expect_shape(kWho, "exponent", exponent, x, rank - 2, {task.rows}));
  JAXMD_CHECK(expect_shape(kWho, "shift", shift, x, rank - 2, {task.k}));
  if (moduli.size() != 1 || weights.size() != 2 || weights[0] != moduli[0] || weights[1] < 1 || pairs < 0 ||
      pairs > moduli[0] || moduli[0] > 1024) {
    return invalid(kWho, "weights and moduli have shapes " + shape_text(weights) + " and " + shape_text(moduli) +
                             ", pairs is " + std::to_string(pairs) +
                             "; wanted [N, count], [N] and 0 to N, N <= 1024.");
  }
  if (bits < 1 || bits > 1055) {
    return invalid(kWho, "bits is " + std::to_string(bits) + "; wanted 1 to 1055, 33 words.");
  }
  task.pairs = static_cast<int>(pairs);
  task.ones = static_cast<int>(moduli[0] - pairs);
  task.digits = static_cast<int>(weights[1]);
  task.bits = static_cast<int>(bits);
  task.out = out->typed_data();
  const Dimensions result = out->dimensions();
  bool fits = result.size() == rank + 1 && result[0] == task.ones + int64_t{3} * task.pairs &&
              result[rank - 1] == task.rows && result[rank] == task.kp;
  for (size_t i = 0; fits && i + 2 < rank; ++i) fits = result[i + 1] == x[i];
  if (!fits) {
    return invalid(kWho, "the result has shape " + shape_text(result) + " for limbs of shape " + shape_text(x) +
                             "; wanted [channels, .., r, k rounded up to 16].");
  }
  if (out->element_count() == 0) return ffi::Error::Success();
  if (tiles_of(task, short_rows(false)) >= int64_t{1} << 31) {
    return invalid(kWho, "limbs of shape " + shape_text(x) + " are too many; wanted fewer than 2^31 tiles of 2 x 64.");
  }
  const cudaError_t status = launch(task, stream);
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error(ffi::ErrorCode::kInternal, std::string(kWho) + ": " + cudaGetErrorString(status) + ".");
}

}  // namespace
}  // namespace cuda
}  // namespace jaxmd

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_residue_encode_cuda, jaxmd::cuda::residue_encode,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()
                                  .Attr<int64_t>("bits")
                                  .Attr<int64_t>("pairs")
                                  .Attr<int64_t>("side")
                                  .RemainingArgs()
                                  .Ret<xla::ffi::Buffer<xla::ffi::S8>>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
