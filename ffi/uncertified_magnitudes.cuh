// Magnitudes in bfloat16 on the grids of rows of A and columns of B, and how many of each are not zero.
//
//   x_il = |a_il| 2^-row_i      y_lj = |b_lj| 2^-column_j       leading limbs, cut to 8 bits
//
// Tiling: a warp has a row of A; a block has 64 columns of B, a lane two of them, and a slab of rows, its warps every
//   eighth. Where a magnitude is below 2^-60, or a grid is not settled, `count` becomes kUnsure.
#pragma once

#include <cstdint>

namespace jaxmd {
namespace cuda {

constexpr unsigned long long kUnsure = 1ull << 40;
constexpr int kHalfThreads = 256, kHalfSlab = 64;

struct HalfSide {
  const double* x;
  const int32_t* exponent;
  uint16_t* out;
  int32_t* terms;  // of B: cleared before
  int64_t rows;
};

struct HalfTask {
  HalfSide a, b;
  unsigned long long* count;
  int64_t batch, k, kp, np, blocks_a;
};

struct Scale {
  double first, second;
  bool settled;
};

__device__ inline Scale scale_of(int exponent) {
  const int half = -exponent / 2;
  const auto power = [](int e) { return __longlong_as_double(static_cast<long long>(e + 1023) << 52); };
  if (exponent >= 16384) return {1.0, 1.0, false};
  return {power(half), power(-exponent - half), true};
}

// bfloat16 bits; clears *sure where the magnitude is too small for products in float32, or not a number.
__device__ inline uint32_t magnitude_bits(double x, const Scale& scale, bool* sure) {
  if (x == 0) return 0;
  const double scaled = __dmul_rn(__dmul_rn(fabs(x), scale.first), scale.second);
  *sure &= scale.settled && scaled >= 0x1p-60;
  return __float_as_uint(__double2float_rz(scaled)) >> 16;
}

__device__ inline void halves_of_row(const HalfTask& task, int64_t row, int lane, bool* sure) {
  const Scale scale = scale_of(task.a.exponent[row]);
  const double* const x = task.a.x + row * task.k;
  uint32_t* const out = reinterpret_cast<uint32_t*>(task.a.out + row * task.kp);
  int terms = 0;
#pragma unroll 4
  for (int64_t l = 2 * lane; l < task.kp; l += 64) {
    uint32_t low = 0, high = 0;
    if (l < task.k) low = magnitude_bits(__ldg(x + l), scale, sure);
    if (l + 1 < task.k) high = magnitude_bits(__ldg(x + l + 1), scale, sure);
    out[l / 2] = low | high << 16;
    terms += (low != 0 ? 1 : 0) + (high != 0 ? 1 : 0);
  }
  terms = __reduce_add_sync(0xffffffffu, static_cast<unsigned>(terms));
  if (lane == 0) task.a.terms[row] = terms;
}

__device__ inline void halves_of_columns(const HalfTask& task, int64_t block, int lane, int warp, bool* sure) {
  const int64_t groups = (task.np + 63) / 64, slabs = (task.kp + kHalfSlab - 1) / kHalfSlab;
  const int64_t j = block % groups * 64 + 2 * lane, slab = block / groups % slabs, batch = block / groups / slabs;
  if (j >= task.np) return;
  const bool has[2] = {j < task.b.rows, j + 1 < task.b.rows};
  Scale scale[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) scale[h] = scale_of(has[h] ? task.b.exponent[batch * task.b.rows + j + h] : 0);
  int terms[2] = {};
#pragma unroll 4
  for (int64_t l = slab * kHalfSlab + warp; l < min(task.kp, (slab + 1) * kHalfSlab); l += 8) {
    uint32_t bits[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (l >= task.k || !has[h]) continue;
      bits[h] = magnitude_bits(__ldg(task.b.x + (batch * task.k + l) * task.b.rows + j + h), scale[h], sure);
      terms[h] += bits[h] != 0 ? 1 : 0;
    }
    *reinterpret_cast<uint32_t*>(task.b.out + (batch * task.kp + l) * task.np + j) = bits[0] | bits[1] << 16;
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (terms[h] != 0) atomicAdd(task.b.terms + batch * task.b.rows + j + h, terms[h]);
  }
}

static __global__ void __launch_bounds__(kHalfThreads) halves_kernel(const __grid_constant__ HalfTask task) {
  const int64_t block = blockIdx.x;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  bool sure = true;
  if (block >= task.blocks_a) {
    halves_of_columns(task, block - task.blocks_a, lane, warp, &sure);
  } else if (const int64_t row = block * 8 + warp; row < task.batch * task.a.rows) {
    halves_of_row(task, row, lane, &sure);
  }
  if (!sure) atomicMax(task.count, kUnsure);
}

}  // namespace cuda
}  // namespace jaxmd
