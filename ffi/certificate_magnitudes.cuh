// Grids of the rows of A and the columns of B, and magnitudes on them for one int8 product.
//
//   row_i = max over l of e(a_il)                  u_il = min(127, floor(2^7 |a_il| / 2^row_i))      l < kp
//   column_j = max over l of e(b_lj)               v_jl = min(127, floor(2^7 |b_lj| / 2^column_j))
//
// with e of certificate_exponents.cuh, `shared_exponent` and `magnitudes` of jaxmd/_slices.py and _magnitudes.py: zeros
// have exponent 0, and magnitudes are 0 where the grid is not settled or near the end of the range. Both operands hold
// l last, kp entries, a multiple of 32 that may be 0; zeros beyond k.
// Tiling: a block of 16 warps has 16 / width rows of A, `width` warps a row; or `width` columns of B, 8 to 32, lanes
//   of a column 512 / width rows apart. It reads k from the end, so that what magnitudes are taken of is near when the
//   grid is known. Few long rows are cut along k in `parts` slabs, whose maxima a second launch combines.
// Shared memory: magnitudes of B [column][kp], a word of four more a column, so that lanes write to different banks.
// Exact: |x| times a power of two, both far from the ends of the range, is exact.
// Cost: one pass over the limbs at the speed of memory.
#pragma once

#include <cstdint>

#include "certificate_exponents.cuh"
#include "kernel_launch.cuh"

namespace jaxmd {
namespace cuda {

constexpr int kGridWarps = 16, kGridThreads = 32 * kGridWarps;
constexpr int kMostMagnitudes = 512, kMostColumns = 32;

// One operand; rows counts A's rows or B's columns.
struct GridSide {
  LimbPointers<const double> x;
  int32_t* part;      // [batch, rows, parts] of A, [batch, parts, rows] of B, where parts > 1
  int32_t* exponent;  // [batch, rows]
  int8_t* out;        // [batch, rows, kp]
  int64_t rows, slab;
  unsigned parts, blocks, groups;  // blocks of a slab, and of columns of a slab in one batch
  int width;                       // a power of two
};

struct GridTask {
  GridSide a, b;
  bool* certified;  // with kp > 0 set, for the least product to clear; with kp = 0 set before, cleared if not settled
  int32_t* shift;   // [batch, k], set to zeros
  int64_t batch, k;
  int kp;
};

// Four magnitudes at x, x + step, …, the first `count` of them; zeros for the others.
__device__ inline uint32_t four_magnitudes(const double* x, int64_t step, int64_t count, double factor) {
  if (factor == 0.0) count = 0;  // x may be nan
  double value[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) value[i] = i < count ? __ldg(x + i * step) : 0.0;
  uint32_t packed = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    packed |= static_cast<uint32_t>(min(127, __double2int_rd(__dmul_rn(fabs(value[i]), factor)))) << (8 * i);
  }
  return packed;
}

__device__ inline void write_exponent(const GridTask& task, int32_t* exponent, int e) {
  *exponent = e;
  if (task.kp == 0 && e >= kUnsettled) *task.certified = false;
}

// Grid and magnitudes of a row, by `threads` of which this is t.
__device__ inline void finish_row(const GridTask& task, int64_t row, int t, int threads, int largest) {
  const int e = shared_exponent(largest);
  if (t == 0) write_exponent(task, task.a.exponent + row, e);
  const double factor = magnitude_factor(e);
  uint32_t* const out = reinterpret_cast<uint32_t*>(task.a.out + row * task.kp);
  for (int l = 4 * t; l < task.kp; l += 4 * threads) {
    out[l / 4] = four_magnitudes(task.a.x.limb[0] + row * task.k + l, 1, task.k - l, factor);
  }
}

// The largest of a column's threads, whose `best` this is, for all of them.
__device__ inline int largest_of_column(int best, int columns) {
  __shared__ int best_of_warp[kGridWarps][kMostColumns];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int d = columns; d < 32; d *= 2) best = max(best, __shfl_xor_sync(0xffffffffu, best, d));
  if (lane < columns) best_of_warp[warp][lane] = best;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kGridWarps; ++w) best = max(best, best_of_warp[w][lane % columns]);
  return best;
}

// Grids and magnitudes of a block's columns, the first of which is `first`, all batches counted; `here` are inside.
__device__ inline void finish_columns(const GridTask& task, int64_t batch, int64_t first, int here, int largest) {
  __shared__ uint32_t words[kMostColumns * (kMostMagnitudes / 4 + 1)];
  const GridSide& side = task.b;
  const int c = threadIdx.x % side.width, r = threadIdx.x / side.width, fours = task.kp / 4, pitch = fours + 1;
  const int e = shared_exponent(largest);
  const int64_t at = batch * side.rows + first;
  if (r == 0 && c < here) write_exponent(task, side.exponent + at + c, e);
  const double factor = c < here ? magnitude_factor(e) : 0.0;
  const double* const x = side.x.limb[0] + batch * task.k * side.rows + first + c;
#pragma unroll 2
  for (int q = r; q < fours; q += kGridThreads / side.width) {
    words[c * pitch + q] = four_magnitudes(x + int64_t{4} * q * side.rows, side.rows, task.k - 4 * q, factor);
  }
  __syncthreads();
  uint32_t* const out = reinterpret_cast<uint32_t*>(side.out + at * task.kp);
  for (int q = threadIdx.x; q < here * fours; q += kGridThreads) out[q] = words[q / fours * pitch + q % fours];
}

