// Tiles of the single-precision kernels for Hopper, and what their parts cost. From the root of the repository:
//
//   nvcc -O3 -std=c++17 -fmad=false -gencode=arch=compute_90a,code=sm_90a -I ffi \
//     examples/bench/kernels/single_matmul_bench.cu -o /tmp/single && /tmp/single
//
// TFLOPS is 2 n^3 / time / 10^12 of the kernel alone, in the best of four launches, and sustained, where power binds. The
// last columns leave parts out, which gives wrong results: the split of B, the products, the split of A, both splits.
// Entries are uniform in (-1, 1): zeros would run at higher clocks.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

#include "single_wgmma.cuh"
#include "tensor_map.cuh"

using namespace jaxmd;
using namespace jaxmd::cuda;

#define CHECK(call)                                                                  \
  do {                                                                               \
    const auto status = (call);                                                      \
    if (int(status) != 0) {                                                          \
      std::printf("%s:%d: %s failed: %d\n", __FILE__, __LINE__, #call, int(status)); \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (0)

__global__ void fill_kernel(float* out, int64_t size, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < size; i += int64_t(gridDim.x) * blockDim.x) {
    uint64_t z = seed + uint64_t(i) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    out[i] = float(int64_t(z >> 40) - (1 << 23)) / (1 << 23);
  }
}

__global__ void ones_kernel(int32_t* out, int size) {  // bits of a largest entry below 1
  for (int i = threadIdx.x; i < size; i += blockDim.x) out[i] = 0x3f7fffff;
}

CUtensorMap encode(const float* base, int n, uint32_t columns, uint32_t rows) {
  const cuuint64_t dims[3] = {cuuint64_t(n), cuuint64_t(n), 1}, strides[2] = {4ull * n, 4ull * n * n};
  const cuuint32_t boxes[3] = {columns, rows, 1}, element[3] = {1, 1, 1};
  CUtensorMap map;
  CHECK(tensor_map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3, const_cast<float*>(base), dims, strides, boxes,
                             element, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return map;
}

struct Speed {
  double best, sustained;  // of the second half of the launches
};

template <class Tile>
Speed teraflops(const SingleProblem& p, int multiprocessors, int repeats) {
  const CUtensorMap a = encode(p.a, p.k, 16, Tile::kBM), b = encode(p.b, p.n, 32, 16);
  const int rows = Tile::kBM * Tile::kCluster;
  const int tiles = (p.m + rows - 1) / rows * ((p.n + Tile::kN - 1) / Tile::kN);
  CHECK(cudaFuncSetAttribute(single_wgmma_kernel<Tile>, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kShared));
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {Tile::kCluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(std::min(tiles, multiprocessors / Tile::kCluster) * Tile::kCluster);
  config.blockDim = dim3(Tile::kThreads);
  config.dynamicSmemBytes = Tile::kShared;
  config.attrs = &cluster;
  config.numAttrs = 1;
  cudaEvent_t start, stop;
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));
  float best = 1e30f, total = 0;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    CHECK(cudaEventRecord(start));
    CHECK(cudaLaunchKernelEx(&config, single_wgmma_kernel<Tile>, p, uint32_t(tiles), a, b));
    CHECK(cudaEventRecord(stop));
    CHECK(cudaEventSynchronize(stop));
    float milliseconds;
    CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
    best = std::min(best, milliseconds);
    if (2 * repeat >= repeats) total += milliseconds;
  }
  const double work = 2.0 * p.m * p.n * p.k / 1e9;
  return {work / best, work / (total / (repeats / 2))};
}

template <bool kTf32, int kN, int kStages, int kCluster>
void report(const char* name, const SingleProblem& p, int multiprocessors) {
  const auto print = [&](auto leave_out) {
    using Tile = SingleTile<kTf32, kN, kStages, kCluster, false, leave_out>;
    std::printf(" %7.1f", teraflops<Tile>(p, multiprocessors, 4).best);
  };
  using Whole = SingleTile<kTf32, kN, kStages, kCluster, false>;
  std::printf("%-24s n = %5d ", name, p.n);
  const Speed first = teraflops<Whole>(p, multiprocessors, 4);
  const Speed later = teraflops<Whole>(p, multiprocessors, int(2 + 3e13 / (double(p.n) * p.n * p.n)));  // about 0.3 s
  std::printf(" %7.1f %7.1f |", first.best, later.sustained);
  print(std::integral_constant<int, 1>());
  print(std::integral_constant<int, 2>());
  print(std::integral_constant<int, 4>());
  print(std::integral_constant<int, 5>());
  std::printf("\n");
  std::fflush(stdout);
}

int main() {
  int multiprocessors;
  CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  std::printf("tile                              TFLOPS sustained | without: split of B, products, split of A, both\n");
  for (const int n : {4096, 8192}) {
    SingleProblem p = {};
    float *a, *b;
    int32_t* ones;
    CHECK(cudaMalloc(&a, 4ull * n * n));
    CHECK(cudaMalloc(&b, 4ull * n * n));
    CHECK(cudaMalloc(&p.c, 4ull * n * n));
    CHECK(cudaMalloc(&ones, 4ull * n));
    fill_kernel<<<1024, 256>>>(a, int64_t(n) * n, 1);
    fill_kernel<<<1024, 256>>>(b, int64_t(n) * n, 2);
    ones_kernel<<<1, 256>>>(ones, n);
    p.a = a, p.b = b, p.row = p.column = ones, p.batch = 1, p.m = p.n = p.k = n;
    report<false, 192, 5, 2>("f16 256x192", p, multiprocessors);
    report<false, 96, 8, 1>("f16 128x96", p, multiprocessors);
    report<true, 160, 4, 2>("tf32 256x160", p, multiprocessors);
    report<true, 128, 4, 2>("tf32 256x128", p, multiprocessors);
    report<true, 64, 6, 1>("tf32 128x64", p, multiprocessors);
    CHECK(cudaFree(a));
    CHECK(cudaFree(b));
    CHECK(cudaFree(p.c));
    CHECK(cudaFree(ones));
  }
}
