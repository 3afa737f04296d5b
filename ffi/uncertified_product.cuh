// Flags of entries that words may be too short for, from a product of bfloat16 magnitudes that is never written.
//
//   flag_ij = 0 < S_ij and S_ij < factor * min(terms_i, terms_j),   S_ij = sum over l of x_il y_lj
//
// Shapes: x [batch, m, kp], y [batch, kp, np] bfloat16 magnitudes, zeros in the padding (kp multiple of 64, np of 8);
//   terms: how many entries of a row or column are not zero; flag s8 [batch, m, n]; count s64, to which flags add.
// Tiling: a block has 128 x 128 entries, its eight warps 64 x 32 each; k in steps of 64, three of them in flight.
// Shared memory: 3 stages of x [row 128][64] and y [l 64][128], 16 KB each; the 16 bytes c of a row r stand at
//   c xor (r mod 8), so that the eight rows of an ldmatrix meet all banks.
// A block that starts after `most` flags were counted does nothing.
#pragma once

#include <cstdint>

#include "mma.cuh"
#include "mma_float.cuh"

namespace jaxmd {
namespace cuda {

constexpr int kFlagThreads = 256, kFlagTile = 128, kFlagStep = 64, kFlagStages = 3;
constexpr int kFlagPart = kFlagTile * kFlagStep * 2, kFlagStage = 2 * kFlagPart;  // bytes
constexpr int kFlagShared = kFlagStages * kFlagStage;

struct FlagTask {
  const uint16_t *x, *y;
  const int32_t *terms_a, *terms_b;
  int8_t* flag;
  unsigned long long* count;
  unsigned long long most;
  int64_t m, n, kp, np;
  float factor;
};

// The 64 columns from l on of the block's rows of x, and as many rows of its columns of y.
__device__ inline void copy_stage(const FlagTask& task, const uint16_t* x, const uint16_t* y, int64_t i, int64_t j,
                                  int64_t l, uint32_t shared) {
#pragma unroll
  for (int q = 0; q < kFlagPart / 16 / kFlagThreads; ++q) {
    const int c = q * kFlagThreads + threadIdx.x;
    const int row = c / 8, chunk = c % 8, depth = c / 16, wide = c % 16;
    const int64_t at = min(i + row, task.m - 1) * task.kp + l + chunk * 8;
    cp_async_16(shared + row * 128 + ((chunk ^ (row & 7)) * 16), x + at, 16);
    const bool inside = j + wide * 8 < task.np;
    const int64_t from = (l + depth) * task.np + (inside ? j + wide * 8 : 0);
    cp_async_16(shared + kFlagPart + depth * 256 + ((wide ^ (depth & 7)) * 16), y + from, inside ? 16 : 0);
  }
}

__device__ inline void multiply_stage(float (&c)[4][4][4], uint32_t shared, int row, int column, int lane) {
#pragma unroll
  for (int s = 0; s < kFlagStep / 16; ++s) {
    uint32_t x[4][4], y[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = row + 16 * i + (lane & 15), chunk = 2 * s + (lane >> 4);
      load_matrices(x[i], shared + r * 128 + ((chunk ^ (r & 7)) * 16));
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int l = 16 * s + (lane & 15), chunk = column / 8 + 2 * j + (lane >> 4);
      load_transposed(y[j], shared + kFlagPart + l * 256 + ((chunk ^ (l & 7)) * 16));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t(&v)[4] = y[j >> 1];
        MmaBF16M16N8K16::run(c[i][j], x[i], v[2 * (j & 1)], v[2 * (j & 1) + 1]);
      }
    }
  }
}

static __global__ void __launch_bounds__(kFlagThreads, 2) flags_kernel(const __grid_constant__ FlagTask task) {
  extern __shared__ __align__(128) unsigned char stages[];
  if (*static_cast<volatile unsigned long long*>(task.count) > task.most) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t batch = blockIdx.z, i = blockIdx.y * int64_t{kFlagTile}, j = blockIdx.x * int64_t{kFlagTile};
  const uint16_t* const x = task.x + batch * task.m * task.kp;
  const uint16_t* const y = task.y + batch * task.kp * task.np;
  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(stages));
  const int row = warp % 2 * 64, column = warp / 2 * 32;
  const int64_t steps = task.kp / kFlagStep;
  float c[4][4][4] = {};
  for (int64_t s = 0; s < kFlagStages - 1; ++s) {
    if (s < steps) copy_stage(task, x, y, i, j, s * kFlagStep, shared + static_cast<uint32_t>(s) * kFlagStage);
    cp_async_commit();
  }
  uint32_t now = shared, next = shared + (kFlagStages - 1) * kFlagStage;
  for (int64_t s = 0; s < steps; ++s) {
    cp_async_wait<kFlagStages - 2>();
    __syncthreads();  // the stage is here, and all have left the one before, which is filled next
    if (s + kFlagStages - 1 < steps) copy_stage(task, x, y, i, j, (s + kFlagStages - 1) * kFlagStep, next);
    cp_async_commit();
    multiply_stage(c, now, row, column, lane);
    next = now;
    now = now == shared + (kFlagStages - 1) * kFlagStage ? shared : now + kFlagStage;
  }
  unsigned long long flags = 0;
#pragma unroll
  for (int p = 0; p < 4; ++p) {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t r = i + row + 16 * p + lane / 4 + 8 * (e >> 1), l = j + column + 8 * q + 2 * (lane & 3) + (e & 1);
        if (r >= task.m || l >= task.n) continue;
        const int terms = min(task.terms_a[batch * task.m + r], task.terms_b[batch * task.n + l]);
        const bool flag = c[p][q][e] > 0.0f && c[p][q][e] < task.factor * static_cast<float>(terms);
        task.flag[(batch * task.m + r) * task.n + l] = flag ? 1 : 0;
        flags += flag ? 1 : 0;
      }
    }
  }
  flags = __reduce_add_sync(0xffffffffu, static_cast<unsigned>(flags));
  if (lane == 0 && flags != 0) atomicAdd(task.count, flags);
}

}  // namespace cuda
}  // namespace jaxmd
