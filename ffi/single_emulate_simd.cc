// What Hopper's tensor cores compute for products with an f32 accumulator, bit for bit, column by column of a panel.
//
//   c <- RZ24( sum over the terms and c of  trunc(term 2^(25 - e_max)) 2^(e_max - 25) )
//
// e_max: the largest exponent e_a + e_b of a nonzero product (significands < 2 each, so below 4) or of c, at least
// -133; every term is cut towards zero 25 bits below it, the sum is exact, and truncated to 24 bits on the way out.
// Subnormals are kept, a zero sum is +0. Inf and NaN do not occur here.
// Source: P. Xie et al., "Bit-Accurate Modeling of GPU Matrix Multiply-Accumulate Units" (2026), and F. Khattak and
//   M. Mikaitis, "Accurate Models of NVIDIA Tensor Cores" (2025), for the parameters; one step takes the whole
//   instruction, 16 terms of f16 or 8 of tf32.
#include <cstring>

#include "single_emulate.h"

#ifndef JAXMD_ISA
#define JAXMD_ISA portable
#endif

namespace jaxmd {
namespace JAXMD_ISA {
namespace {

constexpr int kN = kSingleColumns;
constexpr int32_t kFraction = 25, kLeast = -133;

struct Accumulator {
  float c[kN];
};

inline int32_t larger(int32_t x, int32_t y) { return x > y ? x : y; }

// magnitude 2^shift, cut towards zero
inline uint32_t shifted(uint32_t magnitude, int32_t shift) {
  const int32_t left = shift > 0 ? shift : 0, right = shift < 0 ? (shift > -31 ? -shift : 31) : 0;
  return magnitude << left >> right;
}

// S 2^(e_max - 25), truncated to 24 bits
inline float truncated(int64_t sum, int32_t e_max) {
  const uint64_t magnitude = static_cast<uint64_t>(sum < 0 ? -sum : sum);
  if (magnitude == 0) return 0.0f;
  const int32_t top = 63 - __builtin_clzll(magnitude) + e_max - kFraction;
  const int32_t quantum = larger(top, -126) - 23, shift = quantum - (e_max - kFraction);
  const uint32_t kept = static_cast<uint32_t>(shift >= 0 ? (shift < 64 ? magnitude >> shift : 0) : magnitude << -shift);
  if (kept == 0) return 0.0f;
  const uint32_t bits = (kept & 0x7fffff) | (kept >> 23 != 0 ? static_cast<uint32_t>(quantum + 150) << 23 : 0u) |
                        (sum < 0 ? 0x80000000u : 0u);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// One instruction: a [depth], b [depth][kN]
void multiply_add(Accumulator& x, const int32_t* a, const int32_t* ea, const int32_t* b, const int32_t* eb, int depth) {
  int32_t e_max[kN], c_exponent[kN];
  uint32_t c_magnitude[kN], bits[kN];
  std::memcpy(bits, x.c, sizeof bits);
  for (int j = 0; j < kN; ++j) {
    const uint32_t biased = bits[j] >> 23 & 0xff, fraction = bits[j] & 0x7fffff;
    c_magnitude[j] = biased != 0 ? fraction | 0x800000 : fraction;
    c_exponent[j] = static_cast<int32_t>(biased != 0 ? biased : 1) - 127;
    e_max[j] = larger(kLeast, c_magnitude[j] != 0 ? c_exponent[j] : kLeast);
  }
  for (int l = 0; l < depth; ++l) {
    for (int j = 0; j < kN; ++j) e_max[j] = larger(e_max[j], ea[l] + eb[l * kN + j]);
  }
  int64_t sum[kN];
  for (int j = 0; j < kN; ++j) {
    const int64_t c = shifted(c_magnitude[j], kFraction - 23 - (e_max[j] - c_exponent[j]));
    sum[j] = bits[j] >> 31 != 0 ? -c : c;
  }
  int32_t terms[kN];  // 8 terms below 2^27 fit
  for (int l0 = 0; l0 < depth; l0 += 8) {
    std::memset(terms, 0, sizeof terms);
    for (int l = l0; l < l0 + 8; ++l) {
      for (int j = 0; j < kN; ++j) {
        const int32_t product = a[l] * b[l * kN + j], negative = product >> 31;
        const uint32_t magnitude = static_cast<uint32_t>((product ^ negative) - negative);
        const int32_t cut =
            static_cast<int32_t>(shifted(magnitude, kFraction - 20 - (e_max[j] - ea[l] - eb[l * kN + j])));
        terms[j] += (cut ^ negative) - negative;
      }
    }
    for (int j = 0; j < kN; ++j) sum[j] += terms[j];
  }
  for (int j = 0; j < kN; ++j) x.c[j] = truncated(sum[j], e_max[j]);
}

}  // namespace

void single_emulate(const SinglePieces& a, const SinglePieces& b, int64_t chunks, SingleFormat format,
                    bool is_short, float* sums) {
  const int depth = single_depth(format), length = single_chunk(format, is_short), steps = length / depth;
  struct Pair {
    int left, right;  // pieces
  };
  constexpr Pair kSmall[] = {{2, 0}, {0, 2}, {1, 1}, {1, 0}, {0, 1}};
  float rest[kN] = {};
  for (int j = 0; j < kN; ++j) sums[j] = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    Accumulator x = {};
    const auto product = [&](int step, Pair of) {
      const int64_t l = chunk * length + step * depth, p = l * kN;
      multiply_add(x, a.significand[of.left] + l, a.exponent[of.left] + l, b.significand[of.right] + p,
                   b.exponent[of.right] + p, depth);
    };
    for (int step = 0; step < steps; ++step) {
      for (int i = is_short ? 0 : 3; i < 5; ++i) product(step, kSmall[i]);
    }
    if (is_short) {
      for (int j = 0; j < kN; ++j) rest[j] += x.c[j];
    }
    for (int step = 0; step < steps; ++step) {
      if (is_short) x = {};
      product(step, {0, 0});
      if (!is_short) continue;
      for (int j = 0; j < kN; ++j) {  // TwoSum
        const float sum = sums[j] + x.c[j], of_x = sum - sums[j];
        rest[j] += (sums[j] - (sum - of_x)) + (x.c[j] - of_x);
        sums[j] = sum;
      }
    }
    if (!is_short) {
      for (int j = 0; j < kN; ++j) sums[j] += x.c[j];
    }
  }
  for (int j = 0; j < kN; ++j) sums[j] += rest[j];
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
