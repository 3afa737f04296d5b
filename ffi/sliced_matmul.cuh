// Products of digit slices on FP64 tensor cores: every order of the triangle in one launch.
//
//   C_g = sum over i + j = g of A_i B_j,   g = 0 .. S - 1
//
// Shapes:  A [S, batch, m, k], B [S, batch, k, n], C [S, batch, m, n], row-major doubles; any extent may be odd or small.
// Tiling:  one thread block computes one kBM x kBN tile of one C_g by a single loop over (i, 16 columns of A_i), K' = (g + 1) k;
//          neither the convolved operand nor a zero is formed. Blocks are numbered longest order first, tiles in bands of
//          kBand tile rows, so that the blocks that run together share their operands in L2.
// Stage:   [rows][16] of A and [kBN / 16][16 rows][16] of B, 128 bytes a row, 16-byte chunk c of row r at chunk c ^ (r & 7).
// Warp:    kWM x kWN of the tile in m16n8 fragments. Columns of k and of n are dealt to the fragments in an order of our own
//          (the same for A and B, undone at the store), so that each shared load is 16 bytes wide and free of bank conflicts.
// Exact:   nothing rounds while every |partial sum of C_g| stays at or below 2^53 on the common grid; then any order gives these bits.
// Source:  J. Verschelde et al.'s convolved layout, generalised; see design notes on slices.
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

template <int kBM_, int kBN_, int kWM_, int kWN_, int kStages_, int kDepth_, class Mma_>
struct SlicedTile {
  static constexpr int kBM = kBM_, kBN = kBN_;  // thread block's tile
  static constexpr int kWM = kWM_, kWN = kWN_;  // warp's tile
  static constexpr int kStages = kStages_;      // stages in flight
  static constexpr int kDepth = kDepth_;        // blocks of 16 columns of A in a stage
  using Mma = Mma_;
  static constexpr int kWarpsN = kBN / kWN;
  static constexpr int kThreads = kBM / kWM * kWarpsN * 32;
  static constexpr int kEights = kWM / 8, kSixteens = kWN / 16;  // m8 and n16 tiles of a warp
  static constexpr int kSteps = 16 * kDepth / Mma::kK;  // fragments' steps along k in a stage
  static constexpr int kBlockA = kBM * 128, kBlockB = kBN * 128;  // bytes of 16 columns
  static constexpr int kStage = kDepth * (kBlockA + kBlockB);     // bytes
  static constexpr int kShared = kStages * kStage;
  static constexpr int kBand = 1024 / kBM < 1 ? 1 : 1024 / kBM;  // tile rows in a band
  static_assert(kBM % kWM == 0 && kBN % kWN == 0 && kWM % 8 == 0 && kWN % 16 == 0);
  static_assert(kSteps % 2 == 0, "the register double buffers return to their start each stage");
  static_assert(kThreads % 128 == 0 && kBM % (kThreads / 8) == 0 && kBN % (kThreads / 8) == 0, "loads fill a stage evenly");
};

// Which tile of which order a block computes.
struct TileIndex {
  int order, row, column;  // row, column: first entry of the tile
  int64_t batch;
};

template <class Tile>
__device__ TileIndex tile_index(const SlicedProblem& p, int64_t block) {
  const int rows = (p.m + Tile::kBM - 1) / Tile::kBM, columns = (p.n + Tile::kBN - 1) / Tile::kBN;
  const int64_t tiles = int64_t(rows) * columns;
  const int64_t matrix = block / tiles;
  const int64_t tile = block - matrix * tiles;
  const int64_t rank = matrix / p.batch;
  const int64_t band = tile / (int64_t(Tile::kBand) * columns);
  const int first = int(band) * Tile::kBand;
  const int height = min(Tile::kBand, rows - first);
  const int inside = int(tile - band * Tile::kBand * columns);
  return {int(p.slices - 1 - rank), (first + inside % height) * Tile::kBM, inside / height * Tile::kBN, matrix - rank * p.batch};
}

