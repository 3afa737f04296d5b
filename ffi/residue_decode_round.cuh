// The last steps of the residue decoder (residue_decode.cuh), one entry a thread: the four parts of its integer become
// words less q P, and those become limbs.
//
// Idea:   words stay in registers and their first bits stay at the top. A limb is the first 62 bits, the rest stuck to
//         the last of them, through one int64 -> double conversion, which rounds as wanted; what it leaves over is
//         smaller than 2^9 and becomes the next first word. Zeros at the top go by whole words, which is rare.
// Exact:  integers throughout; a limb's exponent is added to its bits. Where a limb would be subnormal or near
//         overflow, the words are made again, rounded as jaxmd_renormalize does and scaled as jaxmd_scale does.
// Cost:   3 instructions a word and 1 + L of them again for L limbs, 20 a limb.
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
JAXMD_INLINE int same_leading_bits(uint32_t x) {  // of the sign: 1 to 32
#if defined(__CUDA_ARCH__)
  return __clz(static_cast<int>(x ^ static_cast<uint32_t>(static_cast<int32_t>(x) >> 31)));
#else
  const uint32_t y = x ^ static_cast<uint32_t>(static_cast<int32_t>(x) >> 31);
  return y == 0 ? 32 : __builtin_clz(y);
#endif
}
// Nothing but the sign of the next word, which starts with two bits of it.
JAXMD_INLINE bool is_sign_of(uint32_t x, uint32_t next) {
  return x == static_cast<uint32_t>(static_cast<int32_t>(next) >> 31) && static_cast<int32_t>(next ^ next << 1) >= 0;
}
JAXMD_INLINE int64_t nearest_integer(double x) {
#if defined(__CUDA_ARCH__)
  return __double2ll_rn(x);
#else
  return std::llrint(x);
#endif
}
JAXMD_INLINE int64_t two_words(uint32_t high, uint32_t low) {
  return static_cast<int64_t>(static_cast<uint64_t>(high) << 32 | low);
}

// What the lanes of a quad left of an entry in shared memory.
template <class Layout, int kWords>
struct EntryParts {
  uint32_t* first;

  __device__ uint32_t& word(int i) const { return first[(i / kWords * Layout::kPart + i % kWords) * kDecodeStride]; }
  __device__ uint32_t carry(int part) const { return first[(part * Layout::kPart + kWords) * kDecodeStride]; }
};

// store(i, word) for the words of sum_i r_i M_i - q P, q = round(sum_i r_i M_i / P).
template <class Layout, int kWords, class Store>
__device__ __forceinline__ void integer_of_parts(const EntryParts<Layout, kWords>& parts, const uint32_t* product,
                                                 Store store) {
  constexpr int kAll = Layout::kAll;
  double inverse;
  memcpy(&inverse, product + Layout::kMinus + kAll, 8);
  int64_t top = two_words(parts.carry(3), parts.word(kAll - 1));
  int64_t next = parts.word(kAll - 2);
  if (kWords == 1) top += parts.carry(2);
  if (kWords == 2) next += parts.carry(2);
  const double x = fma_rn(static_cast<double>(top), 0x1p32, static_cast<double>(next));
  const int32_t q = static_cast<int32_t>(rint(mul_rn(x, inverse)));
  const uint32_t size = static_cast<uint32_t>(q < 0 ? -q : q);
  const uint32_t* multiple = product + (q < 0 ? 0 : Layout::kMinus);
  uint32_t carry = 0;
  each<kWords>(kWords, [&](int w4) {
    const uint4 p = reinterpret_cast<const uint4*>(multiple)[w4];
    const uint32_t p_word[4] = {p.x, p.y, p.z, p.w};
    each<4>(4, [&](int j) {
      const int i = 4 * w4 + j;
      if (i > 0 && i % kWords == 0) carry += parts.carry(i / kWords - 1);
      const uint64_t v = static_cast<uint64_t>(size) * p_word[j] + parts.word(i) + carry;
      store(i, static_cast<uint32_t>(v));
      carry = static_cast<uint32_t>(v >> 32);
    });
  });
}

