// Products of digit slices on FP64 tensor cores: every order of the triangle in one launch.
//
//   C_g = sum over i + j = g of A_i B_j,   g = 0 .. S - 1
//
// Shapes:  A [S, batch, m, k], B [S, batch, k, n], C [S, batch, m, n], row-major doubles; any extent may be odd or
//          small, k > 0.
// Tiling:  one thread block computes one kBM x kBN tile of one C_g by a single loop over (i, 16 columns of A_i),
//          K' = (g + 1) k; neither the convolved operand nor a zero is formed. Blocks are numbered longest order first,
//          tiles in bands of kBand tile rows, so that the blocks that run together share their operands in L2.
// Stage:   [kBM][16] of A and [kBN / 16][16 rows][16] of B, 128 bytes a row, 16-byte chunk c of row r at c ^ (r & 7).
// Warp:    kWM x kWN of the tile in m16n8k8 fragments. Columns of k and of n are dealt to the fragments in an order of
//          our own (the same for A and B, undone at the store), so that each shared load is 16 bytes wide and free of
//          bank conflicts.
// Exact:   nothing rounds while every |partial sum of C_g| stays at or below 2^53 on the common grid; then any order
//          gives these bits. Otherwise the bits still depend on nothing but the operands and the tile.
// Cost:    S (S + 1) m n k double flops. On one H200 (66.4 TFLOP/s from the instruction alone, 63.3 from cuBLAS at
//          8192 x 4096 x 8192) the bulk kernel reaches 62 there, and for S = 6 64.4 at n = 4096 (97 %) and 57.8 at
//          1024; the other kernel 41-44 at n = 512 and 26 at n = 256 (examples/bench/kernels/sliced_matmul_bench.cu).
// Source:  Multiple Double Arithmetic on NVIDIA Tensor Cores, equation (4), without its zeros and copies, for slices of
//          any width.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "mma.cuh"

namespace jaxmd {

struct SlicedProblem {
  const double* a;  // [slices, batch, m, k]
  const double* b;  // [slices, batch, k, n]
  double* c;        // [slices, batch, m, n]
  int64_t slices, batch;
  int m, n, k;
};

template <int kBM_, int kBN_, int kWM_, int kWN_, int kStages_, int kBlocksPerSm_>
struct SlicedTile {
  static constexpr int kBM = kBM_, kBN = kBN_;        // thread block's tile
  static constexpr int kWM = kWM_, kWN = kWN_;        // warp's tile
  static constexpr int kStages = kStages_;            // stages in flight
  static constexpr int kBlocksPerSm = kBlocksPerSm_;  // that the registers are to allow
  static constexpr int kWarpsN = kBN / kWN;
  static constexpr int kThreads = kBM / kWM * kWarpsN * 32;
  static constexpr int kEights = kWM / 8, kSixteens = kWN / 16;   // m8 and n16 tiles of a warp
  static constexpr int kStageA = kBM * 128, kStageB = kBN * 128;  // bytes
  static constexpr int kStage = kStageA + kStageB;
  static constexpr int kShared = kStages * kStage;
  static constexpr int kBand = 1024 / kBM;  // tile rows in a band
  static_assert(kBM % kWM == 0 && kBN % kWN == 0 && kWM % 8 == 0 && kWN % 16 == 0);
  static_assert(kThreads % 128 == 0 && kBM % (kThreads / 8) == 0 && kBN % (kThreads / 8) == 0,
                "loads fill a stage evenly");
};

// Which tile of which order a block computes.
struct TileIndex {
  int order, row, column;  // row, column: first entry of the tile
  int64_t batch;
};

// Matrix by matrix of the batch; in it order by order, the longest first. Where an order is but one row or column of
// tiles, the orders of a tile follow one another instead: they read the same slices.
template <class Tile>
__device__ TileIndex tile_index(const SlicedProblem& p, int64_t block) {
  const int rows = (p.m + Tile::kBM - 1) / Tile::kBM, columns = (p.n + Tile::kBN - 1) / Tile::kBN;
  const int64_t tiles = int64_t(rows) * columns, blocks = tiles * p.slices;
  const int64_t matrix = block / blocks;
  const int64_t inside = block - matrix * blocks;
  const bool thin = rows == 1 || columns == 1;
  const int64_t outer = inside / (thin ? p.slices : tiles);
  const int64_t inner = inside - outer * (thin ? p.slices : tiles);
  const int64_t tile = thin ? outer : inner, rank = thin ? inner : outer;
  const int64_t band = tile / (int64_t(Tile::kBand) * columns);
  const int first = int(band) * Tile::kBand;
  const int height = min(Tile::kBand, rows - first);
  const int in_band = int(tile - band * Tile::kBand * columns);
  return {int(p.slices - 1 - rank), (first + in_band % height) * Tile::kBM, in_band / height * Tile::kBN, matrix};
}

// The part of a tile that one warp holds: accumulators, and double-buffered fragments: of B one n16 tile, of A one k8
// step. The instruction's "A" (16 rows) is a tile of B transposed, its "B" (8 columns) a tile of A transposed: then
// each 16-byte chunk in shared memory is a pair of registers that stand beside one another in a fragment, and nothing
// is moved.
template <class Tile>
struct WarpTile {
  double c[Tile::kEights][Tile::kSixteens][4] = {};
  double a[2][Tile::kEights][2];
  double b[2][4];
  uint32_t offset_a, offset_b;  // byte offsets in a stage of this thread's first chunks
  int row, column;              // of this thread's first entry in the block's tile

