// The entries of a single-precision product that Inf or NaN touch, after the kernels have left anything in them.
//
//   c_ij = sum of the products a_il b_lj in which a factor is Inf or NaN
//
// where row i of A or column j of B holds one: these terms alone decide a result that is neither finite. A block looks
// at the flags (largest magnitudes) of 128 rows and 128 columns and is done where there are none: a few microseconds
// for the whole matrix; otherwise its threads walk over their entries' terms, slowly.
#pragma once

#include "single.cuh"

namespace jaxmd {
namespace cuda {

constexpr int kRepairTile = 128, kRepairThreads = 256;

__global__ void __launch_bounds__(kRepairThreads) single_repair_kernel(const SingleProblem p) {
  __shared__ bool rows[kRepairTile], columns[kRepairTile];
  const SingleTileAt at = single_tile_at<kRepairTile, kRepairTile>(p, blockIdx.x);
  const auto flagged = [](const int32_t* max_bits, int i, int count) {
    return i < count && __ldg(max_bits + i) >> 23 == kSingleNonfinite;
  };
  const int thread = threadIdx.x;
  bool flag;
  if (thread < kRepairTile) {
    flag = rows[thread] = flagged(p.row + int64_t{at.plane} * p.m, at.row + thread, p.m);
  } else {
    const int j = thread - kRepairTile;
    flag = columns[j] = flagged(p.column + int64_t{at.plane} * p.n, at.column + j, p.n);
  }
  if (__syncthreads_or(flag) == 0) return;
  for (int e = thread; e < kRepairTile * kRepairTile; e += kRepairThreads) {
    const int i = e / kRepairTile, j = e % kRepairTile, row = at.row + i, column = at.column + j;
    if (row >= p.m || column >= p.n || !(rows[i] || columns[j])) continue;
    const float *const a = p.a + (int64_t{at.plane} * p.m + row) * p.k;
    const float *const b = p.b + int64_t{at.plane} * p.k * p.n + column;
    float sum = 0;
    for (int l = 0; l < p.k; ++l) {
      const float x = __ldg(a + l), y = __ldg(b + int64_t{l} * p.n);
      if (!isfinite(x) || !isfinite(y)) sum = __fadd_rn(sum, __fmul_rn(x, y));
    }
    p.c[(int64_t{at.plane} * p.m + row) * p.n + column] = sum;
  }
}

}  // namespace cuda
}  // namespace jaxmd