// The part of a tile that one warp holds: accumulators, and double-buffered fragments: of B one n16 tile, of A one k step.
// The instruction's "A" (16 rows) is a tile of B transposed, its "B" (8 columns) a tile of A transposed: then each 16-byte
// chunk in shared memory is a pair of registers that stand beside one another in a fragment, and nothing is moved.
template <class Tile>
struct WarpTile {
  static constexpr int kK = Tile::Mma::kK;
  double c[Tile::kEights][Tile::kSixteens][4] = {};
  double a[2][Tile::kEights][kK / 4];
  double b[2][kK / 2];
  uint32_t offset_a, offset_b;  // byte offsets in a stage of this thread's first chunks
  int row, column;              // of this thread's first entry in the block's tile

  // Column k = t + 4 j of a fragment is column 2 t + (j & 1) + 8 (j >> 1) of the stage. Row g and g + 8 of an n16 fragment are
  // columns 2 g and 2 g + 1 of the tile. Column g of an m8 fragment is row (g >> 1) + 4 (g & 1) of the tile: the two rows that
  // a quarter warp reads then lie in different halves of the 128 bytes.
  __device__ WarpTile(int thread) {
    const int warp = thread / 32, g = thread / 4 % 8, t = thread % 4;
    const int warp_row = warp / Tile::kWarpsN * Tile::kWM, warp_column = warp % Tile::kWarpsN * Tile::kWN;
    const int r = g / 2 + 4 * (g % 2);
    offset_a = (warp_row + r) * 128 + (t ^ r) * 16;
    offset_b = Tile::kDepth * Tile::kBlockA + warp_column * 128 + 2 * t * 128 + (g ^ (2 * t)) * 16;
    row = warp_row + t;
    column = warp_column + 2 * g;
  }

  __device__ void load_a(int slot, uint32_t stage, int step) {
#pragma unroll
    for (int part = 0; part < kK / 8; ++part) {
      const int eight = step * (kK / 8) + part;  // which eight columns of the stage
      const uint32_t base = stage + (offset_a ^ (eight % 2 * 64)) + eight / 2 * Tile::kBlockA;
#pragma unroll
      for (int mi = 0; mi < Tile::kEights; ++mi) load_shared(a[slot][mi] + 2 * part, base + mi * 1024);
    }
  }

