// The residue product's CUDA handler: checks shapes, chooses a tile by shape, launches.
//
// JAXMD_RESIDUE_TILE names a variant of the table below to use wherever it runs: for tests and measurements.
#define JAXMD_ISA cuda

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "residue_matmul_args.h"
#include "residue_matmul_mma.cuh"
#include "residue_matmul_wgmma.cuh"
#include "tensor_map.cuh"
#include "tile_launch.cuh"
#include "xla/ffi/api/ffi.h"

namespace jaxmd {
namespace cuda {
namespace {

namespace ffi = xla::ffi;
constexpr char kWho[] = "jaxmd.residue_matmul";

// A tile of three channels counts as three.
TiledShape tiled(const ResidueProblem& p) {
  return {(p.small + 3 * p.pairs) * p.batch, p.m, p.n, ceiling(p.k, kDepth)};
}

template <class Tile>
struct MmaVariant {
  static constexpr int kRows = Tile::kBM, kColumns = Tile::kBN, kCluster = 1, kBlocksPerSm = Tile::kBlocksPerSm;

  static cudaError_t prepare(int ordinal, const DeviceLimits& device) {
    static KernelOnDevices kernel(reinterpret_cast<const void*>(residue_mma_kernel<Tile>));
    return prepare_ampere(kernel, Tile::kShared, ordinal, device);
  }

