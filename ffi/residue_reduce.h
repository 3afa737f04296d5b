// Rows of int32 sums mod p, centred, for the kernels of residue products (residue_matmul.h).
#pragma once

#include <cstdint>

#ifndef JAXMD_ISA
#define JAXMD_ISA portable
#endif

namespace jaxmd {
namespace JAXMD_ISA {
namespace {

// x mod p in [-p/2, p/2). A quotient in float32 errs by |x/p| 3·2^-24 and is cut off: that leaves |r| < 3p/2 where
// |x| ≤ p 2^21, else |r| < p + 2^9, and the second quotient is good. 2 ≤ p ≤ 2^16, |x| < 2^31 − 2^17.
template <int kQuotients, class T>
void reduce(const int32_t* x, int64_t count, int32_t p, T* out) {
  const float inverse = 1.0f / static_cast<float>(p);
  const int32_t least = -(p / 2), end = least + p;
  for (int64_t j = 0; j < count; ++j) {
    int32_t r = x[j];
    for (int i = 0; i < kQuotients; ++i) r -= static_cast<int32_t>(static_cast<float>(r) * inverse) * p;
    r += r < least ? p : 0;
    r -= r >= end ? p : 0;
    out[j] = static_cast<T>(r);
  }
}

// Whether one quotient is enough for sums of `terms` products, |x| ≤ terms 2^14.
inline bool one_quotient(int64_t terms, int32_t p) { return terms <= int64_t{p} << 7; }

// x f mod p, centred; f centred, p <= kMostTwoDigits. Sums may be as long as int32 holds.
inline void carry(int32_t* x, int64_t count, int32_t p, int32_t f) {
  reduce<2>(x, count, p, x);
  for (int64_t j = 0; j < count; ++j) x[j] *= f;
  reduce<2>(x, count, p, x);
}

// Balanced bytes of |x| < 2^15 - 128.
inline void split(const int32_t* x, int64_t count, int8_t* low, int8_t* high) {
  for (int64_t j = 0; j < count; ++j) {
    low[j] = static_cast<int8_t>(x[j]);
    high[j] = static_cast<int8_t>((x[j] + 128) >> 8);
  }
}

inline int32_t least(const int32_t* x, int64_t count, int32_t so_far) {
  for (int64_t j = 0; j < count; ++j) so_far = x[j] < so_far ? x[j] : so_far;
  return so_far;
}

}  // namespace
}  // namespace JAXMD_ISA
}  // namespace jaxmd
