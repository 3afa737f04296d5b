// Variants of the sliced product's kernel beside cuBLAS: checks each bit for bit on integers, then prints TFLOP/s.
//
//   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -I ffi examples/bench/kernels/sliced_matmul_bench.cu -lcublas -o /tmp/sliced
//   /tmp/sliced
//
// A flop here is one double multiplication or addition on the tensor cores, S (S + 1) / 2 products of 2 m n k for S slices.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>
#if __has_include(<cublas_v2.h>)
#include <cublas_v2.h>
#define BENCH_CUBLAS 1
#endif

#include "sliced_matmul.cuh"

using namespace jaxmd;

#define CHECK(call)                                                                      \
  do {                                                                                   \
    const auto status = (call);                                                          \
    if (int(status) != 0) {                                                              \
      std::printf("%s:%d: %s failed: %d\n", __FILE__, __LINE__, #call, int(status));     \
      std::exit(1);                                                                      \
    }                                                                                    \
  } while (0)

// Balanced digits of `bits` bits from a counter (splitmix64).
__global__ void fill_kernel(double* out, int64_t size, int bits, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < size; i += int64_t(gridDim.x) * blockDim.x) {
    uint64_t z = seed + uint64_t(i) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    out[i] = double(int64_t(z & ((1ull << bits) - 1)) - (1ll << (bits - 1)));
  }
}

// Compares every stride-th entry of every order with an int64 sum; counts differing bit patterns.
__global__ void check_kernel(SlicedProblem p, int64_t stride, unsigned long long* wrong) {
  const int64_t size = p.slices * p.batch * p.m * p.n;
  for (int64_t e = (blockIdx.x * int64_t(blockDim.x) + threadIdx.x) * stride; e < size; e += int64_t(gridDim.x) * blockDim.x * stride) {
    const int64_t j = e % p.n, i = e / p.n % p.m, b = e / p.n / p.m % p.batch, order = e / p.n / p.m / p.batch;
    long long sum = 0;
    for (int64_t s = 0; s <= order; ++s) {
      const double* x = p.a + ((s * p.batch + b) * p.m + i) * p.k;
      const double* y = p.b + ((order - s) * p.batch + b) * int64_t(p.k) * p.n + j;
      for (int l = 0; l < p.k; ++l) sum += (long long)(x[l]) * (long long)(y[int64_t(l) * p.n]);
    }
    if (__double_as_longlong(p.c[e]) != __double_as_longlong(double(sum))) atomicAdd(wrong, 1ull);
  }
}

// Ceiling: the instruction alone, operands in registers, eight warps an SM with 16 independent accumulators each.
template <class Mma>
__global__ void __launch_bounds__(256, 1) ceiling_kernel(const double* in, double* out, int rounds) {
  constexpr int kK = Mma::kK;
  double a[4][kK / 2], b[4][kK / 4], c[4][4][4] = {};
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < kK / 2; ++j) a[i][j] = in[(i * kK + j) * 256 + threadIdx.x];
    for (int j = 0; j < kK / 4; ++j) b[i][j] = in[(64 + i * kK + j) * 256 + threadIdx.x];
  }
  for (int r = 0; r < rounds; ++r) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) Mma::run(c[i][j], a[i], b[j]);
    }
  }
  double sum = 0;
  for (int i = 0; i < 64; ++i) sum += c[i / 16][i / 4 % 4][i % 4];
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}

template <class Tile>
int64_t blocks(const SlicedProblem& p) {
  return p.slices * p.batch * ((p.m + Tile::kBM - 1) / Tile::kBM) * ((p.n + Tile::kBN - 1) / Tile::kBN);
}

template <class Tile, int kBlocksPerSm>
void launch_async(const SlicedProblem& p) {
  const auto kernel = p.k % 2 || p.n % 2 ? sliced_matmul_kernel<Tile, false, kBlocksPerSm> : sliced_matmul_kernel<Tile, true, kBlocksPerSm>;
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kShared));
  kernel<<<int(blocks<Tile>(p)), Tile::kThreads, Tile::kShared>>>(p);
}

CUtensorMap tensor_map(const double* base, int64_t inner, int64_t rows, int64_t planes, int box_rows) {
  static decltype(&cuTensorMapEncodeTiled) encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result));
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  }();
  CUtensorMap map;
  const cuuint64_t dims[3] = {cuuint64_t(inner), cuuint64_t(rows), cuuint64_t(planes)};
  const cuuint64_t strides[2] = {cuuint64_t(inner * 8), cuuint64_t(inner * rows * 8)};
  const cuuint32_t box[3] = {16, cuuint32_t(box_rows), 1}, element[3] = {1, 1, 1};
  CHECK(encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT64, 3, const_cast<double*>(base), dims, strides, box, element,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return map;
}

