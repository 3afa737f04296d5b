// Engine "direct" for up to four limbs: multiple-double multiply-adds in floating point, generic in the value type.
//
// Formula: C = 2^(e_i + f_j)·Σ_l a_il·b_lj with a = 2^-e_i·A, b = 2^-f_j·B; a and b are held below 2^kTarget. For one
//   output with L limbs and W = L − 1 or L (the last order kept), u = 2^-53:
//   product   (t_0, …, t_W) = a·b: order g sums the g + 1 products a_i·b_(g−i) and the g² errors of order g − 1 with
//             two_sum, order W with plain additions;
//   merge     t_g enters slot g of an accumulator of L + 1 slots, two_sum down to slot L, which is a plain addition;
//   sweep     L passes of two_sum from the last slot up, at least every 256 merges;
//   for W = 1 only, `run` terms first meet in two doubles: s by two_sum, and all that is of order u in c, plain.
// Exact: every two_sum and two_prod. Operands are normalized, so |a_i| ≤ u^i·|a_0|.
// Bound: |C − AB| ≤ k·u^L·|A||B|/2 + u^L·|C|/2 for every k ≥ 1, in four parts (|ab| the term, X = |A||B|):
//   product  The roundings of order W are u times its partial sums. An error of two_prod is ≤ u·|product|, one of
//            two_sum ≤ u·|sum|, so in units of u^g·|ab| the items of order 1, 2, 3 are
//              1 1 | 1,   1 1 1 | 1 1 2 3,   1 1 1 1 | 1 1 1 2 3 4 5 7 10      (products | errors)
//            and the partial sums of order W, the first error foremost, are
//              W = 1: 2 3;  W = 2: 2 3 4 5 7 10;  W = 3: 2 3 4 5 6 7 9 12 16 21 28 38.
//            With the W + 2 dropped terms of order W + 1: error ≤ c_W·u^(W+1)·|ab|, c_1 = 8, c_2 = 35, c_3 = 156, and
//            c_4 ≤ 1000 likewise.
//   run      For S = Σ|ab| over a run of q: the errors of s are ≤ u·S each, so |c| ≤ u(3 + l)S after l terms, and the
//            two additions into c cost q + 3 and Σ_l (3 + l) more: with c_1 in all (q²/2 + 4.5q + 11)·u²·S.
//   merge    In units of u^h·X slot h is at most M_h: M_0 = 1 and M_h ≤ 1 + (items of order h, ≤ 40) + 256·h·M_(h−1),
//            since h two_sum a merge leave their error there. So M_2 < 1.6e5, M_3 < 1.3e8, M_4 < 1.3e11, and the
//            L + 1 additions into slot L cost (L + 1)·M_L·u^(L+1)·X < 1e-4·u^L·X a merge. A sweep brings slot h to
//            M_(h−1) of before, L sweeps to 1.
//   rounding Canonical, of the slots as they are: ≤ u^L/2 of the value for L ≥ 2 (|x| ≥ 1 leaves 2^(1−54L)).
//   So W = L always does: c_L·u ≤ 1e-4·k/2. W = L − 1 does where c_W or the sum over a run is ≤ 0.45·k: `direct_plan`.
//   L = 1 runs as L = 2 and is rounded to one limb: RN errs by ≤ u·|C| and by ≤ u(1 − u/2)·|x|, hence by half of each,
//   and the other half of u·X·k pays for the sum as soon as that is good to u²·X/4 (k = 1, W = 2) or u·X/4 (k ≥ 2).
// Range: with ESC = e_i + f_j − max_l(exp a_il + exp b_lj), entries with ESC ≤ 1530 − 53L: what scaling and products
//   lose below 2^-1074 is then under 2^-5·k·u^L·X.
// Cost of a multiply-add: dd 12 instructions + 20/run (run ≤ 32), td 64, qd 136 for large k; W = L 46, 113, 225.
// Source: the run is Dot2 of T. Ogita, S. Rump, S. Oishi, Accurate sum and dot product (SIAM J. Sci. Comput. 26(6),
//   2005), cut at about √k so that the bound holds whatever the data; the orders are Y. Hida, X. Li, D. Bailey, Algorithms for quad-double
//   precision floating point arithmetic (ARITH-15, 2001), section 3.3, without their dropped errors.
#pragma once

