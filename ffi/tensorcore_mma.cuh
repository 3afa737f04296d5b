// One mma.sync for each case: the fragments of one warp, filled from plain matrices and written back as bits.
//
// Shapes:  A [cases][M][k], B [cases][8][k] (k last in both), C and D [cases][M][8], M = 16 (8 for m8n8k4), row-major.
// Layout:  with four bytes of k to a register, lane = 4 g + t, all shapes but those of doubles have
//            a[i]  row g + 8 (i & 1), bytes 4 t + 16 (i >> 1) .. + 3 of k      i < kBytes / 8
//            b[i]  column g, bytes 4 t + 16 i .. + 3 of k                      i < kBytes / 16
//            c[i]  row g + 8 (i >> 1), column 2 t + (i & 1)                    32-bit accumulators
//            c[i]  row g + 8 i, columns 2 t and 2 t + 1                        16-bit accumulators, two to a register
// Tiling:  a warp makes one case; nothing is shared.
// Exact:   bits go in and out as they are; no instruction here rounds but the one that is asked about.
// Source:  PTX ISA, "Matrix fragments for mma". The instructions' arithmetic is not in it: jaxmd/tensorcore models it.
#pragma once

#include <cstdint>

namespace jaxmd {

struct IssueBuffers {
  const uint8_t *a, *b, *c;
  uint8_t* d;
  int64_t cases;
};

__device__ inline uint32_t load_word(const uint8_t* p) { return *reinterpret_cast<const uint32_t*>(p); }

// JAXMD_MMA(Name, kBytes of k, accumulator, minimal architecture, PTX name): a struct with `run`.
#define JAXMD_MMA_F32 "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
#define JAXMD_MMA_S32 "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
#define JAXMD_MMA_BODY_32(ptx, accumulators)                                                      \
  asm volatile(ptx " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"             \
               : accumulators                                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define JAXMD_MMA_BODY_16(ptx, accumulators)                                                      \
  asm volatile(ptx " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"                         \
               : accumulators                                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(b[0]))
#define JAXMD_MMA_HALF_32(ptx)                                                                    \
  asm volatile(ptx " {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"                             \
               : "+r"(c[0]), "+r"(c[1])                                                           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define JAXMD_MMA_HALF_16(ptx)                                                                    \
  asm volatile(ptx " {%0, %1}, {%2, %3}, {%4}, {%0, %1};"                                         \
               : "+r"(c[0]), "+r"(c[1])                                                           \
               : "r"(a[0]), "r"(a[1]), "r"(b[0]))

// Every architecture in one fatbinary compiles these; where the instruction does not exist the body is empty, and the
// handler refuses before it launches.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define JAXMD_FROM_SM90(statement) (void)0
#else
#define JAXMD_FROM_SM90(statement) statement
#endif

#define JAXMD_MMA(Name, bytes, Word, count, sm, statement)                                                      \
  struct Name {                                                                                                 \
    using Accumulator = Word;                                                                                   \
    static constexpr int kBytes = bytes, kCount = count, kSm = sm;                                              \
    __device__ static void run(Word (&c)[count], const uint32_t (&a)[bytes / 8], const uint32_t (&b)[bytes / 16]) { \
      statement;                                                                                                \
    }                                                                                                           \
  };

#define JAXMD_PTX(types) "mma.sync.aligned." types
JAXMD_MMA(F32F16K16, 32, float, 4, 80, JAXMD_MMA_BODY_32(JAXMD_PTX("m16n8k16.row.col.f32.f16.f16.f32"), JAXMD_MMA_F32))
JAXMD_MMA(F32F16K8, 16, float, 4, 80, JAXMD_MMA_BODY_16(JAXMD_PTX("m16n8k8.row.col.f32.f16.f16.f32"), JAXMD_MMA_F32))
JAXMD_MMA(F16F16K16, 32, uint32_t, 2, 80, JAXMD_MMA_HALF_32(JAXMD_PTX("m16n8k16.row.col.f16.f16.f16.f16")))
JAXMD_MMA(F16F16K8, 16, uint32_t, 2, 80, JAXMD_MMA_HALF_16(JAXMD_PTX("m16n8k8.row.col.f16.f16.f16.f16")))
JAXMD_MMA(Bf16K16, 32, float, 4, 80, JAXMD_MMA_BODY_32(JAXMD_PTX("m16n8k16.row.col.f32.bf16.bf16.f32"), JAXMD_MMA_F32))
JAXMD_MMA(Bf16K8, 16, float, 4, 80, JAXMD_MMA_BODY_16(JAXMD_PTX("m16n8k8.row.col.f32.bf16.bf16.f32"), JAXMD_MMA_F32))
JAXMD_MMA(Tf32K8, 32, float, 4, 80, JAXMD_MMA_BODY_32(JAXMD_PTX("m16n8k8.row.col.f32.tf32.tf32.f32"), JAXMD_MMA_F32))
JAXMD_MMA(Tf32K4, 16, float, 4, 80, JAXMD_MMA_BODY_16(JAXMD_PTX("m16n8k4.row.col.f32.tf32.tf32.f32"), JAXMD_MMA_F32))

#define JAXMD_MMA_FP8(Name, ab)                                                                                  \
  JAXMD_MMA(F32##Name, 32, float, 4, 90,                                                                         \
            JAXMD_FROM_SM90(JAXMD_MMA_BODY_32(JAXMD_PTX("m16n8k32.row.col.f32." ab ".f32"), JAXMD_MMA_F32)))     \
  JAXMD_MMA(F16##Name, 32, uint32_t, 2, 90,                                                                      \
            JAXMD_FROM_SM90(JAXMD_MMA_HALF_32(JAXMD_PTX("m16n8k32.row.col.f16." ab ".f16"))))
JAXMD_MMA_FP8(E4m3E4m3, "e4m3.e4m3")
JAXMD_MMA_FP8(E4m3E5m2, "e4m3.e5m2")
JAXMD_MMA_FP8(E5m2E4m3, "e5m2.e4m3")
JAXMD_MMA_FP8(E5m2E5m2, "e5m2.e5m2")

#define JAXMD_MMA_BYTES(Name, ab)                                                                                     \
  JAXMD_MMA(Name##K32, 32, int, 4, 80, JAXMD_MMA_BODY_32(JAXMD_PTX("m16n8k32.row.col.s32." ab ".s32"), JAXMD_MMA_S32)) \
  JAXMD_MMA(Name##K16, 16, int, 4, 80, JAXMD_MMA_BODY_16(JAXMD_PTX("m16n8k16.row.col.s32." ab ".s32"), JAXMD_MMA_S32)) \
  JAXMD_MMA(Name##K32Clamp, 32, int, 4, 80,                                                                           \
            JAXMD_MMA_BODY_32(JAXMD_PTX("m16n8k32.row.col.satfinite.s32." ab ".s32"), JAXMD_MMA_S32))                 \
  JAXMD_MMA(Name##K16Clamp, 16, int, 4, 80,                                                                           \
            JAXMD_MMA_BODY_16(JAXMD_PTX("m16n8k16.row.col.satfinite.s32." ab ".s32"), JAXMD_MMA_S32))
JAXMD_MMA_BYTES(S8S8, "s8.s8")
JAXMD_MMA_BYTES(U8U8, "u8.u8")
JAXMD_MMA_BYTES(S8U8, "s8.u8")
JAXMD_MMA_BYTES(U8S8, "u8.s8")

// A lane's accumulators between registers and a [16][8] matrix that starts at row 0.
template <class Word, int kCount>
__device__ inline void load_accumulators(Word (&c)[kCount], const uint8_t* from, int g, int t) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int row = kCount == 4 ? g + 8 * (i >> 1) : g + 8 * i;
    const int byte = kCount == 4 ? 4 * (2 * t + (i & 1)) : 4 * t;
    const uint32_t bits = load_word(from + row * (kCount == 4 ? 32 : 16) + byte);
    memcpy(&c[i], &bits, 4);
  }
}
template <class Word, int kCount>
__device__ inline void store_accumulators(const Word (&c)[kCount], uint8_t* to, int g, int t) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int row = kCount == 4 ? g + 8 * (i >> 1) : g + 8 * i;
    const int byte = kCount == 4 ? 4 * (2 * t + (i & 1)) : 4 * t;
    uint32_t bits;
    memcpy(&bits, &c[i], 4);
    *reinterpret_cast<uint32_t*>(to + row * (kCount == 4 ? 32 : 16) + byte) = bits;
  }
}

template <class Mma>
__global__ void __launch_bounds__(128) issue_mma_kernel(const IssueBuffers p) {
  constexpr int kRow = Mma::kBytes, kTile = 16 * 8 * (Mma::kCount == 4 ? 4 : 2);  // bytes of a row, of C
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  for (int64_t i = int64_t{blockIdx.x} * 4 + threadIdx.x / 32; i < p.cases; i += int64_t{gridDim.x} * 4) {
    uint32_t a[kRow / 8], b[kRow / 16];
#pragma unroll
    for (int r = 0; r < kRow / 8; ++r) a[r] = load_word(p.a + (i * 16 + g + 8 * (r & 1)) * kRow + 4 * t + 16 * (r >> 1));
#pragma unroll
    for (int r = 0; r < kRow / 16; ++r) b[r] = load_word(p.b + (i * 8 + g) * kRow + 4 * t + 16 * r);
    typename Mma::Accumulator c[Mma::kCount];
    load_accumulators(c, p.c + i * kTile, g, t);
    Mma::run(c, a, b);
    store_accumulators(c, p.d + i * kTile, g, t);
  }
}

// Doubles: a[i] is row g + 8 (i & 1), column t + 4 (i >> 1) of k (m8n8k4: row g, column t), b[i] column g, row t + 4 i,
// c[i] row g + 8 (i >> 1), column 2 t + (i & 1).
template <int kRows, int kDepth>
__device__ inline void multiply_doubles(double (&c)[kRows / 4], const double (&a)[kRows * kDepth / 32],
                                        const double (&b)[kDepth / 4]) {
  if constexpr (kRows == 8) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(c[0]), "+d"(c[1])
                 : "d"(a[0]), "d"(b[0]));
  } else {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if constexpr (kDepth == 4) {
      asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 "
                   "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                   : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                   : "d"(a[0]), "d"(a[1]), "d"(b[0]));
    } else if constexpr (kDepth == 8) {
      asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
                   "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                   : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                   : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
    } else {
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 "
                   "{%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
                   : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                   : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]),
                     "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
    }
