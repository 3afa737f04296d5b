// Hopper's floating-point products with A in registers: c = a b + (accumulate ? c : 0), float32 accumulators.
//
// PTX ISA, "wgmma.mma_async", shapes m64n(8 kFragments)k16 for f16 and ...k8 for tf32. a is a fragment of the
// warpgroup, four registers; b [8 kFragments, k] lies K-major in shared memory, 64 bytes a row. Fragment c[j] is
// m16n8's (mma.cuh) of columns 8 j .. 8 j + 7; warp w of the warpgroup has rows 16 w .. 16 w + 15, and of a (lane = 4 g
// + t) register i has row g + 8 (i & 1), for f16 columns 2 t + 8 (i >> 1) + 0..1, for tf32 column t + 4 (i >> 1).
#pragma once

#include <cstdint>

#include "wgmma.cuh"

namespace jaxmd {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Matrix descriptor: rows of 64 bytes, K-major, 16-byte chunk c of row r at c ^ (r / 2 & 3); groups of 8 rows 512 bytes
// apart; starts on 512 bytes, or 32 bytes of k further on.
__device__ inline uint64_t swizzled_rows_64(uint32_t shared) {
  constexpr uint64_t kSwizzle64 = uint64_t{2} << 62, kGroup = uint64_t{512 / 16} << 32, kUnused = uint64_t{1} << 16;
  return kSwizzle64 | kGroup | kUnused | (shared & 0x3ffff) >> 4;
}

// "fence.proxy.async": what this thread wrote to shared memory, before tensor cores or copy engine see it.
__device__ inline void fence_shared_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Keeps the compiler from moving a use of registers in flight across this place.
template <int kFragments>
__device__ inline void hold(float (&c)[kFragments][4]) {
#pragma unroll
  for (int j = 0; j < kFragments; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c[j][i])::"memory");
  }
}

template <int kFragments, bool kTf32>
struct WgmmaFloat;

// clang-format off
#define JAXMD_C4(j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define JAXMD_C16(j) JAXMD_C4(j), JAXMD_C4(j + 1), JAXMD_C4(j + 2), JAXMD_C4(j + 3)
#define JAXMD_D32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define JAXMD_OUT32 JAXMD_C16(0)
#define JAXMD_D64 JAXMD_D32 ", " "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define JAXMD_OUT64 JAXMD_OUT32, JAXMD_C16(4)
#define JAXMD_D96 JAXMD_D64 ", " "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define JAXMD_OUT96 JAXMD_OUT64, JAXMD_C16(8)
#define JAXMD_D128 JAXMD_D96 ", " "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define JAXMD_OUT128 JAXMD_OUT96, JAXMD_C16(12)
#define JAXMD_D160 JAXMD_D128 ", " "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define JAXMD_OUT160 JAXMD_OUT128, JAXMD_C16(16)
#define JAXMD_D192 JAXMD_D160 ", " "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define JAXMD_OUT192 JAXMD_OUT160, JAXMD_C16(20)
#define JAXMD_WGMMA(N, TF32, SHAPE, TYPE, A, B, P, TAIL)                                                           \
  template <>                                                                                                      \
  struct WgmmaFloat<N / 8, TF32> {                                                                                 \
    __device__ static void run(float (&c)[N / 8][4], const uint32_t* a, uint64_t b, int accumulate) {              \
      asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, " P ", 0;\n"                                               \
                   "wgmma.mma_async.sync.aligned." SHAPE ".f32." TYPE "." TYPE " {" JAXMD_D##N "}, {" A "}, " B   \
                   ", p, 1, 1" TAIL ";\n}"                                                                         \
                   : JAXMD_OUT##N                                                                                  \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                         \
    }                                                                                                              \
  };
JAXMD_WGMMA(64, false, "m64n64k16", "f16", "%32, %33, %34, %35", "%36", "%37", ", 0")
JAXMD_WGMMA(64, true, "m64n64k8", "tf32", "%32, %33, %34, %35", "%36", "%37", "")
JAXMD_WGMMA(96, false, "m64n96k16", "f16", "%48, %49, %50, %51", "%52", "%53", ", 0")
JAXMD_WGMMA(96, true, "m64n96k8", "tf32", "%48, %49, %50, %51", "%52", "%53", "")
JAXMD_WGMMA(128, false, "m64n128k16", "f16", "%64, %65, %66, %67", "%68", "%69", ", 0")
JAXMD_WGMMA(128, true, "m64n128k8", "tf32", "%64, %65, %66, %67", "%68", "%69", "")
JAXMD_WGMMA(160, false, "m64n160k16", "f16", "%80, %81, %82, %83", "%84", "%85", ", 0")
JAXMD_WGMMA(160, true, "m64n160k8", "tf32", "%80, %81, %82, %83", "%84", "%85", "")
JAXMD_WGMMA(192, false, "m64n192k16", "f16", "%96, %97, %98, %99", "%100", "%101", ", 0")
JAXMD_WGMMA(192, true, "m64n192k8", "tf32", "%96, %97, %98, %99", "%100", "%101", "")
#undef JAXMD_WGMMA
#undef JAXMD_D32
#undef JAXMD_OUT32
#undef JAXMD_D64
#undef JAXMD_OUT64
#undef JAXMD_D96
#undef JAXMD_OUT96
#undef JAXMD_D128
#undef JAXMD_OUT128
#undef JAXMD_D160
#undef JAXMD_OUT160
#undef JAXMD_D192
#undef JAXMD_OUT192
#undef JAXMD_C16
#undef JAXMD_C4
// clang-format on
#endif

}  // namespace jaxmd
