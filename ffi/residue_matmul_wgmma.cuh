// Products of residues (residue_matmul.cuh) for sm_90a: wgmma from shared memory that the tensor copy engine fills.
//
// Tiling:  kConsumers warpgroups multiply, 64 rows of A by kN rows of B each; one thread of a further warp copies.
//          Blocks stay, and walk over the tiles (residue_walk.cuh): copies for the next tile run during the store of
//          this one.
// Pairs:   with kCluster = 2 two blocks, one above the other, share B: each copies half of it to both. Where products
//          follow one another for long, so that the card's power limits them, that is 2 % faster; else no faster.
// Stage:   [64 kConsumers rows of A, then kN rows of B][128 bytes of k] with the copy engine's 128-byte swizzle, zeros
//          beyond the edges. full[s]: the copies of a stage have arrived; empty[s]: every warp of the cluster that
//          reads it is through.
// Cost:    a block's tile of 128 x 256 takes 1024 cycles a stage at the tensor cores' rate, and on an H200 3700 more:
//          2600 of stores, 1100 of waiting for the first stages. wgmma instructions wait for each other when they are
//          issued, so no product runs during a warpgroup's own stores; the other warpgroup is at most a ring away.
#pragma once

#include <cuda.h>

#include "residue_matmul.cuh"
#include "residue_walk.cuh"
#include "walk_pace.cuh"
#include "wgmma.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

constexpr int kMostReducers = 192;  // moduli that are kept, with their factors, in shared memory

template <int kConsumers_, int kN_, int kStages_, int kCluster_, int kBlocksPerSm_>
struct WgmmaTile {
  static constexpr int kConsumers = kConsumers_, kN = kN_, kStages = kStages_, kCluster = kCluster_;
  static constexpr int kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kFragments = kN / 8, kStrip = kN == 64 ? 8 : kN / 16;  // of a warp, stored at once
  static constexpr int kBM = 64 * kConsumers;
  // Alone on a multiprocessor, the copying warp is of a warpgroup of its own, which leaves the others its registers.
  static constexpr bool kShifts = kBlocksPerSm == 1;
  static constexpr int kThreads = 128 * kConsumers + (kShifts ? 128 : 32), kFewer = 40, kMore = 232;
  static_assert(kConsumers <= 2 && 2 * kMore + kFewer <= 512);
  static constexpr int kPartB = kN / kCluster;  // rows of B that a block copies
  static constexpr int kStageA = kBM * kDepth, kStageB = kN * kDepth, kStage = kStageA + kStageB;  // bytes
  static constexpr int kStrips = kStages * kStage, kBarriers = kStrips + 4 * kConsumers * Strip<kStrip>::kBytes;
  static constexpr int kReducers = kBarriers + 16 * kStages, kShared = kReducers + 8 * kMostReducers;
  static constexpr int kReaders = 4 * kConsumers * kCluster;  // warps that free a stage
  static_assert(kStage % 1024 == 0 && kStageA % 1024 == 0 && kPartB * kDepth % 1024 == 0, "swizzled rows");
  static_assert(kBM <= 256 && kPartB <= 256, "boxes of the copy engine");
  static_assert(kShared * kBlocksPerSm + 1024 * kBlocksPerSm <= 228 * 1024);
};

// Which stage is next, and how often the ring has been round.
template <int kStages>
struct Ring {
  int slot = 0;
  uint32_t phase = 0;
  __device__ void advance() {
    if (++slot == kStages) slot = 0, phase ^= 1;
  }
};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <class Tile>
__device__ __forceinline__ ModulusTile cluster_tile(const ResidueProblem& p, uint32_t tile, uint32_t rank) {
  ModulusTile at = modulus_tile<Tile::kBM * Tile::kCluster, Tile::kN>(p, tile);
  at.row += rank * Tile::kBM;
  return at;
}

template <class Tile>
__device__ __forceinline__ ResidueWalk walk_of(const ResidueProblem& p) {
  constexpr int kRows = Tile::kBM * Tile::kCluster;
  return {p.tiles(p.pairs, kRows, Tile::kN), p.tiles(p.small + p.pairs, kRows, Tile::kN),
          blockIdx.x / Tile::kCluster, gridDim.x / Tile::kCluster};
}

