// The single-precision product's CUDA handler: checks shapes, chooses a tile by shape, launches.
//
// JAXMD_SINGLE_TILE names a variant of the table below to use wherever it runs: for tests and measurements.
#include <cuda.h>
#include <cuda_runtime.h>

#include <string>

#include "single_matmul_args.h"
#include "single_mma.cuh"
#include "single_repair.cuh"
#include "single_wgmma.cuh"
#include "tensor_map.cuh"
#include "tile_launch.cuh"
#include "xla/ffi/api/ffi.h"

namespace jaxmd {
namespace cuda {
namespace {

namespace ffi = xla::ffi;
constexpr char kWho[] = "jaxmd.matmul_f32";

TiledShape tiled(const SingleProblem& p) { return {p.batch, p.m, p.n, ceiling(p.k, 32)}; }

// [planes][rows][columns] floats, copied in boxes.
cudaError_t encode_floats(CUtensorMap* map, const float* base, int64_t columns, int64_t rows, int64_t planes,
                          uint32_t box_columns, uint32_t box_rows) {
  const cuuint64_t dims[3] = {cuuint64_t(columns), cuuint64_t(rows), cuuint64_t(planes)};
  const cuuint64_t strides[2] = {cuuint64_t(4 * columns), cuuint64_t(4 * columns * rows)};
  const cuuint32_t boxes[3] = {box_columns, box_rows, 1}, element[3] = {1, 1, 1};
  const auto encoder = tensor_map_encoder();
  if (encoder == nullptr) return cudaErrorNotSupported;
  const CUresult result = encoder(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3, const_cast<float*>(base), dims, strides,
                                  boxes, element, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// Problems that a tile is for.
constexpr int kind_of(bool tf32, bool is_short) { return 2 * tf32 + is_short; }

template <class Tile>
struct MmaVariant {
  static constexpr int kKind = kind_of(Tile::kTf32, Tile::kShort);
  static constexpr int kRows = Tile::kBM, kColumns = Tile::kBN, kCluster = 1, kBlocksPerSm = Tile::kBlocksPerSm;

  static cudaError_t prepare(int ordinal, const DeviceLimits& device) {
    static KernelOnDevices kernel(reinterpret_cast<const void*>(single_mma_kernel<Tile>));
    return prepare_ampere(kernel, Tile::kShared, ordinal, device);
  }

  static cudaError_t launch(const SingleProblem& p, const DeviceLimits&, cudaStream_t stream) {
    const auto blocks = static_cast<unsigned>(tiled(p).tiles(kRows, kColumns));
    single_mma_kernel<Tile><<<blocks, Tile::kThreads, Tile::kShared, stream>>>(p);
    return cudaGetLastError();
  }
};

template <class Tile>
struct WgmmaVariant {
  static constexpr int kKind = kind_of(Tile::kTf32, Tile::kShort);
  static constexpr int kRows = Tile::kBM * Tile::kCluster, kColumns = Tile::kN, kCluster = Tile::kCluster;
  static constexpr int kBlocksPerSm = 1;

  static cudaError_t prepare(int ordinal, const DeviceLimits& device) {
    static KernelOnDevices kernel(reinterpret_cast<const void*>(single_wgmma_kernel<Tile>));
    return prepare_hopper(kernel, Tile::kShared, ordinal, device);
  }

  static cudaError_t launch(const SingleProblem& p, const DeviceLimits& device, cudaStream_t stream) {
    CUtensorMap a, b;
    cudaError_t status = encode_floats(&a, p.a, p.k, p.m, p.batch, 16, Tile::kBM);
    if (status == cudaSuccess) status = encode_floats(&b, p.b, p.n, p.k, p.batch, 32, 16);
    if (status != cudaSuccess) return status;
    const int64_t tiles = tiled(p).tiles(kRows, kColumns);
    return launch_walk<Tile>(single_wgmma_kernel<Tile>, tiles, kBlocksPerSm, device, stream, p,
                             static_cast<uint32_t>(tiles), a, b);
  }
};

template <class V>
constexpr TileVariant<SingleProblem> variant(const char* name, double step, double store) {
  return tile_variant<SingleProblem, V>(name, V::kKind, step, store);
}

// Nanoseconds of 32 of k, and of the rest, on one H200, from products of 8192 and 4096 (examples/bench/single.py and
// kernels/single_matmul_bench.cu); those for short sums are estimates, not yet measured.
constexpr TileVariant<SingleProblem> kVariants[] = {
    variant<WgmmaVariant<SingleTile<false, 192, 5, 2, false>>>("f16 256x192", 965, 1500),
    variant<WgmmaVariant<SingleTile<false, 96, 8, 1, false>>>("f16 128x96", 673, 1000),
    variant<WgmmaVariant<SingleTile<false, 96, 5, 1, true>>>("f16 128x96 short", 1300, 1000),
    variant<WgmmaVariant<SingleTile<true, 160, 4, 2, false>>>("tf32 256x160", 1363, 1500),
    variant<WgmmaVariant<SingleTile<true, 128, 4, 2, false>>>("tf32 256x128", 1168, 1500),
    variant<WgmmaVariant<SingleTile<true, 64, 6, 1, false>>>("tf32 128x64", 878, 1000),
    variant<WgmmaVariant<SingleTile<true, 96, 4, 1, true>>>("tf32 128x96 short", 2400, 1000),
    variant<MmaVariant<SingleMmaTile<false, 4, 2, 64, 1>>>("f16 mma 128x128", 2410, 1500),
    variant<MmaVariant<SingleMmaTile<false, 2, 2, 32, 2>>>("f16 mma 64x64", 1430, 1000),
    variant<MmaVariant<SingleMmaTile<false, 2, 2, 32, 2, true>>>("f16 mma 64x64 short", 2900, 1000),
    variant<MmaVariant<SingleMmaTile<true, 4, 2, 64, 1>>>("tf32 mma 128x128", 3500, 1500),
    variant<MmaVariant<SingleMmaTile<true, 2, 2, 32, 2>>>("tf32 mma 64x64", 2170, 1000),
    variant<MmaVariant<SingleMmaTile<true, 2, 2, 32, 2, true>>>("tf32 mma 64x64 short", 4400, 1000),
};

cudaError_t launch(const SingleProblem& p, bool tf32, cudaStream_t stream) {
  int ordinal;
  const DeviceLimits& device = current_device(&ordinal);
  if (device.status != cudaSuccess) return device.status;
  cudaError_t status = cudaSuccess;
  const int kind = kind_of(tf32, p.k < kSingleShort);
  const auto* v = choose_tile(kVariants, kind, tiled(p), "JAXMD_SINGLE_TILE", ordinal, device, &status);
  if (v == nullptr) return status;
  status = v->launch(p, device, stream);
  if (status != cudaSuccess) return status;
  const auto blocks = static_cast<unsigned>(tiled(p).tiles(kRepairTile, kRepairTile));
  single_repair_kernel<<<blocks, kRepairThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

// a [.., m, k], b [.., k, n], row [.., m], column [.., n] -> [.., m, n]
ffi::Error single_matmul(cudaStream_t stream, int64_t format, ffi::Buffer<ffi::F32> a, ffi::Buffer<ffi::F32> b,
                         ffi::Buffer<ffi::S32> row, ffi::Buffer<ffi::S32> column, ffi::ResultBuffer<ffi::F32> c) {
  ProductShape s;
  JAXMD_CHECK(single_shape(a.dimensions(), b.dimensions(), row.dimensions(), column.dimensions(), c->dimensions(),
                           format, &s));
  if (s.batch * s.m * s.n == 0) return ffi::Error::Success();
  constexpr int64_t kLargest = (int64_t{1} << 31) - 1024;  // the kernels count in int, to the next tile's edge
  if (s.m > kLargest || s.n > kLargest || s.k > kLargest ||
      s.batch * ceiling(s.m, 64) * ceiling(s.n, 64) > kLargest || s.k % 4 != 0 || s.n % 4 != 0) {
    return invalid(kWho, "a has shape " + shape_text(a.dimensions()) + " and b has shape " +
                             shape_text(b.dimensions()) + "; wanted m, n, k and the number of 64 x 64 tiles below " +
                             "2^31, and k and n multiples of 4.");
  }
  cudaError_t status;
  if (s.k == 0) {
    status = cudaMemsetAsync(c->typed_data(), 0, c->size_bytes(), stream);
  } else {
    const SingleProblem p = {a.typed_data(),           b.typed_data(),        row.typed_data(),
                             column.typed_data(),      c->typed_data(),       static_cast<int>(s.batch),
                             static_cast<int>(s.m),    static_cast<int>(s.n), static_cast<int>(s.k)};
    status = launch(p, static_cast<SingleFormat>(format) == SingleFormat::tf32, stream);
  }
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error(ffi::ErrorCode::kInternal, std::string(kWho) + ": " + cudaGetErrorString(status) + ".");
}

}  // namespace
}  // namespace cuda
}  // namespace jaxmd

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_single_matmul_cuda, jaxmd::cuda::single_matmul,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()
                                  .Attr<int64_t>("format")
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
