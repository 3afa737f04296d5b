// Single-precision products (single_matmul.h) for every GPU from sm_80 on: mma.sync fed by cp.async.
//
//   C = 2^-(s_i + s_j) sum over chunks of ( lo hi + hi lo + hi hi ), with more terms for short sums
//
// Shapes:  A [batch, m, k], B [batch, k, n] float32, k and n multiples of 4; C [batch, m, n].
// Tiling:  a block of kWarpsM x kWarpsN warps makes one tile of C, a warp 32 x kColumns of it in m16n8 fragments.
// Stage:   [rows of A][32 floats of k], then [32 of k][columns of B], as they lie in memory; kStages in flight.
//          16-byte chunk c of row r of A at c ^ (r & 1) 4, of row l of B at c ^ (l / 4 & 3) 2: reads are free of bank
//          conflicts.
// Split:   in registers, on the way from shared memory to the tensor cores, by every warp that needs the entry: all
//          pieces for the small products of a chunk, then hi once more for hi hi.
// Order:   as single_wgmma.cuh, so that both give the same bits where the tensor core sums an instruction in one step,
//          on sm_90 and later; before, it takes two.
// Cost:    on one H200 56 (f16) and 38 (tf32) TFLOPS of 8192^3 (examples/bench/single.py), a third of single_wgmma.cuh.
#pragma once

#include "mma.cuh"
#include "mma_float.cuh"
#include "single.cuh"

namespace jaxmd {
namespace cuda {

template <bool kTf32_, int kWarpsM_, int kWarpsN_, int kColumns_, int kBlocksPerSm_, bool kShort_ = false>
struct SingleMmaTile {
  static constexpr bool kTf32 = kTf32_, kShort = kShort_;
  static constexpr int kWarpsM = kWarpsM_, kWarpsN = kWarpsN_, kColumns = kColumns_, kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kBM = 32 * kWarpsM, kBN = kWarpsN * kColumns, kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kFragments = kColumns / 8, kSteps = kTf32 ? 2 : 1, kStages = 4, kPieces = kShort ? 3 : 2;
  static constexpr int kChunkStages = single_chunk(kTf32 ? SingleFormat::tf32 : SingleFormat::f16, kShort) / 32;
  static constexpr int kStageA = kBM * 128, kStageB = 32 * kBN * 4, kStage = kStageA + kStageB;  // bytes
  static constexpr int kShared = kStages * kStage;
  static_assert(kBN % 32 == 0 && kBM * 8 % kThreads == 0 && kBN * 8 % kThreads == 0);
};

// One stage: 16 bytes a thread and round; nothing is read outside, zeros stand for it.
template <class Tile>
__device__ __forceinline__ void load_stage(const SingleProblem& p, const SingleTileAt& at, uint32_t stage, int l0) {
  const float *const a = p.a + int64_t{at.plane} * p.m * p.k, *const b = p.b + int64_t{at.plane} * p.k * p.n;
#pragma unroll
  for (int r = 0; r < Tile::kBM * 8; r += Tile::kThreads) {
    const int i = (r + threadIdx.x) / 8, chunk = (r + threadIdx.x) % 8, row = at.row + i, l = l0 + 4 * chunk;
    const bool inside = row < p.m && l < p.k;
    cp_async_16(stage + i * 128 + (chunk ^ (i & 1) * 4) * 16, inside ? a + int64_t{row} * p.k + l : a, inside ? 16 : 0);
  }
  constexpr int kChunks = Tile::kBN / 4;  // of a row
#pragma unroll
  for (int r = 0; r < 32 * kChunks; r += Tile::kThreads) {
    const int i = (r + threadIdx.x) / kChunks, chunk = (r + threadIdx.x) % kChunks;
    const int l = l0 + i, column = at.column + 4 * chunk;
    const bool inside = l < p.k && column < p.n;
    cp_async_16(stage + Tile::kStageA + i * Tile::kBN * 4 + (chunk ^ (i / 4 & 3) * 2) * 16,
                inside ? b + int64_t{l} * p.n + column : b, inside ? 16 : 0);
  }
}

// The fragments of four scaled neighbours of k of one row (column), as lane t of it holds them: piece i of a step at
// i kPiece + step kStride, the first pair at 0 and the second at kPair.
template <bool kTf32, int kPieces, int kPiece, int kStride, int kPair>
__device__ __forceinline__ void split_four(const float (&x)[4], float scale, uint32_t* to) {
  float y[4];
#pragma unroll
  for (int l = 0; l < 4; ++l) y[l] = __fmul_rn(x[l], scale);
#pragma unroll
  for (int l = 0; l < 4; l += kTf32 ? 1 : 2) {
    uint32_t z[kPieces];
    if constexpr (kTf32) {
      split_tf32(y[l], z);
    } else {
      split_f16(y[l], y[l + 1], z);
    }
    uint32_t* const first = to + (kTf32 ? l / 2 * kStride + l % 2 * kPair : l / 2 * kPair);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) first[i * kPiece] = z[i];
  }
}

template <class Tile>
struct SingleMmaWarp {
  static constexpr int kA = 4 * Tile::kSteps, kB = 2 * Tile::kSteps;
  int g, t, row, column;  // row, column: this lane's first, in the tile
  float scale_a[2][2], scale_b[Tile::kFragments];
  uint32_t a[2][Tile::kPieces][kA], b[Tile::kFragments][Tile::kPieces][kB];

