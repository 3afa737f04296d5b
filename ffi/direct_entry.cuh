// What the CUDA kernels of engine "direct" do with one entry: scaling on the way in, rounding on the way out.
#pragma once

#include "direct.h"

namespace jaxmd {
namespace JAXMD_ISA {
namespace {

JAXMD_INLINE double scaled(double x, const ScaleFactors& by) { return mul_rn(mul_rn(x, by.first), by.second); }

// Entry `at` of c = canonical limbs of 2^scale·Σ slot.
template <int L, int kLimbs>
__device__ __forceinline__ void round_slots(const double* slot, int scale, const DirectTask& task, int64_t at) {
  double x[L + 1], c[kLimbs];
#pragma unroll
  for (int h = 0; h <= L; ++h) x[h] = slot[h];
  const bool certain = distill<L + 1>(x, L + 1, kLimbs);
  const double factor = from_bits(static_cast<uint64_t>(scale + 1023) << 52), lead = mul_rn(x[0], factor);
  if (certain && scale >= -1000 && scale <= 1000 && abs(lead) < 0x1p1000) {
    c[0] = lead;
#pragma unroll
    for (int h = 1; h < kLimbs; ++h) c[h] = add_rn(mul_rn(x[h], factor), 0.0);
  } else {
    exact_sum(slot, L + 1, kLimbs, scale, c);
  }
#pragma unroll
  for (int h = 0; h < kLimbs; ++h) task.c.limb[h][at] = c[h];
}

template <int L>
__device__ __forceinline__ void round_entry(const double* slot, int scale, const DirectTask& task, int64_t at) {
  if (task.c.count == L) {
    round_slots<L, L>(slot, scale, task, at);
  } else {
    round_slots<L, 1>(slot, scale, task, at);
  }
}

}  // namespace
}  // namespace JAXMD_ISA
}  // namespace jaxmd
