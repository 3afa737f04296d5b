// Eight two-digit moduli of half a row of a tile of the residue encoder (residue_encode.cuh).
//
//   f = 129 (X + 128) mod p = 129 (a + 128) + 256 b,   out = a, b, a + b        (_residues.py, which says why they fit)
//
// Idea:   y = f + m p >= 0 comes doubled from the tensor cores, 2 y = 256 high + low. With 2 y 2^15 / p the quotient
//         floor(y / p) is the upper half of a word, so that one byte permutation packs two, and one multiplication
//         takes p off two numbers of 16 bits in a word. Then four entries share a word, a byte each: with u = a + 128,
//         u = f ± 128 mod 256 where f is odd, and b = floor(f / 256) - floor(129 u / 256), where
//         floor(129 u / 256) = floor(u / 2), and 1 more for an odd u from 128 on.
// Exact:  C = ceil(2^47 / p) = (2^47 + e) / p, e < p, makes y C / 2^47 too large by less than y / 2^47 < 1 / p, y being
//         below 2^31 (tests/test_residues.py). No byte borrows or carries: floor(f / 256) <= 127, and b + 128 and
//         a + b + 128 are in 0 ... 255.
// Cost:   29 instructions for four residues, 8 of them multiplications.
// Source: this project's.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "residue_encode_row.cuh"
#include "residue_encode_tables.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

// The high word of x y, plus z.
__device__ __forceinline__ uint32_t high_product_plus(uint32_t x, uint32_t y, uint32_t z) {
#if defined(__CUDA_ARCH__)
  uint32_t r;
  asm("mad.hi.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
  return r;
#else
  return static_cast<uint32_t>(static_cast<uint64_t>(x) * y >> 32) + z;
#endif
}

// f of two entries, 16 bits each, from the sums of the doubled weights' bytes.
__device__ __forceinline__ uint32_t two_residues(const PairConstants& m, const int (&sums)[4]) {
  uint32_t y[2], quotient[2];  // 2 y, and floor(y / p) in the upper half
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    y[i] = 256 * static_cast<uint32_t>(sums[i]) + static_cast<uint32_t>(sums[2 + i]);
    quotient[i] = high_product_plus(y[i], m.factor, y[i]);
  }
  return (y[0] + (y[1] << 16) + __byte_perm(quotient[0], quotient[1], 0x7632) * m.minus_2p) >> 1;
}

// The digits of four entries, a byte each.
struct FourDigits {
  uint32_t a, b, sum;

  // f: two residues and two more, 16 bits each
  __device__ __forceinline__ FourDigits(uint32_t f, uint32_t more) {
    constexpr uint32_t kOnes = 0x01010101u, kTops = 0x80808080u;
    const uint32_t low = __byte_perm(f, more, 0x6420), high = __byte_perm(f, more, 0x7531);
    const uint32_t u = low ^ (low << 7 & kTops);
    const uint32_t raised = high + (~(u >> 1) & ~kTops) + (~(u & u >> 7) & kOnes);  // b + 128
    a = u ^ kTops;
    b = raised ^ kTops;
    sum = (u + raised - kTops) ^ kTops;
  }
};

// `out`: where the lane's entries of the first of the modulus's channels go; stored if so.
template <bool kLoaded, int kSteps>
__device__ __forceinline__ void encode_pairs(EncodeRow<kSteps>& row, const unsigned char* tile, int8_t* out,
                                             int64_t channel_size, bool stored) {
  const PairConstants m = reinterpret_cast<const PairConstants*>(tile + EncodeLayout::kConstants)[row.g];
  int sums[4][4];
  row.template multiply<kLoaded>(sums, tile);
  const FourDigits first(two_residues(m, sums[0]), two_residues(m, sums[1]));
  const FourDigits second(two_residues(m, sums[2]), two_residues(m, sums[3]));
  if (!stored) return;
  *reinterpret_cast<uint2*>(out) = make_uint2(first.a, second.a);
  *reinterpret_cast<uint2*>(out + channel_size) = make_uint2(first.b, second.b);
  *reinterpret_cast<uint2*>(out + 2 * channel_size) = make_uint2(first.sum, second.sum);
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
