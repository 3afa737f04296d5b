// Products of residues (residue_matmul.cuh) for every GPU from sm_80 on: mma.sync fed by cp.async.
//
// Tiling:  a block of kWarpsM x kWarpsN warps makes one tile of C, a warp 32 x 64 of it in m16n8k32 fragments.
// Stage:   [rows of A, then rows of B][128 bytes of k]; 16-byte chunk c of row r at c ^ (r & 7): copies and ldmatrix
//          are free of bank conflicts. kStages in flight.
// Cost:    not measured yet. Rated for two thirds of what wgmma reaches on sm_90.
#pragma once

#include "mma.cuh"
#include "residue_matmul.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

template <int kWarpsM_, int kWarpsN_, int kStages_, int kBlocksPerSm_>
struct MmaTile {
  static constexpr int kWarpsM = kWarpsM_, kWarpsN = kWarpsN_, kStages = kStages_, kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kBM = 32 * kWarpsM, kBN = 64 * kWarpsN, kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kStage = (kBM + kBN) * kDepth;  // bytes
  static constexpr int kShared = kStages * kStage;
  static_assert(kStages >= 2 && (kBM + kBN) % (kThreads / 8) == 0 && kBM % (kThreads / 8) == 0);
  static_assert(Strip<8>::kBytes * kWarpsM * kWarpsN <= kShared, "strips lie where the stages were");
};

// Copies stages: 8 threads a row, kThreads / 8 rows at a time.
template <class Tile>
struct MmaStageLoader {
  static constexpr int kStep = Tile::kThreads / 8;
  const int8_t *a, *b;  // this thread's first chunk
  int rows_a, rows_b;   // round r of A lies inside when r kStep < rows_a
  int k, left;          // bytes of k from this thread's next chunk on
  uint32_t shared;

  __device__ MmaStageLoader(const ResidueProblem& p, const ModulusTile& tile, int plane, uint32_t shared_base,
                            int thread) {
    const int row = thread / 8, chunk = thread % 8;
    k = p.k;
    left = p.k - 16 * chunk;
    rows_a = p.m - tile.row - row;
    rows_b = p.n - tile.column - row;
    a = p.a + (int64_t{plane} * p.m + tile.row + row) * p.k + 16 * chunk;
    b = p.b + (int64_t{plane} * p.n + tile.column + row) * p.k + 16 * chunk;
    shared = shared_base + row * kDepth + (chunk ^ (row & 7)) * 16;
  }

  // Rows outside are not read; `safe` is any address that may be.
  __device__ void load(int stage, const int8_t* safe) {
    static_assert(kStep % 8 == 0, "the swizzle is the same in every round");
    const uint32_t to = shared + stage * Tile::kStage;
#pragma unroll
    for (int r = 0; r < Tile::kBM; r += kStep) {
      const bool inside = r < rows_a && left > 0;
      cp_async_16(to + r * kDepth, inside ? a + int64_t{r} * k : safe, inside ? 16 : 0);
    }
#pragma unroll
    for (int r = 0; r < Tile::kBN; r += kStep) {
      const bool inside = r < rows_b && left > 0;
      cp_async_16(to + (Tile::kBM + r) * kDepth, inside ? b + int64_t{r} * k : safe, inside ? 16 : 0);
    }
    a += kDepth;
    b += kDepth;
    left -= kDepth;
  }
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm) residue_mma_kernel(const ResidueProblem p) {
  extern __shared__ __align__(1024) unsigned char residue_shared[];
  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(residue_shared));
  const ModulusTile tile = modulus_tile<Tile::kBM, Tile::kBN>(p, blockIdx.x);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / Tile::kWarpsN * 32, warp_column = warp % Tile::kWarpsN * 64;
  const int total = (p.k + kDepth - 1) / kDepth;
  const Reducer m = reducer(__ldg(p.moduli + tile.modulus));
  // ldmatrix of m16k32: matrices are rows 0-7 and 8-15 of the first 16 bytes, then of the second. Of n16k32 of B: rows
  // 0-7 of either 16 bytes, then rows 8-15.
  const int row_a = warp_row + lane % 16, row_b = Tile::kBM + warp_column + lane % 8 + lane / 16 * 8;
  const int chunk_a = lane / 16, chunk_b = lane / 8 % 2;
  int c[2][8][4] = {};
  for (int channel = 0;;) {
    MmaStageLoader<Tile> loader(p, tile, tile.plane + channel * static_cast<int>(p.batch), shared, threadIdx.x);
    int loaded = 0, write = 0, read = 0;
    const auto load_next = [&] {
      if (loaded < total) loader.load(write, p.a);
      cp_async_commit();
      ++loaded;
      write = write + 1 == Tile::kStages ? 0 : write + 1;
    };
    for (int s = 0; s + 1 < Tile::kStages; ++s) load_next();
    int in_block = 0;
    for (int step = 0; step < total; ++step) {
      cp_async_wait<Tile::kStages - 2>();
      __syncthreads();
      load_next();  // overwrites the stage that every warp left before the barrier
      const uint32_t stage = shared + read * Tile::kStage;
#pragma unroll
      for (int k32 = 0; k32 < kDepth / 32; ++k32) {
        uint32_t a[2][4], b[4][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = row_a + 16 * i;
          load_matrices(a[i], stage + row * kDepth + ((2 * k32 + chunk_a) ^ (row & 7)) * 16);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int row = row_b + 16 * j;
          load_matrices(b[j], stage + row * kDepth + ((2 * k32 + chunk_b) ^ (row & 7)) * 16);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int j = 0; j < 8; ++j) MmaS8M16N8K32::run(c[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
      }
      read = read + 1 == Tile::kStages ? 0 : read + 1;
      if (++in_block == kBlock / kDepth) {
        in_block = 0;
        reduce_all(m, c[0]);
        reduce_all(m, c[1]);
      }
    }
    cp_async_wait<0>();
    __syncthreads();
    if (++channel == tile.channels) break;
    carry_all(m, carry_of(p, tile, channel), c[0]);
    carry_all(m, carry_of(p, tile, channel), c[1]);
  }
  Strip<8> strip(p, residue_shared + warp * Strip<8>::kBytes, lane);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    strip.store(m, c[i], 0, tile, tile.row + warp_row + 16 * i, tile.column + warp_column);
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