  // Columns t and t + 4 of a fragment are columns 2 t and 2 t + 1 of the stage's k8. Rows g and g + 8 of an n16
  // fragment are columns 2 g and 2 g + 1 of the tile. Column g of an m8 fragment is row (g >> 1) + 4 (g & 1) of the
  // tile: the two rows that a quarter warp reads then lie in different halves of the 128 bytes.
  __device__ WarpTile(int thread) {
    const int warp = thread / 32, g = thread / 4 % 8, t = thread % 4;
    const int warp_row = warp / Tile::kWarpsN * Tile::kWM, warp_column = warp % Tile::kWarpsN * Tile::kWN;
    const int r = g / 2 + 4 * (g % 2);
    offset_a = (warp_row + r) * 128 + (t ^ r) * 16;
    offset_b = Tile::kStageA + warp_column * 128 + 2 * t * 128 + (g ^ (2 * t)) * 16;
    row = warp_row + t;
    column = warp_column + 2 * g;
  }

  __device__ void load_a(uint32_t stage, int step) {
#pragma unroll
    for (int mi = 0; mi < Tile::kEights; ++mi) load_shared(a[step][mi], stage + (offset_a ^ (step * 64)) + mi * 1024);
  }

  __device__ void load_b(int slot, uint32_t stage, int step, int ni) {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      load_shared(b[slot] + 2 * odd, stage + (offset_b ^ (odd * 16)) + odd * 128 + step * 1024 + ni * 2048);
    }
  }

  __device__ void load_first(uint32_t stage) {
    load_a(stage, 0);
    load_b(0, stage, 0, 0);
  }

  // One stage, two k8 steps. The first fragments are loaded; next() makes the next stage readable, frees this one and
  // returns the next one's address.
  template <class Next>
  __device__ void multiply(uint32_t& stage, Next next) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int ni = 0; ni < Tile::kSixteens; ++ni) {
        const int slot = (step * Tile::kSixteens + ni) % 2;
        const bool turn = ni + 1 == Tile::kSixteens;
        if (turn && step == 1) stage = next();
        load_b(1 - slot, stage, turn ? 1 - step : step, turn ? 0 : ni + 1);
        if (turn) load_a(stage, 1 - step);
#pragma unroll
        for (int mi = 0; mi < Tile::kEights; ++mi) multiply_add(c[mi][ni], b[slot], a[step][mi]);
      }
    }
  }

  __device__ void store(const SlicedProblem& p, const TileIndex& tile) const {
    double* matrix = p.c + (tile.order * p.batch + tile.batch) * p.m * p.n;
    const bool wide = p.n % 2 == 0 && reinterpret_cast<uintptr_t>(p.c) % 16 == 0;
#pragma unroll
    for (int mi = 0; mi < Tile::kEights; ++mi) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = tile.row + row + 8 * mi + 4 * half;
        if (i >= p.m) continue;
        double* out = matrix + int64_t(i) * p.n;
#pragma unroll
        for (int ni = 0; ni < Tile::kSixteens; ++ni) {
          const int j = tile.column + column + 16 * ni;
          const double2 value = {c[mi][ni][half], c[mi][ni][2 + half]};
          if (wide) {
            if (j < p.n) __stcs(reinterpret_cast<double2*>(out + j), value);
          } else {
            if (j < p.n) __stcs(out + j, value.x);
            if (j + 1 < p.n) __stcs(out + j + 1, value.y);
          }
        }
      }
    }
  }
};

