// The sliced product's tiles beside cuBLAS: checks each bit for bit on integers, then prints TFLOP/s, * for the tile
// that the chooser takes. From the root of the repository:
//
//   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -I ffi \
//     examples/bench/kernels/sliced_matmul_bench.cu -lcublas -o /tmp/sliced
//   /tmp/sliced          checks and times
//   /tmp/sliced check    checks only
//
// With arch=compute_80,code=compute_80 a newer GPU compiles the sm_80 instructions itself: that checks their path.
// A flop here is one double multiplication or addition on tensor cores: S (S + 1) / 2 products of 2 m n k for S slices.
// cuBLAS runs the same products, one call each, accumulated in its output.
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "sliced_matmul_launch.cuh"

using namespace jaxmd;

#define CHECK(call)                                                                  \
  do {                                                                               \
    const auto status = (call);                                                      \
    if (int(status) != 0) {                                                          \
      std::printf("%s:%d: %s failed: %d\n", __FILE__, __LINE__, #call, int(status)); \
      std::exit(1);                                                                  \
    }                                                                                \
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
  for (int64_t e = (blockIdx.x * int64_t(blockDim.x) + threadIdx.x) * stride; e < size;
       e += int64_t(gridDim.x) * blockDim.x * stride) {
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
__global__ void __launch_bounds__(256, 1) ceiling_kernel(const double* in, double* out, int rounds) {
  double a[4][4], b[4][2], c[4][4][4] = {};
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) a[i][j] = in[(i * 4 + j) * 256 + threadIdx.x];
    for (int j = 0; j < 2; ++j) b[i][j] = in[(16 + i * 2 + j) * 256 + threadIdx.x];
  }
  for (int r = 0; r < rounds; ++r) {
#pragma unroll
    for (int i = 0; i < 16; ++i) multiply_add(c[i / 4][i % 4], a[i / 4], b[i % 4]);
  }
  double sum = 0;
  for (int i = 0; i < 64; ++i) sum += c[i / 16][i / 4 % 4][i % 4];
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}

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

struct Bench {
  double* buffers[3];  // 12 x 4096 x 4096 doubles each
  unsigned long long* wrong;
  cublasHandle_t cublas;
  SlicedDevice device;
  int bad = 0;

  Bench() {
    for (double*& buffer : buffers) CHECK(cudaMalloc(&buffer, size_t(12) * 4096 * 4096 * 8));
    CHECK(cudaMalloc(&wrong, 8));
    CHECK(cublasCreate(&cublas));
    device = sliced_device(0);
    CHECK(device.status);
  }

  SlicedProblem problem(int64_t slices, int64_t batch, int m, int n, int k, int bits) {
    fill_kernel<<<2048, 256>>>(buffers[0], slices * batch * m * k, bits, 1 + m);
    fill_kernel<<<2048, 256>>>(buffers[1], slices * batch * k * n, bits, 77 + n);
    CHECK(cudaDeviceSynchronize());
    return {buffers[0], buffers[1], buffers[2], slices, batch, m, n, k};
  }

  bool runs(int v, const SlicedProblem& p) {
    return device.runs[v] && (!kSlicedVariants[v].aligned || rows_are_aligned(p));
  }

  void clear(const SlicedProblem& p) { CHECK(cudaMemset(p.c, 0xff, p.slices * p.batch * p.m * p.n * 8)); }

  // About `samples` entries.
  unsigned long long errors(const SlicedProblem& p, int64_t samples) {
    CHECK(cudaMemset(wrong, 0, 8));
    check_kernel<<<1024, 128>>>(p, std::max<int64_t>(1, p.slices * p.batch * p.m * p.n / samples), wrong);
    unsigned long long count;
    CHECK(cudaMemcpy(&count, wrong, 8, cudaMemcpyDeviceToHost));
    bad += count != 0;
    return count;
  }

  void run_cublas(const SlicedProblem& p) {
    const double one = 1, zero = 0;
    const int64_t a = int64_t(p.m) * p.k, b = int64_t(p.k) * p.n, c = int64_t(p.m) * p.n;
    for (int64_t g = 0; g < p.slices; ++g) {
      for (int64_t i = 0; i <= g; ++i) {
        CHECK(cublasDgemmStridedBatched(cublas, CUBLAS_OP_N, CUBLAS_OP_N, p.n, p.m, p.k, &one,
                                        p.b + (g - i) * p.batch * b, p.n, b, p.a + i * p.batch * a, p.k, a,
                                        i ? &one : &zero, p.c + g * p.batch * c, p.n, c, int(p.batch)));
      }
    }
  }

  void check() {
    const int shapes[][5] = {{1, 1, 1, 1, 1},      {1, 1, 128, 128, 16}, {2, 1, 127, 129, 17},   {3, 2, 129, 126, 34},
                             {6, 3, 64, 64, 64},   {12, 1, 33, 31, 15},  {4, 5, 16, 16, 16},     {2, 1, 300, 520, 1000},
                             {3, 1, 257, 255, 33}, {5, 2, 130, 2, 48},   {5, 2, 2, 130, 50},     {1, 1, 1000, 1000, 1},
                             {4, 3, 1, 500, 18},   {4, 3, 500, 1, 18},   {2, 1, 1300, 1100, 64}, {3, 7, 17, 15, 2},
                             {7, 1, 16, 200, 130}, {7, 1, 200, 16, 130}, {2, 1, 65, 63, 31}};
    for (const auto& s : shapes) {
      const SlicedProblem p = problem(s[0], s[1], s[2], s[3], s[4], 18);
      for (int v = 0; v < kSlicedVariantCount; ++v) {
        if (!runs(v, p)) continue;
        clear(p);
        CHECK(kSlicedVariants[v].launch(p, nullptr));
        CHECK(cudaDeviceSynchronize());
        if (const auto count = errors(p, int64_t(1) << 40)) {
          std::printf("WRONG %s: S=%d batch=%d m=%d n=%d k=%d: %llu entries\n", kSlicedVariants[v].name, s[0], s[1],
                      s[2], s[3], s[4], count);
        }
      }
    }
    std::printf(bad ? "CHECK FAILED (%d)\n" : "check: every tile exact on every shape\n", bad);
  }

  void row(int64_t slices, int64_t batch, int m, int n, int k, int bits, int repeat) {
    const SlicedProblem p = problem(slices, batch, m, n, k, bits);
    const double flops = slices * (slices + 1.0) * batch * m * double(n) * k;
    const SlicedVariant* chosen = &choose_sliced_variant(p, device);
    std::printf("\nS=%d batch=%d m=%d n=%d k=%d\n", int(slices), int(batch), m, n, k);
    const auto line = [&](const char* name, bool mark, const std::function<void()>& run) {
      clear(p);
      const double s = median_seconds(repeat, run);
      std::printf("%c %-14s %10.1f us %7.2f TFLOP/s  wrong %llu\n", mark ? '*' : ' ', name, s * 1e6, flops / s * 1e-12,
                  errors(p, 4093));
    };
    for (int v = 0; v < kSlicedVariantCount; ++v) {
      const SlicedVariant& variant = kSlicedVariants[v];
      const double padded = (m + variant.rows - 1) / variant.rows * double(variant.rows) *
                            ((n + variant.columns - 1) / variant.columns) * variant.columns / (double(m) * n);
      if (!runs(v, p) || (padded > 4.5 && &variant != chosen)) continue;  // seconds, and nobody's choice
      line(variant.name, &variant == chosen, [&] { CHECK(variant.launch(p, nullptr)); });
    }
    line("cuBLAS", false, [&] { run_cublas(p); });
  }
};

int main(int argc, char** argv) {
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  const int sms = properties.multiProcessorCount;
  std::printf("%s, %d multiprocessors\n", properties.name, sms);
  Bench bench;
  bench.check();
  if (argc > 1 && std::strcmp(argv[1], "check") == 0) return bench.bad != 0;

  bench.problem(1, 1, 1024, 1024, 1024, 20);
  const double s = median_seconds(5, [&] { ceiling_kernel<<<sms, 256>>>(bench.buffers[0], bench.buffers[2], 8192); });
  std::printf("the instruction alone: %.1f TFLOP/s\n", sms * 8 * 16.0 * 8192 * 2048 / s * 1e-12);

  bench.row(1, 1, 8192, 8192, 4096, 20, 10);
  bench.row(6, 1, 4096, 4096, 4096, 20, 5);
  bench.row(12, 1, 4096, 4096, 4096, 18, 2);
  for (int n : {2048, 1536, 1024, 768, 512, 384, 256, 128, 64}) bench.row(6, 1, n, n, n, 20, 20);
  for (int n : {4095, 1023, 511}) bench.row(6, 1, n, n, n, 20, 10);
  bench.row(6, 16, 256, 256, 256, 20, 20);
  bench.row(6, 1024, 64, 64, 64, 20, 20);
  bench.row(6, 4096, 32, 32, 32, 20, 20);
  bench.row(6, 16384, 16, 16, 16, 20, 20);
  for (int m : {1, 16, 32, 128}) {
    bench.row(6, 1, m, 4096, 4096, 20, 20);
    bench.row(6, 1, 4096, m, 4096, 20, 20);
  }
  bench.row(6, 1, 4096, 4096, 32, 22, 20);
  return bench.bad != 0;
}