  // 16 terms of k, the first or second half of a stage; what is not used of it is dead code
  __device__ __forceinline__ void load(uint32_t stage, int half) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int r = row + 16 * i + 8 * j;
        const float4 v = load_shared_float4(stage + r * 128 + ((4 * half + t) ^ (r & 1) * 4) * 16);
        const float x[4] = {v.x, v.y, v.z, v.w};
        split_four<Tile::kTf32, Tile::kPieces, kA, 4, 2>(x, scale_a[i][j], a[i][0] + j);
      }
    }
#pragma unroll
    for (int j = 0; j < Tile::kFragments; ++j) {
      float x[4];
#pragma unroll
      for (int l = 0; l < 4; ++l) {
        const uint32_t at = (16 * half + 4 * t + l) * Tile::kBN + ((column + 8 * j) ^ 8 * t);
        x[l] = load_shared_float(stage + Tile::kStageA + 4 * at);
      }
      split_four<Tile::kTf32, Tile::kPieces, kB, 2, 1>(x, scale_b[j], b[j][0]);
    }
  }

  template <int kLeft, int kRight>  // pieces
  __device__ __forceinline__ void multiply(float (&c)[2][Tile::kFragments][4], int step) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kFragments; ++j) {
        MmaFloat<Tile::kTf32>::run(c[i][j], a[i][kLeft] + 4 * step, b[j][kRight] + 2 * step);
      }
    }
  }
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm)
    single_mma_kernel(const SingleProblem p) {
  extern __shared__ __align__(1024) unsigned char single_shared[];
  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(single_shared));
  const SingleTileAt at = single_tile_at<Tile::kBM, Tile::kBN>(p, blockIdx.x);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  SingleMmaWarp<Tile> w;
  w.g = lane / 4, w.t = lane % 4;
  w.row = warp / Tile::kWarpsN * 32 + w.g, w.column = warp % Tile::kWarpsN * Tile::kColumns + w.g;
  const int32_t *const rows = p.row + int64_t{at.plane} * p.m, *const columns = p.column + int64_t{at.plane} * p.n;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    w.scale_a[i / 2][i % 2] = power_of_two(shift_of(rows, at.row + w.row + 8 * i, p.m));
  }
#pragma unroll
  for (int j = 0; j < Tile::kFragments; ++j) {
    w.scale_b[j] = power_of_two(shift_of(columns, at.column + w.column + 8 * j, p.n));
  }
  constexpr int kTogether = Tile::kChunkStages, kHalves = 2 * kTogether;
  const int total = (p.k + 32 * kTogether - 1) / (32 * kTogether) * kTogether;
  int loaded = 0;
  const auto load_next = [&] {
    if (loaded < total) load_stage<Tile>(p, at, shared + loaded % Tile::kStages * Tile::kStage, 32 * loaded);
    ++loaded;
    cp_async_commit();
  };
  for (int s = kTogether; s < Tile::kStages; ++s) load_next();
  float sum[2][Tile::kFragments][4] = {}, rest[2][Tile::kFragments][4] = {};
  const auto each = [](auto body) {
#pragma unroll
    for (int e = 0; e < 8 * Tile::kFragments; ++e) body(e / 4 / Tile::kFragments, e / 4 % Tile::kFragments, e % 4);
  };
  for (int first = 0; first < total; first += kTogether) {  // a chunk
    cp_async_wait<Tile::kStages - 2 * kTogether>();
    __syncthreads();
    for (int s = 0; s < kTogether; ++s) load_next();  // over stages that every warp left before the barrier
    float c[2][Tile::kFragments][4] = {};
    const auto load = [&](int half) {
      w.load(shared + (first + half / 2) % Tile::kStages * Tile::kStage, half % 2);
    };
#pragma unroll 1
    for (int half = 0; half < kHalves; ++half) {
      load(half);
#pragma unroll
      for (int s = 0; s < Tile::kSteps; ++s) {
        if constexpr (Tile::kShort) {
          w.template multiply<2, 0>(c, s);
          w.template multiply<0, 2>(c, s);
          w.template multiply<1, 1>(c, s);
        }
        w.template multiply<1, 0>(c, s);
        w.template multiply<0, 1>(c, s);
      }
    }
    if (Tile::kShort) each([&](int i, int j, int e) { rest[i][j][e] = __fadd_rn(rest[i][j][e], c[i][j][e]); });
#pragma unroll 1
    for (int half = 0; half < kHalves; ++half) {
      load(half);
#pragma unroll
      for (int s = 0; s < Tile::kSteps; ++s) {
        if (Tile::kShort) each([&](int i, int j, int e) { c[i][j][e] = 0; });
        w.template multiply<0, 0>(c, s);
        if (Tile::kShort) each([&](int i, int j, int e) { add_with_rest(sum[i][j][e], rest[i][j][e], c[i][j][e]); });
      }
    }
    each([&](int i, int j, int e) {
      if (!Tile::kShort) sum[i][j][e] = __fadd_rn(sum[i][j][e], c[i][j][e]);
    });
  }
  each([&](int i, int j, int e) {
    if (Tile::kShort) sum[i][j][e] = __fadd_rn(sum[i][j][e], rest[i][j][e]);
  });
  cp_async_wait<0>();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    store_sums(p, sum[i], at.plane, at.row + w.row - w.g + 16 * i, at.column + w.column - w.g, lane);
  }
}

}  // namespace cuda
}  // namespace jaxmd
