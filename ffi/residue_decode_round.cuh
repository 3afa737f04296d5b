// The last steps of the residue decoder (residue_decode.cuh), one entry a thread: the four parts of its integer become
// words less q P, and those become limbs.
//
// Idea:   a limb is the next 62 bits, the rest stuck to the last of them, through one int64 -> double conversion, which
//         rounds as wanted; what it leaves over, smaller than 2^9 in size, and 64 bits read from where it ends are the
//         next. Words stay in the entry's column of shared memory, or for up to kWords <= 4 limbs in registers; those
//         have no branches for what is rare, and are made again with the others where one is needed: bits that are
//         nothing but sign, which go by whole words, and zeros alone after a limb, so that the rest must be looked at.
// Exact:  integers throughout; a limb's exponent is added to its bits. Where a limb would be subnormal or near
//         overflow, the words are rounded as jaxmd_renormalize does and scaled as jaxmd_scale does.
// Cost:   instructions: 4 a word, 18 a limb in registers; 6 a word, 43 a limb in shared memory.
#pragma once

#include "digits.h"
#include "residue_decode_tables.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

JAXMD_INLINE uint32_t funnel_left(uint32_t low, uint32_t high, int shift) {  // 0 <= shift < 32
#if defined(__CUDA_ARCH__)
  return __funnelshift_l(low, high, shift);
#else
  return shift == 0 ? high : high << shift | low >> (32 - shift);
#endif
}
JAXMD_INLINE uint32_t funnel_right(uint32_t low, uint32_t high, int shift) {  // shift modulo 32
#if defined(__CUDA_ARCH__)
  return __funnelshift_r(low, high, shift);
#else
  return (shift & 31) == 0 ? low : low >> (shift & 31) | high << (32 - (shift & 31));
#endif
}
// Leading bits that equal the sign, 1 to 31; 2^32 - 1 for 0 and -1.
JAXMD_INLINE uint32_t same_leading_bits(uint32_t x) {
#if defined(__CUDA_ARCH__)
  uint32_t r;
  asm("bfind.shiftamt.s32 %0, %1;" : "=r"(r) : "r"(x));
  return r;
#else
  const uint32_t y = x ^ static_cast<uint32_t>(static_cast<int32_t>(x) >> 31);
  return y == 0 ? 0xffffffffu : static_cast<uint32_t>(__builtin_clz(y));
#endif
}
// Nothing but the sign of the next word, which starts with two bits of it.
JAXMD_INLINE bool is_sign_of(uint32_t x, uint32_t next) {
  return x == static_cast<uint32_t>(static_cast<int32_t>(next) >> 31) && static_cast<int32_t>(next ^ next << 1) >= 0;
}
JAXMD_INLINE int64_t two_words(uint32_t high, uint32_t low) {
  return static_cast<int64_t>(static_cast<uint64_t>(high) << 32 | low);
}

// An entry's column of shared memory. word(-3 ... -1) are the spare rows.
template <int kWords>
struct EntryColumn {
  using Layout = DecodeLayout<kWords>;
  uint32_t* first;

  __device__ uint32_t& spare(int i) const { return first[i * Layout::kStride]; }
  __device__ uint32_t& word(int i) const { return first[(Layout::kSpare + i) * Layout::kStride]; }
};

// store(i, word) for the words of sum_i r_i M_i - q P, q = round(sum_i r_i M_i / P), from those of the parts.
//   kFrom: words below are left out, and what they carry into this one, less than |q| + 2^16 + 2
template <int kFrom, int kWords, class Store>
__device__ __forceinline__ void join_parts(const EntryColumn<kWords>& column, const uint32_t* product, Store store) {
  using Layout = DecodeLayout<kWords>;
  constexpr int kAll = Layout::kAll;
  double inverse;
  memcpy(&inverse, product + Layout::kMinus + kAll, 8);
  int64_t top = two_words(column.spare(3), column.word(kAll - 1));
  int64_t next = column.word(kAll - 2);
  if (kWords == 1) top += column.spare(2);
  if (kWords == 2) next += column.spare(2);
  const double x = fma_rn(static_cast<double>(top), 0x1p32, static_cast<double>(next));
  const int32_t q = static_cast<int32_t>(rint(mul_rn(x, inverse)));
  const uint32_t size = static_cast<uint32_t>(q < 0 ? -q : q);
  const uint32_t* multiple = product + (q < 0 ? 0 : Layout::kMinus);
  uint32_t carry = 0;
  each<kWords - kFrom / 4>(kWords - kFrom / 4, [&](int part) {
    const int w4 = part + kFrom / 4;
    const uint4 p = reinterpret_cast<const uint4*>(multiple)[w4];
    const uint32_t p_word[4] = {p.x, p.y, p.z, p.w};
    each<4>(4, [&](int j) {
      const int i = 4 * w4 + j;
      if (i < kFrom) return;
      if (i > kFrom && i % kWords == 0) carry += column.spare(i / kWords - 1);
      const uint64_t v = static_cast<uint64_t>(size) * p_word[j] + column.word(i) + carry;
      store(i, static_cast<uint32_t>(v));
      carry = static_cast<uint32_t>(v >> 32);
    });
  });
}

