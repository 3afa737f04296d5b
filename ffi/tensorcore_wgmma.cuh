// One wgmma of m64n8 for each case: A from shared memory or from registers, with or without the old accumulator.
//
// Shapes:  A [cases][64][k], B [cases][8][k] with 32 bytes of k, C and D [cases][64][8].
// Layout:  shared memory holds rows of 128 bytes, of which the first 32 are used, 16-byte chunk c of row r at c ^ (r & 7)
//          (wgmma.cuh, swizzled_rows). In registers A has the fragment of mma.sync (tensorcore_mma.cuh), warp w rows
//          16 w .. 16 w + 15, and so has D.
// Tiling:  a warpgroup makes one case; 9 KB of shared memory.
// Exact:   as tensorcore_mma.cuh.
// Source:  PTX ISA, "Asynchronous warpgroup-level matrix instructions".
#pragma once

#include "tensorcore_mma.cuh"
#include "wgmma.cuh"

namespace jaxmd {

// How the instruction is issued.
struct IssueOptions {
  bool registers;   // A from registers
  bool accumulate;  // scale-d
  bool negate;      // imm-scale-a = -1 (not for integers)
};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define JAXMD_ON_SM90A(statement) statement
#else
#define JAXMD_ON_SM90A(statement) (void)0
#endif

// Four 32-bit accumulators: operands 0-3 d, 4 the descriptor (or 4-7 the fragment) of A, then B's, then scale-d.
#define JAXMD_WGMMA_4(ptx, accumulators, shared_scales, register_scales)                                    \
  if constexpr (kRegisters) {                                                                               \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %9, 0;\n" ptx                                          \
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p" register_scales ";\n}"                        \
                 : accumulators                                                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(shared_b), "r"(accumulate)               \
                 : "memory");                                                                               \
  } else {                                                                                                  \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %6, 0;\n" ptx                                          \
                 " {%0, %1, %2, %3}, %4, %5, p" shared_scales ";\n}"                                        \
                 : accumulators                                                                             \
                 : "l"(shared_a), "l"(shared_b), "r"(accumulate)                                            \
                 : "memory");                                                                               \
  }
// Two registers of two 16-bit accumulators each.
#define JAXMD_WGMMA_2(ptx, shared_scales, register_scales)                                                  \
  if constexpr (kRegisters) {                                                                               \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %7, 0;\n" ptx                                          \
                 " {%0, %1}, {%2, %3, %4, %5}, %6, p" register_scales ";\n}"                                \
                 : "+r"(c[0]), "+r"(c[1])                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(shared_b), "r"(accumulate)               \
                 : "memory");                                                                               \
  } else {                                                                                                  \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %4, 0;\n" ptx                                          \
                 " {%0, %1}, %2, %3, p" shared_scales ";\n}"                                                \
                 : "+r"(c[0]), "+r"(c[1])                                                                   \
                 : "l"(shared_a), "l"(shared_b), "r"(accumulate)                                            \
                 : "memory");                                                                               \
  }

#define JAXMD_WGMMA(Name, Word, count, statement)                                                           \
  struct Name {                                                                                             \
    using Accumulator = Word;                                                                               \
    static constexpr int kCount = count;                                                                    \
    template <bool kRegisters, bool kNegate>                                                                \
    __device__ static void run(Word (&c)[count], const uint32_t (&a)[4], uint64_t shared_a, uint64_t shared_b, \
                               int accumulate) {                                                            \
      JAXMD_ON_SM90A(statement)                                                                             \
    }                                                                                                       \
  };
#define JAXMD_WG(types) "wgmma.mma_async.sync.aligned." types
// Floating-point kinds choose the sign of A; the 16-bit ones name that neither operand is transposed.
#define JAXMD_SIGNED(positive, negative) \
  if constexpr (kNegate) {               \
    negative                             \
  } else {                               \
    positive                             \
  }
#define JAXMD_WGMMA_F32(Name, types, shared_end, register_end)                                              \
  JAXMD_WGMMA(Name, float, 4,                                                                               \
              JAXMD_SIGNED(JAXMD_WGMMA_4(JAXMD_WG(types), JAXMD_MMA_F32, ", 1, 1" shared_end, ", 1, 1" register_end), \
                           JAXMD_WGMMA_4(JAXMD_WG(types), JAXMD_MMA_F32, ", -1, 1" shared_end, ", -1, 1" register_end)))
#define JAXMD_WGMMA_F16(Name, types, shared_end, register_end)                                              \
  JAXMD_WGMMA(Name, uint32_t, 2,                                                                            \
              JAXMD_SIGNED(JAXMD_WGMMA_2(JAXMD_WG(types), ", 1, 1" shared_end, ", 1, 1" register_end),      \
                           JAXMD_WGMMA_2(JAXMD_WG(types), ", -1, 1" shared_end, ", -1, 1" register_end)))