// Numbers t, t + threads, … of `entries`; threads a power of two.
__device__ inline int64_t steps_of(int t, int64_t entries, int threads) {
  return t < entries ? (entries - t + threads - 1) >> (__ffs(threads) - 1) : 0;
}

template <int kMost, int kAhead>
__device__ inline void grids_of_rows(const GridTask& task, unsigned block) {
  __shared__ int best_of_warp[kGridWarps];
  const GridSide& side = task.a;
  const int threads = 32 * side.width, t = threadIdx.x % threads;
  const unsigned slab = block % side.parts;
  const int64_t row = int64_t{block / side.parts} * (kGridThreads / threads) + threadIdx.x / threads;
  const bool inside = row < task.batch * side.rows;
  int best = 2 * kZeroExponent;
  if (inside) {
    const int64_t first = slab * side.slab, end = min(task.k, first + side.slab);
    best = largest_of<kMost, kAhead>(side.x, row * task.k + end - 1 - t, -threads, steps_of(t, end - first, threads));
  }
  best = __reduce_max_sync(0xffffffffu, best);
  if (side.width > 1) {
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) best_of_warp[warp] = best;
    __syncthreads();
    for (int w = 0; w < side.width; ++w) best = max(best, best_of_warp[warp / side.width * side.width + w]);
  }
  if (!inside) return;
  if (side.parts == 1) {
    finish_row(task, row, t, threads, best);
  } else if (t == 0) {
    side.part[row * side.parts + slab] = best;
  }
}

template <int kMost, int kAhead>
__device__ inline void grids_of_columns(const GridTask& task, unsigned block) {
  const GridSide& side = task.b;
  const unsigned slab = block / side.groups % side.parts;
  const int64_t j = int64_t{block % side.groups} * side.width, batch = block / side.groups / side.parts;
  const int here = static_cast<int>(min(int64_t{side.width}, side.rows - j));
  const int c = threadIdx.x % side.width, r = threadIdx.x / side.width, threads = kGridThreads / side.width;
  int best = 2 * kZeroExponent;
  if (c < here) {
    const int64_t first = slab * side.slab, end = min(task.k, first + side.slab);
    const int64_t at = (batch * task.k + end - 1 - r) * side.rows + j + c;
    best = largest_of<kMost, kAhead>(side.x, at, -threads * side.rows, steps_of(r, end - first, threads));
  }
  best = largest_of_column(best, side.width);
  if (side.parts == 1) {
    finish_columns(task, batch, j, here, best);
  } else if (r == 0 && c < here) {
    side.part[(batch * side.parts + slab) * side.rows + j + c] = best;
  }
}

__device__ inline unsigned blocks_of(const GridSide& side) { return side.blocks * side.parts; }

// Operands of at most kMost limbs. The first blocks take columns, of which they may have more than the others rows.
template <int kMost>
__global__ void __launch_bounds__(kGridThreads, 2) grids_kernel(const __grid_constant__ GridTask task) {
  constexpr int kAhead = kMost == 1 ? 8 : kMost == 2 ? 4 : kMost <= 4 ? 2 : 1;
  wait_for_earlier_kernels();
  const unsigned block = blockIdx.x;
  const int64_t first = block * int64_t{kGridThreads} + threadIdx.x, threads = gridDim.x * int64_t{kGridThreads};
  if (block == 0 && threadIdx.x == 0 && task.kp > 0) *task.certified = true;
#pragma unroll 1
  for (int64_t i = first; i < task.batch * task.k; i += threads) task.shift[i] = 0;
  if (block < blocks_of(task.b)) {
    grids_of_columns<kMost, kAhead>(task, block);
  } else if (block < blocks_of(task.a) + blocks_of(task.b)) {  // not the one block of an empty product
    grids_of_rows<kMost, kAhead>(task, block - blocks_of(task.b));
  }
}

// What is left to do where slabs were cut: blocks [0, blocks_a) take rows of A, the others columns of B.
static __global__ void __launch_bounds__(kGridThreads)
    combine_kernel(const __grid_constant__ GridTask task, unsigned blocks_a) {
  wait_for_earlier_kernels();
  int best = 2 * kZeroExponent;
  if (blockIdx.x < blocks_a) {
    const GridSide& side = task.a;
    const int threads = 32 * side.width, t = threadIdx.x % threads;
    const int64_t row = blockIdx.x * int64_t{kGridThreads / threads} + threadIdx.x / threads;
    if (row >= task.batch * side.rows) return;
    for (unsigned s = threadIdx.x % 32; s < side.parts; s += 32) best = max(best, side.part[row * side.parts + s]);
    finish_row(task, row, t, threads, __reduce_max_sync(0xffffffffu, best));
    return;
  }
  const GridSide& side = task.b;
  const unsigned block = blockIdx.x - blocks_a;
  const int64_t j = int64_t{block % side.groups} * side.width, batch = block / side.groups;
  const int here = static_cast<int>(min(int64_t{side.width}, side.rows - j));
  const int c = threadIdx.x % side.width, r = threadIdx.x / side.width;
  if (c < here) {
    for (unsigned s = r; s < side.parts; s += kGridThreads / side.width) {
      best = max(best, side.part[(batch * side.parts + s) * side.rows + j + c]);
    }
  }
  finish_columns(task, batch, j, here, largest_of_column(best, side.width));
}

}  // namespace cuda
}  // namespace jaxmd
