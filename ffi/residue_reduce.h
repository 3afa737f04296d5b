// Rows of int32 sums mod p, centred, for the kernels of residue products (residue_matmul.h).
#pragma once

#include <cstdint>

#include "value.h"

namespace jaxmd {
namespace JAXMD_ISA {
namespace {

// p, 2 ≤ p ≤ 2^16, with what residues need of it.
struct Modulus {
  explicit Modulus(int32_t p) : p(p), least(-(p / 2)), inverse(1.0f / static_cast<float>(p)) {}

  // x mod p in [-p/2, p/2). A quotient in float32 errs by |x/p| 3·2^-24 and is cut off: that leaves |r| < 3p/2 where
  // |x| ≤ p 2^21, else |r| < p + 2^9, and the second quotient is good. |x| < 2^31 − 2^17.
  template <int kQuotients>
  JAXMD_INLINE int32_t residue(int32_t x) const {
    for (int i = 0; i < kQuotients; ++i) x -= static_cast<int32_t>(static_cast<float>(x) * inverse) * p;
    x += x < least ? p : 0;
    x -= x >= least + p ? p : 0;
    return x;
  }

  int32_t p, least;
  float inverse;
};

// To one byte, or to two, balanced; p <= kMostTwoDigits.
template <int kQuotients>
void reduce(const int32_t* x, int64_t count, int32_t p, int8_t* low) {
  const Modulus m(p);
  for (int64_t j = 0; j < count; ++j) low[j] = static_cast<int8_t>(m.residue<kQuotients>(x[j]));
}
template <int kQuotients>
void reduce(const int32_t* x, int64_t count, int32_t p, int8_t* low, int8_t* high) {
  const Modulus m(p);
  for (int64_t j = 0; j < count; ++j) {
    const int32_t r = m.residue<kQuotients>(x[j]);
    low[j] = static_cast<int8_t>(r);
    high[j] = static_cast<int8_t>((r + 128) >> 8);
  }
}

// Where they lie. One pointer: of two that might be one, compilers make loops of single numbers.
template <int kQuotients>
void reduce(int32_t* x, int64_t count, int32_t p) {
  const Modulus m(p);
  for (int64_t j = 0; j < count; ++j) x[j] = m.residue<kQuotients>(x[j]);
}

// x f mod p, centred; f centred too, p <= kMostTwoDigits: |f r| ≤ (p/2)^2 ≤ p 2^21.
template <int kQuotients>
void carry(int32_t* x, int64_t count, int32_t p, int32_t f) {
  const Modulus m(p);
  for (int64_t j = 0; j < count; ++j) x[j] = m.residue<1>(m.residue<kQuotients>(x[j]) * f);
}

// Whether one quotient is enough for sums of `terms` products, |x| ≤ terms 2^14.
inline bool one_quotient(int64_t terms, int32_t p) { return terms <= int64_t{p} << 7; }

inline int32_t least(const int32_t* x, int64_t count, int32_t so_far) {
  for (int64_t j = 0; j < count; ++j) so_far = x[j] < so_far ? x[j] : so_far;
  return so_far;
}

}  // namespace
}  // namespace JAXMD_ISA
}  // namespace jaxmd
