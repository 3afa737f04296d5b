// Which of a product's kernels runs, by the shape, and how one whose blocks stay and walk over tiles is launched.
//
// A file of kernels has a table of TileVariants; choose_tile takes the cheapest by a model, measured once per variant:
//
//   time = waves of tiles x (steps along k x step + store)
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "kernel_launch.cuh"

namespace jaxmd {

inline int64_t ceiling(int64_t x, int64_t y) { return (x + y - 1) / y; }

template <class Problem>
struct TileVariant {
  const char* name;
  int kind;                                   // of problems that it is for
  int rows, columns, cluster, blocks_per_sm;  // tile of a cluster
  double step, store;                         // time of a step along k, and of the rest of a tile, of a full wave
  cudaError_t (*prepare)(int ordinal, const DeviceLimits&);  // cudaErrorNotSupported: not on this device
  cudaError_t (*launch)(const Problem&, const DeviceLimits&, cudaStream_t);
};

// V: kRows, kColumns, kCluster, kBlocksPerSm, prepare, launch
template <class Problem, class V>
constexpr TileVariant<Problem> tile_variant(const char* name, int kind, double step, double store) {
  return {name, kind, V::kRows, V::kColumns, V::kCluster, V::kBlocksPerSm, step, store, V::prepare, V::launch};
}

struct TiledShape {
  int64_t planes, m, n, steps;
  int64_t tiles(int rows, int columns) const { return planes * ceiling(m, rows) * ceiling(n, columns); }
};

// The variant that the environment variable names, else the cheapest; null with an error in `status`.
template <class Problem, size_t kCount>
const TileVariant<Problem>* choose_tile(const TileVariant<Problem> (&variants)[kCount], int kind,
                                        const TiledShape& shape, const char* environment, int ordinal,
                                        const DeviceLimits& device, cudaError_t* status) {
  const char* wanted = std::getenv(environment);
  const TileVariant<Problem>* best = nullptr;
  double least = 0;
  for (const TileVariant<Problem>& v : variants) {
    if (v.kind != kind) continue;
    const cudaError_t prepared = v.prepare(ordinal, device);
    if (prepared == cudaErrorNotSupported) continue;
    if (prepared != cudaSuccess) {
      *status = prepared;
      return nullptr;
    }
    if (wanted != nullptr && std::strcmp(wanted, v.name) == 0) return &v;
    const double slots = double(device.multiprocessors) * v.blocks_per_sm / v.cluster;
    const double waves = std::ceil(double(shape.tiles(v.rows, v.columns)) / slots);
    const double cost = waves * (double(shape.steps) * v.step + v.store);
    if (best == nullptr || cost < least) best = &v, least = cost;
  }
  *status = best == nullptr ? cudaErrorNotSupported : cudaSuccess;
  return best;
}

// A kernel for sm_80 and later.
inline cudaError_t prepare_ampere(KernelOnDevices& kernel, int shared, int ordinal, const DeviceLimits& device) {
  if (device.major < 8 || shared > device.shared) return cudaErrorNotSupported;
  return kernel.prepare(ordinal, device);
}

// A kernel for sm_90a. One whose body was left out, on whatever device it now runs, hardly needs a register.
inline cudaError_t prepare_hopper(KernelOnDevices& kernel, int shared, int ordinal, const DeviceLimits& device) {
  if (device.major != 9 || shared > device.shared) return cudaErrorNotSupported;
  cudaFuncAttributes attributes;
  const cudaError_t status = kernel.prepare(ordinal, device, &attributes);
  return status == cudaSuccess && attributes.numRegs < 40 ? cudaErrorNotSupported : status;
}

// As many clusters of Tile::kCluster blocks as there are tiles or as the device holds.
template <class Tile, class... Parameters, class... Arguments>
cudaError_t launch_walk(void (*kernel)(Parameters...), int64_t tiles, int blocks_per_sm, const DeviceLimits& device,
                        cudaStream_t stream, const Arguments&... arguments) {
  const int64_t most = int64_t{device.multiprocessors} * blocks_per_sm / Tile::kCluster;
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = Tile::kCluster;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(std::min(tiles, most) * Tile::kCluster));
  config.blockDim = dim3(Tile::kThreads);
  config.dynamicSmemBytes = Tile::kShared;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = Tile::kCluster > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace jaxmd
