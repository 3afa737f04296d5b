// Single-precision products (single_matmul.h) for sm_90a: the split fused between copy engine and tensor cores.
//
//   C = 2^-(s_i + s_j) sum over chunks of ( lo hi + hi lo + hi hi ), with more terms for short sums
//
// Shapes:  A [batch, m, k], B [batch, k, n] float32, k and n multiples of 4; C [batch, m, n].
// Tiling:  two warpgroups multiply, 64 rows of A by kN columns of B each; of a third one warp copies and three convert
//          B. Blocks stay and walk over the tiles. With kCluster = 2 two blocks, one above the other, share B: each
//          copies and converts half of it, for both.
// Stage:   32 of k, as two halves of 16. A: two [128][16] floats, read once, straight into the registers of the tensor
//          cores, and split there. B: two times kN / 32 blocks [16][32] of floats; a warp takes a block into registers,
//          a column a lane, and writes the same 2048 bytes as 32 rows of 64 bytes, K-major and swizzled: f16 the hi and
//          the lo of 16 terms, tf32 the hi, with the lo in a block of its own behind; a third piece lies behind that.
//          full: copied, ready: B converted, empty: every warp of the cluster that reads it is through.
// Order:   a lane loads four neighbours of k of A at once, so that within 16 terms k runs 0 1 4 5 8 9 12 13, 2 3 6 ...
// Sums:    one accumulator of the tensor cores takes lo hi and hi lo of a chunk, then hi hi, and is added to the
//          float32 sums; in short sums it takes the five small products, then hi hi alone, instruction by instruction,
//          and TwoSum adds it: seven additions an entry and instruction bind these. The second warpgroup starts when
//          the first is half a chunk ahead: while one adds, the other multiplies.
// Cost:    tensor cores take kN / 2 cycles an instruction, in which they read 64 bytes a cycle of B from shared
//          memory; a stage of f16 with kN = 192 takes them 1152 cycles, in which a scheduler issues for its two warps
//          that multiply 360 instructions (96 sums), and 230 for one that converts half of B (360 for all of it). A
//          slot is held for three stages, which leaves two of five to copies and conversion.
//          On one H200 f16 with kN = 192 made 214 TFLOPS (2 n^3 / time) of 8192^3 in the best of four launches, 218
//          without the split of A, 271 without the products, and 182 launched again and again, where power binds; 185
//          in the best of four when each block converted all of B, 201 with chunks of one stage. tf32 with kN = 160
//          made 127, 133 without the split of A, 200 without the products, and 113 launched again and again
//          (examples/bench/kernels/single_matmul_bench.cu).
#pragma once

#include <cuda.h>

#include "single.cuh"
#include "wgmma_float.cuh"

