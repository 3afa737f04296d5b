// Digits of two-digit moduli on CUDA: (a, b) with a + t b = r mod p, two residues at a time.
//
//   (r, 0) minus the point, of four, of the lattice spanned by v and w (_residues.encoding) that leaves the least
//   max(|a|, |b|, |a + b|), the first of equals
//
// Idea:   two numbers share a word. (r, 0) = r w_b/p v - r v_b/p w gives the first point in integers; with 0x6600
//         added, its fields are halves, 1536 + a, of which float16 finds the best point: its maximum of three absolute
//         values is one instruction, and its sums leave the integer units free.
// Exact:  quotients by multiplication, to 2^-18: r = 0 gives 0, and no other multiple of 1/p comes closer than that to
//         an integer. |a|, |b|, |a + b| <= 383 for all points and moduli, so that 1536 + a is an integer that float16
//         holds, and so is 4 max(...) + the point's number, whose least is looked for.
// Cost:   55 instructions for two residues, half of them in float16.
// Source: this project's.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "residue.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

__device__ inline __half2 both_halves(int x) { return __half2half2(__int2half_rn(x)); }
__device__ inline uint32_t half_bits(__half2 x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
__device__ inline __half2 halves_of(uint32_t bits) {
  __half2 x;
  memcpy(&x, &bits, 4);
  return x;
}

// The three digits of two residues each, in the low bytes of the fields.
struct DigitFields {
  uint32_t a, b, sum;
};

// One modulus, as 64 bytes of shared memory.
struct PairConstants {
  int32_t p;
  uint32_t factor;             // of FloorReducer
  int32_t start;               // of the sums of low bytes
  int32_t factor_n, factor_l;  // round(w_b 2^32 / p), round(-v_b 2^32 / p)
  int32_t va, vb, wa, wb;
  uint32_t halves[6];  // v_a, v_b, v_a + v_b, w_a, w_b, w_a + w_b, each twice
  uint32_t unused;

  static __device__ int32_t rounded_quotient(int64_t x, int32_t p) {
    return static_cast<int32_t>((x >= 0 ? x + p / 2 : x - p / 2) / p);
  }
  // bias: K mod p
  static __device__ PairConstants make(int32_t p, const int32_t* basis, int32_t bias) {
    const FloorReducer m = make_floor_reducer(p);
    const int64_t one = int64_t{1} << 32;
    PairConstants c = {p, m.factor, m.lift - bias, rounded_quotient(one * basis[3], p),
                       rounded_quotient(-one * basis[1], p), basis[0], basis[1], basis[2], basis[3], {}, 0};
    const int numbers[6] = {basis[0], basis[1], basis[0] + basis[1], basis[2], basis[3], basis[2] + basis[3]};
    for (int i = 0; i < 6; ++i) c.halves[i] = half_bits(both_halves(numbers[i]));
    return c;
  }

  // Of 2^8 high + low: sums of the weights' bytes.
  __device__ __forceinline__ int32_t residue(int high, int low) const {
    return reduce(FloorReducer{p, factor, 0}, 256 * static_cast<uint32_t>(high) + static_cast<uint32_t>(low));
  }

  __device__ __forceinline__ DigitFields digits(int32_t r_low, int32_t r_high) const {
    constexpr uint32_t kBias = 0x66006600u;  // 1536 twice
    const auto fields = [](int32_t low, int32_t high) {
      return static_cast<uint32_t>(low) + (static_cast<uint32_t>(high) << 16);
    };
    const uint32_t n = fields(high_product(r_low, factor_n), high_product(r_high, factor_n));
    const uint32_t l = fields(high_product(r_low, factor_l), high_product(r_high, factor_l));
    const uint32_t r = fields(r_low, r_high) + kBias;
    const uint32_t first_a = r - n * static_cast<uint32_t>(va) - l * static_cast<uint32_t>(wa);
    const uint32_t first_b = kBias - n * static_cast<uint32_t>(vb) - l * static_cast<uint32_t>(wb);
    // 4 times the numbers of the four points
    const __half2 four = halves_of(0x44004400u), minus_four = halves_of(0xc400c400u), bias = halves_of(0xee00ee00u);
    const __half2 a = __hfma2(halves_of(first_a), four, bias), b = __hfma2(halves_of(first_b), four, bias);
    const __half2 sum = __hadd2(a, b);
    const auto less = [&](__half2 x, int i) { return __hfma2(halves_of(halves[i]), minus_four, x); };
    const __half2 a1 = less(a, 0), b1 = less(b, 1), sum1 = less(sum, 2);
    const auto norm = [](__half2 x, __half2 y, __half2 z) {
      return __hmax2(__hmax2(__habs2(x), __habs2(y)), __habs2(z));
    };
    const __half2 one = halves_of(0x3c003c00u), two = halves_of(0x40004000u), three = halves_of(0x42004200u);
    const __half2 k0 = norm(a, b, sum), k1 = __hadd2(norm(a1, b1, sum1), one);
    const __half2 k2 = __hadd2(norm(less(a, 3), less(b, 4), less(sum, 5)), two);
    const __half2 k3 = __hadd2(norm(less(a1, 3), less(b1, 4), less(sum1, 5)), three);
    const __half2 least = __hmin2(__hmin2(__hmin2(k0, k1), k2), k3);
    const __half2 both = __heq2(k3, least);
    const __half2 minus_v = __hneg2(__hadd2(__heq2(k1, least), both));
    const __half2 minus_w = __hneg2(__hadd2(__heq2(k2, least), both));
    const auto best = [&](uint32_t first, int v, int w) {
      const __half2 without_v = __hfma2(minus_v, halves_of(halves[v]), halves_of(first));
      return half_bits(__hfma2(minus_w, halves_of(halves[w]), without_v));
    };
    const uint32_t best_a = best(first_a, 0, 3), best_b = best(first_b, 1, 4);
    return {best_a, best_b, best_a + best_b};
  }
};
static_assert(sizeof(PairConstants) == 64);

}  // namespace JAXMD_ISA
}  // namespace jaxmd
