// Hopper's instructions for products of int8 matrices from shared memory, and for pairs of blocks that share copies:
// one struct or function per PTX instruction, as in mma.cuh. Bodies exist for sm_90a only.
#pragma once

#include <cstdint>

#include "mma.cuh"

namespace jaxmd {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// PTX ISA, "Asynchronous warpgroup-level matrix instructions", matrix descriptor: rows of 128 bytes, K-major, that the
// tensor copy engine wrote with its 128-byte swizzle; groups of 8 rows 1024 bytes apart; starts on 1024 bytes, or
// 32 bytes of k further on.
__device__ inline uint64_t swizzled_rows(uint32_t shared) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kGroup = uint64_t{1024 / 16} << 32, kUnused = uint64_t{1} << 16;
  return kSwizzle128 | kGroup | kUnused | (shared & 0x3ffff) >> 4;
}

// "wgmma.fence", "wgmma.commit_group", "wgmma.wait_group": before the first product after registers changed; closes a
// group of products; waits until at most kPending groups run.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving a use of an accumulator across this place.
template <int kFragments>
__device__ inline void hold(int (&c)[kFragments][4]) {
#pragma unroll
  for (int j = 0; j < kFragments; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(c[j][i])::"memory");
  }
}

// "wgmma.mma_async", shapes m64n(8 kFragments)k32, 8-bit integers: c = a b^T + (accumulate ? c : 0), a [64, 32] and
// b [8 kFragments, 32] in shared memory. Fragment c[j] is m16n8's (mma.cuh) of columns 8 j .. 8 j + 7; warp w of the
// warpgroup has rows 16 w .. 16 w + 15.
template <int kFragments>
struct WgmmaS8;

// clang-format off
#define JAXMD_C4(j) "+r"(c[j][0]), "+r"(c[j][1]), "+r"(c[j][2]), "+r"(c[j][3])
#define JAXMD_C32(j) JAXMD_C4(j), JAXMD_C4(j + 1), JAXMD_C4(j + 2), JAXMD_C4(j + 3), \
                     JAXMD_C4(j + 4), JAXMD_C4(j + 5), JAXMD_C4(j + 6), JAXMD_C4(j + 7)

template <>
struct WgmmaS8<8> {
  __device__ static void run(int (&c)[8][4], uint64_t a, uint64_t b, int accumulate) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p;\n}"
        : JAXMD_C32(0)
        : "l"(a), "l"(b), "r"(accumulate));
  }
};

template <>
struct WgmmaS8<16> {
  __device__ static void run(int (&c)[16][4], uint64_t a, uint64_t b, int accumulate) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p;\n}"
        : JAXMD_C32(0), JAXMD_C32(8)
        : "l"(a), "l"(b), "r"(accumulate));
  }
};

template <>
struct WgmmaS8<32> {
  __device__ static void run(int (&c)[32][4], uint64_t a, uint64_t b, int accumulate) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, p;\n}"
        : JAXMD_C32(0), JAXMD_C32(8), JAXMD_C32(16), JAXMD_C32(24)
        : "l"(a), "l"(b), "r"(accumulate));
  }
};

#undef JAXMD_C32
#undef JAXMD_C4
// clang-format on

// PTX ISA, "barrier.cluster": every thread of every block of the cluster.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// "%cluster_ctarank": the block's number in its cluster.
__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// "mapa", "mbarrier.arrive": at the barrier of the same address in block `rank`. Relaxed: it frees what finished products
// have read, and hands over no data. A release at this scope would be a fence of the whole GPU.
__device__ inline void mbarrier_arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n .reg .b32 remote;\n mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// mbarrier_wait for what other blocks of the cluster arrived at, relaxed as they did.
__device__ inline void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n .reg .pred p;\n"
      "wait:\n mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%0], %1;\n @p bra done;\n bra wait;\n"
      "done:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// "cp.async.bulk", shared memory to the same address in block `rank`, with completion at its barrier; multiples of 16.
__device__ inline void copy_to_block(uint32_t shared, uint32_t bytes, uint32_t rank, uint32_t barrier) {
  asm volatile(
      "{\n .reg .b32 to, at;\n mapa.shared::cluster.u32 to, %0, %2;\n mapa.shared::cluster.u32 at, %3, %2;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%0], %1, [at];\n}" ::"r"(shared),
      "r"(bytes), "r"(rank), "r"(barrier)
      : "memory");
}
// copy_tile to the same address, with completion at the same barrier, of every block whose bit is set.
__device__ inline void copy_tile_to_all(uint32_t shared, const void* tensor_map, int x, int y, int z, uint32_t barrier,
                                        uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared),
      "l"(tensor_map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(blocks)
      : "memory");
}
#endif

}  // namespace jaxmd