  static cudaError_t launch(const ResidueProblem& p, const DeviceLimits&, cudaStream_t stream) {
    const unsigned blocks = p.tiles(p.small + p.pairs, kRows, kColumns);
    residue_mma_kernel<Tile><<<blocks, Tile::kThreads, Tile::kShared, stream>>>(p);
    return cudaGetLastError();
  }
};

// [planes][rows][k] bytes, copied in boxes of `box` rows and 128 bytes.
cudaError_t encode_rows(CUtensorMap* map, const int8_t* base, int64_t k, int64_t rows, int64_t planes, int box) {
  const cuuint64_t dims[3] = {cuuint64_t(k), cuuint64_t(rows), cuuint64_t(planes)};
  const cuuint64_t strides[2] = {cuuint64_t(k), cuuint64_t(k * rows)};
  const cuuint32_t boxes[3] = {kDepth, cuuint32_t(box), 1}, element[3] = {1, 1, 1};
  const auto encoder = tensor_map_encoder();
  if (encoder == nullptr) return cudaErrorNotSupported;
  const CUresult result = encoder(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, const_cast<int8_t*>(base), dims, strides,
                                  boxes, element, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <class Tile>
struct WgmmaVariant {
  static constexpr int kRows = Tile::kBM * Tile::kCluster, kColumns = Tile::kN;
  static constexpr int kCluster = Tile::kCluster, kBlocksPerSm = Tile::kBlocksPerSm;

  static cudaError_t prepare(int ordinal, const DeviceLimits& device) {
    static KernelOnDevices kernel(reinterpret_cast<const void*>(residue_wgmma_kernel<Tile>));
    return prepare_hopper(kernel, Tile::kShared, ordinal, device);
  }

  static cudaError_t launch(const ResidueProblem& p, const DeviceLimits& device, cudaStream_t stream) {
    CUtensorMap a, b;
    const int64_t planes = (p.small + 3 * p.pairs) * p.batch;
    cudaError_t status = encode_rows(&a, p.a, p.k, p.m, planes, Tile::kBM);
    if (status == cudaSuccess) status = encode_rows(&b, p.b, p.k, p.n, planes, Tile::kPartB);
    Pace pace;
    if (status == cudaSuccess) status = start_pace(&pace, ceiling(p.k, kDepth), wave_bytes(p, device), stream);
    if (status != cudaSuccess) return status;
    return launch_walk<Tile>(residue_wgmma_kernel<Tile>, p.tiles(p.small + p.pairs, kRows, kColumns), kBlocksPerSm,
                             device, stream, p, pace, a, b);
  }

  // Bytes of A and B that the tiles of one wave share: a band of rows, or what there is of it (plane_tile).
  static int64_t wave_bytes(const ResidueProblem& p, const DeviceLimits& device) {
    const int64_t slots = int64_t{device.multiprocessors} * kBlocksPerSm / kCluster;
    const int64_t rows = std::min<int64_t>(kBandRows<kRows>, ceiling(p.m, kRows));
    const int64_t columns = std::min(ceiling(p.n, kColumns), ceiling(slots, rows));
    return (rows * kRows + columns * kColumns) * p.k;
  }
};

template <class V>
constexpr TileVariant<ResidueProblem> variant(const char* name, double step, double store) {
  return tile_variant<ResidueProblem, V>(name, 0, step, store);
}

// Cycles at 1.7 GHz of 128 of k and of the rest, fitted to times on an H200 with k = 128 to 16384; the kernels were
// launched alone (examples/bench/residue_kernels.py times them, to k = 8192, in JAX).
constexpr TileVariant<ResidueProblem> kVariants[] = {
    variant<WgmmaVariant<WgmmaTile<2, 256, 4, 2, 1>>>("wgmma 256x256", 1180, 3070),
    variant<WgmmaVariant<WgmmaTile<2, 256, 4, 1, 1>>>("wgmma 128x256", 1220, 3270),
    variant<WgmmaVariant<WgmmaTile<2, 128, 3, 1, 2>>>("wgmma 128x128", 1490, 5160),
    variant<WgmmaVariant<WgmmaTile<1, 128, 2, 1, 3>>>("wgmma 64x128", 1440, 2530),
    variant<WgmmaVariant<WgmmaTile<1, 64, 3, 1, 4>>>("wgmma 64x64", 1350, 1580),
    variant<MmaVariant<MmaTile<4, 2, 3, 1>>>("mma 128x128", 1250, 4570),
    variant<MmaVariant<MmaTile<2, 1, 4, 3>>>("mma 64x64", 930, 3510),
};

cudaError_t launch(const ResidueProblem& p, cudaStream_t stream) {
  int ordinal;
  const DeviceLimits& device = current_device(&ordinal);
  if (device.status != cudaSuccess) return device.status;
  cudaError_t status = cudaSuccess;
  const auto* v = choose_tile(kVariants, 0, tiled(p), "JAXMD_RESIDUE_TILE", ordinal, device, &status);
  return v == nullptr ? status : v->launch(p, device, stream);
}

// The widest stores that every row of a result allows.
int store_bytes(const void* base, int64_t n) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(base) | static_cast<uintptr_t>(n);
  return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1;
}

// a [channels, .., m, k], b [channels, .., n, k], moduli, carries -> [bytes, .., m, n]
ffi::Error residue_matmul(cudaStream_t stream, ffi::Buffer<ffi::S8> a, ffi::Buffer<ffi::S8> b,
                          ffi::Buffer<ffi::S32> moduli, ffi::Buffer<ffi::S32> carries,
                          ffi::ResultBuffer<ffi::S8> c) {
  ResidueShape shape;
  JAXMD_CHECK(residue_shape(a.dimensions(), b.dimensions(), moduli.dimensions(), carries.dimensions(),
                            c->dimensions(), &shape));
  if (shape.channels() * shape.batch * shape.m * shape.n == 0) return ffi::Error::Success();
  constexpr int64_t kLargest = (int64_t{1} << 31) - 1024;  // the kernels count in int, to the next tile's edge
  if (shape.m > kLargest || shape.n > kLargest || shape.k > kLargest ||
      shape.channels() * shape.batch * ceiling(shape.m, 64) * ceiling(shape.n, 64) > kLargest) {
    return invalid(kWho, "a has shape " + shape_text(a.dimensions()) + " and b has shape " +
                             shape_text(b.dimensions()) +
                             "; wanted m, n, k and the number of 64 x 64 tiles below 2^31.");
  }
  cudaError_t status = cudaSuccess;
  if (shape.k == 0) {
    status = cudaMemsetAsync(c->typed_data(), 0, c->size_bytes(), stream);
  } else {
    const ResidueProblem p = {a.typed_data(),
                              b.typed_data(),
                              moduli.typed_data(),
                              carries.typed_data(),
                              c->typed_data(),
                              shape.batch,
                              static_cast<int>(shape.small),
                              static_cast<int>(shape.moduli - shape.small),
                              static_cast<int>(shape.m),
                              static_cast<int>(shape.n),
                              static_cast<int>(shape.k),
                              store_bytes(c->typed_data(), shape.n)};
    status = launch(p, stream);
  }
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error(ffi::ErrorCode::kInternal, std::string(kWho) + ": " + cudaGetErrorString(status) + ".");
}

}  // namespace
}  // namespace cuda
}  // namespace jaxmd

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_residue_matmul_cuda, jaxmd::cuda::residue_matmul,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S8>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S8>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::S8>>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
