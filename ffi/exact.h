// Exact dot products of multiple doubles: one fixed-point number that holds every product of two doubles (Kulisch).
//
// Shape: x = Σ word[i]·2^(−2148 + 32i), 0 ≤ i < kExactWords; words are signed 64-bit with the carries left in them, and
//   lie `stride` apart, so that the 32 lanes of a warp interleave theirs without bank conflicts.
// Exact: a product of two 53-bit significands is an integer of 106 bits at a bit offset ≥ 0 and goes into five words.
//   An addition changes a word by less than 2^32, so 2^30 of them need no carry. From 2^−2148 to 2^2048 and 2^40 terms
//   make 4236 bits; 134 words hold 4288.
// Source: U. Kulisch, Computer Arithmetic and Validity (2nd ed., 2013), ch. 8; R. Neal, Fast exact summation using
//   small and large superaccumulators (arXiv 1505.05571), for the lazy carries. Ours adds integer products, so that
//   underflow and overflow of a double product play no part.
#pragma once

#include "digits.h"

namespace jaxmd {
namespace JAXMD_ISA {

constexpr int kExactWords = 134;
constexpr int kExactLow = -2148;
constexpr int64_t kExactRun = int64_t{1} << 30;  // products between two calls of settle

// A finite double as ±mantissa·2^(exponent − 1075); `sign` is 0 or −1.
struct Factor {
  uint64_t mantissa;
  int exponent;
  int sign;
};

JAXMD_INLINE Factor unpack(double a) {
  const uint64_t b = bits_of(a);
  const int e = static_cast<int>(b >> 52 & 0x7ff);
  const uint64_t fraction = b & 0xfffffffffffffull;
  const int sign = static_cast<int>(static_cast<int64_t>(b) >> 63);
  return {e == 0 ? fraction : fraction | uint64_t{1} << 52, e == 0 ? 1 : e, sign};
}

JAXMD_INLINE uint64_t multiply_high(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#endif
}

// The word that the product a·b begins in; it ends four words later.
JAXMD_INLINE int first_word(const Factor& a, const Factor& b) { return (a.exponent + b.exponent - 2) >> 5; }

// x += a·b.
JAXMD_INLINE void add_product(int64_t* word, int stride, const Factor& a, const Factor& b) {
  const uint64_t low = a.mantissa * b.mantissa, high = multiply_high(a.mantissa, b.mantissa);
  const int s = (a.exponent + b.exponent - 2) & 31;
  const uint64_t w0 = low << s, w1 = high << s | (low >> 1) >> (63 - s), w2 = (high >> 1) >> (63 - s);
  const int64_t sign = a.sign ^ b.sign;  // (v ^ −1) − (−1) = −v
  constexpr uint64_t kMask = 0xffffffffull;
  int64_t* const p = word + first_word(a, b) * stride;
  p[0] += (static_cast<int64_t>(w0 & kMask) ^ sign) - sign;
  p[stride] += (static_cast<int64_t>(w0 >> 32) ^ sign) - sign;
  p[2 * stride] += (static_cast<int64_t>(w1 & kMask) ^ sign) - sign;
  p[3 * stride] += (static_cast<int64_t>(w1 >> 32) ^ sign) - sign;
  p[4 * stride] += (static_cast<int64_t>(w2) ^ sign) - sign;
}

// Words first … kExactWords − 2 become digits 0 … 2^32 − 1; the last keeps the sign. Words below `first` are zero.
JAXMD_INLINE void settle(int64_t* word, int stride, int first = 0) {
  int64_t carry = 0;
  for (int i = first; i < kExactWords - 1; ++i) {
    const int64_t v = word[i * stride] + carry;
    word[i * stride] = v & 0xffffffffll;
    carry = v >> 32;
  }
  word[(kExactWords - 1) * stride] += carry;
}

// The words after settle, as round_to_limbs reads them.
struct ExactDigits {
  const int64_t* word;
  int stride;
  JAXMD_INLINE uint32_t operator()(int i) const { return static_cast<uint32_t>(word[i * stride]); }
};

// What a dot product with an inf or nan in it comes to, gathered over its terms with |.
enum Special : int { kNone = 0, kPlusInf = 1, kMinusInf = 2, kNan = 4 };

JAXMD_INLINE double special_value(int seen) {
  const bool nan = (seen & kNan) != 0 || seen == (kPlusInf | kMinusInf);
  return from_bits(nan ? 0x7ff8000000000000ull : seen == kMinusInf ? 0xfff0000000000000ull : 0x7ff0000000000000ull);
}

// An entry by IEEE rules: the sum of its limbs if one of them is inf or nan, else only the exact sign of the sum.
// load(i) gives limb i; `word` is scratch.
struct Kind {
  int special;
  int sign;  // of a finite entry
};

template <class Load>
JAXMD_INLINE Kind classify(Load load, int limbs, int64_t* word, int stride) {
  int special = kNone;
  for (int i = 0; i < limbs; ++i) {
    const double x = load(i);
    if (x != x) special |= kNan;
    else if (!is_finite(x)) special |= x > 0 ? kPlusInf : kMinusInf;
  }
  if (special != kNone) return {special, 0};
  for (int i = 0; i < kExactWords; ++i) word[i * stride] = 0;
  const Factor one = unpack(1.0);
  for (int i = 0; i < limbs; ++i) add_product(word, stride, unpack(load(i)), one);
  settle(word, stride);
  if (word[(kExactWords - 1) * stride] < 0) return {kNone, -1};
  for (int i = 0; i < kExactWords; ++i) {
    if (word[i * stride] != 0) return {kNone, 1};
  }
  return {kNone, 0};
}

// The term a·b of a dot product: kNone if both are finite.
JAXMD_INLINE int special_term(const Kind& a, const Kind& b) {
  if (a.special == kNone && b.special == kNone) return kNone;
  const double x = a.special != kNone ? special_value(a.special) : a.sign;
  const double y = b.special != kNone ? special_value(b.special) : b.sign;
  const double p = mul_rn(x, y);
  return p != p ? kNan : p > 0 ? kPlusInf : kMinusInf;
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