namespace jaxmd {
namespace cuda {

// kShort: for short sums.
// kLeaveOut: parts that do nothing, to see what they cost: 1 the split of B, 2 the products, 4 the split of A.
template <bool kTf32_, int kN_, int kStages_, int kCluster_, bool kShort_, int kLeaveOut_ = 0>
struct SingleTile {
  static constexpr bool kTf32 = kTf32_, kShort = kShort_, kShare = kCluster_ == 2;
  static constexpr int kN = kN_, kStages = kStages_, kCluster = kCluster_, kLeaveOut = kLeaveOut_;
  static constexpr int kBM = 128, kThreads = 384, kFragments = kN / 8, kPieces = kShort ? 3 : 2;
  static constexpr int kWorkers = 3;            // warps that convert
  static constexpr int kSteps = kTf32 ? 2 : 1;  // instructions a half
  // stages, and halves, in a chunk
  static constexpr int kChunkStages = single_chunk(kTf32 ? SingleFormat::tf32 : SingleFormat::f16, kShort) / 32;
  static constexpr int kUnits = 2 * kChunkStages;
  static constexpr int kHalfA = kBM * 64, kHalfB = kN * 64;  // bytes
  static constexpr int kBlocks = (kShare ? 1 : 2) * kN / 32;  // of B, in a stage, that a block converts
  static constexpr int kBuffers = kPieces - (kTf32 ? 0 : 1), kStage = 2 * (kHalfA + kBuffers * kHalfB);
  static constexpr int kCopied = 2 * kHalfA + (kShare ? 1 : 2) * kHalfB;  // from global memory
  // of B, bytes from hi to lo and to the third piece
  static constexpr int kLo = kTf32 ? 2 * kHalfB : 32, kRest = kTf32 ? 4 * kHalfB : 2 * kHalfB;
  static constexpr int kBarriers = kStages * kStage, kShared = kBarriers + 24 * kStages;
  static constexpr int kReaders = 8 * kCluster;  // warps that free a stage
  static constexpr int kConsumerRegisters = kN > 160 ? 224 : 216, kOtherRegisters = 504 - 2 * kConsumerRegisters;
  static_assert(kN % 32 == 0 && kHalfB % 1024 == 0 && kStage % 1024 == 0);
  static_assert(!kShare || !kShort);
  static_assert(kShared + 1024 <= 228 * 1024);
};

struct SingleRing {
  int slot = 0;
  uint32_t phase = 0;
  template <int kStages>
  __device__ void advance() {
    if (++slot == kStages) slot = 0, phase ^= 1;
  }
};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The named barrier at which the second warpgroup waits for the first.
__device__ __forceinline__ void second_wait() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
__device__ __forceinline__ void second_release() { asm volatile("bar.arrive 1, 256;" ::: "memory"); }

template <class Tile>
struct SingleBlock {
  const SingleProblem& p;
  uint32_t tiles, rank, shared, full, ready, empty;
  int stages;  // of a tile

  __device__ SingleBlock(const SingleProblem& p, uint32_t tiles, uint32_t shared)
      : p(p), tiles(tiles), rank(Tile::kCluster == 1 ? 0 : cluster_rank()), shared(shared) {
    full = shared + Tile::kBarriers, ready = full + 8 * Tile::kStages, empty = ready + 8 * Tile::kStages;
    constexpr int kTerms = 32 * Tile::kChunkStages;
    stages = (p.k + kTerms - 1) / kTerms * Tile::kChunkStages;
  }

  // body(tile) for the tiles of this block
  template <class Body>
  __device__ __forceinline__ void each_tile(Body body) const {
    for (uint32_t t = blockIdx.x / Tile::kCluster; t < tiles; t += gridDim.x / Tile::kCluster) {
      SingleTileAt at = single_tile_at<Tile::kBM * Tile::kCluster, Tile::kN>(p, t);
      at.row += rank * Tile::kBM;
      body(at);
    }
  }

  __device__ __forceinline__ void copy(const CUtensorMap* map_a, const CUtensorMap* map_b) const {
    SingleRing ring;
    each_tile([&](const SingleTileAt& at) {
#pragma unroll 1
      for (int stage = 0; stage < stages; ++stage) {
        const uint32_t to = shared + ring.slot * Tile::kStage, barrier = full + 8 * ring.slot;
        if (Tile::kCluster == 1) {
          mbarrier_wait(empty + 8 * ring.slot, ring.phase ^ 1);
        } else {
          mbarrier_wait_cluster(empty + 8 * ring.slot, ring.phase ^ 1);
        }
        mbarrier_expect(barrier, Tile::kCopied);
        if (Tile::kShare) mbarrier_expect(ready + 8 * ring.slot, Tile::kBuffers * Tile::kHalfB);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int l = 32 * stage + 16 * half;
          copy_tile(to + half * Tile::kHalfA, map_a, l, at.row, at.plane, barrier);
          if (Tile::kShare && half != static_cast<int>(rank)) continue;
#pragma unroll
          for (int block = 0; block < Tile::kN / 32; ++block) {
            const uint32_t to_b = to + 2 * Tile::kHalfA + half * Tile::kHalfB + 2048 * block;
            copy_tile(to_b, map_b, at.column + 32 * block, l, at.plane, barrier);
          }
        }
        ring.advance<Tile::kStages>();
      }
    });
  }

