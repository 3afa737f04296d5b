// Which tile a sliced product runs on, and its launch: a table of variants, a chooser purely by shape.
//
// A block of order g walks (g + 1) ceil(k / 16) steps. A variant's two measured numbers are the cycles of a step: on a
// multiprocessor full of such blocks, divided by their number (throughput), and on one with no other block (latency).
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <mutex>

#include "sliced_matmul.cuh"
#include "tensor_map.cuh"

namespace jaxmd {

template <class Tile>
int64_t sliced_blocks(const SlicedProblem& p) {
  return p.slices * p.batch * ((int64_t(p.m) + Tile::kBM - 1) / Tile::kBM) *
         ((int64_t(p.n) + Tile::kBN - 1) / Tile::kBN);
}

// launch(grid, first block), more than once where the blocks exceed a grid.
template <class Launch>
cudaError_t launch_grids(int64_t blocks, Launch launch) {
  constexpr int64_t kLargest = (int64_t(1) << 31) - 1;
  for (int64_t first = 0; first < blocks; first += kLargest)
    launch(unsigned(std::min(kLargest, blocks - first)), first);
  return cudaGetLastError();
}

// Every row of A and of B starts on 16 bytes.
inline bool rows_are_aligned(const SlicedProblem& p) {
  return p.k % 2 == 0 && p.n % 2 == 0 && reinterpret_cast<uintptr_t>(p.a) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(p.b) % 16 == 0;
}

template <class Tile>
struct AsyncVariant {
  static constexpr int kShared = Tile::kShared;

  static cudaError_t prepare() {
    const auto set = [](const void* kernel) {
      return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    };
    const cudaError_t wide = set(reinterpret_cast<const void*>(sliced_matmul_kernel<Tile, true>));
    return wide == cudaSuccess ? set(reinterpret_cast<const void*>(sliced_matmul_kernel<Tile, false>)) : wide;
  }