JAXMD_INLINE bool is_moderate(int exponent) { return exponent >= -1000 && exponent <= 1000; }

// Any limbs: word(i) of a number in two's complement, times 2^(low + exponent); low as far as 2^low is a double.
template <class Words>
__device__ void round_carefully(const DecodeTask& task, const Words& word, int count, int raised, int exponent,
                                int64_t at) {
  const int limbs = task.out.count;
  const bool negative = static_cast<int32_t>(word(count - 1)) < 0;
  int low = task.low - task.bits;  // the integer times 2^low is rounded, then scaled
  if (task.bits > 990) {           // up to 2^2048: within range from the last bit of all on
    exponent += low + 1074;
    low = -1074;
  }
  low -= 8 * raised;
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

template <class Layout, int kWords>
__device__ __noinline__ void round_entry_carefully(const DecodeTask& task, EntryParts<Layout, kWords> parts,
                                                   const uint32_t* product, int raised, int exponent, int64_t at) {
  integer_of_parts(parts, product, [&](int i, uint32_t word) { parts.word(i) = word; });
  round_carefully(task, [parts](int i) { return parts.word(i); }, Layout::kAll, raised, exponent, at);
}

template <class Layout, int kWords>
__device__ __forceinline__ void round_entry(const DecodeTask& task, EntryParts<Layout, kWords> parts,
                                            const uint32_t* product, int raised, int exponent, int64_t at) {
  constexpr int kAll = Layout::kAll;
  uint32_t w[kAll];
  integer_of_parts(parts, product, [&](int i, uint32_t word) { w[i] = word; });
  int e = exponent + task.low - task.bits - 8 * raised + 32 * (kAll - 2);  // of the two words at the top
  bool fast = true;
#pragma unroll 1
  for (int limb = 0;; ++limb) {
    uint32_t below;  // not in the two words at the top, nor in the next
    const auto find_below = [&] {
      below = 0;
      each<kAll - 3>(kAll - 3, [&](int i) { below |= w[i]; });
    };
    find_below();
    if ((w[kAll - 1] | w[kAll - 2] | w[kAll - 3] | below) != 0) {
#pragma unroll 1
      while (is_sign_of(w[kAll - 1], w[kAll - 2])) {
        each<kAll - 1>(kAll - 1, [&](int i) { w[kAll - 1 - i] = w[kAll - 2 - i]; });
        w[0] = 0;
        e -= 32;
        find_below();
      }
    }
    const int shift = same_leading_bits(w[kAll - 1]) - 2;
    e -= shift;
    const uint32_t high = funnel_left(w[kAll - 2], w[kAll - 1], shift);
    const uint32_t low = funnel_left(w[kAll - 3], w[kAll - 2], shift);
    const bool more = (w[kAll - 3] << shift | below) != 0;
    const double x = static_cast<double>(two_words(high, low | (more ? 1u : 0u)));
    const bool zero = x == 0;
    fast = fast && (zero || (e >= -1080 && e <= 930));
    const uint64_t scaled = bits_of(x) + (zero ? 0 : static_cast<uint64_t>(static_cast<uint32_t>(e) << 20) << 32);
    task.out.limb[limb][at] = from_bits(scaled);
    if (limb + 1 == task.out.count) break;
    const uint32_t rest = low - static_cast<uint32_t>(nearest_integer(x));
    w[kAll - 1] = rest;
    each<kAll - 2>(kAll - 2, [&](int j) {
      const int i = kAll - 2 - j;
      w[i] = funnel_left(i > 1 ? w[i > 1 ? i - 2 : 0] : 0, w[i - 1], shift);
    });
    w[0] = 0;
    e -= 32;
  }
  if (!fast) round_entry_carefully(task, parts, product, raised, exponent, at);
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
