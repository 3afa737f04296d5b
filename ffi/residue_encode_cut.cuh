// The integer of an entry, cut from its limbs by float64 additions (residue_encode.cuh).
//
//   sum over limbs of round(limb 2^units) + K,   K = 2^(32 W - 1) + sum_{0 < i < W} 2^(32 i + 16),   W words
//
// Idea:   adding M_j = 1.5 2^(52 + 32 j) to x = limb 2^units rounds it to a multiple of 2^(32 j), and the bits of the
//         sum less those of M_j, as integers, are that multiple: digit j, sign and all. Taken off again, the rest is
//         cut further. So digits need no shifts and no cases for signs; those of all limbs are added up word by word in
//         int64, and K, which is there from the start, keeps these sums positive, so that carries are plain.
// Exact:  cutting rounds to nearest, so a rest has no more bits than the limb. A limb's last digit is floor(r + 1/2),
//         of a limb below 0 floor(r + the number before 1/2), both sums rounded down: half away from zero.
//         Limb i of a normalized entry is below 2^(32 W - 2 - 53 i), its digit number top(i) below 2^42. Larger ones,
//         inf, nan, and units that are no float64 make plain() false: then IntegerOfLimbs serves.
// Cost:   5 instructions a digit, of which a limb has about 3, and 12 a limb.
// Source: this project's.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "residue.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

template <int kWords, int kLimbs>
class CutInteger {
 public:
  __device__ __forceinline__ explicit CutInteger(int units) {
    scale_ = __hiloint2double((units + 1023) << 20, 0);
    plain_ = static_cast<uint32_t>(units + 1000) <= 2000u;
#pragma unroll
    for (int j = 0; j < kWords; ++j) sum_[j] = j < kWords - 1 ? uint64_t{1} << 48 : 0x80000000u;
  }

  // i: a constant where this is unrolled.
  __device__ __forceinline__ void add(int i, double limb) {
    double x = __dmul_rn(limb, scale_);
    const int sign = __double2hiint(x) >> 31, most = i == 0 ? 32 * kWords - 2 : 32 * top(i) + 42;
    const uint32_t size = static_cast<uint32_t>(__double2hiint(x)) & 0x7fffffffu;
    plain_ = plain_ && size <= static_cast<uint32_t>(1023 + most) << 20;
#pragma unroll
    for (int j = top(i); j > 0; --j) {
      if (j < top(i) - 2 && x == 0) return;
      const double t = __dadd_rn(x, magic(j));
      x = __dsub_rn(x, __dsub_rn(t, magic(j)));
      add_digit(j, t);
    }
    const double half = __hiloint2double(0x3fe00000 + sign, sign);  // 1/2, below 0 the number before it
    add_digit(0, __dadd_rd(__dadd_rd(x, half), magic(0)));
  }

  __device__ bool plain() const { return plain_; }

  // store(j, word)
  template <class Store>
  __device__ __forceinline__ void finish(Store store) const {
    uint64_t v = 0;
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
      v = (v >> 32) + sum_[j];
      store(j, static_cast<uint32_t>(v));
    }
  }

 private:
  // Highest digit that limb i needs; what lies above stays in it.
  static __host__ __device__ constexpr int top(int i) {
    return 32 * kWords - 12 - 53 * i < 32 ? 0 : (32 * kWords - 12 - 53 * i) / 32;
  }
  static __host__ __device__ constexpr uint32_t magic_high(int j) {
    return static_cast<uint32_t>(1075 + 32 * j) << 20 | 0x80000u;
  }
  static __device__ double magic(int j) { return __hiloint2double(static_cast<int>(magic_high(j)), 0); }
  __device__ __forceinline__ void add_digit(int j, double sum) {
    sum_[j] += static_cast<uint64_t>(__double_as_longlong(sum)) - (uint64_t{magic_high(j)} << 32);
  }

  double scale_;
  bool plain_;
  uint64_t sum_[kWords];
};

}  // namespace JAXMD_ISA
}  // namespace jaxmd
