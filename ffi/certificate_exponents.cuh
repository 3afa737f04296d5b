// Largest settled exponent of numbers whose limbs lie in memory at a fixed distance from one another.
//
//   max over q < entries of e(x at + q step),   e = `settled_exponents` of jaxmd/_slices.py
//
// Exact: the leading words of two limbs tell most numbers: if y's exponent is 54 below x's and x is no power of two, y
//   settles x, and the exponent of x is that of its own. Everything else is told from all bits, apart.
// Cost: some ten integer operations a limb; the numbers of kAhead steps are in flight.
#pragma once

#include <cstdint>

#include "product_shape.h"
#include "settled.h"

namespace jaxmd {
namespace cuda {

// A call of its own, because few numbers need it.
static __device__ __noinline__ int exponent_from_all_bits(const LimbPointers<const double>& limbs, int64_t at) {
  return settled_exponent(limbs, at);
}

// Whether a number's exponent is that of its leading word's magnitude, because these bits show it settled; kMost limbs,
// zeros beyond `count`.
template <int kMost>
__device__ inline bool is_plain(const uint64_t (&limb)[kMost], int count) {
  constexpr uint32_t kMagnitude = 0x7fffffff, kExponent = 0x7ff00000, kFraction = 0x000fffff;
  const uint32_t leading = static_cast<uint32_t>(limb[0] >> 32) & kMagnitude;
  // neither below 2^-1042 nor inf nor nan, or zero
  bool plain = leading - 1 < kExponent - 1 || (leading | static_cast<uint32_t>(limb[0])) == 0;
#pragma unroll
  for (int i = 1; i < kMost; ++i) {
    if (i >= count) break;
    const uint32_t x = static_cast<uint32_t>(limb[i - 1] >> 32), y = static_cast<uint32_t>(limb[i] >> 32);
    const bool below = static_cast<int>((x & kExponent) - (y & kExponent)) >= (54 << 20) && (x & kFraction) != 0;
    plain &= below || ((y & kMagnitude) | static_cast<uint32_t>(limb[i])) == 0;
  }
  return plain;
}

// The largest exponent of `entries` numbers at at, at + step, …; 2 kZeroExponent of none. kAhead are read at once.
template <int kMost, int kAhead>
__device__ inline int largest_of(const LimbPointers<const double>& x, int64_t at, int64_t step, int64_t entries) {
  int best = 2 * kZeroExponent;
  uint32_t top = 0;  // leading word of the largest plain number
  for (; entries > 0; entries -= kAhead, at += kAhead * step) {
    uint64_t limb[kAhead][kMost];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
#pragma unroll
      for (int i = 0; i < kMost; ++i) {
        limb[u][i] = 0;
        if (i < x.count && u < entries) limb[u][i] = __double_as_longlong(__ldg(x.limb[i] + at + u * step));
      }
    }
    unsigned others = 0;
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (is_plain<kMost>(limb[u], x.count)) {
        top = max(top, static_cast<uint32_t>(limb[u][0] >> 32) & 0x7fffffffu);
      } else {
        others |= 1u << u;
      }
    }
    for (; others != 0; others &= others - 1) {
      best = max(best, exponent_from_all_bits(x, at + (__ffs(others) - 1) * step));
    }
  }
  return top == 0 ? best : max(best, exponent_of(static_cast<uint64_t>(top) << 32 | 1, 0));
}

}  // namespace cuda
}  // namespace jaxmd