#include "limbs.h"
#include "product_shape.h"

namespace jaxmd {

constexpr int kDirectMaxLimbs = 4;  // more: window.h
constexpr int kTarget = 470;        // scaled operands are below 2^kTarget, sums below 2^(2·kTarget)·k < 2^1000

struct DirectTask {
  ProductShape shape;
  LimbPointers<const double> a, b;
  const int32_t *e, *f;  // [batch, m] and [batch, n]: |a_il| < 2^e_i, |b_lj| < 2^f_j
  LimbPointers<double> c;
};

struct DirectPlan {
  int limbs;  // L of the accumulator
  int order;  // W
  int run;    // q, for W = 1
};

inline DirectPlan direct_plan(int limbs, int64_t k) {
  if (limbs == 1) return {2, k == 1 ? 2 : 1, 32};
  if (limbs == 2) {
    int run = 32;
    while (run > 0 && 0.5 * run * run + 4.5 * run + 11 > 0.45 * k) run /= 2;
    return {2, run == 0 ? 2 : 1, run};
  }
  constexpr double kProductError[] = {0, 8, 35, 156};  // c_W
  return {limbs, kProductError[limbs - 1] > 0.45 * k ? limbs : limbs - 1, 1};
}

namespace JAXMD_ISA {

// (t_0, …, t_W) = (Σ a_i)·(Σ b_j) up to order W.
template <int W, class V>
JAXMD_INLINE void product(const V* a, const V* b, V* t) {
  V left[(W + 1) * (W + 1)], next[(W + 1) * (W + 1)];  // the errors of one order: of its products, then of its sums
  two_prod(a[0], b[0], t[0], left[0]);
  each<W>(W, [&](int g) JAXMD_LAMBDA {
    if (g == 0) return;
    V sum, p;
    two_prod(a[0], b[g], sum, next[0]);
    each<W>(W, [&](int i) JAXMD_LAMBDA {
      if (i == 0 || i > g) return;
      two_prod(a[i], b[g - i], p, next[i]);
      two_sum(sum, p, sum, next[g + i]);
    });
    each<W * W>(W * W, [&](int h) JAXMD_LAMBDA {
      if (h < g * g) two_sum(sum, left[h], sum, next[2 * g + 1 + h]);
    });
    t[g] = sum;
    each<W * W>(W * W, [&](int h) JAXMD_LAMBDA {
      if (h < (g + 1) * (g + 1)) left[h] = next[h];
    });
  });
  V sum = left[0];
  each<W + 1>(W + 1, [&](int i) JAXMD_LAMBDA { sum = fma_rn(a[i], b[W - i], sum); });
  each<W * W>(W * W, [&](int h) JAXMD_LAMBDA {
    if (h > 0) sum = add_rn(sum, left[h]);
  });
  t[W] = sum;
}

template <int L, int W, class V>
JAXMD_INLINE void merge(V* slot, const V* t) {
  each<W + 1>(W + 1, [&](int g) JAXMD_LAMBDA { cascade_add<L + 1>(slot, L + 1, g, t[g]); });
}

template <int L, class V>
JAXMD_INLINE void sweep(V* slot) {
  for (int pass = 0; pass < L; ++pass) {
    each<L>(L, [&](int h) JAXMD_LAMBDA { two_sum(slot[L - 1 - h], slot[L - h], slot[L - 1 - h], slot[L - h]); });
  }
}

// 2^s as two factors that are normal doubles, for |s| ≤ 2000.
struct ScaleFactors {
  double first, second;
};
JAXMD_INLINE ScaleFactors scale_factors(int s) {
  const int t = s > 1000 ? 1000 : s < -1000 ? -1000 : s;
  return {from_bits(static_cast<uint64_t>(t + 1023) << 52), from_bits(static_cast<uint64_t>(s - t + 1023) << 52)};
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