  static cudaError_t launch(const SlicedProblem& p, cudaStream_t stream) {
    const auto kernel = rows_are_aligned(p) ? sliced_matmul_kernel<Tile, true> : sliced_matmul_kernel<Tile, false>;
    return launch_grids(sliced_blocks<Tile>(p), [&](unsigned grid, int64_t first) {
      kernel<<<grid, Tile::kThreads, kShared, stream>>>(p, first);
    });
  }
};

// [planes][rows][inner] doubles, copied in boxes of 16 columns, box_rows rows and one plane.
inline cudaError_t encode_planes(CUtensorMap* map, const double* base, int64_t inner, int64_t rows, int64_t planes,
                                 int box_rows) {
  const cuuint64_t dims[3] = {cuuint64_t(inner), cuuint64_t(rows), cuuint64_t(planes)};
  const cuuint64_t strides[2] = {cuuint64_t(inner * 8), cuuint64_t(inner * rows * 8)};
  const cuuint32_t box[3] = {16, cuuint32_t(box_rows), 1}, element[3] = {1, 1, 1};
  const auto encoder = tensor_map_encoder();
  if (encoder == nullptr) return cudaErrorNotSupported;
  const CUresult result = encoder(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT64, 3, const_cast<double*>(base), dims, strides,
                                  box, element, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <class Tile>
struct BulkVariant {
  static constexpr int kShared = Tile::kShared + 16 * Tile::kStages;

  // The kernel is empty unless it was compiled for sm_90 or newer, whatever device it now runs on.
  static cudaError_t prepare() {
    const void* kernel = reinterpret_cast<const void*>(sliced_matmul_bulk_kernel<Tile>);
    cudaFuncAttributes attributes;
    const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
    if (status != cudaSuccess) return status;
    if (attributes.ptxVersion < 90) return cudaErrorNotSupported;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  }

  static cudaError_t launch(const SlicedProblem& p, cudaStream_t stream) {
    CUtensorMap a, b;
    cudaError_t status = encode_planes(&a, p.a, p.k, p.m, p.slices * p.batch, Tile::kBM);
    if (status == cudaSuccess) status = encode_planes(&b, p.b, p.n, p.k, p.slices * p.batch, 16);
    if (status != cudaSuccess) return status;
    return launch_grids(sliced_blocks<Tile>(p), [&](unsigned grid, int64_t first) {
      sliced_matmul_bulk_kernel<Tile><<<grid, Tile::kThreads + 128, kShared, stream>>>(p, first, a, b);
    });
  }
};

struct SlicedVariant {
  const char* name;
  int rows, columns, shared;  // tile, bytes
  bool aligned;               // needs rows_are_aligned
  double full, alone;         // cycles of a step
  cudaError_t (*prepare)();   // once a device
  cudaError_t (*launch)(const SlicedProblem&, cudaStream_t);
};

template <class Tile, template <class> class Kind>
constexpr SlicedVariant sliced_variant(const char* name, bool aligned, double full, double alone) {
  using Variant = Kind<Tile>;
  return {name, Tile::kBM, Tile::kBN, Variant::kShared, aligned, full, alone, Variant::prepare, Variant::launch};
}

// Cycles from examples/bench/kernels/sliced_matmul_bench.cu on one H200 (S = 6; full: n = 4096, 1024, 512; alone:
// n = 512, 256); the two thin tiles are estimates. sm_80 was not measured: its instruction takes twice the cycles,
// which in every row alike would change no choice.
inline constexpr SlicedVariant kSlicedVariants[] = {
    sliced_variant<SlicedTile<128, 128, 64, 32, 7, 1>, BulkVariant>("bulk 128x128", true, 2130, 2270),
    sliced_variant<SlicedTile<128, 128, 64, 32, 4, 1>, AsyncVariant>("128x128", false, 2340, 2500),
    sliced_variant<SlicedTile<64, 64, 32, 32, 4, 3>, AsyncVariant>("64x64", false, 590, 970),
    sliced_variant<SlicedTile<32, 32, 16, 16, 4, 6>, AsyncVariant>("32x32", false, 196, 400),
    sliced_variant<SlicedTile<16, 64, 16, 16, 4, 5>, AsyncVariant>("16x64", false, 230, 450),
    sliced_variant<SlicedTile<64, 16, 16, 16, 4, 5>, AsyncVariant>("64x16", false, 230, 450),
};
constexpr int kSlicedVariantCount = int(std::size(kSlicedVariants));

struct SlicedDevice {
  cudaError_t status = cudaSuccess;
  int multiprocessors = 0;
  bool runs[kSlicedVariantCount] = {};
};

// The current device, asked once. Loading a kernel is no part of a stream capture, so the capture is told to allow it.
inline SlicedDevice query_sliced_device(int ordinal) {
  SlicedDevice device;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  device.status = cudaThreadExchangeStreamCaptureMode(&mode);
  int shared = 0;
  if (device.status == cudaSuccess) {
    device.status = cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount, ordinal);
  }
  if (device.status == cudaSuccess) {
    device.status = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
  }
  for (int v = 0; v < kSlicedVariantCount && device.status == cudaSuccess; ++v) {
    if (kSlicedVariants[v].shared > shared) continue;
    const cudaError_t prepared = kSlicedVariants[v].prepare();
    device.runs[v] = prepared == cudaSuccess;
    if (prepared != cudaErrorNotSupported) device.status = prepared;
  }
  cudaThreadExchangeStreamCaptureMode(&mode);
  return device;
}

inline const SlicedDevice& sliced_device(int ordinal) {
  constexpr int kDevices = 64;
  static std::once_flag once[kDevices];
  static SlicedDevice devices[kDevices];
  static const SlicedDevice none = {cudaErrorInvalidDevice};
  if (ordinal < 0 || ordinal >= kDevices) return none;
  std::call_once(once[ordinal], [&] { devices[ordinal] = query_sliced_device(ordinal); });
  return devices[ordinal];
}

// The variant with the least of: all steps at full throughput, padding included; the longest block alone.
inline const SlicedVariant& choose_sliced_variant(const SlicedProblem& p, const SlicedDevice& device) {
  const double orders = double(p.slices), steps = (p.k + 15) / 16;
  const SlicedVariant* best = nullptr;
  double least = 0;
  for (int v = 0; v < kSlicedVariantCount; ++v) {
    const SlicedVariant& variant = kSlicedVariants[v];
    if (!device.runs[v] || (variant.aligned && !rows_are_aligned(p))) continue;
    const double tiles = double((int64_t(p.m) + variant.rows - 1) / variant.rows) *
                         double((int64_t(p.n) + variant.columns - 1) / variant.columns) * double(p.batch);
    const double all = tiles * orders * (orders + 1) / 2 * steps * variant.full / device.multiprocessors;
    const double cost = std::max(all, orders * steps * variant.alone);
    if (best == nullptr || cost < least) best = &variant, least = cost;
  }
  return *best;
}

// Orders of a.b on the current device. Every extent is positive, k included.
inline cudaError_t launch_sliced_matmul(const SlicedProblem& p, cudaStream_t stream) {
  int ordinal = 0;
  const cudaError_t status = cudaGetDevice(&ordinal);
  if (status != cudaSuccess) return status;
  const SlicedDevice& device = sliced_device(ordinal);
  return device.status == cudaSuccess ? choose_sliced_variant(p, device).launch(p, stream) : device.status;
}

}  // namespace jaxmd
