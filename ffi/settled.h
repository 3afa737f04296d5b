// Exponents of multiple doubles whose limbs are settled: renormalization would change nothing (jaxmd/_slices.py,
// `settled_exponents`).
//
// Sure where every limb is zero or less than half the distance from the limb before it to the next number; the last,
// which ends where the bits of random numbers do, may also be just half of it.
#pragma once

#include <cstdint>

#include "product_shape.h"
#include "value.h"

namespace jaxmd {
namespace JAXMD_ISA {

constexpr int kZeroExponent = -16384, kUnsettled = 16384;

JAXMD_INLINE bool nonzero(uint64_t bits) { return bits << 1 != 0; }

// Whether a limb y after x settles x.
JAXMD_INLINE bool settles(uint64_t x, uint64_t y, bool last) {
  constexpr uint64_t kFraction = (uint64_t{1} << 52) - 1;
  const int ex = static_cast<int>(x >> 52) & 0x7ff, ey = static_cast<int>(y >> 52) & 0x7ff;
  int gap = (x & kFraction) == 0 && ((x ^ y) >> 63) != 0 ? 55 : 54;
  if (last && (y & kFraction) == 0 && (x & 1) == 0) --gap;
  return ey + gap <= ex || !nonzero(y);
}

// The least e with |x| < 2^e where `next` follows x; x neither inf nor nan.
JAXMD_INLINE int exponent_of(uint64_t x, uint64_t next) {
  const int biased = static_cast<int>(x >> 52) & 0x7ff;
  uint64_t fraction = x & ((uint64_t{1} << 52) - 1);
  if (!nonzero(x)) return kZeroExponent;
  if (biased == 0) {
    int e = -1074;
    for (; fraction != 0; fraction >>= 1) ++e;
    return e;
  }
  return biased - 1022 - (fraction == 0 && nonzero(next) && ((x ^ next) >> 63) != 0 ? 1 : 0);
}

// Of the number at `at`; kUnsettled where its limbs are not settled, or inf or nan leads them.
JAXMD_INLINE int settled_exponent(const LimbPointers<const double>& limbs, int64_t at) {
  const auto bits = [&](int i) JAXMD_LAMBDA { return bits_of(limbs.limb[i][at]); };
  const uint64_t leading = bits(0), second = limbs.count > 1 ? bits(1) : 0;
  bool settled = (leading >> 52 & 0x7ff) != 0x7ff;
  uint64_t x = leading, y = second;
  for (int i = 1; i < limbs.count; ++i) {
    settled &= settles(x, y, i + 1 == limbs.count);
    x = y;
    if (i + 1 < limbs.count) y = bits(i + 1);
  }
  return settled ? exponent_of(leading, second) : kUnsettled;
}

// Along a row or column, where every entry is zero: 0.
JAXMD_INLINE int shared_exponent(int largest) { return largest < kZeroExponent / 2 ? 0 : largest; }

// 2^7 / 2^exponent, or 0 where magnitudes are to be 0 (jaxmd/_magnitudes.py).
JAXMD_INLINE double magnitude_factor(int exponent) {
  if (exponent <= 7 - 1022 || exponent >= kUnsettled) return 0.0;
  return from_bits(static_cast<uint64_t>(7 - exponent + 1023) << 52);
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
