// Arithmetic of residues, entry by entry, for the CUDA kernels: canonical reduction, and integers from limbs.
// The definitions are those of jaxmd/_residues.py, bit for bit.
//
// Centred: r in [-p/2, p/2), so that p = 256 has -128 and not 128. All functions also run on the host, for tests.
#pragma once

#include <cstdint>

#include "value.h"

namespace jaxmd {
namespace JAXMD_ISA {

// Number of bits of x > 0.
JAXMD_INLINE int bit_length(uint32_t x) { return 64 - leading_zeros(x); }

// Centred x mod p = x − p floor((x factor + offset) / 2^(32 + shift)), with factor = round(2^(32 + shift) / p) and
// offset = (floor(p/2) + 1/2) 2^(32 + shift) / p.
// Exact: where (x + floor(p/2)) / p = q + f/p, f in {0 … p − 1}, the quotient's floor is taken of q + (f + 1/2 + d)/p
// with |d| ≤ p |x| / 2^(33 + shift), which must stay below 1/2.
//   reducer(p):       2^30 ≤ factor < 2^31, hence right for |x| < 2^30
//   quick_reducer(p): shift = 0, for p ≤ 256 and |x| < 2^24
struct Reducer {
  int32_t minus, factor;  // minus: −p
  int64_t offset;
  int32_t shift;
};

JAXMD_INLINE int32_t reducer_factor(int32_t p, int shift) {
  return static_cast<int32_t>(((int64_t{1} << (32 + shift)) + p / 2) / p);
}
JAXMD_INLINE Reducer make_reducer(int32_t p, int shift, int32_t factor) {
  return {-p, factor, (int64_t{1} << (31 + shift)) + (p % 2 == 0 ? factor >> 1 : 0), shift};
}
JAXMD_INLINE Reducer make_reducer(int32_t p, int shift) { return make_reducer(p, shift, reducer_factor(p, shift)); }
JAXMD_INLINE int reducer_shift(int32_t p) { return bit_length(static_cast<uint32_t>(p - 1)) - 2; }
JAXMD_INLINE Reducer reducer(int32_t p) { return make_reducer(p, reducer_shift(p)); }
JAXMD_INLINE Reducer quick_reducer(int32_t p) { return make_reducer(p, 0); }

JAXMD_INLINE uint32_t high_product(uint32_t x, uint32_t y) {
#if defined(__CUDA_ARCH__)
  return __umulhi(x, y);
#else
  return static_cast<uint32_t>(static_cast<uint64_t>(x) * y >> 32);
#endif
}
JAXMD_INLINE int32_t high_product(int32_t x, int32_t y) {
#if defined(__CUDA_ARCH__)
  return __mulhi(x, y);
#else
  return static_cast<int32_t>(static_cast<int64_t>(x) * y >> 32);
#endif
}
// The high word of x y + offset.
JAXMD_INLINE int32_t high_word(int32_t x, int32_t y, int64_t offset) {
#if defined(__CUDA_ARCH__)
  int32_t high;  // one instruction; of mad.wide or of C++ the compiler makes three to five
  asm("{\n .reg .s32 low;\n mad.lo.cc.s32 low, %1, %2, %3;\n madc.hi.s32 %0, %1, %2, %4;\n}"
      : "=r"(high)
      : "r"(x), "r"(y), "r"(static_cast<int32_t>(offset)), "r"(static_cast<int32_t>(offset >> 32)));
  return high;
#else
  return static_cast<int32_t>((static_cast<int64_t>(x) * y + offset) >> 32);
#endif
}

JAXMD_INLINE int32_t reduce(const Reducer& m, int32_t x) {
  return x + (high_word(x, m.factor, m.offset) >> m.shift) * m.minus;
}
JAXMD_INLINE int32_t quick_reduce(int32_t p, int32_t factor, int64_t offset, int32_t x) {
  return x - high_word(x, factor, offset) * p;
}

#if defined(__CUDACC__)
// A value that stays in a register of the lane: the compiler can't make it again where it is needed.
template <class T>
__device__ __forceinline__ T kept(T x) {
  return __shfl_sync(0xffffffffu, x, threadIdx.x % 32);
}
#endif

// ---- the integer of an entry

// Words of K, which encoders add to the integers of `count` words to make them positive.
JAXMD_INLINE constexpr uint32_t bias_word(int i, int count) {
  return (i > 0 ? 0x10000u : 0) + (i == count - 1 ? 0x80000000u : 0);
}

// Two's complement sum of round(limb 2^units), each rounded half away from zero, modulo 2^(32 count).
// Words from `filled` on are all `sign` and not yet written. Limbs from the last to the first: then a normalized entry
// costs three words a limb.
// at(i): a reference to word i, 0 ≤ i < count.
template <class Words>
class IntegerOfLimbs {
 public:
  JAXMD_INLINE IntegerOfLimbs(Words at, int count) : at_(at), count_(count) {}

