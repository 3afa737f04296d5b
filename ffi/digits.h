// Canonical rounding of a long fixed-point integer to limbs: r1 = RN(x), r2 = RN(x − r1), …, ties to even.
//
// Shape: x = ±Σ digit(i)·2^(low + 32i), 0 ≤ i < count, digits of 32 bits.
// Idea: when a limb rounds up, the rest changes sign, and a two's complement of all lower bits would follow. Its bits
//   are known without computing it: with z the lowest set bit of x, the complement keeps the bits up to z and inverts
//   those above. So a flag `flip`, read together with z, replaces the pass, and a tie or a sticky bit is a comparison
//   with z.
// Exact: all integer. Gradual underflow rounds once; overflow gives inf and zeros; a zero sum is +0, an underflow keeps
//   its sign; limbs after the first are never −0.
// Cost: one scan for z, one from the top down, O(1) a limb.
// Source: the limbs are the canonical expansion of D. Priest, Algorithms for arbitrary precision floating point
//   arithmetic (ARITH 1991), section 2; the bookkeeping is ours.
#pragma once

#include "value.h"

namespace jaxmd {
namespace JAXMD_ISA {

// The bits of ±x as an unsigned integer: of x itself, or with `flip` of its two's complement below `limit`.
template <class Digits>
struct BitString {
  const Digits& digit;  // uint32_t digit(int i), for 0 ≤ i < count
  int count;
  int lowest;  // z, the lowest set bit
  int limit;   // bits from here on count as 0
  bool flip;

  JAXMD_INLINE uint64_t raw(int i) const { return i >= 0 && i < count ? digit(i) : 0; }

  // Bits position … position + 63.
  JAXMD_INLINE uint64_t read(int position) const {
    const int i = position >> 5, s = position & 31;
    uint64_t w = (raw(i) | raw(i + 1) << 32) >> s;
    if (s != 0) w |= raw(i + 2) << (64 - s);
    if (flip) w = position > lowest ? ~w : 0 - w;
    const int room = limit - position;
    if (room >= 64) return w;
    return room <= 0 ? 0 : w & ((uint64_t{1} << room) - 1);
  }

  // The highest set bit; there is one while lowest < limit.
  JAXMD_INLINE int highest() const {
    int position = limit - 64;
    uint64_t w;
    while ((w = read(position)) == 0) position -= 64;
    return position + 63 - leading_zeros(w);
  }
};

// emit(i, limb) for i = 0 … limbs − 1. With `flip`, the digits are the two's complement of the magnitude, as a signed
// sum leaves them.
template <class Digits, class Emit>
JAXMD_INLINE void round_to_limbs(const Digits& digit, int count, int low, bool flip, bool negative, int limbs,
                                 Emit emit) {
  constexpr uint64_t kInf = 0x7ff0000000000000ull;
  int first = 0;
  while (first < count && digit(first) == 0) ++first;
  if (first == count) {
    for (int i = 0; i < limbs; ++i) emit(i, 0.0);
    return;
  }
  const uint64_t w = digit(first);
  const int lowest = 32 * first + 63 - leading_zeros(w & (0 - w));
  BitString<Digits> x{digit, count, lowest, 32 * count, flip};
  for (int i = 0; i < limbs; ++i) {
    uint64_t magnitude = 0;
    const bool minus = negative;
    if (lowest < x.limit) {
      const int top = x.highest();
      const int q = top - 52 > -1074 - low ? top - 52 : -1074 - low;  // position of the limb's last bit
      if (q > top + 1) {
        x.limit = lowest;  // below half of the least subnormal
      } else {
        uint64_t m = x.read(q);
        if (q > lowest && (x.read(q - 1) & 1) != 0 && (lowest < q - 1 || (m & 1) != 0)) {
          ++m;
          x.flip = !x.flip;
          negative = !negative;
        }
        x.limit = q;
        magnitude = low + q + 1074 > 2046 ? kInf : (static_cast<uint64_t>(low + q + 1074) << 52) + m;
        if (magnitude >= kInf) {
          magnitude = kInf;
          x.limit = lowest;
        }
      }
    }
    const bool signed_limb = minus && (i == 0 || magnitude != 0);
    emit(i, from_bits(magnitude | (signed_limb ? uint64_t{1} << 63 : 0)));
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