  // `worker` of kWorkers warps takes every kWorkers-th block; a lane has a column of it. With kShare they are those of
  // half `rank`, and go on to the same place of the other block of the cluster, whose copying thread expects them.
  __device__ __forceinline__ void convert(int worker, int lane) const {
    constexpr int kWorkers = Tile::kWorkers, kRounds = (Tile::kBlocks + kWorkers - 1) / kWorkers;
    constexpr int kColumns = Tile::kN / 32;
    SingleRing ring;
    each_tile([&](const SingleTileAt& at) {
      float scale[kRounds];
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const int column = at.column + 32 * ((worker + kWorkers * r) % kColumns) + lane;
        scale[r] = power_of_two(shift_of(p.column + int64_t{at.plane} * p.n, column, p.n));
      }
      const auto exists = [&](int r) {
        return kWorkers * (r + 1) <= Tile::kBlocks || worker + kWorkers * r < Tile::kBlocks;
      };
#pragma unroll 1
      for (int stage = 0; stage < stages; ++stage) {
        const uint32_t first = shared + ring.slot * Tile::kStage + 2 * Tile::kHalfA + 2048 * worker +
                               (Tile::kShare ? rank * Tile::kHalfB : 0);
        mbarrier_wait(full + 8 * ring.slot, ring.phase);
#pragma unroll
        for (int r = 0; r < (Tile::kLeaveOut & 1 ? 0 : kRounds); ++r) {
          if (exists(r)) convert_block(first + 2048 * kWorkers * r, scale[r], lane);
        }
        fence_shared_async();
        __syncwarp();
        if (lane == 0) {
          if constexpr (Tile::kShare) {
#pragma unroll
            for (int r = 0; r < kRounds; ++r) {
              if (!exists(r)) continue;
#pragma unroll
              for (int i = 0; i < Tile::kBuffers; ++i) {
                const uint32_t block = first + 2048 * kWorkers * r + 2 * Tile::kHalfB * i;
                copy_to_block(block, 2048, rank ^ 1, ready + 8 * ring.slot);
              }
            }
          }
          mbarrier_arrive(ready + 8 * ring.slot);
        }
        ring.advance<Tile::kStages>();
      }
    });
  }

