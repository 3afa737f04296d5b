// Multiple-double arithmetic, generic in the value type (value.h): error-free transformations, cascaded sums, canonical
// renormalization, product, quotient and square root of any number of limbs.
//
// For other kernels:
//   two_sum(a, b, s, e)              s = RN(a + b), s + e = a + b exactly
//   two_prod(a, b, p, e)             p = RN(ab),    p + e = ab exactly (|ab| ≥ 2^-968 or zero)
//   cascade_add<N>(acc, n, g, t)     acc[0..n) += t, entering at slot g; slots 0…n−2 exactly, the last one rounded
//   settle<N>(acc, g, n)             removes the overlap of acc[g..n), same sum
//   muladd<N>(acc, first, limbs, a, na, b, nb)
//                                    acc[0..limbs] += a_i·b_j of the orders first ≤ i + j ≤ limbs, for normalized a and b
//   distill<N>(x, n, limbs)          sweeps x[0..n) in place; lanes answered true hold in x[0..limbs) the canonical
//                                    rounding of the exact sum; the others need exact_sum
//   exact_sum(x, n, limbs, scale, r) scalar, slow, always right: r = canonical rounding of 2^scale·Σ x_i
//   round_sum<N>(x, n, limbs, r)     distill, then exact_sum for the lanes that need it: the one to call in doubt
// N is the array length n as a compile-time constant (loops unroll into registers) or 0 (loops run).
// Canonical: r_1 = RN(sum), r_2 = RN(sum − r_1), …, ties to even. It depends on the sum alone, so every instruction set
// and every order of work gives the same bits. Canonical implies normalized: |r_(i+1)| ≤ ulp(r_i)/2.
// u = 2^-53 in all bounds.
#pragma once

#include "fixed_point.h"
#include "value.h"