// Copies stages with cp.async, every thread one chunk column: of A rows r, r + kStep, ..., of B blocks of one row.
// kWide: 16-byte chunks, for which every row of A and B starts on 16 bytes; otherwise two 8-byte copies a chunk.
// The slices of the operand with more entries ascend: then all orders of one tile read the same slice at the same time.
template <class Tile, bool kWide>
struct StageLoader {
  static constexpr int kStep = Tile::kThreads / 8;  // rows of A, and columns of B, that one round covers
  const SlicedProblem& p;
  const double *pa, *pb;            // next chunk of A, of B
  const double *slice_a, *slice_b;  // first chunk of the current slices
  int rows_a, columns_b, chunk, row_b, k0 = 0;
  uint32_t shared_a, shared_b;

  __device__ StageLoader(const SlicedProblem& problem, const TileIndex& tile, uint32_t shared, int thread)
      : p(problem) {
    const int row_a = thread / 8, block_b = thread / 128;
    chunk = thread % 8;
    row_b = thread / 8 % 16;
    rows_a = p.m - tile.row - row_a;                           // round r lies inside when r * kStep < rows_a
    columns_b = p.n - tile.column - block_b * 16 - 2 * chunk;  // likewise
    const int64_t row = (p.m < p.n ? tile.order : 0) * p.batch + tile.batch;
    const int64_t column = (p.m < p.n ? 0 : tile.order) * p.batch + tile.batch;
    pa = slice_a = p.a + (row * p.m + tile.row + row_a) * p.k + 2 * chunk;
    pb = slice_b = p.b + (column * p.k + row_b) * p.n + tile.column + block_b * 16 + 2 * chunk;
    shared_a = shared + row_a * 128 + (chunk ^ (row_a % 8)) * 16;
    shared_b = shared + Tile::kStageA + block_b * 2048 + row_b * 128 + (chunk ^ (row_b % 8)) * 16;
  }

  // left: how many doubles from the chunk's first on lie in the row. Nothing is read at an address beyond it.
  __device__ static void copy(uint32_t shared, const double* global, int left, const double* safe) {
    if constexpr (kWide) {
      cp_async_16(shared, left > 0 ? global : safe, left > 0 ? 16 : 0);
    } else {
      cp_async_8(shared, left > 0 ? global : safe, left > 0 ? 8 : 0);
      cp_async_8(shared + 8, left > 1 ? global + 1 : safe, left > 1 ? 8 : 0);
    }
  }

  __device__ void load(int stage) {
    const uint32_t to_a = shared_a + stage * Tile::kStage, to_b = shared_b + stage * Tile::kStage;
    const int left_a = p.k - k0 - 2 * chunk;
    const int left_b = k0 + row_b < p.k ? columns_b : 0;
#pragma unroll
    for (int r = 0; r < Tile::kBM; r += kStep)
      copy(to_a + r * 128, pa + int64_t(r) * p.k, r < rows_a ? left_a : 0, p.a);
#pragma unroll
    for (int r = 0; r < Tile::kBN; r += kStep) copy(to_b + r * 128, pb + r, left_b - r, p.b);
    k0 += 16;
    pa += 16;
    pb += int64_t(16) * p.n;
    if (k0 >= p.k) {
      const int64_t size_a = p.batch * p.m * p.k, size_b = p.batch * p.k * p.n;
      k0 = 0;
      pa = slice_a += p.m < p.n ? -size_a : size_a;
      pb = slice_b += p.m < p.n ? size_b : -size_b;
    }
  }
};

template <class Tile>
__device__ int stages_of(const SlicedProblem& p, const TileIndex& tile) {
  return (tile.order + 1) * ((p.k + 15) / 16);
}