  __device__ __forceinline__ static void convert_block(uint32_t block, float scale, int lane) {
    float x[16];
#pragma unroll
    for (int l = 0; l < 16; ++l) x[l] = load_shared_float(block + 128 * l + 4 * lane);
    __syncwarp();
    const uint32_t row = block + 64 * lane, swizzle = lane / 2 % 4;
#pragma unroll
    for (int l = 0; l < 16; ++l) x[l] = __fmul_rn(x[l], scale);
    if constexpr (Tile::kTf32) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        uint32_t y[4][Tile::kPieces];
#pragma unroll
        for (int t = 0; t < 4; ++t) split_tf32(x[4 * t + c], y[t]);
        const uint32_t to = row + (c ^ swizzle) * 16;
#pragma unroll
        for (int i = 0; i < Tile::kPieces; ++i) {
          store_shared(to + 2 * Tile::kHalfB * i, y[0][i], y[1][i], y[2][i], y[3][i]);
        }
      }
    } else {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        uint32_t y[4][Tile::kPieces];
#pragma unroll
        for (int t = 0; t < 4; ++t) split_f16(x[4 * t + 2 * c], x[4 * t + 2 * c + 1], y[t]);
#pragma unroll
        for (int i = 0; i < Tile::kPieces; ++i) {
          const uint32_t to = row + ((c + 2 * (i % 2)) ^ swizzle) * 16 + (i == 2 ? Tile::kRest : 0);
          store_shared(to, y[0][i], y[1][i], y[2][i], y[3][i]);
        }
      }
    }
  }

  // Fragments of the pieces of one half of A for this lane: rows r and r + 8, four neighbours of k.
  __device__ __forceinline__ static void load_a(uint32_t from, const float (&scale)[2], uint32_t* hi, uint32_t* lo,
                                                uint32_t* third) {
    uint32_t* const to[] = {hi, lo, third};
#pragma unroll
    for (int i = 0; i < (Tile::kLeaveOut & 4 ? 0 : 2); ++i) {
      const float4 v = load_shared_float4(from + i * 8 * 64);
      const float x[4] = {__fmul_rn(v.x, scale[i]), __fmul_rn(v.y, scale[i]), __fmul_rn(v.z, scale[i]),
                          __fmul_rn(v.w, scale[i])};
      if constexpr (Tile::kTf32) {
#pragma unroll
        for (int l = 0; l < 4; ++l) {
          uint32_t y[Tile::kPieces];
          split_tf32(x[l], y);
#pragma unroll
          for (int j = 0; j < Tile::kPieces; ++j) to[j][4 * (l / 2) + 2 * (l % 2) + i] = y[j];
        }
      } else {
#pragma unroll
        for (int l = 0; l < 4; l += 2) {
          uint32_t y[Tile::kPieces];
          split_f16(x[l], x[l + 1], y);
#pragma unroll
          for (int j = 0; j < Tile::kPieces; ++j) to[j][l + i] = y[j];
        }
      }
    }
  }

  __device__ __forceinline__ void multiply(int warp, int lane) const {
    const auto product = [](float (&c)[Tile::kFragments][4], const uint32_t* a, uint64_t b, int accumulate) {
      if constexpr (!(Tile::kLeaveOut & 2)) WgmmaFloat<Tile::kFragments, Tile::kTf32>::run(c, a, b, accumulate);
    };
    const int g = lane / 4, t = lane % 4, first_row = 16 * warp + g;  // warp 0 .. 7
    const auto release = [&](int slot) {
      __syncwarp();
      if (Tile::kCluster == 1) {
        if (lane == 0) mbarrier_arrive(empty + 8 * slot);
      } else {
        if (lane < Tile::kCluster) mbarrier_arrive_at(empty + 8 * slot, lane);
      }
    };
    SingleRing ring;
    bool leads = warp < 4;
    if (!leads) second_wait();
    each_tile([&](const SingleTileAt& at) {
      float sum[Tile::kFragments][4] = {}, rest[Tile::kFragments][4] = {}, c[Tile::kFragments][4];
      const auto each = [](auto body) {
#pragma unroll
        for (int e = 0; e < 4 * Tile::kFragments; ++e) body(e / 4, e % 4);
      };
      float scale[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scale[i] = power_of_two(shift_of(p.row + int64_t{at.plane} * p.m, at.row + first_row + 8 * i, p.m));
      }
      const uint32_t own = 64 * first_row + 16 * t;  // where this lane's terms begin in a half of A
#pragma unroll 1
      for (int stage = 0; stage < stages; stage += Tile::kChunkStages) {
        uint32_t slots[Tile::kChunkStages] = {};
        uint32_t hi[Tile::kUnits][4 * Tile::kSteps], lo[2][4 * Tile::kSteps], third[2][4 * Tile::kSteps];
        const auto half_of_b = [&](int u) {
          return swizzled_rows_64(shared + slots[u / 2] * Tile::kStage + 2 * Tile::kHalfA + u % 2 * Tile::kHalfB);
        };
#pragma unroll
        for (int u = 0; u < Tile::kUnits; ++u) {
          if (u % 2 == 0) {
            slots[u / 2] = ring.slot;
            mbarrier_wait(full + 8 * ring.slot, ring.phase);
          }
          const uint32_t from = shared + slots[u / 2] * Tile::kStage + u % 2 * Tile::kHalfA;
          load_a(from + own, scale, hi[u], lo[u % 2], third[u % 2]);
          if (u % 2 == 0) {
            mbarrier_wait(ready + 8 * ring.slot, ring.phase);
            ring.advance<Tile::kStages>();
          }
          const uint64_t b = half_of_b(u);
          if (u == 0) hold(c);
          wgmma_fence();
#pragma unroll
          for (int s = 0; s < Tile::kSteps; ++s) {
            const int accumulate = u > 0 || s > 0;
            if (Tile::kShort) {
              product(c, third[u % 2] + 4 * s, b + 2 * s, accumulate);
              product(c, hi[u] + 4 * s, b + 2 * s + Tile::kRest / 16, 1);
              product(c, lo[u % 2] + 4 * s, b + 2 * s + Tile::kLo / 16, 1);
            }
            product(c, lo[u % 2] + 4 * s, b + 2 * s, Tile::kShort || accumulate);
            product(c, hi[u] + 4 * s, b + 2 * s + Tile::kLo / 16, 1);
          }
          wgmma_commit();
          if (u + 1 < Tile::kUnits) wgmma_wait<1>();  // lo[(u + 1) % 2] is free; keeps its loads behind these products
        }
        if (Tile::kTf32 || Tile::kShort) {  // tf32: lets in the other warpgroup; what it gains is not measured apart
          wgmma_wait<0>();
          hold(c);
        }
        if (Tile::kShort) each([&](int j, int i) { rest[j][i] = __fadd_rn(rest[j][i], c[j][i]); });
        if (Tile::kTf32 && !Tile::kShort) wgmma_fence();
        if (leads) {
          leads = false;
          second_release();
        }
#pragma unroll
        for (int u = 0; u < Tile::kUnits; ++u) {
          const uint64_t b = half_of_b(u);
#pragma unroll
          for (int s = 0; s < Tile::kSteps; ++s) {
            if (Tile::kShort) {
              hold(c);
              wgmma_fence();
            }
            product(c, hi[u] + 4 * s, b + 2 * s, !Tile::kShort);
            if (!Tile::kShort) continue;
            wgmma_commit();
            wgmma_wait<0>();
            hold(c);
            each([&](int j, int i) { add_with_rest(sum[j][i], rest[j][i], c[j][i]); });
          }
        }
        if (!Tile::kShort) {
          wgmma_commit();
          wgmma_wait<0>();
          hold(c);
        }
#pragma unroll
        for (int i = 0; i < Tile::kChunkStages; ++i) release(slots[i]);
        if (!Tile::kShort) each([&](int j, int i) { sum[j][i] = __fadd_rn(sum[j][i], c[j][i]); });
      }
      if (Tile::kShort) each([&](int j, int i) { sum[j][i] = __fadd_rn(sum[j][i], rest[j][i]); });
      store_sums(p, sum, at.plane, at.row + 16 * warp, at.column, lane);
    });
  }
};

