// From the exponents of slabs (certificate_exponents.cuh) to shared exponents, and to magnitudes for one int8 product.
//
//   row_i = max over s of part_a[i, s]                  u_il = min(127, floor(2^7 |a_il| / 2^row_i))     l < kp
//   column_j = max over s of part_b[s, j]               v_jl = min(127, floor(2^7 |b_lj| / 2^column_j))
//
// with `shared_exponent` and `magnitudes` of jaxmd/_slices.py and _magnitudes.py: zeros have exponent 0, and magnitudes
// are 0 where the exponent is not settled, which clears `certified`, or near the end of the range. Both operands hold l
// last, kp entries, a multiple of 32 that may be 0; zeros beyond k.
// Tiling: a warp has a row of A, a lane four entries at a time. 32 columns of B belong to kp / 128 blocks of eight
//   warps; a lane has a column and 16 rows, so that what it writes is 16 bytes in one place.
// Exact: |x| times a power of two, both far from the ends of the range, is exact.
#pragma once

#include <cstdint>

#include "certificate_exponents.cuh"

namespace jaxmd {
namespace cuda {

constexpr int kMagnitudeThreads = 256, kMagnitudeSpan = 128;  // rows of B a block of eight warps takes

struct MagnitudeSide {
  const double* x;  // leading limbs
  const int32_t* part;
  int32_t* exponent;
  int8_t* out;  // [batch, rows, kp]
  int64_t rows, parts;
};

struct MagnitudeTask {
  MagnitudeSide a, b;
  bool* certified;
  int32_t* shift;  // [batch, k], set to zeros
  int64_t batch, k, kp, blocks_a, blocks_b;
};

// Blocks that share 32 columns of B.
__host__ __device__ inline int64_t magnitude_spans(int64_t kp) {
  return kp <= kMagnitudeSpan ? 1 : (kp + kMagnitudeSpan - 1) / kMagnitudeSpan;
}

__device__ inline int shared_exponent(int largest) { return largest < kZeroExponent / 2 ? 0 : largest; }

// 2^7 / 2^exponent, or 0 where magnitudes are to be 0.
__device__ inline double magnitude_factor(int exponent) {
  if (exponent <= 7 - 1022 || exponent >= kUnsettled) return 0.0;
  return __longlong_as_double(static_cast<long long>(7 - exponent + 1023) << 52);
}

__device__ inline uint32_t magnitude(double x, double factor) {
  if (factor == 0.0) return 0;  // x may be nan
  return static_cast<uint32_t>(min(127, __double2int_rd(__dmul_rn(fabs(x), factor))));
}

__device__ inline void magnitudes_of_row(const MagnitudeTask& task, int64_t row, int lane) {
  const MagnitudeSide& side = task.a;
  int largest = 2 * kZeroExponent;
  for (int64_t s = lane; s < side.parts; s += 32) largest = max(largest, side.part[row * side.parts + s]);
  const int e = shared_exponent(__reduce_max_sync(0xffffffffu, largest));
  if (lane == 0) {
    side.exponent[row] = e;
    if (e >= kUnsettled) *task.certified = false;
  }
  const double factor = magnitude_factor(e);
  uint32_t* const out = reinterpret_cast<uint32_t*>(side.out + row * task.kp);
#pragma unroll 2
  for (int64_t l = lane * 4; l < task.kp; l += 128) {
    uint32_t packed = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (l + i < task.k) packed |= magnitude(__ldg(side.x + row * task.k + l + i), factor) << (8 * i);
    }
    out[l / 4] = packed;
  }
}

__device__ inline void magnitudes_of_columns(const MagnitudeTask& task, int64_t block, int lane, int warp) {
  __shared__ int largest_of_warp[8][32];
  const MagnitudeSide& side = task.b;
  const int64_t spans = magnitude_spans(task.kp), groups = (side.rows + 31) / 32;
  const int64_t span = block % spans, j = block / spans % groups * 32 + lane, batch = block / spans / groups;
  int largest = 2 * kZeroExponent;
  if (j < side.rows) {
#pragma unroll 4
    for (int64_t s = warp; s < side.parts; s += 8) {
      largest = max(largest, side.part[(batch * side.parts + s) * side.rows + j]);
    }
  }
  largest_of_warp[warp][lane] = largest;
  __syncthreads();
  if (j >= side.rows) return;
#pragma unroll
  for (int w = 0; w < 8; ++w) largest = max(largest, largest_of_warp[w][lane]);
  const int e = shared_exponent(largest);
  if (span == 0 && warp == 0) {
    side.exponent[batch * side.rows + j] = e;
    if (e >= kUnsettled) *task.certified = false;
  }
  const double factor = magnitude_factor(e);
  const int64_t first = span * kMagnitudeSpan + warp * 16;
  if (first >= task.kp) return;
  uint32_t packed[4] = {};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if (first + i >= task.k) break;
    packed[i / 4] |= magnitude(__ldg(side.x + (batch * task.k + first + i) * side.rows + j), factor) << (8 * (i % 4));
  }
  *reinterpret_cast<uint4*>(side.out + (batch * side.rows + j) * task.kp + first) =
      make_uint4(packed[0], packed[1], packed[2], packed[3]);
}

// Blocks [0, blocks_a) take eight rows of A each, the others columns of B.
static __global__ void __launch_bounds__(kMagnitudeThreads)
    magnitudes_kernel(const __grid_constant__ MagnitudeTask task) {
  const int64_t block = blockIdx.x, threads = gridDim.x * int64_t{kMagnitudeThreads};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int64_t i = block * kMagnitudeThreads + threadIdx.x; i < task.batch * task.k; i += threads) task.shift[i] = 0;
  if (block >= task.blocks_a + task.blocks_b) return;  // the one block of an empty product
  if (block >= task.blocks_a) {
    magnitudes_of_columns(task, block - task.blocks_a, lane, warp);
  } else if (const int64_t row = block * 8 + warp; row < task.batch * task.a.rows) {
    magnitudes_of_row(task, row, lane);
  }
}

}  // namespace cuda
}  // namespace jaxmd