template <class Tile>
__device__ __forceinline__ void copy_stages(const ResidueProblem& p, const Pace& pace, uint32_t rank, uint32_t shared,
                                            const CUtensorMap* map_a, const CUtensorMap* map_b) {
  const uint32_t full = shared + Tile::kBarriers, empty = full + 8 * Tile::kStages;
  const int total = (p.k + kDepth - 1) / kDepth;
  Ring<Tile::kStages> ring;
  Pacer pacer(pace, gridDim.x / Tile::kCluster);
  for (ResidueWalk walk = walk_of<Tile>(p); walk.here(); walk.advance()) {
    const ModulusTile at = cluster_tile<Tile>(p, walk.tile(), rank);
    const bool paced = rank == 0 && walk.all_have_one();
    for (int channel = 0; channel < at.channels; ++channel) {
      const int plane = at.plane + channel * static_cast<int>(p.batch);
      for (int step = 0; step < total; ++step) {
        if (paced) pacer.step();
        const uint32_t to = shared + ring.slot * Tile::kStage, barrier = full + 8 * ring.slot;
        if (Tile::kCluster == 1) {
          mbarrier_wait(empty + 8 * ring.slot, ring.phase ^ 1);
        } else {
          mbarrier_wait_cluster(empty + 8 * ring.slot, ring.phase ^ 1);
        }
        mbarrier_expect(barrier, Tile::kStage);
        copy_tile(to, map_a, step * kDepth, at.row, plane, barrier);
        const uint32_t to_b = to + Tile::kStageA + rank * Tile::kPartB * kDepth;
        const int row_b = at.column + rank * Tile::kPartB;
        if (Tile::kCluster == 1) {
          copy_tile(to_b, map_b, step * kDepth, row_b, plane, barrier);
        } else {
          copy_tile_to_all(to_b, map_b, step * kDepth, row_b, plane, barrier, (1 << Tile::kCluster) - 1);
        }
        ring.advance();
      }
    }
  }
}

// A warp of a multiplying warpgroup.
template <class Tile>
class Consumer {
 public:
  __device__ Consumer(const ResidueProblem& p, unsigned char* memory, uint32_t shared)
      : p_(p), reducers_(reinterpret_cast<const int2*>(memory + Tile::kReducers)), shared_(shared),
        full_(shared + Tile::kBarriers), empty_(full_ + 8 * Tile::kStages), lane_(threadIdx.x % 32),
        group_row_(threadIdx.x / 128 * 64), warp_row_(group_row_ + threadIdx.x / 32 % 4 * 16),
        strip_(p, memory + Tile::kStrips + threadIdx.x / 32 * Strip<Tile::kStrip>::kBytes, lane_) {}

  __device__ __forceinline__ Reducer reducer_of(int modulus) const {
    if (modulus >= kMostReducers) return reducer(__ldg(p_.moduli + modulus));
    const int2 known = reducers_[modulus];
    return make_reducer(known.x, reducer_shift(known.x), known.y);
  }

  // Waits until the copies of the next stage have arrived.
  __device__ __forceinline__ int next_stage() {
    const int slot = ring_.slot;
    mbarrier_wait(full_ + 8 * slot, ring_.phase);
    ring_.advance();
    return slot;
  }

  __device__ __forceinline__ void multiply(int (&c)[Tile::kFragments][4], int slot, bool accumulate) const {
    const uint32_t stage = shared_ + slot * Tile::kStage;
    const uint64_t a = swizzled_rows(stage + group_row_ * kDepth), b = swizzled_rows(stage + Tile::kStageA);
#pragma unroll
    for (int k32 = 0; k32 < kDepth / 32; ++k32) {
      WgmmaS8<Tile::kFragments>::run(c, a + 2 * k32, b + 2 * k32, accumulate || k32 > 0);
    }
  }