template <class Tile>
void launch_bulk(const SlicedProblem& p) {
  if (p.k % 2 || p.n % 2 || p.k == 0) return launch_async<SlicedTile<Tile::kBM, Tile::kBN, Tile::kWM, Tile::kWN, 3, Tile::kDepth, typename Tile::Mma>, 1>(p);
  constexpr int shared = Tile::kShared + 16 * Tile::kStages;
  CHECK(cudaFuncSetAttribute(sliced_matmul_bulk_kernel<Tile>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  const CUtensorMap a = tensor_map(p.a, p.k, p.m, p.slices * p.batch, Tile::kBM);
  const CUtensorMap b = tensor_map(p.b, p.n, p.k, p.slices * p.batch, 16);
  sliced_matmul_bulk_kernel<Tile><<<int(blocks<Tile>(p)), Tile::kThreads + 128, shared>>>(p, a, b);
}

struct Variant {
  const char* name;
  std::function<void(const SlicedProblem&)> launch;
};

double median_seconds(int repeat, const std::function<void()>& run) {
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  run();
  for (int r = 0; r < repeat; ++r) {
    CHECK(cudaEventRecord(begin));
    run();
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms);
  }
  CHECK(cudaGetLastError());
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e-3;
}

double* buffers[3];
unsigned long long* wrong;

SlicedProblem problem(int64_t slices, int64_t batch, int m, int n, int k, int bits) {
  fill_kernel<<<2048, 256>>>(buffers[0], slices * batch * m * k, bits, 1 + m);
  fill_kernel<<<2048, 256>>>(buffers[1], slices * batch * k * n, bits, 77 + n);
  CHECK(cudaDeviceSynchronize());
  return {buffers[0], buffers[1], buffers[2], slices, batch, m, n, k};
}

unsigned long long errors(const SlicedProblem& p, int64_t stride) {
  CHECK(cudaMemset(wrong, 0, 8));
  check_kernel<<<1024, 128>>>(p, stride, wrong);
  unsigned long long count;
  CHECK(cudaMemcpy(&count, wrong, 8, cudaMemcpyDeviceToHost));
  return count;
}

template <class Mma>
void ceiling(const char* name, int multiprocessors) {
  problem(1, 1, 1024, 1024, 1024, 20);
  const int rounds = 65536 / Mma::kK;
  const double s = median_seconds(5, [&] { ceiling_kernel<Mma><<<multiprocessors, 256>>>(buffers[0], buffers[2], rounds); });
  std::printf("  %-34s %10.1f us %7.2f TFLOP/s\n", name, s * 1e6, multiprocessors * 8 * 16.0 * rounds * 256 * Mma::kK / s * 1e-12);
}

int main() {
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, 0));
  std::printf("%s, %d multiprocessors\n", device.name, device.multiProcessorCount);
  const Variant variants[] = {
      {"async 128x128 w32x64 k8  6x16", launch_async<SlicedTile<128, 128, 32, 64, 6, 1, MmaM16N8K8>, 1>},
      {"async 128x128 w32x64 k8  3x32", launch_async<SlicedTile<128, 128, 32, 64, 3, 2, MmaM16N8K8>, 1>},
      {"async 128x128 w32x64 k16 3x32", launch_async<SlicedTile<128, 128, 32, 64, 3, 2, MmaM16N8K16>, 1>},
      {"async 128x128 w32x64 k4  6x16", launch_async<SlicedTile<128, 128, 32, 64, 6, 1, MmaChain<MmaM16N8K4, 8>>, 1>},
      {"async 128x128 w64x32 k8  6x16", launch_async<SlicedTile<128, 128, 64, 32, 6, 1, MmaM16N8K8>, 1>},
      {"async 128x64 w32x64 k8  4x16 x2", launch_async<SlicedTile<128, 64, 32, 64, 4, 1, MmaM16N8K8>, 2>},
      {"async 128x128 w32x64 m8n8k4 6x16", launch_async<SlicedTile<128, 128, 32, 64, 6, 1, MmaChain<MmaM8N8K4, 8>>, 1>},
      {"bulk  128x128 w32x64 k8  7x16", launch_bulk<SlicedTile<128, 128, 32, 64, 7, 1, MmaM16N8K8>>},
      {"bulk  128x128 w32x64 k8  4x16", launch_bulk<SlicedTile<128, 128, 32, 64, 4, 1, MmaM16N8K8>>},
      {"bulk  128x128 w64x32 k8  7x16", launch_bulk<SlicedTile<128, 128, 64, 32, 7, 1, MmaM16N8K8>>},
      {"bulk  128x128 w32x64 k16 3x32", launch_bulk<SlicedTile<128, 128, 32, 64, 3, 2, MmaM16N8K16>>},
      {"async 64x64 w32x32 k8 4x16 x3", launch_async<SlicedTile<64, 64, 32, 32, 4, 1, MmaM16N8K8>, 3>},
      {"async 32x32 w16x16 k8 4x16 x6", launch_async<SlicedTile<32, 32, 16, 16, 4, 1, MmaM16N8K8>, 6>},
      {"async 16x32 w8x16 k8 4x16 x8", launch_async<SlicedTile<16, 32, 8, 16, 4, 1, MmaM16N8K8>, 8>},
  };
  const size_t bytes[3] = {size_t(12) * 4096 * 4096 * 8, size_t(12) * 4096 * 4096 * 8, size_t(12) * 4096 * 4096 * 8};
  for (int i = 0; i < 3; ++i) CHECK(cudaMalloc(&buffers[i], bytes[i]));
  CHECK(cudaMalloc(&wrong, 8));

  std::printf("\ninstruction alone, no memory\n");
  ceiling<MmaM8N8K4>("m8n8k4", device.multiProcessorCount);
  ceiling<MmaM16N8K4>("m16n8k4", device.multiProcessorCount);
  ceiling<MmaM16N8K8>("m16n8k8", device.multiProcessorCount);
  ceiling<MmaM16N8K16>("m16n8k16", device.multiProcessorCount);

  const int shapes[][5] = {{1, 1, 1, 1, 1},      {1, 1, 128, 128, 16},  {2, 1, 127, 129, 17},  {3, 2, 129, 126, 34}, {6, 3, 64, 64, 64},
                           {12, 1, 33, 31, 15},  {4, 5, 16, 16, 16},    {2, 1, 300, 520, 1000}, {3, 1, 257, 255, 33}, {5, 2, 130, 2, 48},
                           {5, 2, 2, 130, 50},   {1, 1, 1000, 1000, 1}, {2, 3, 40, 40, 0},     {2, 1, 1300, 1100, 64}};
  int bad = 0;
  for (const Variant& v : variants) {
    for (const auto& s : shapes) {
      const SlicedProblem p = problem(s[0], s[1], s[2], s[3], s[4], 18);
      CHECK(cudaMemset(buffers[2], 0xff, p.slices * p.batch * p.m * p.n * 8));
      v.launch(p);
      CHECK(cudaGetLastError());
      CHECK(cudaDeviceSynchronize());
      if (const auto count = errors(p, 1)) {
        ++bad;
        std::printf("WRONG %s: S=%d batch=%d m=%d n=%d k=%d: %llu entries\n", v.name, s[0], s[1], s[2], s[3], s[4], count);
      }
    }
  }
  std::printf(bad ? "\nCHECK FAILED (%d)\n" : "\ncheck: every variant exact on every shape\n", bad);

  const auto row = [&](const char* title, const SlicedProblem& p, int repeat, size_t first, size_t last) {
    const double flops = p.slices * (p.slices + 1.0) * p.batch * p.m * double(p.n) * p.k;
    std::printf("\n%s\n", title);
    for (size_t v = first; v < last; ++v) {
      CHECK(cudaMemset(buffers[2], 0xff, p.slices * p.batch * p.m * p.n * 8));
      const double s = median_seconds(repeat, [&] { variants[v].launch(p); });
      const int64_t size = p.slices * p.batch * p.m * p.n;
      std::printf("  %-34s %10.1f us %7.2f TFLOP/s  wrong %llu\n", variants[v].name, s * 1e6, flops / s * 1e-12,
                  errors(p, std::max<int64_t>(1, size / 4093)));
    }
  };
  const size_t count = sizeof(variants) / sizeof(variants[0]);
  {
    const SlicedProblem p = problem(1, 1, 8192, 8192, 4096, 20);
    row("S=1 8192x4096x8192", p, 10, 0, count - 2);
#ifdef BENCH_CUBLAS
    cublasHandle_t handle;
    CHECK(cublasCreate(&handle));
    const double one = 1, zero = 0;
    const double s = median_seconds(10, [&] {
      CHECK(cublasDgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, p.n, p.m, p.k, &one, p.b, p.n, p.a, p.k, &zero, p.c, p.n));
    });
    std::printf("  %-34s %10.1f us %7.2f TFLOP/s  wrong %llu\n", "cublasDgemm", s * 1e6, 2.0 * p.m * p.n * p.k / s * 1e-12, errors(p, 16391));
#endif
  }
  row("S=6 n=4096", problem(6, 1, 4096, 4096, 4096, 20), 5, 0, count - 3);
  row("S=12 n=4096", problem(12, 1, 4096, 4096, 4096, 18), 2, 7, 9);
  row("S=6 n=2048", problem(6, 1, 2048, 2048, 2048, 20), 10, 0, count - 2);
  row("S=6 n=1024", problem(6, 1, 1024, 1024, 1024, 20), 20, 0, count);
  row("S=6 n=512", problem(6, 1, 512, 512, 512, 20), 20, 0, count);
  row("S=6 n=256", problem(6, 1, 256, 256, 256, 20), 20, 0, count);
  row("S=6 n=64 batch 1024", problem(6, 1024, 64, 64, 64, 20), 20, 7, count);
  row("S=6 n=16 batch 16384", problem(6, 16384, 16, 16, 16, 20), 20, 11, count);
  row("S=6 n=1023 (odd)", problem(6, 1, 1023, 1023, 1023, 20), 20, 0, count - 3);
  return bad != 0;
}
