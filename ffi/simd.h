// Packs of doubles with the interface of value.h, for the instruction set this file is compiled for.
// Pack is AVX-512 (8 lanes), AVX2 with FMA (4 lanes), or a plain double.
#pragma once

#include "value.h"

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#include <immintrin.h>
#endif

namespace jaxmd {
namespace JAXMD_ISA {

// 2^e from the bits, |e| ≤ 1022.
JAXMD_INLINE double load_power(const int32_t* e, double) {
  return from_bits(static_cast<uint64_t>(static_cast<int64_t>(*e) + 1023) << 52);
}

#if defined(__AVX512F__)

struct Pack {
  __m512d v;
};
struct PackMask {
  __mmask8 m;
};
template <>
struct Value<Pack> {
  static constexpr int lanes = 8;
  using Mask = PackMask;
  static JAXMD_INLINE Pack broadcast(double a) { return {_mm512_set1_pd(a)}; }
  static JAXMD_INLINE Pack load(const double* p) { return {_mm512_loadu_pd(p)}; }
  static JAXMD_INLINE void store(double* p, Pack a) { _mm512_storeu_pd(p, a.v); }
  static JAXMD_INLINE PackMask yes() { return {0xff}; }
};
JAXMD_INLINE Pack add_rn(Pack a, Pack b) { return {_mm512_add_pd(a.v, b.v)}; }
JAXMD_INLINE Pack sub_rn(Pack a, Pack b) { return {_mm512_sub_pd(a.v, b.v)}; }
JAXMD_INLINE Pack mul_rn(Pack a, Pack b) { return {_mm512_mul_pd(a.v, b.v)}; }
JAXMD_INLINE Pack div_rn(Pack a, Pack b) { return {_mm512_div_pd(a.v, b.v)}; }
JAXMD_INLINE Pack sqrt_rn(Pack a) { return {_mm512_sqrt_pd(a.v)}; }
JAXMD_INLINE Pack fma_rn(Pack a, Pack b, Pack c) { return {_mm512_fmadd_pd(a.v, b.v, c.v)}; }
JAXMD_INLINE Pack neg(Pack a) {
  return {_mm512_castsi512_pd(_mm512_xor_si512(_mm512_castpd_si512(a.v), _mm512_set1_epi64(INT64_MIN)))};
}
JAXMD_INLINE Pack abs(Pack a) {
  return {_mm512_castsi512_pd(_mm512_and_si512(_mm512_castpd_si512(a.v), _mm512_set1_epi64(INT64_MAX)))};
}
JAXMD_INLINE PackMask equal(Pack a, Pack b) { return {_mm512_cmp_pd_mask(a.v, b.v, _CMP_EQ_OQ)}; }
JAXMD_INLINE PackMask less(Pack a, Pack b) { return {_mm512_cmp_pd_mask(a.v, b.v, _CMP_LT_OQ)}; }
JAXMD_INLINE PackMask less_equal(Pack a, Pack b) { return {_mm512_cmp_pd_mask(a.v, b.v, _CMP_LE_OQ)}; }
JAXMD_INLINE Pack select(PackMask m, Pack a, Pack b) { return {_mm512_mask_blend_pd(m.m, b.v, a.v)}; }
JAXMD_INLINE PackMask operator&(PackMask a, PackMask b) { return {static_cast<__mmask8>(a.m & b.m)}; }
JAXMD_INLINE PackMask operator|(PackMask a, PackMask b) { return {static_cast<__mmask8>(a.m | b.m)}; }
JAXMD_INLINE bool all(PackMask m) { return m.m == 0xff; }
JAXMD_INLINE bool any(PackMask m) { return m.m != 0; }
JAXMD_INLINE bool lane(PackMask m, int i) { return (m.m >> i) & 1; }
JAXMD_INLINE Pack load_power(const int32_t* e, Pack) {
  const __m512i wide = _mm512_cvtepi32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(e)));
  return {_mm512_castsi512_pd(_mm512_slli_epi64(_mm512_add_epi64(wide, _mm512_set1_epi64(1023)), 52))};
}

#elif defined(__AVX2__) && defined(__FMA__)

struct Pack {
  __m256d v;
};
struct PackMask {
  __m256d m;
};
template <>
struct Value<Pack> {
  static constexpr int lanes = 4;
  using Mask = PackMask;
  static JAXMD_INLINE Pack broadcast(double a) { return {_mm256_set1_pd(a)}; }
  static JAXMD_INLINE Pack load(const double* p) { return {_mm256_loadu_pd(p)}; }
  static JAXMD_INLINE void store(double* p, Pack a) { _mm256_storeu_pd(p, a.v); }
  static JAXMD_INLINE PackMask yes() { return {_mm256_castsi256_pd(_mm256_set1_epi64x(-1))}; }
};
JAXMD_INLINE Pack add_rn(Pack a, Pack b) { return {_mm256_add_pd(a.v, b.v)}; }
JAXMD_INLINE Pack sub_rn(Pack a, Pack b) { return {_mm256_sub_pd(a.v, b.v)}; }
JAXMD_INLINE Pack mul_rn(Pack a, Pack b) { return {_mm256_mul_pd(a.v, b.v)}; }
JAXMD_INLINE Pack div_rn(Pack a, Pack b) { return {_mm256_div_pd(a.v, b.v)}; }
JAXMD_INLINE Pack sqrt_rn(Pack a) { return {_mm256_sqrt_pd(a.v)}; }
JAXMD_INLINE Pack fma_rn(Pack a, Pack b, Pack c) { return {_mm256_fmadd_pd(a.v, b.v, c.v)}; }
JAXMD_INLINE Pack neg(Pack a) { return {_mm256_xor_pd(a.v, _mm256_set1_pd(-0.0))}; }
JAXMD_INLINE Pack abs(Pack a) { return {_mm256_andnot_pd(_mm256_set1_pd(-0.0), a.v)}; }
JAXMD_INLINE PackMask equal(Pack a, Pack b) { return {_mm256_cmp_pd(a.v, b.v, _CMP_EQ_OQ)}; }
JAXMD_INLINE PackMask less(Pack a, Pack b) { return {_mm256_cmp_pd(a.v, b.v, _CMP_LT_OQ)}; }
JAXMD_INLINE PackMask less_equal(Pack a, Pack b) { return {_mm256_cmp_pd(a.v, b.v, _CMP_LE_OQ)}; }
JAXMD_INLINE Pack select(PackMask m, Pack a, Pack b) { return {_mm256_blendv_pd(b.v, a.v, m.m)}; }
JAXMD_INLINE PackMask operator&(PackMask a, PackMask b) { return {_mm256_and_pd(a.m, b.m)}; }
JAXMD_INLINE PackMask operator|(PackMask a, PackMask b) { return {_mm256_or_pd(a.m, b.m)}; }
JAXMD_INLINE bool all(PackMask m) { return _mm256_movemask_pd(m.m) == 0xf; }
JAXMD_INLINE bool any(PackMask m) { return _mm256_movemask_pd(m.m) != 0; }
JAXMD_INLINE bool lane(PackMask m, int i) { return (_mm256_movemask_pd(m.m) >> i) & 1; }
JAXMD_INLINE Pack load_power(const int32_t* e, Pack) {
  const __m256i wide = _mm256_cvtepi32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(e)));
  return {_mm256_castsi256_pd(_mm256_slli_epi64(_mm256_add_epi64(wide, _mm256_set1_epi64x(1023)), 52))};
}

#else

using Pack = double;

#endif

}  // namespace JAXMD_ISA
}  // namespace jaxmd