  __device__ void load_b(int slot, uint32_t stage, int step, int ni) {
#pragma unroll
    for (int part = 0; part < kK / 8; ++part) {
      const int eight = step * (kK / 8) + part;
      const uint32_t base = stage + eight / 2 * Tile::kBlockB + eight % 2 * 1024 + ni * 2048;
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        load_shared(b[slot] + 4 * part + 2 * odd, base + (offset_b ^ (odd * 16)) + odd * 128);
      }
    }
  }

  // One stage. The fragments of its first step are loaded; next() makes the next stage readable, frees this one and
  // returns the next one's address.
  template <class Next>
  __device__ void multiply(uint32_t& stage, Next next) {
#pragma unroll
    for (int step = 0; step < Tile::kSteps; ++step) {
#pragma unroll
      for (int ni = 0; ni < Tile::kSixteens; ++ni) {
        const int slot = (step * Tile::kSixteens + ni) % 2;
        const bool turn = ni + 1 == Tile::kSixteens;
        if (turn && step + 1 == Tile::kSteps) stage = next();
        const int next_step = (step + turn) % Tile::kSteps;
        load_b(1 - slot, stage, next_step, turn ? 0 : ni + 1);
        if (turn) load_a(next_step % 2, stage, next_step);
#pragma unroll
        for (int mi = 0; mi < Tile::kEights; ++mi) Tile::Mma::run(c[mi][ni], b[slot], a[step % 2][mi]);
      }
    }
  }

  __device__ void store(const SlicedProblem& p, const TileIndex& tile) const {
    double* matrix = p.c + (tile.order * p.batch + tile.batch) * p.m * p.n;
    const bool wide = p.n % 2 == 0;  // 16-byte stores are aligned
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

// Copies stages with cp.async, every thread the same chunk column: A rows r, r + kStep, ..., B column blocks of one row.
// kWide: 16-byte chunks (k and n even, so that every row is aligned); otherwise two 8-byte copies a chunk.
template <class Tile, bool kWide>
struct StageLoader {
  static constexpr int kStep = Tile::kThreads / 8;  // rows of A, and columns of 128 bytes x 16 rows of B, that one round covers
  static constexpr int kRoundsA = Tile::kBM / kStep, kRoundsB = Tile::kBN / kStep;
  const SlicedProblem& p;
  const double *pa, *pb;  // next chunk of A, of B
  const double *start_a, *start_b;
  int64_t slice_a, slice_b;
  int order, slice, k0;
  int rows_a, columns_b, chunk, row_b;
  uint32_t shared_a, shared_b;

  __device__ StageLoader(const SlicedProblem& problem, const TileIndex& tile, uint32_t shared, int thread) : p(problem) {
    chunk = thread % 8;
    row_b = thread / 8 % 16;
    const int row_a = thread / 8, block_b = thread / 128;
    slice_a = p.batch * p.m * p.k;
    slice_b = p.batch * p.k * p.n;
    order = tile.order;
    slice = 0;
    k0 = 0;
    rows_a = p.m - tile.row - row_a;                                  // round r is inside when r * kStep < rows_a
    columns_b = p.n - tile.column - block_b * 16 - 2 * chunk;         // likewise
    start_a = p.a + (tile.batch * p.m + tile.row + row_a) * p.k + 2 * chunk;
    start_b = p.b + (tile.batch * p.k + row_b) * p.n + tile.column + block_b * 16 + 2 * chunk;
    pa = start_a;
    pb = start_b + order * slice_b;
    shared_a = shared + row_a * 128 + (chunk ^ (row_a % 8)) * 16;
    shared_b = shared + Tile::kDepth * Tile::kBlockA + block_b * 2048 + row_b * 128 + (chunk ^ (row_b % 8)) * 16;
  }

  // left: how many doubles from the chunk's first on lie in the row.
  __device__ static void copy(uint32_t shared, const double* global, int left, const double* safe) {
    if constexpr (kWide) {
      CpAsync16::run(shared, left > 0 ? global : safe, left > 0 ? 16 : 0);
    } else {
      CpAsync8::run(shared, left > 0 ? global : safe, left > 0 ? 8 : 0);
      CpAsync8::run(shared + 8, left > 1 ? global + 1 : safe, left > 1 ? 8 : 0);
    }
  }

  __device__ void load(int stage) {
#pragma unroll
    for (int d = 0; d < Tile::kDepth; ++d) {
      const uint32_t to_a = shared_a + stage * Tile::kStage + d * Tile::kBlockA;
      const uint32_t to_b = shared_b + stage * Tile::kStage + d * Tile::kBlockB;
      const int left_a = p.k - k0 - 16 * d - 2 * chunk;
      const bool in_b = k0 + 16 * d + row_b < p.k;
#pragma unroll
      for (int r = 0; r < kRoundsA; ++r) {
        copy(to_a + r * kStep * 128, pa + int64_t(r) * kStep * p.k + 16 * d, r * kStep < rows_a ? left_a : 0, p.a);
      }
#pragma unroll
      for (int r = 0; r < kRoundsB; ++r) {
        copy(to_b + r * kStep * 128, pb + int64_t(16 * d) * p.n + r * kStep, in_b ? columns_b - r * kStep : 0, p.b);
      }
    }
    k0 += 16 * Tile::kDepth;
    pa += 16 * Tile::kDepth;
    pb += int64_t(16 * Tile::kDepth) * p.n;
    if (k0 >= p.k) {
      k0 = 0;
      ++slice;
      pa = start_a + slice * slice_a;
      pb = start_b + (order - slice) * slice_b;
    }
  }
};

template <class Tile, bool kWide, int kBlocksPerSm>
__global__ void __launch_bounds__(Tile::kThreads, kBlocksPerSm) sliced_matmul_kernel(const SlicedProblem p) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const uint32_t shared = uint32_t(__cvta_generic_to_shared(shared_bytes));
  const TileIndex tile = tile_index<Tile>(p, blockIdx.x);
  const int total = (tile.order + 1) * ((p.k + 16 * Tile::kDepth - 1) / (16 * Tile::kDepth));  // stages to compute
  WarpTile<Tile> warp(threadIdx.x);
  if (total > 0) {
    StageLoader<Tile, kWide> loader(p, tile, shared, threadIdx.x);
    int loaded = 0, write = 0, read = 0;
    auto load_next = [&] {
      if (loaded < total) loader.load(write);
      cp_async_commit();
      ++loaded;
      write = write + 1 == Tile::kStages ? 0 : write + 1;
    };
    for (int s = 0; s + 1 < Tile::kStages; ++s) load_next();
    cp_async_wait<Tile::kStages - 2>();
    __syncthreads();
    uint32_t stage = shared;
    warp.load_a(0, stage, 0);
    warp.load_b(0, stage, 0, 0);
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
  }
  warp.store(p, tile);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)