  __device__ __forceinline__ void release(int slot) const {
    __syncwarp();
    if (Tile::kCluster == 1) {
      if (lane_ == 0) mbarrier_arrive(empty_ + 8 * slot);
    } else {
      if (lane_ < Tile::kCluster) mbarrier_arrive_at(empty_ + 8 * slot, lane_);
    }
  }

  __device__ __forceinline__ void store(const Reducer& m, const int (&c)[Tile::kFragments][4], const ModulusTile& at) {
#pragma unroll
    for (int j = 0; j < Tile::kFragments; j += Tile::kStrip) {
      strip_.store(m, c, j, at, at.row + warp_row_, at.column + 8 * j);
    }
  }

 private:
  const ResidueProblem& p_;
  const int2* const reducers_;  // each modulus and its factor
  const uint32_t shared_, full_, empty_;
  const int lane_, group_row_, warp_row_;
  Strip<Tile::kStrip> strip_;
  Ring<Tile::kStages> ring_;
};

template <class Tile>
__device__ __forceinline__ void multiply_stages(const ResidueProblem& p, uint32_t rank, unsigned char* memory,
                                                uint32_t shared) {
  Consumer<Tile> consumer(p, memory, shared);
  const int total = (p.k + kDepth - 1) / kDepth;
  int c[Tile::kFragments][4] = {};
  for (ResidueWalk walk = walk_of<Tile>(p); walk.here(); walk.advance()) {
    const ModulusTile at = cluster_tile<Tile>(p, walk.tile(), rank);
    const Reducer m = consumer.reducer_of(at.modulus);
    for (int channel = 0;;) {
      int previous = 0, in_block = 0;
      for (int step = 0; step < total; ++step) {
        const int slot = consumer.next_stage();
        hold(c);
        wgmma_fence();
        consumer.multiply(c, slot, channel > 0 || step > 0);
        wgmma_commit();
        if (step > 0) {
          wgmma_wait<1>();
          consumer.release(previous);
        }
        previous = slot;
        if (++in_block == kBlock / kDepth && step + 1 < total) {
          in_block = 0;
          wgmma_wait<0>();
          hold(c);
          reduce_all(m, c);
        }
      }
      wgmma_wait<0>();
      hold(c);
      consumer.release(previous);
      if (++channel == at.channels) break;
      carry_all(m, carry_of(p, at, channel), c);
    }
    consumer.store(m, c, at);
  }
}

#endif

// k > 0.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm)
    residue_wgmma_kernel(const ResidueProblem p, const Pace pace, const __grid_constant__ CUtensorMap map_a,
                         const __grid_constant__ CUtensorMap map_b) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char residue_shared[];
  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(residue_shared));
  const uint32_t full = shared + Tile::kBarriers, empty = full + 8 * Tile::kStages;
  const uint32_t rank = Tile::kCluster == 1 ? 0 : cluster_rank();
  int2* const reducers = reinterpret_cast<int2*>(residue_shared + Tile::kReducers);
  for (int i = threadIdx.x; i < min(p.small + p.pairs, kMostReducers); i += Tile::kThreads) {
    const int modulus = __ldg(p.moduli + i);
    reducers[i] = make_int2(modulus, reducer_factor(modulus, reducer_shift(modulus)));
  }
  if (threadIdx.x == 0) {
    for (int s = 0; s < Tile::kStages; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, Tile::kReaders);
    }
    mbarrier_fence_init();
  }
  if (Tile::kCluster == 1) {
    __syncthreads();
  } else {
    cluster_sync();
  }
  if (threadIdx.x < 128 * Tile::kConsumers) {
    if constexpr (Tile::kShifts) registers_increase<Tile::kMore>();
    multiply_stages<Tile>(p, rank, residue_shared, shared);
  } else {
    if constexpr (Tile::kShifts) registers_decrease<Tile::kFewer>();
    if (threadIdx.x == 128 * Tile::kConsumers) copy_stages<Tile>(p, pace, rank, shared, &map_a, &map_b);
  }
  if (Tile::kCluster > 1) {
    __syncwarp();
    cluster_sync();  // the other block may still copy to this one, or arrive at its barriers
  }
#else
  __trap();  // never launched: WgmmaVariant::prepare
#endif
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
