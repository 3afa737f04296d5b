// Integer and floating-point vectors of one width, for the residue kernels: compiler vectors, which every instruction
// set has, and three operations that have an instruction of their own.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "vector_bytes.h"

namespace jaxmd {
namespace JAXMD_ISA {

constexpr int kDoubles = kBytes / 8;

typedef double F64 __attribute__((vector_size(kBytes)));
typedef int64_t I64 __attribute__((vector_size(kBytes)));
typedef float F32 __attribute__((vector_size(kBytes)));
typedef int32_t I32 __attribute__((vector_size(kBytes)));
typedef int16_t I16 __attribute__((vector_size(kBytes)));
typedef uint64_t U64 __attribute__((vector_size(kBytes)));  // where sums may wrap
typedef uint16_t U16 __attribute__((vector_size(kBytes)));
typedef int32_t HalfI32 __attribute__((vector_size(kBytes / 2)));

template <class V, class T>
inline V load_vector(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class V, class T>
inline void store_vector(T* p, const V& v) {
  std::memcpy(p, &v, sizeof v);
}

// Of every 32-bit lane, seen as int16 (a0, a1) and (b0, b1): a0 b0 + a1 b1.
inline I32 dot_pairs(I32 a, I32 b) {
#if defined(__AVX512BW__)
  return (I32)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (I32)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (I32)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  return ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

// Of every 32-bit lane, the low halves: (a0, b0) as int16.
inline I32 low_halves(I32 a, I32 b) {
  b <<= 16;
#if defined(__AVX512BW__)
  return (I32)_mm512_mask_blend_epi16(0xaaaaaaaa, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (I32)_mm256_blend_epi16((__m256i)a, (__m256i)b, 0xaa);
#else
  return (a & 0xffff) | b;
#endif
}

// a b + c for float32, rounded once or twice.
inline F32 multiply_add(F32 a, float b, float c) {
#if defined(__AVX512F__)
  return (F32)_mm512_fmadd_ps((__m512)a, _mm512_set1_ps(b), _mm512_set1_ps(c));
#elif defined(__AVX2__) && defined(__FMA__)
  return (F32)_mm256_fmadd_ps((__m256)a, _mm256_set1_ps(b), _mm256_set1_ps(c));
#else
  return a * b + c;
#endif
}

// Vector i := element i of all the vectors.
inline void transpose(F64 (&r)[kDoubles]) {
#if defined(__AVX512BW__)
  for (int i = 0; i < 8; i += 2) {  // r[i + c] = (row i, row i + 1), columns c + 2q in 128-bit quarter q
    const __m512d even = (__m512d)r[i], odd = (__m512d)r[i + 1];
    r[i] = (F64)_mm512_unpacklo_pd(even, odd);
    r[i + 1] = (F64)_mm512_unpackhi_pd(even, odd);
  }
  for (int c = 0; c < 2; ++c) {  // the transpose of 4 x 4 quarters
    const __m512d y0 = (__m512d)r[c], y1 = (__m512d)r[c + 2], y2 = (__m512d)r[c + 4], y3 = (__m512d)r[c + 6];
    const __m512d even01 = _mm512_shuffle_f64x2(y0, y1, 0x88), odd01 = _mm512_shuffle_f64x2(y0, y1, 0xdd);
    const __m512d even23 = _mm512_shuffle_f64x2(y2, y3, 0x88), odd23 = _mm512_shuffle_f64x2(y2, y3, 0xdd);
    r[c] = (F64)_mm512_shuffle_f64x2(even01, even23, 0x88);
    r[c + 2] = (F64)_mm512_shuffle_f64x2(odd01, odd23, 0x88);
    r[c + 4] = (F64)_mm512_shuffle_f64x2(even01, even23, 0xdd);
    r[c + 6] = (F64)_mm512_shuffle_f64x2(odd01, odd23, 0xdd);
  }
#elif defined(__AVX2__)
  const __m256d low01 = _mm256_unpacklo_pd((__m256d)r[0], (__m256d)r[1]);
  const __m256d high01 = _mm256_unpackhi_pd((__m256d)r[0], (__m256d)r[1]);
  const __m256d low23 = _mm256_unpacklo_pd((__m256d)r[2], (__m256d)r[3]);
  const __m256d high23 = _mm256_unpackhi_pd((__m256d)r[2], (__m256d)r[3]);
  r[0] = (F64)_mm256_permute2f128_pd(low01, low23, 0x20);
  r[1] = (F64)_mm256_permute2f128_pd(high01, high23, 0x20);
  r[2] = (F64)_mm256_permute2f128_pd(low01, low23, 0x31);
  r[3] = (F64)_mm256_permute2f128_pd(high01, high23, 0x31);
#else
  F64 columns[kDoubles];
  for (int i = 0; i < kDoubles; ++i) {
    for (int j = 0; j < kDoubles; ++j) columns[i][j] = r[j][i];
  }
  for (int i = 0; i < kDoubles; ++i) r[i] = columns[i];
#endif
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