#endif
  }
}

template <int kRows_, int kDepth_>
struct Doubles {
  static constexpr int kRows = kRows_, kDepth = kDepth_;
};

template <class Shape>
__global__ void __launch_bounds__(128) issue_double_kernel(const IssueBuffers p) {
  constexpr int kRows = Shape::kRows, kDepth = Shape::kDepth, kHalves = kRows / 8;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const auto *pa = reinterpret_cast<const double*>(p.a), *pb = reinterpret_cast<const double*>(p.b),
             *pc = reinterpret_cast<const double*>(p.c);
  auto* pd = reinterpret_cast<double*>(p.d);
  for (int64_t i = int64_t{blockIdx.x} * 4 + threadIdx.x / 32; i < p.cases; i += int64_t{gridDim.x} * 4) {
    double a[kRows * kDepth / 32], b[kDepth / 4], c[kRows / 4];
#pragma unroll
    for (int r = 0; r < kRows * kDepth / 32; ++r) {
      a[r] = pa[(i * kRows + g + 8 * (r % kHalves)) * kDepth + t + 4 * (r / kHalves)];
    }
#pragma unroll
    for (int r = 0; r < kDepth / 4; ++r) b[r] = pb[(i * 8 + g) * kDepth + t + 4 * r];
#pragma unroll
    for (int r = 0; r < kRows / 4; ++r) c[r] = pc[(i * kRows + g + 8 * (r >> 1)) * 8 + 2 * t + (r & 1)];
    multiply_doubles<kRows, kDepth>(c, a, b);
#pragma unroll
    for (int r = 0; r < kRows / 4; ++r) pd[(i * kRows + g + 8 * (r >> 1)) * 8 + 2 * t + (r & 1)] = c[r];
  }
}

}  // namespace jaxmd