JAXMD_INLINE bool is_moderate(int exponent) { return exponent >= -1000 && exponent <= 1000; }

// Any limbs: word(i) of a number in two's complement, times 2^(exponent - w).
template <class Words>
__device__ void round_carefully(const DecodeTask& task, const Words& word, int count, int exponent,
                                uint32_t at) {
  const int limbs = task.out.count;
  const bool negative = static_cast<int32_t>(word(count - 1)) < 0;
  int low = -task.bits;   // the integer times 2^low is rounded, then scaled
  exponent -= task.bits;
  if (task.bits > 990) {  // up to 2^2048: within range from the last bit of all on
    exponent += low + 1074;
    low = -1074;
  }
  low += task.lowest + 2 * task.bits;  // of the lowest word
  double x[kMaxProductLimbs], r[kMaxProductLimbs];
  round_to_limbs(word, count, low, negative, negative, limbs, [&](int i, double limb) { x[i] = limb; });
  const double factor = power_of_two(is_moderate(exponent) ? exponent : 0);
  const double inverse = power_of_two(is_moderate(exponent) ? -exponent : 0);
  bool exact = is_moderate(exponent);
  JAXMD_ROLLED
  for (int i = 0; i < limbs; ++i) {
    r[i] = mul_rn(x[i], factor);
    exact = exact && mul_rn(r[i], inverse) == x[i] && (i > 0 || abs(r[i]) < 0x1p1000);
  }
  if (!exact) {
    const int head = limbs < kMaxLimbs ? limbs : kMaxLimbs;  // limbs beyond are a number of their own
    scale_careful(x, head, exponent, r);
    if (limbs > head) scale_careful(x + head, limbs - head, exponent, r + head);
  }
  JAXMD_ROLLED
  for (int i = 0; i < limbs; ++i) task.out.limb[i][at] = r[i];
}

template <int kWords>
__device__ __noinline__ void round_entry_carefully(const DecodeTask& task, EntryColumn<kWords> column, int exponent,
                                                   uint32_t at) {
  round_carefully(task, [column](int i) { return column.word(i); }, DecodeLayout<kWords>::kAll, exponent, at);
}

template <int kWords>
constexpr int kGuard = 2 * kWords - 2;  // of round_words

// Bits from `position` downwards, zeros below the integer.
template <int kWords>
__device__ __forceinline__ void read_bits(const EntryColumn<kWords>& column, int position, uint32_t& high,
                                          uint32_t& low) {
  const int k = position >> 5 < -1 ? -1 : position >> 5;
  const uint32_t x = column.word(k - 1);
  high = funnel_right(x, column.word(k), position);
  low = funnel_right(column.word(k - 2), x, position);
}
template <int kWords>
__device__ inline bool any_bit_below(const EntryColumn<kWords>& column, int position) {
  if (position <= 0) return false;
  int i = position >> 5;
  uint32_t any = column.word(i) & ((1u << (position & 31)) - 1);
  while (any == 0 && --i >= 0) any = column.word(i);
  return any != 0;
}

// Exponents of x 2^e that are added to x, 2^61 <= |x| <= 2^62, without a look at overflow or subnormal numbers.
constexpr int kHighest = 930, kLowest = -1080;
JAXMD_INLINE double times_power(uint64_t x, int e) {
  const uint32_t high = static_cast<uint32_t>(x >> 32) + (static_cast<uint32_t>(e) << 20);
  return from_bits(static_cast<uint64_t>(high) << 32 | static_cast<uint32_t>(x));
}
// The last word of a number less x, which is the number rounded to a multiple of 2^9.
JAXMD_INLINE uint32_t rest_of(uint32_t low, uint64_t x, uint32_t sign) {
  return low + static_cast<uint32_t>(x) * (static_cast<int32_t>(sign) < 0 ? 512u : -512u);
}