JAXMD_WGMMA_F32(WgF32F16, "m64n8k16.f32.f16.f16", ", 0, 0", ", 0")
JAXMD_WGMMA_F16(WgF16F16, "m64n8k16.f16.f16.f16", ", 0, 0", ", 0")
JAXMD_WGMMA_F32(WgBf16, "m64n8k16.f32.bf16.bf16", ", 0, 0", ", 0")
JAXMD_WGMMA_F32(WgTf32, "m64n8k8.f32.tf32.tf32", "", "")
#define JAXMD_WGMMA_FP8(Name, ab)                                        \
  JAXMD_WGMMA_F32(WgF32##Name, "m64n8k32.f32." ab, "", "")               \
  JAXMD_WGMMA_F16(WgF16##Name, "m64n8k32.f16." ab, "", "")
JAXMD_WGMMA_FP8(E4m3E4m3, "e4m3.e4m3")
JAXMD_WGMMA_FP8(E4m3E5m2, "e4m3.e5m2")
JAXMD_WGMMA_FP8(E5m2E4m3, "e5m2.e4m3")
JAXMD_WGMMA_FP8(E5m2E5m2, "e5m2.e5m2")
#define JAXMD_WGMMA_BYTES(Name, ab)                                                                                  \
  JAXMD_WGMMA(Wg##Name, int, 4, JAXMD_WGMMA_4(JAXMD_WG("m64n8k32.s32." ab), JAXMD_MMA_S32, "", ""))                  \
  JAXMD_WGMMA(Wg##Name##Clamp, int, 4, JAXMD_WGMMA_4(JAXMD_WG("m64n8k32.satfinite.s32." ab), JAXMD_MMA_S32, "", ""))
JAXMD_WGMMA_BYTES(S8S8, "s8.s8")
JAXMD_WGMMA_BYTES(U8U8, "u8.u8")
JAXMD_WGMMA_BYTES(S8U8, "s8.u8")
JAXMD_WGMMA_BYTES(U8S8, "u8.s8")

// Keeps the compiler from reading an accumulator before this place.
__device__ inline void hold(float (&c)[4]) { asm volatile("" : JAXMD_MMA_F32::"memory"); }
__device__ inline void hold(int (&c)[4]) { asm volatile("" : JAXMD_MMA_S32::"memory"); }
__device__ inline void hold(uint32_t (&c)[2]) { asm volatile("" : "+r"(c[0]), "+r"(c[1])::"memory"); }

template <class Wgmma, bool kRegisters, bool kNegate>
__global__ void __launch_bounds__(128) issue_wgmma_kernel(const IssueBuffers p, int accumulate) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kRow = 32, kTile = 64 * 8 * (Wgmma::kCount == 4 ? 4 : 2);  // bytes of a row of A or B, of C
  __shared__ __align__(1024) uint8_t rows[(64 + 8) * 128];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(rows));
  const uint64_t shared_a = swizzled_rows(base), shared_b = swizzled_rows(base + 64 * 128);
  for (int64_t i = blockIdx.x; i < p.cases; i += gridDim.x) {
    const uint8_t *pa = p.a + i * 64 * kRow, *pb = p.b + i * 8 * kRow;
    __syncthreads();  // the last case's product has been read
    for (int word = threadIdx.x; word < (64 + 8) * kRow / 4; word += 128) {
      const int row = word / 8, byte = word % 8 * 4;
      const uint32_t bits = load_word(row < 64 ? pa + row * kRow + byte : pb + (row - 64) * kRow + byte);
      *reinterpret_cast<uint32_t*>(rows + row * 128 + ((byte / 16 ^ (row & 7)) * 16 + byte % 16)) = bits;
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // wgmma reads through the asynchronous proxy
    __syncthreads();
    uint32_t a[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) a[r] = load_word(pa + (16 * warp + g + 8 * (r & 1)) * kRow + 4 * t + 16 * (r >> 1));
    typename Wgmma::Accumulator c[Wgmma::kCount];
    const int64_t tile = i * kTile + warp * (kTile / 4);
    load_accumulators(c, p.c + tile, g, t);
    wgmma_fence();
    Wgmma::template run<kRegisters, kNegate>(c, a, shared_a, shared_b, accumulate);
    wgmma_commit();
    wgmma_wait<0>();
    hold(c);
    store_accumulators(c, p.d + tile, g, t);
  }
#endif
}

}  // namespace jaxmd
