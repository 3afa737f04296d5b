// Clears `certified` unless sum over l of u_il v_jl >= bound for all i and j: an int8 product that is never written.
//
// Shapes: u [batch, m, kp], v [batch, n, kp] s8, nonnegative, kp <= 512 and a multiple of 32.
// Tiling: a block of four warps has 128 rows of u, a warp 32 of them in registers for all its work, and walks over
//   tiles of 64 columns (32 where kp > 256), which cp.async brings to shared memory one ahead. Rows and columns beyond
//   the end repeat the last. A block that starts after one has failed multiplies nothing.
// Shared memory: 2 tiles [column][16 bytes of l] of 16 KB; the 16 bytes c of column j stand at c xor (j mod 8), so that
//   the eight rows of an ldmatrix meet all banks.
// Exact: integers, at most 512 * 127^2.
// Cost: at n = 16384 1.4e11 operations, 0.13 ms of mma.sync.
#pragma once

#include <cstdint>

#include "kernel_launch.cuh"
#include "mma.cuh"

namespace jaxmd {
namespace cuda {

constexpr int kLeastWarps = 4, kLeastThreads = 32 * kLeastWarps;
constexpr int kLeastRows = 32 * kLeastWarps, kLeastTile = 16384;  // of a block; bytes of a tile
template <int kSteps>
constexpr int kLeastColumns = kLeastTile / (32 * kSteps);  // of a tile; a row of it holds kp <= 32 kSteps

struct LeastTask {
  const int8_t *u, *v;
  bool* certified;
  int64_t m, n, tiles;  // tiles of columns a block walks over
  int kp, bound;
};

// Columns j, … of v to shared memory.
template <int kSteps>
__device__ inline void copy_columns(const LeastTask& task, const int8_t* v, int64_t j, uint32_t shared) {
  const int chunks = task.kp / 16;
  for (int c = threadIdx.x; c < kLeastColumns<kSteps> * chunks; c += kLeastThreads) {
    const int column = c / chunks, chunk = c % chunks;
    const int64_t at = min(j + column, task.n - 1) * task.kp + chunk * 16;
    cp_async_16(shared + column * 32 * kSteps + ((chunk ^ (column & 7)) * 16), v + at, 16);
  }
  cp_async_commit();
}

// The least product of the warp's 32 rows with a tile.
template <int kSteps>
__device__ inline int least_of_tile(const uint32_t (&u)[2][kSteps][4], int steps, uint32_t shared, int lane) {
  int least = INT32_MAX;
#pragma unroll
  for (int pair = 0; pair < kLeastColumns<kSteps> / 16; ++pair) {
    int c[2][2][4] = {};  // [16 rows][8 columns]
    const int column = pair * 16 + (lane >> 4) * 8 + (lane & 7);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (s >= steps) break;
      const int chunk = 2 * s + (lane >> 3 & 1);
      uint32_t v[4];
      load_matrices(v, shared + column * 32 * kSteps + ((chunk ^ (column & 7)) * 16));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        MmaS8M16N8K32::run(c[i][0], u[i][s], v[0], v[1]);
        MmaS8M16N8K32::run(c[i][1], u[i][s], v[2], v[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) least = min(least, c[i >> 3][i >> 2 & 1][i & 3]);
  }
  return least;
}

// For kp up to 32 kSteps.
template <int kSteps>
__global__ void __launch_bounds__(kLeastThreads) least_kernel(const __grid_constant__ LeastTask task) {
  constexpr int kColumns = kLeastColumns<kSteps>;
  __shared__ __align__(128) unsigned char tiles[2 * kLeastTile];
  wait_for_earlier_kernels();
  const bool failed = !*static_cast<volatile bool*>(task.certified);  // asked before all that is loaded next
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, steps = task.kp / 32;
  const int64_t batch = blockIdx.z, row = (blockIdx.y * int64_t{kLeastWarps} + warp) * 32 + lane / 4;
  const int8_t* const v = task.v + batch * task.n * task.kp;
  const int64_t first = blockIdx.x * task.tiles, all = (task.n + kColumns - 1) / kColumns;
  const int64_t end = min(all, first + task.tiles);
  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(tiles));
  copy_columns<kSteps>(task, v, first * kColumns, shared);

  uint32_t u[2][kSteps][4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const int64_t r = min(row + 16 * i + 8 * (q & 1), task.m - 1);
        const int8_t* const at = task.u + (batch * task.m + r) * task.kp + 32 * s + 16 * (q >> 1) + 4 * (lane & 3);
        u[i][s][q] = s < steps ? *reinterpret_cast<const uint32_t*>(at) : 0;
      }
    }
  }

  if (failed) {
    cp_async_wait<0>();
    return;
  }

  int least = INT32_MAX;
  for (int64_t t = first; t < end; ++t) {
    const uint32_t now = shared + static_cast<uint32_t>((t - first) & 1) * kLeastTile;
    cp_async_wait<0>();
    __syncthreads();  // the tile is here, and all have left the one before
    const uint32_t next = shared + static_cast<uint32_t>((t + 1 - first) & 1) * kLeastTile;
    if (t + 1 < end) copy_columns<kSteps>(task, v, (t + 1) * kColumns, next);
    least = min(least, least_of_tile<kSteps>(u, steps, now, lane));
  }
  if (least < task.bound) *task.certified = false;
}

}  // namespace cuda
}  // namespace jaxmd