// A column's words times 2^(exponent - w) in limbs.
template <int kWords>
__device__ __forceinline__ void round_column(const DecodeTask& task, const EntryColumn<kWords>& column, int exponent,
                                             uint32_t at) {
  constexpr int kAll = DecodeLayout<kWords>::kAll;
  const int lowest = exponent + task.lowest;
  int position = 32 * (kAll - 1);  // `top` and what is below this bit are left; top has two bits of sign or more
  uint32_t top = column.word(kAll - 1), middle = column.word(kAll - 2), bottom = column.word(kAll - 3);
  int e = 0;
#pragma unroll 1
  for (int limb = 0;;) {
    uint32_t same = same_leading_bits(top);
    if (same > 31) {  // 0 or -1
#pragma unroll 1
      while (is_sign_of(top, middle) && position > 0) {
        top = middle;
        position -= 32;
        read_bits(column, position, middle, bottom);
      }
      same = same_leading_bits(top);
      if (same > 31) {
        if (top == 0 && position <= 0) {  // nothing is left
          for (; limb < task.out.count; ++limb) task.out.limb[limb][at] = 0;
          break;
        }
        same = static_cast<int32_t>(top ^ middle) < 0 ? 32 : 33;
      }
    }
    const int shift = static_cast<int>(same) - 2;
    position -= 32 + shift;
    const uint32_t high = funnel_left(middle, top, shift), low = funnel_left(bottom, middle, shift);
    uint32_t stuck = 1;
    if (bottom << shift == 0) stuck = any_bit_below(column, position) ? 1 : 0;
    const uint64_t x = bits_of(static_cast<double>(two_words(high, low | stuck)));
    e = lowest + position;
    task.out.limb[limb][at] = times_power(x, e);
    if (++limb == task.out.count) break;
    top = rest_of(low, x, top);
    read_bits(column, position, middle, bottom);
  }
  if (lowest + 32 * (kAll - 2) > kHighest || e < kLowest) round_entry_carefully(task, column, exponent, at);
}

// The same with words in registers, for at most kWords limbs; answers false where a branch of the above is needed.
// Limbs are made of the words above kGuard, which itself lacks less than 2^20 (|q| < 2^19 for 34 moduli of 16 bits):
// where it is smaller than 2^32 by as much, it carries what it should. It also tells that something is left below a
// limb: that of the bits between alone, few for the second limb on, 1 of 200 entries would need another look.
template <int kWords>
__device__ __forceinline__ bool round_words(const DecodeTask& task, uint32_t (&w)[4 * kWords], int exponent,
                                            uint32_t at) {
  constexpr int kAll = 4 * kWords;
  int e = exponent + task.lowest + 32 * (kAll - 1);
  bool ok = kGuard<kWords> == 0 || w[kGuard<kWords>] < 0u - (1u << 20);
#pragma unroll
  for (int limb = 0; limb < kWords; ++limb) {
    uint32_t &top = w[kAll - 1], &middle = w[kAll - 2], &bottom = w[kAll - 3];
    const uint32_t same = same_leading_bits(top);
    const int shift = static_cast<int>(same) - 2;
    ok = ok && same <= 31 && (bottom << (shift & 31) | w[kGuard<kWords>]) != 0;
    e -= 32 + shift;
    if (limb == 0) ok = ok && e <= kHighest;
    const uint32_t high = funnel_left(middle, top, shift), low = funnel_left(bottom, middle, shift);
    const uint64_t x = bits_of(static_cast<double>(two_words(high, low | 1)));
    task.out.limb[limb][at] = times_power(x, e);
    if (limb + 1 == kWords || limb + 1 == task.out.count) break;
    top = rest_of(low, x, top);
#pragma unroll
    for (int j = 0; j < 2 * (kWords - 1 - limb); ++j) {
      w[kAll - 2 - j] = funnel_left(w[kAll - 4 - j], w[kAll - 3 - j], shift);
    }
  }
  return ok && e >= kLowest;
}

template <int kWords>
__device__ __forceinline__ void finish_entry(const DecodeTask& task, const EntryColumn<kWords>& column,
                                             const uint32_t* product, int exponent, uint32_t at) {
  if constexpr (kWords <= 4) {
    if (task.out.count <= kWords) {
      uint32_t w[4 * kWords];
      join_parts<kGuard<kWords>>(column, product, [&](int i, uint32_t word) { w[i] = word; });
      if (round_words<kWords>(task, w, exponent, at)) return;
    }
  }
  join_parts<0>(column, product, [&](int i, uint32_t word) { column.word(i) = word; });
  each<3>(3, [&](int i) { column.spare(i + 1) = 0; });
  round_column(task, column, exponent, at);
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