// The same tile with one warp that only copies (the tensor copy engine writes the swizzled stage and the zeros beyond the
// edges) and warps that only multiply; stages change hands through mbarriers, so no warp waits for another's arithmetic.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads + 128, 1)
    sliced_matmul_bulk_kernel(const SlicedProblem p, const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b) {
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
  const TileIndex tile = tile_index<Tile>(p, blockIdx.x);
  const int total = (tile.order + 1) * ((p.k + 16 * Tile::kDepth - 1) / (16 * Tile::kDepth));
  if (threadIdx.x >= Tile::kThreads) {
    registers_decrease<24>();
    if (threadIdx.x == Tile::kThreads) {
      int slot = 0, k0 = 0, slice = 0;
      uint32_t phase = 1;
      for (int s = 0; s < total; ++s) {
        mbarrier_wait(empty + 8 * slot, phase);
        const uint32_t stage = shared + slot * Tile::kStage, stage_b = stage + Tile::kDepth * Tile::kBlockA;
        mbarrier_expect(full + 8 * slot, Tile::kStage);
        const int plane_a = int(slice * p.batch + tile.batch), plane_b = int((tile.order - slice) * p.batch + tile.batch);
#pragma unroll
        for (int d = 0; d < Tile::kDepth; ++d) {
          copy_tile(stage + d * Tile::kBlockA, &map_a, k0 + 16 * d, tile.row, plane_a, full + 8 * slot);
#pragma unroll
          for (int block = 0; block < Tile::kBN / 16; ++block) {
            copy_tile(stage_b + d * Tile::kBlockB + block * 2048, &map_b, tile.column + 16 * block, k0 + 16 * d, plane_b,
                      full + 8 * slot);
          }
        }
        k0 += 16 * Tile::kDepth;
        if (k0 >= p.k) k0 = 0, ++slice;
        if (++slot == Tile::kStages) slot = 0, phase ^= 1;
      }
    }
  } else {
    registers_increase<240>();
    WarpTile<Tile> warp(threadIdx.x);
    if (total > 0) {
      int slot = 0, left = total;
      uint32_t phase = 0, stage = shared;
      mbarrier_wait(full, 0);
      warp.load_a(0, stage, 0);
      warp.load_b(0, stage, 0, 0);
      while (left > 0) {
        warp.multiply(stage, [&] {
          __syncwarp();
          if (threadIdx.x % 32 == 0) mbarrier_arrive(empty + 8 * slot);
          if (++slot == Tile::kStages) slot = 0, phase ^= 1;
          if (--left > 0) mbarrier_wait(full + 8 * slot, phase);
          return shared + slot * Tile::kStage;
        });
      }
    }
    warp.store(p, tile);
  }
}
#endif

}  // namespace jaxmd
