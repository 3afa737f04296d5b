// Engine "direct" on CUDA cores where C has few rows, few columns or few entries: the inner axis is shared out.
//
// Shapes, formula and bound: direct.h. The runs and merges of one entry may take its terms in any order.
// Tiling: a block of 256 threads. By rows (few columns or few entries): a warp an entry, lane q the terms l ≡ q mod 32,
//   so that rows of A are read in one piece. By columns (few rows): a lane a column, warp q the terms l ≡ q mod 8, so
//   that rows of B are. Operands come straight from global memory; the slots of the threads of one entry meet in shared
//   memory, pairwise.
// Exact: as direct.h; the log2(32) merges of slots leave their errors in the slots like any other.
// Cost: one pass over A and B, and the instructions of direct.h.
// Source: direct.h.
#pragma once

#include <cuda_runtime.h>

#include "direct_entry.cuh"

namespace jaxmd {
namespace JAXMD_ISA {
namespace {

constexpr int kSkinny = 4;         // rows or columns
constexpr int64_t kFewEntries = 8192;
constexpr int kSkinnyThreads = 256;

inline bool by_rows(const ProductShape& s) { return s.n <= kSkinny || s.batch * s.m * s.n <= kFewEntries; }
inline bool is_skinny(const ProductShape& s) {
  return s.n <= kSkinny || s.m <= kSkinny || (by_rows(s) && s.k >= 512);
}

template <int L, int W, bool kByRows>
__global__ void __launch_bounds__(kSkinnyThreads)
    skinny_matmul_kernel(const __grid_constant__ DirectTask task, int run) {
  constexpr int kSlices = kByRows ? 32 : 8, kStride = kByRows ? 1 : 32;  // threads of an entry, and how far apart
  __shared__ double shared[L + 1][kSkinnyThreads];
  const ProductShape& s = task.shape;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = kByRows ? lane : warp;
  const int64_t blocks = (s.n + 31) / 32, entry = int64_t{blockIdx.x} * 8 + warp;
  const int64_t i = kByRows ? entry / s.n : blockIdx.x / blocks;  // counts rows over the batch
  const int64_t j = kByRows ? entry % s.n : blockIdx.x % blocks * 32 + lane;
  const bool inside = i < s.batch * s.m && j < s.n;
  const int64_t row = i * s.k, column = i / s.m * s.k * s.n + j;
  const int e = inside ? task.e[i] : 0, f = inside ? task.f[i / s.m * s.n + j] : 0;
  const ScaleFactors by_row = scale_factors(kTarget - e), by_column = scale_factors(kTarget - f);
  double slot[L + 1] = {}, sum = 0, rest = 0;
  int met = 0, merges = 0;
  for (int64_t l = inside ? slice : s.k; l < s.k; l += kSlices) {
    double x[W + 1], y[W + 1], t[W + 1];
#pragma unroll
    for (int g = 0; g <= W; ++g) {
      x[g] = g < task.a.count ? scaled(task.a.limb[g][row + l], by_row) : 0.0;
      y[g] = g < task.b.count ? scaled(task.b.limb[g][column + l * s.n], by_column) : 0.0;
    }
    product<W>(x, y, t);
    if constexpr (W == 1) {
      double error;
      two_sum(sum, t[0], sum, error);
      rest = add_rn(rest, add_rn(t[1], error));
      if (++met < run && l + kSlices < s.k) continue;
      t[0] = sum;
      t[1] = rest;
      sum = rest = met = 0;
    }
    merge<L, W>(slot, t);
    if (++merges % 128 == 0) sweep<L>(slot);
  }
#pragma unroll
  for (int half = kSlices / 2; half > 0; half /= 2) {
    sweep<L>(slot);
#pragma unroll
    for (int h = 0; h <= L; ++h) shared[h][threadIdx.x] = slot[h];
    __syncthreads();
    if (slice < half) {
      double t[L + 1];
#pragma unroll
      for (int h = 0; h <= L; ++h) t[h] = shared[h][threadIdx.x + half * kStride];
      merge<L, L>(slot, t);
    }
    __syncthreads();
  }
  if (slice == 0 && inside) round_entry<L>(slot, e + f - 2 * kTarget, task, i * s.n + j);
}

template <int L, int W>
cudaError_t launch_skinny_order(cudaStream_t stream, const DirectTask& task, int run) {
  const ProductShape& s = task.shape;
  if (by_rows(s)) {
    const int64_t blocks = (s.batch * s.m * s.n + 7) / 8;
    skinny_matmul_kernel<L, W, true><<<static_cast<unsigned>(blocks), kSkinnyThreads, 0, stream>>>(task, run);
  } else {
    const int64_t blocks = s.batch * s.m * ((s.n + 31) / 32);
    skinny_matmul_kernel<L, W, false><<<static_cast<unsigned>(blocks), kSkinnyThreads, 0, stream>>>(task, run);
  }
  return cudaGetLastError();
}

cudaError_t launch_skinny_matmul(cudaStream_t stream, const DirectTask& task, const DirectPlan& plan) {
  switch (10 * plan.limbs + plan.order) {
    case 21: return launch_skinny_order<2, 1>(stream, task, plan.run);
    case 22: return launch_skinny_order<2, 2>(stream, task, 1);
    case 32: return launch_skinny_order<3, 2>(stream, task, 1);
    case 33: return launch_skinny_order<3, 3>(stream, task, 1);
    case 43: return launch_skinny_order<4, 3>(stream, task, 1);
    case 44: return launch_skinny_order<4, 4>(stream, task, 1);
  }
  return cudaErrorInvalidValue;
}

}  // namespace
}  // namespace JAXMD_ISA
}  // namespace jaxmd
