// Scalar double as a value type: the operations that every multiple-double kernel is written in.
//
// The kernels are templates over a value type V: double (host and device) or a pack of doubles (simd.h). Both offer
//   add_rn sub_rn mul_rn div_rn sqrt_rn fma_rn   one IEEE operation, rounded to nearest even, never contracted
//   neg abs                                      sign operations
//   equal less less_equal                        comparisons, giving MaskOf<V>; masks combine with & and |
//   all any select(mask, a, b)                   and broadcast<V>(double)
// The namespace carries the instruction set, so that code compiled for different ones is never merged by the linker.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#ifndef JAXMD_ISA
#define JAXMD_ISA scalar
#endif

#if defined(__CUDACC__)
#define JAXMD_INLINE __host__ __device__ __forceinline__
#define JAXMD_NOINLINE static __host__ __device__ __noinline__
#define JAXMD_LAMBDA
#define JAXMD_ROLLED _Pragma("unroll 1")  // keep a rare path small
#elif defined(__GNUC__)
#define JAXMD_INLINE inline __attribute__((always_inline))
#define JAXMD_NOINLINE static __attribute__((noinline, unused))
#define JAXMD_LAMBDA __attribute__((always_inline))
#define JAXMD_ROLLED
#else
#define JAXMD_INLINE inline
#define JAXMD_NOINLINE static
#define JAXMD_LAMBDA
#define JAXMD_ROLLED
#endif

namespace jaxmd {
namespace JAXMD_ISA {

constexpr int kMaxLimbs = 16;
constexpr int kMaxTerms = 128;

#if defined(__CUDA_ARCH__)
JAXMD_INLINE double add_rn(double a, double b) { return __dadd_rn(a, b); }
JAXMD_INLINE double sub_rn(double a, double b) { return __dsub_rn(a, b); }
JAXMD_INLINE double mul_rn(double a, double b) { return __dmul_rn(a, b); }
JAXMD_INLINE double div_rn(double a, double b) { return __ddiv_rn(a, b); }
JAXMD_INLINE double sqrt_rn(double a) { return __dsqrt_rn(a); }
JAXMD_INLINE double fma_rn(double a, double b, double c) { return __fma_rn(a, b, c); }
#else
JAXMD_INLINE double add_rn(double a, double b) { return a + b; }
JAXMD_INLINE double sub_rn(double a, double b) { return a - b; }
JAXMD_INLINE double mul_rn(double a, double b) { return a * b; }
JAXMD_INLINE double div_rn(double a, double b) { return a / b; }
JAXMD_INLINE double sqrt_rn(double a) { return std::sqrt(a); }
JAXMD_INLINE double fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
#endif
JAXMD_INLINE double neg(double a) { return -a; }
JAXMD_INLINE double abs(double a) { return ::fabs(a); }
JAXMD_INLINE bool equal(double a, double b) { return a == b; }
JAXMD_INLINE bool less(double a, double b) { return a < b; }
JAXMD_INLINE bool less_equal(double a, double b) { return a <= b; }
JAXMD_INLINE double select(bool m, double a, double b) { return m ? a : b; }
JAXMD_INLINE bool all(bool m) { return m; }
JAXMD_INLINE bool any(bool m) { return m; }
JAXMD_INLINE bool lane(bool m, int) { return m; }

// What a value type is made of: its lane count, its mask, and how it comes and goes to memory.
template <class V>
struct Value;
template <>
struct Value<double> {
  static constexpr int lanes = 1;
  using Mask = bool;
  static JAXMD_INLINE double broadcast(double a) { return a; }
  static JAXMD_INLINE double load(const double* p) { return *p; }
  static JAXMD_INLINE void store(double* p, double a) { *p = a; }
  static JAXMD_INLINE bool yes() { return true; }
};
template <class V>
using MaskOf = typename Value<V>::Mask;
template <class V>
JAXMD_INLINE V broadcast(double a) {
  return Value<V>::broadcast(a);
}

// Bits, for the scalar paths only.
JAXMD_INLINE uint64_t bits_of(double a) {
  uint64_t b;
  memcpy(&b, &a, sizeof b);
  return b;
}
JAXMD_INLINE double from_bits(uint64_t b) {
  double a;
  memcpy(&a, &b, sizeof a);
  return a;
}
JAXMD_INLINE bool is_finite(double a) { return (bits_of(a) & 0x7ff0000000000000ull) != 0x7ff0000000000000ull; }
JAXMD_INLINE int leading_zeros(uint64_t a) {
#if defined(__CUDA_ARCH__)
  return __clzll(static_cast<long long>(a));
#else
  return __builtin_clzll(a);
#endif
}
// Every nan we make is this one, so that nan results agree bit for bit between machines.
JAXMD_INLINE double one_nan(double a) { return a == a ? a : from_bits(0x7ff8000000000000ull); }

// f(0), …, f(N − 1) unrolled for a constant N; f(0), …, f(n − 1) in a loop for N = 0.
template <class F, int... I>
JAXMD_INLINE void each_of(std::integer_sequence<int, I...>, F& f) {
  (f(I), ...);
}
template <int N, class F>
JAXMD_INLINE void each(int n, F f) {
  if constexpr (N == 0) {
    for (int i = 0; i < n; ++i) f(i);
  } else {
    each_of(std::make_integer_sequence<int, N>{}, f);
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
