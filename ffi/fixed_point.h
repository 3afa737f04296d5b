// Exact sums of doubles and of products of doubles in one long fixed-point number (Kulisch), rounded canonically.
//
// Shape: words_[k] holds the multiple of 2^(kLow + 32k); a word is 64 bits wide and carries are left in it, so that up
// to
//   2^30 additions need no carry propagation.
// Exact: nothing rounds before round(), provided every addend is a multiple of 2^kLow and the sum is below 2^kHigh.
// Source: U. Kulisch, Computer Arithmetic and Validity (2nd ed., 2013), ch. 8. Ours leaves the carries in the words,
// and
//   rounds to a sequence of limbs: r1 = RN(sum), r2 = RN(sum − r1), …, ties to even.
#pragma once

#include "value.h"

namespace jaxmd {
namespace JAXMD_ISA {

template <int kLow, int kHigh>
class FixedPoint {
 public:
  JAXMD_INLINE FixedPoint() { clear(); }

  JAXMD_INLINE void clear() {
    JAXMD_ROLLED
    for (int k = 0; k < kWords; ++k) words_[k] = 0;
  }

  // += x, x finite.
  JAXMD_INLINE void add(double x) {
    uint64_t m;
    const int position = unpack(x, &m) - kLow;
    add_at(m, position, x < 0);
  }

  // += a·b, a and b finite; kLow ≤ −2148.
  JAXMD_INLINE void add_product(double a, double b) {
    uint64_t ma, mb;
    const int position = unpack(a, &ma) + unpack(b, &mb) - kLow;
    const bool negative = (a < 0) != (b < 0);
    const uint64_t mask = 0xffffffffull;
    const uint64_t a0 = ma & mask, a1 = ma >> 32, b0 = mb & mask, b1 = mb >> 32;
    add_at(a0 * b0, position, negative);
    add_at(a0 * b1, position + 32, negative);
    add_at(a1 * b0, position + 32, negative);
    add_at(a1 * b1, position + 64, negative);
  }

  // Settles carries and sign. Call once, after the last add and before the functions below.
  JAXMD_INLINE void finish() {
    int64_t carry = 0;
    JAXMD_ROLLED
    for (int k = 0; k < kWords; ++k) {
      const int64_t v = words_[k] + carry;
      words_[k] = v & 0xffffffffll;
      carry = v >> 32;
    }
    negative_ = carry < 0;
    if (negative_) negate(kWords - 1);
    top_ = kWords - 1;
    drop_zeros();
  }

  // After finish(): is the sum zero; its sign; the e with 2^e ≤ |sum| < 2^(e+1) for a nonzero sum.
  JAXMD_INLINE bool is_zero() const { return top_ < 0; }
  JAXMD_INLINE bool is_negative() const { return negative_; }
  JAXMD_INLINE int exponent() const { return msb() + kLow; }

  // After finish(): the next limb of sum·2^scale, RN to a double (ties to even, gradual underflow, overflow to inf),
  // and takes it away from the sum. Zero keeps the sum's sign.
  JAXMD_INLINE double next_limb(int scale) {
    if (is_zero()) return 0.0;
    const bool negative = negative_;
    const int lowest = -1074 - scale - kLow;  // position of the result's last bit
    const int p = msb();
    int q = p - 52 > lowest ? p - 52 : lowest;
    if (q < 0) q = 0;
    if (p < q - 1) {  // below half of the smallest subnormal
      top_ = -1;
      return negative ? -0.0 : 0.0;
    }
    uint64_t m = field(q);
    const bool up = q > 0 && bit(q - 1) && ((m & 1) != 0 || any_below(q - 1));
    keep_below(q);
    if (up) {
      m += 1;
      negate(q >> 5);
      words_[q >> 5] &= (1ll << (q & 31)) - 1;
      negative_ = !negative_;
    }
    drop_zeros();
    int t = q + kLow + scale;  // the limb is m·2^t
    if (m != 0 && m < (1ull << 52) && t > -1074) {
      const int room = t + 1074, gap = leading_zeros(m) - 11;
      const int shift = gap < room ? gap : room;
      m <<= shift;
      t -= shift;
    }
    const uint64_t sign = negative ? 1ull << 63 : 0;
    if (t > 972) {
      top_ = -1;
      return from_bits(sign | 0x7ff0000000000000ull);
    }
    uint64_t bits = m == 0 ? 0 : (static_cast<uint64_t>(t + 1074) << 52) + m;
    if (bits >= 0x7ff0000000000000ull) {
      top_ = -1;
      bits = 0x7ff0000000000000ull;
    }
    return from_bits(sign | bits);
  }