namespace jaxmd {
namespace JAXMD_ISA {

// Exact unless s overflows. Source: D. E. Knuth, The Art of Computer Programming 2 (3rd ed.), 4.2.2, theorem B.
template <class V>
JAXMD_INLINE void two_sum(V a, V b, V& s, V& e) {
  const V t = add_rn(a, b);
  const V bb = sub_rn(t, a);
  const V d = add_rn(sub_rn(a, sub_rn(t, bb)), sub_rn(b, bb));
  s = t;
  e = d;
}

// Exact where |ab| ≥ 2^-968 or ab = 0, and no overflow; below, e is the nearest double.
template <class V>
JAXMD_INLINE void two_prod(V a, V b, V& p, V& e) {
  const V t = mul_rn(a, b);
  e = fma_rn(a, b, neg(t));
  p = t;
}

template <int N, class V>
JAXMD_INLINE void cascade_add(V* acc, int n, int g, V t) {
  each<N>(n, [&](int h) JAXMD_LAMBDA {
    if (h < g) return;
    if (h < n - 1) {
      two_sum(acc[h], t, acc[h], t);
    } else {
      acc[h] = add_rn(acc[h], t);
    }
  });
}

// acc[g..n) := the same sum with |acc_(h+1)| ≤ u·|acc_h|, whatever overlapped (by less than 50 bits): two_sum upwards,
// then downwards. A cascade that takes many terms needs it: a slot's errors grow with the slots above, and without it
// their worst case grows like a factorial of the number of slots.
// Source: S. Boldo, M. Joldes, J.-M. Muller, V. Popescu, Formal verification of a floating-point expansion
// renormalization algorithm (ITP 2017): VecSum and VecSumErrBranch, here without the branch.
template <int N, class V>
JAXMD_INLINE void settle(V* acc, int g, int n) {
  each<N>(n - 1, [&](int i) JAXMD_LAMBDA {
    const int h = n - 2 - i;
    if (h >= g) two_sum(acc[h], acc[h + 1], acc[h], acc[h + 1]);
  });
  V t = acc[g];
  each<N>(n - 1, [&](int h) JAXMD_LAMBDA {
    if (h >= g && h < n - 1) two_sum(t, acc[h + 1], acc[h], t);
  });
  acc[n - 1] = t;
}

// Cascades of more slots than this settle after every order.
constexpr int kUnsettledLimbs = 4;

// Orders first ≤ g = i + j < limbs enter with their exact errors, order `limbs` is rounded, the rest (below
// u^(limbs+1)) is left out. The pair (i, j), (j, i) is added first, so that the result is symmetric in a and b.
template <int N, class V>
JAXMD_INLINE void muladd(V* acc, int first, int limbs, const V* a, int na, const V* b, int nb) {
  const int n = limbs + 1;
  each<N>(n, [&](int g) JAXMD_LAMBDA {
    if (g < first) return;
    each<N>(g / 2 + 1, [&](int i) JAXMD_LAMBDA {
      const int j = g - i;
      if (i > j) return;
      const bool one = i < na && j < nb, other = i != j && j < na && i < nb;
      if (!one && !other) return;
      V p, e, q, f;
      if (g == limbs) {
        p = one ? mul_rn(a[i], b[j]) : mul_rn(a[j], b[i]);
        if (one && other) p = add_rn(p, mul_rn(a[j], b[i]));
        acc[g] = add_rn(acc[g], p);
        return;
      }
      if (one && other) {
        two_prod(a[i], b[j], p, e);
        two_prod(a[j], b[i], q, f);
        two_sum(p, q, p, q);
        cascade_add<N>(acc, n, g, p);
        if (g + 1 == limbs) {
          acc[limbs] = add_rn(acc[limbs], add_rn(q, add_rn(e, f)));
          return;
        }
        two_sum(e, f, e, f);
        cascade_add<N>(acc, n, g + 1, q);
        cascade_add<N>(acc, n, g + 1, e);
        cascade_add<N>(acc, n, g + 2, f);
        return;
      }
      if (one) {
        two_prod(a[i], b[j], p, e);
      } else {
        two_prod(a[j], b[i], p, e);
      }
      cascade_add<N>(acc, n, g, p);
      cascade_add<N>(acc, n, g + 1, e);
    });
    if (limbs > kUnsettledLimbs && g < limbs) settle<N>(acc, g == 0 ? 0 : g - 1, n);
  });
}

// True where x[0..limbs) is the canonical rounding of Σ x[0..n). By monotonicity of rounding x_i = RN(x_i + rest) holds
// as soon as it holds for two numbers that enclose the rest.
template <int N, class V>
JAXMD_INLINE MaskOf<V> certified(const V* x, int n, int limbs) {
  const V zero = broadcast<V>(0.0), ulp = broadcast<V>(0x1p-52);
  MaskOf<V> ok = less(abs(x[0]), broadcast<V>(0x1p1000));
  MaskOf<V> below = less(zero, zero);  // is anything left below the limb at hand
  if (n > limbs) {
    V t = zero;
    each<N>(n, [&](int i) JAXMD_LAMBDA {
      const int j = n - 1 - i;
      if (j > limbs) t = add_rn(t, abs(x[j]));
    });
    V low = x[limbs], high = low;
    if (n > limbs + 1) {
      const V nudge = select(less(zero, t), mul_rn(abs(low), ulp), zero);
      const V w = add_rn(mul_rn(t, broadcast<V>(1 + 0x1p-45)), nudge);
      high = add_rn(low, w);
      low = sub_rn(low, w);
    }
    const V last = x[limbs - 1];
    ok = ok & equal(add_rn(last, low), last) & equal(add_rn(last, high), last);
    below = less(zero, add_rn(t, abs(x[limbs])));
  }
  each<N>(limbs - 1, [&](int i) JAXMD_LAMBDA {
    const int k = limbs - 2 - i;
    if (k < 0) return;
    const V next = x[k + 1];
    const V reach = add_rn(next, select(below, mul_rn(next, ulp), zero));
    ok = ok & equal(add_rn(x[k], reach), x[k]);
    below = less(zero, abs(next));
  });
  return ok;
}

// A few sweeps of two_sum from the tail (S. Rump's VecSum) make the leading limbs right for almost all data;
// certified() tells which. Exact: Σ x is unchanged (no overflow: then the lane is not certified).
template <int N, class V>
JAXMD_INLINE MaskOf<V> distill(V* x, int n, int limbs) {
  const int sweeps = limbs < n - 1 ? limbs : n - 1;
  MaskOf<V> ok = Value<V>::yes();
  for (int round = 0; round < 2; ++round) {
    each<N>(sweeps, [&](int i) JAXMD_LAMBDA {
      if (i >= sweeps) return;
      each<N>(n - 1, [&](int jj) JAXMD_LAMBDA {
        const int j = n - 2 - jj;
        if (j >= i) two_sum(x[j], x[j + 1], x[j], x[j + 1]);
      });
    });
    ok = certified<N>(x, n, limbs);
    if (all(ok)) break;
  }
  each<N>(limbs, [&](int i) JAXMD_LAMBDA {
    if (i > 0 && i < limbs) x[i] = add_rn(x[i], broadcast<V>(0.0));  // −0 becomes +0
  });
  return ok;
}

// r = canonical rounding of 2^scale·Σ x[0..n). Nonfinite terms decide alone (inf − inf is nan). A sum of zeros keeps
// the leading zero's sign; an exact cancellation is +0. At most 2^30 terms; 2^scale may lie far outside the double
// range. A sum that 2^scale takes below the double grid is rounded to it first (once, in the last limb), so that the
// limbs stay canonical.
JAXMD_NOINLINE void exact_sum(const double* x, int n, int limbs, int scale, double* r) {
  double special = 0;
  bool finite = true, zero = true;
  FixedPoint<-1074, 1024 + 32> sum;
  JAXMD_ROLLED
  for (int i = 0; i < n; ++i) {
    if (is_finite(x[i])) {
      sum.add(x[i]);
      zero = zero && x[i] == 0;
    } else {
      special = finite ? x[i] : add_rn(special, x[i]);
      finite = false;
    }
  }
  if (!finite || zero) {
    r[0] = finite ? x[0] : one_nan(special);
    JAXMD_ROLLED
    for (int i = 1; i < limbs; ++i) r[i] = 0;
    return;
  }
  sum.finish();
  sum.round(limbs, scale, r);
  // A limb rounded to 2^-1074 may now be half an ulp of an odd limb above it: the limbs' own sum, exact, settles that.
  bool rounded = false;
  JAXMD_ROLLED
  for (int i = 1; i < limbs; ++i) rounded = rounded || (r[i] != 0 && r[i] < 0x1p-1021 && r[i] > -0x1p-1021);
  if (scale < 0 && rounded) {
    sum.clear();
    JAXMD_ROLLED
    for (int i = 0; i < limbs; ++i) sum.add(r[i]);
    sum.finish();
    if (!sum.is_zero()) sum.round(limbs, 0, r);
  }
}

// The significand and exponent of Σ x: |m| in [1, 2], canonical in `limbs` limbs, x = m·2^(answer) to within u^limbs.
// Answers kSpecial with m[0] = the IEEE value for a zero, infinite or nan sum.
constexpr int kSpecial = INT32_MIN;
JAXMD_NOINLINE int normalized_significand(const double* x, int n, int limbs, double* m) {
  double special = 0;
  bool finite = true, zero = true;
  FixedPoint<-1074, 1024 + 32> sum;
  JAXMD_ROLLED
  for (int i = 0; i < n; ++i) {
    if (is_finite(x[i])) {
      sum.add(x[i]);
      zero = zero && x[i] == 0;
    } else {
      special = finite ? x[i] : add_rn(special, x[i]);
      finite = false;
    }
  }
  sum.finish();
  if (!finite || sum.is_zero()) {
    m[0] = !finite ? one_nan(special) : zero ? x[0] : 0.0;
    JAXMD_ROLLED
    for (int i = 1; i < limbs; ++i) m[i] = 0;
    return kSpecial;
  }
  const int e = sum.exponent();
  sum.round(limbs, -e, m);
  return e;
}

// exact_sum for the lanes not ok.
template <class V>
JAXMD_NOINLINE void exact_lanes(MaskOf<V> ok, const V* x, int n, int limbs, V* r) {
  double in[kMaxTerms], out[kMaxLimbs], buffer[Value<V>::lanes];
  for (int l = 0; l < Value<V>::lanes; ++l) {
    if (lane(ok, l)) continue;
    for (int i = 0; i < n; ++i) {
      Value<V>::store(buffer, x[i]);
      in[i] = buffer[l];
    }
    exact_sum(in, n, limbs, 0, out);
    for (int i = 0; i < limbs; ++i) {
      Value<V>::store(buffer, r[i]);
      buffer[l] = out[i];
      r[i] = Value<V>::load(buffer);
    }
  }
}

// r = canonical rounding of Σ x[0..n), |x_i| < 2^1000; x is scratch.
template <int N, class V>
JAXMD_INLINE void round_sum(V* x, int n, int limbs, V* r) {
  const MaskOf<V> ok = distill<N>(x, n, limbs);
  each<N>(limbs, [&](int i) JAXMD_LAMBDA {
    if (i < limbs) r[i] = x[i];
  });
  if (!all(ok)) {
    exact_lanes(ok, x, n, limbs, r);
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