#endif

// `tiles` of 128 kCluster x kN, all planes; k > 0.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    single_wgmma_kernel(const SingleProblem p, uint32_t tiles, const __grid_constant__ CUtensorMap map_a,
                        const __grid_constant__ CUtensorMap map_b) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char single_shared[];
  const SingleBlock<Tile> block(p, tiles, static_cast<uint32_t>(__cvta_generic_to_shared(single_shared)));
  if (threadIdx.x == 0) {
    for (int s = 0; s < Tile::kStages; ++s) {
      mbarrier_init(block.full + 8 * s, 1);
      mbarrier_init(block.ready + 8 * s, Tile::kWorkers + Tile::kShare);
      mbarrier_init(block.empty + 8 * s, Tile::kReaders);
    }
    mbarrier_fence_init();
  }
  if (Tile::kCluster == 1) {
    __syncthreads();
  } else {
    cluster_sync();
  }
  const int warp = threadIdx.x / 32, lane = lane_once();
  if (warp < 8) {
    registers_increase<Tile::kConsumerRegisters>();
    block.multiply(warp, lane);
  } else {
    registers_decrease<Tile::kOtherRegisters>();
    if (warp > 8) {
      block.convert(warp - 9, lane);
    } else if (lane == 0) {
      block.copy(&map_a, &map_b);
    }
  }
  if (Tile::kCluster > 1) {
    __syncwarp();
    cluster_sync();  // the other block may still copy to this one, or arrive at its barriers
  }
#else
  __trap();  // never launched
#endif
}

}  // namespace cuda
}  // namespace jaxmd