// The kernel for every shape and architecture: each warp copies and multiplies. Block 0 of the launch is `first`.
template <class Tile, bool kWide>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm)
    sliced_matmul_kernel(const SlicedProblem p, int64_t first) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const uint32_t shared = uint32_t(__cvta_generic_to_shared(shared_bytes));
  const TileIndex tile = tile_index<Tile>(p, first + blockIdx.x);
  const int total = stages_of<Tile>(p, tile);
  WarpTile<Tile> warp(threadIdx.x);
  StageLoader<Tile, kWide> loader(p, tile, shared, threadIdx.x);
  int loaded = 0, write = 0, read = 0;
  const auto load_next = [&] {
    if (loaded < total) loader.load(write);
    cp_async_commit();
    ++loaded;
    write = write + 1 == Tile::kStages ? 0 : write + 1;
  };
  for (int s = 0; s + 1 < Tile::kStages; ++s) load_next();
  cp_async_wait<Tile::kStages - 2>();
  __syncthreads();
  uint32_t stage = shared;
  warp.load_first(stage);
  for (int s = 0; s < total; ++s) {
    load_next();  // overwrites the stage that every warp left before the last barrier
    warp.multiply(stage, [&] {
      cp_async_wait<Tile::kStages - 2>();
      __syncthreads();
      read = read + 1 == Tile::kStages ? 0 : read + 1;
      return shared + read * Tile::kStage;
    });
  }
  cp_async_wait<0>();
  warp.store(p, tile);
}

// For sm_90, rows aligned: one thread of a further warpgroup only copies (the tensor copy engine writes the swizzled
// stage and the zeros beyond the edges), the others only multiply; stages change hands through mbarriers, so no warp
// waits for another's arithmetic. The copying warpgroup gives its registers to the others.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads + 128, 1)
    sliced_matmul_bulk_kernel(const SlicedProblem p, int64_t first, const __grid_constant__ CUtensorMap map_a,
                              const __grid_constant__ CUtensorMap map_b) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const uint32_t shared = uint32_t(__cvta_generic_to_shared(shared_bytes));
  const uint32_t full = shared + Tile::kShared, empty = full + 8 * Tile::kStages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Tile::kStages; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, Tile::kThreads / 32);
    }
    mbarrier_fence_init();
  }
  __syncthreads();
  const TileIndex tile = tile_index<Tile>(p, first + blockIdx.x);
  const int total = stages_of<Tile>(p, tile);
  int slot = 0;
  uint32_t phase = 0;
  const auto advance = [&] {
    if (++slot == Tile::kStages) slot = 0, phase ^= 1;
  };
  if (threadIdx.x < Tile::kThreads) {
    registers_increase<240>();
    WarpTile<Tile> warp(threadIdx.x);
    int left = total;
    uint32_t stage = shared;
    mbarrier_wait(full, 0);
    warp.load_first(stage);
    while (left > 0) {
      warp.multiply(stage, [&] {
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(empty + 8 * slot);
        advance();
        if (--left > 0) mbarrier_wait(full + 8 * slot, phase);
        return shared + slot * Tile::kStage;
      });
    }
    warp.store(p, tile);
  } else {
    registers_decrease<24>();
    if (threadIdx.x > Tile::kThreads) return;
    int plane_a = int(tile.batch), plane_b = int(tile.order * p.batch + tile.batch), k0 = 0;
    for (int s = 0; s < total; ++s) {
      const uint32_t to = shared + slot * Tile::kStage, barrier = full + 8 * slot;
      mbarrier_wait(empty + 8 * slot, phase ^ 1);
      mbarrier_expect(barrier, Tile::kStage);
      copy_tile(to, &map_a, k0, tile.row, plane_a, barrier);
#pragma unroll
      for (int j = 0; j < Tile::kBN; j += 16) {
        copy_tile(to + Tile::kStageA + j * 128, &map_b, tile.column + j, k0, plane_b, barrier);
      }
      advance();
      k0 += 16;
      if (k0 >= p.k) k0 = 0, plane_a += int(p.batch), plane_b -= int(p.batch);
    }
  }
#else
  __trap();  // never launched: BulkVariant::prepare
#endif
}

}  // namespace jaxmd