  // After finish(): sum·2^scale to `limbs` canonical limbs.
  JAXMD_INLINE void round(int limbs, int scale, double* out) {
    out[0] = next_limb(scale);
    JAXMD_ROLLED
    for (int i = 1; i < limbs; ++i) {
      const double x = next_limb(scale);
      out[i] = x == 0 ? 0.0 : x;
    }
  }

 private:
  static constexpr int kWords = (kHigh - kLow + 31) / 32 + 3;  // one for carries, two that field() may read

  // x = ±m·2^e; returns e.
  static JAXMD_INLINE int unpack(double x, uint64_t* m) {
    const uint64_t b = bits_of(x);
    const int e = static_cast<int>((b >> 52) & 0x7ff);
    *m = (b & 0xfffffffffffffull) | (e == 0 ? 0 : 1ull << 52);
    return (e == 0 ? 1 : e) - 1075;
  }

  JAXMD_INLINE void add_at(uint64_t m, int position, bool negative) {
    if (m == 0) return;
    const int k = position >> 5, s = position & 31;
    const uint64_t low = m << s, high = s == 0 ? 0 : m >> (64 - s);
    const int64_t c0 = static_cast<int64_t>(low & 0xffffffffull), c1 = static_cast<int64_t>(low >> 32);
    const int64_t c2 = static_cast<int64_t>(high);
    words_[k] += negative ? -c0 : c0;
    words_[k + 1] += negative ? -c1 : c1;
    words_[k + 2] += negative ? -c2 : c2;
  }

  JAXMD_INLINE int msb() const { return 32 * top_ + 63 - leading_zeros(static_cast<uint64_t>(words_[top_])); }

  JAXMD_INLINE void drop_zeros() {
    while (top_ >= 0 && words_[top_] == 0) --top_;
  }

  JAXMD_INLINE uint64_t field(int q) const {
    const int k = q >> 5, s = q & 31;
    const uint64_t low = static_cast<uint64_t>(words_[k]) | static_cast<uint64_t>(words_[k + 1]) << 32;
    return s == 0 ? low : low >> s | static_cast<uint64_t>(words_[k + 2]) << (64 - s);
  }

  JAXMD_INLINE bool bit(int p) const { return (words_[p >> 5] >> (p & 31)) & 1; }

  JAXMD_INLINE bool any_below(int p) const {
    if (words_[p >> 5] & ((1ll << (p & 31)) - 1)) return true;
    JAXMD_ROLLED
    for (int k = (p >> 5) - 1; k >= 0; --k) {
      if (words_[k] != 0) return true;
    }
    return false;
  }

  JAXMD_INLINE void keep_below(int q) {
    const int k = q >> 5;
    JAXMD_ROLLED
    for (int j = k + 1; j <= top_; ++j) words_[j] = 0;
    words_[k] &= (1ll << (q & 31)) - 1;
    top_ = k;
  }

  // Words 0 … last become 2^(32(last + 1)) minus themselves.
  JAXMD_INLINE void negate(int last) {
    int64_t carry = 1;
    JAXMD_ROLLED
    for (int k = 0; k <= last; ++k) {
      const int64_t v = (~words_[k] & 0xffffffffll) + carry;
      words_[k] = v & 0xffffffffll;
      carry = v >> 32;
    }
  }

  int64_t words_[kWords];
  int top_ = -1;
  bool negative_ = false;
};

}  // namespace JAXMD_ISA
}  // namespace jaxmd