  JAXMD_INLINE void add(double limb, int units) {
    const uint64_t bits = bits_of(limb);
    const int biased = static_cast<int>(bits >> 52) & 0x7ff;
    uint64_t m = (bits & 0xfffffffffffffull) | (biased == 0 ? 0 : uint64_t{1} << 52);
    int position = (biased == 0 ? 1 : biased) - 1075 + units;
    if (position < 0) {
      m = position < -54 ? 0 : (m >> -position) + ((m >> (-position - 1)) & 1);
      position = 0;
    }
    const int first = position >> 5, s = position & 31;
    if (m == 0 || biased == 0x7ff || first >= count_) return;
    const uint32_t minus = bits >> 63 != 0 ? 0xffffffffu : 0;
    const uint64_t low = m << s;
    const uint32_t limb_words[3] = {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                                    s == 0 ? 0 : static_cast<uint32_t>(m >> (64 - s))};
    while (filled_ < first) at_(filled_++) = sign_;
    uint32_t carry = minus & 1;
    int i = first;
#pragma unroll
    for (int j = 0; j < 3; ++j) {
      if (i < count_) add_word(i++, limb_words[j] ^ minus, carry);
    }
    JAXMD_ROLLED
    while (i < filled_) add_word(i++, minus, carry);
    if (i > filled_) filled_ = i;
    const uint32_t above = sign_ + minus + carry;
    sign_ = above;
    if (above + 1 > 1) {  // neither 0 nor −1: a word of its own
      if (filled_ < count_) at_(filled_++) = above;
      sign_ = above >> 31 != 0 ? 0xffffffffu : 0;
    }
  }

  // Writes the words that are left, and adds K.
  JAXMD_INLINE void finish_with_bias() {
    while (filled_ < count_) at_(filled_++) = sign_;
    uint32_t carry = 0;
    JAXMD_ROLLED
    for (int i = 0; i < count_; ++i) add_word(i, bias_word(i, count_), carry);
  }

 private:
  JAXMD_INLINE void add_word(int i, uint32_t x, uint32_t& carry) {
    const uint64_t v = static_cast<uint64_t>(i < filled_ ? at_(i) : sign_) + x + carry;
    at_(i) = static_cast<uint32_t>(v);
    carry = static_cast<uint32_t>(v >> 32);
  }

  Words at_;
  int count_;
  int filled_ = 0;
  uint32_t sign_ = 0;
};

// Zero where the shift, as an unsigned number, is 64 or more.
JAXMD_INLINE uint64_t shift_left(uint64_t x, int shift) {
#if defined(__CUDA_ARCH__)
  uint64_t r;
  asm("shl.b64 %0, %1, %2;" : "=l"(r) : "l"(x), "r"(shift));
  return r;
#else
  return static_cast<uint32_t>(shift) < 64 ? x << shift : 0;
#endif
}
JAXMD_INLINE uint64_t shift_right(uint64_t x, int shift) {
#if defined(__CUDA_ARCH__)
  uint64_t r;
  asm("shr.u64 %0, %1, %2;" : "=l"(r) : "l"(x), "r"(shift));
  return r;
#else
  return static_cast<uint32_t>(shift) < 64 ? x >> shift : 0;
#endif
}

// round(limb 2^units) = ±size 2^up, half away from zero; 0 for inf and nan.
struct RoundedLimb {
  uint64_t size, minus;  // minus: all ones or 0
  int up;

  JAXMD_INLINE RoundedLimb(double limb, int units) {
    const uint64_t bits = bits_of(limb);
    const int biased = static_cast<int>(bits >> 52) & 0x7ff;
    const uint64_t fraction = bits & 0xfffffffffffffull;
    uint64_t m = biased == 0 ? fraction : fraction | uint64_t{1} << 52;
    if (biased == 0x7ff) m = 0;
    const int position = (biased == 0 ? 1 : biased) - 1075 + units;
    const uint64_t half = shift_right(m, -position - 1);  // of no use where nothing is cut off
    size = position < 0 ? (half >> 1) + (half & 1) : m;
    up = position < 0 ? 0 : position;
    minus = static_cast<uint64_t>(static_cast<int64_t>(bits) >> 63);
  }
};

// Two's complement modulo 2^128.
struct DoubleWord {
  uint64_t low = 0, high = 0;

  // += (x_high 2^64 + x_low), or less it where minus is all ones.
  JAXMD_INLINE void add(uint64_t x_low, uint64_t x_high, uint64_t minus) {
    const uint64_t sum = low + (x_low ^ minus), with_carry = sum + (minus & 1);
    high += (x_high ^ minus) + (sum < low ? 1 : 0) + (with_carry < sum ? 1 : 0);
    low = with_carry;
  }
};

// The same of limbs that come in order of size, the last and smallest first: words are written once, from a window that
// moves up. add() answers false where a limb lies below the window; the words then are to be made by IntegerOfLimbs.
template <class Words>
class IntegerOfOrderedLimbs {
 public:
  JAXMD_INLINE IntegerOfOrderedLimbs(Words at, int count) : at_(at), count_(count) {}

  JAXMD_INLINE bool add(double limb, int units) {
    const RoundedLimb x(limb, units);
    const int first = x.up >> 5, s = x.up & 31;
    if (x.size == 0 || first >= count_) return true;
    if (first < written_) return false;
    JAXMD_ROLLED
    while (written_ < first) write();
    window_.add(x.size << s, (x.size >> 1) >> (63 - s), x.minus);
    return true;
  }

  JAXMD_INLINE void finish_with_bias() {
    JAXMD_ROLLED
    while (written_ < count_) write();
  }

 private:
  JAXMD_INLINE void write() {
    const uint64_t v = (window_.low & 0xffffffffu) + bias_word(written_, count_) + carry_;
    at_(written_++) = static_cast<uint32_t>(v);
    carry_ = static_cast<uint32_t>(v >> 32);
    window_.low = window_.low >> 32 | window_.high << 32;
    window_.high = static_cast<uint64_t>(static_cast<int64_t>(window_.high) >> 32);
  }

  Words at_;
  int count_;
  int written_ = 0;
  uint32_t carry_ = 0;  // of K
  DoubleWord window_;
};

// Words of integers of `bits` bits, -2^bits … 2^bits, in two's complement.
JAXMD_INLINE int word_count(int bits) { return (bits + 1) / 32 + 1; }

}  // namespace JAXMD_ISA
}  // namespace jaxmd
