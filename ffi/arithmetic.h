// The four operations on multiple doubles, generic in the value type, on top of limbs.h.
//
// Each operation has two parts that share one core:
//   x_fast(…)     packs of lanes; answers which lanes are done: operands finite and within 2^±reach(limbs), or zero
//   x_careful(…)  one element, any input: operands are scaled to significands in [1, 2], the core runs, and the exact
//   sum
//                 of its slots is rounded once into the scaled-back format (gradual underflow, overflow to inf)
// A lane's path depends on its own operands only, and either path rounds the same slots canonically: the bits do not
// depend on the instruction set, on neighbours, or on which side of a product an operand stands.
#pragma once

#include "limbs.h"

namespace jaxmd {
namespace JAXMD_ISA {

// Operands within 2^±reach keep every product and residual above 2^-1074·u^-limbs·2^62 unscaled, so that what underflow
// takes is below 2^-50 units of the last limb.
JAXMD_INLINE int reach(int limbs) { return (1074 - 62 - 53 * limbs) / 2; }
JAXMD_INLINE double power_of_two(int e) { return from_bits(static_cast<uint64_t>(e + 1023) << 52); }

template <class V>
JAXMD_INLINE MaskOf<V> within_reach(V x, int limbs) {
  const V a = abs(x), zero = broadcast<V>(0.0), far = broadcast<V>(power_of_two(reach(limbs)));
  const V near = broadcast<V>(power_of_two(-reach(limbs)));
  return less_equal(a, far) & (less_equal(near, a) | equal(a, zero));
}

// x := canonical limbs of the same value, as many; answers the lanes where that is certain. A zero keeps the sign of
// its leading limb when all limbs are zero, and is +0 after a cancellation.
template <int N, class V>
JAXMD_INLINE MaskOf<V> normalize(V* x, int n) {
  if (n == 1) return less(abs(x[0]), broadcast<V>(0x1p1000));
  MaskOf<V> ok = certified<N>(x, n, n);
  if (all(ok)) return ok;
  const V lead = x[0];
  V zero = broadcast<V>(0.0), size = zero;
  each<N>(n, [&](int i) JAXMD_LAMBDA { size = add_rn(size, abs(x[i])); });
  if (n == 2) {  // one two_sum is canonical
    two_sum(x[0], x[1], x[0], x[1]);
    ok = less(abs(x[0]), broadcast<V>(0x1p1000));
  } else {
    ok = distill<N>(x, n, n);
  }
  x[0] = select(equal(x[0], zero), select(equal(size, zero), lead, zero), x[0]);
  return ok;
}

// ---- add: the exact sum of all limbs, rounded canonically.  |error| ≤ 2^-53L·|x + y|, no underflow, any input.

template <int K, class V>
JAXMD_INLINE MaskOf<V> add_fast(const V* x, int nx, const V* y, int ny, int limbs, V* r) {
  const V zero = broadcast<V>(0.0);
  V t[K == 0 ? 2 * kMaxLimbs : 2 * K + 1];
  const int n = nx + ny, m = nx < ny ? nx : ny;
  // x_i + y_i and its error, interleaved so that sizes decrease: s0, s1, e0, s2, e1, …
  each<K>(m, [&](int i) JAXMD_LAMBDA {
    V s, e;
    two_sum(x[i], y[i], s, e);
    t[i == 0 ? 0 : 2 * i - 1] = s;
    t[i == m - 1 ? 2 * i + 1 : 2 * i + 2] = e;
  });
  if constexpr (K == 0) {
    for (int i = m; i < nx; ++i) t[m + i] = x[i];
    for (int i = m; i < ny; ++i) t[m + i] = y[i];
  }
  const int kept = limbs < n ? limbs : n;
  const MaskOf<V> ok = distill<(K == 0 ? 0 : 2 * K)>(t, n, kept);
  each<K>(limbs, [&](int i) JAXMD_LAMBDA { r[i] = i < kept ? t[i] : zero; });
  const MaskOf<V> vanished = equal(r[0], zero);
  if (any(vanished)) {
    V size = zero;
    for (int i = 0; i < nx; ++i) size = add_rn(size, abs(x[i]));
    for (int i = 0; i < ny; ++i) size = add_rn(size, abs(y[i]));
    r[0] = select(vanished, select(equal(size, zero), add_rn(x[0], y[0]), zero), r[0]);
  }
  return ok;
}

JAXMD_NOINLINE void add_careful(const double* x, int nx, const double* y, int ny, int limbs, double* r) {
  double t[2 * kMaxLimbs];
  bool zero = true;
  for (int i = 0; i < nx; ++i) t[i] = x[i];
  for (int i = 0; i < ny; ++i) t[nx + i] = y[i];
  for (int i = 0; i < nx + ny; ++i) zero = zero && t[i] == 0;
  exact_sum(t, nx + ny, limbs, 0, r);
  if (zero) r[0] = add_rn(x[0], y[0]);
}

// ---- mul: the triangle of products with their exact errors, order `limbs` rounded.
// |error| ≤ (1 + 2^-27)·2^-53L·|xy| while no limb of the result is subnormal. u^L is the last rounding; the rest is
// what order `limbs` rounds, u^(L+1) times the sum of the sizes that pass through the last slot (2^-27 at L = 16,
// 2^-39 at 8, 2^-47 at 2, by following |slots| through the loops with every error at its largest), and (L + 2)·u^(L+1)
// left out.

template <int K, class V>
JAXMD_INLINE void mul_core(const V* a, int na, const V* b, int nb, int limbs, V* acc) {
  constexpr int N = K == 0 ? 0 : K + 1;
  each<N>(limbs + 1, [&](int i) JAXMD_LAMBDA { acc[i] = broadcast<V>(0.0); });
  two_prod(a[0], b[0], acc[0], acc[1]);
  muladd<N>(acc, 1, limbs, a, na, b, nb);
}

template <int K, class V>
JAXMD_INLINE MaskOf<V> mul_fast(V* x, int nx, V* y, int ny, int limbs, V* r) {
  V acc[K == 0 ? kMaxLimbs + 1 : K + 1];
  MaskOf<V> ok = normalize<K>(x, nx) & normalize<K>(y, ny);
  ok = ok & within_reach(x[0], limbs) & within_reach(y[0], limbs);
  mul_core<K>(x, nx, y, ny, limbs, acc);
  ok = ok & distill<(K == 0 ? 0 : K + 1)>(acc, limbs + 1, limbs);
  each<K>(limbs, [&](int i) JAXMD_LAMBDA { r[i] = acc[i]; });
  r[0] = select(equal(r[0], broadcast<V>(0.0)), mul_rn(x[0], y[0]), r[0]);
  return ok;
}

// Both operands as the fast path would see them; false where it would not take them.
JAXMD_INLINE bool fast_operands(const double* x, int nx, const double* y, int ny, int limbs, double* a, double* b) {
  exact_sum(x, nx, nx, 0, a);
  exact_sum(y, ny, ny, 0, b);
  return within_reach(a[0], limbs) && within_reach(b[0], limbs) && a[0] != 0 && b[0] != 0;
}

JAXMD_INLINE void fill(double* r, int limbs, double lead) {
  r[0] = one_nan(lead);
  for (int i = 1; i < limbs; ++i) r[i] = 0;
}

JAXMD_NOINLINE void mul_careful(const double* x, int nx, const double* y, int ny, int limbs, double* r) {
  double a[kMaxLimbs + 1], b[kMaxLimbs + 1], acc[kMaxLimbs + 1];
  if (fast_operands(x, nx, y, ny, limbs, a, b)) {
    mul_core<0>(a, nx, b, ny, limbs, acc);
    exact_sum(acc, limbs + 1, limbs, 0, r);
    return;
  }
  const int na = nx < limbs + 1 ? nx : limbs + 1, nb = ny < limbs + 1 ? ny : limbs + 1;
  const int ea = normalized_significand(x, nx, na, a), eb = normalized_significand(y, ny, nb, b);
  if (ea == kSpecial || eb == kSpecial) return fill(r, limbs, mul_rn(a[0], b[0]));
  mul_core<0>(a, na, b, nb, limbs, acc);
  exact_sum(acc, limbs + 1, limbs, ea + eb, r);
}

// ---- div: long division. q_k = RN(rest/y_0), rest −= q_k·y in a cascade of limbs + 1 slots, one digit more than
// limbs. |error| ≤ (1 + 2^-10)·2^-53L·|x/y| while no limb of the result is subnormal. u^L is the last rounding; a step
// leaves |rest| ≤ 4.1u·|rest|, so that 2^-20·u^L is left after L + 1 digits, and the last slot rounds less than
// 2^-10·u^L in all (2^-10 at L = 16, 2^-31 at 8, 2^-43 at 2, following |slots| as for mul).
// Source: the long division of Y. Hida, X. Li, D. Bailey, Algorithms for quad-double precision floating point
// arithmetic (ARITH-15, 2001), section 3.5; ours keeps the rest in exact cascades and any limb count.

// The rest after digit k is of order k + 1: slot k, nearly cancelled, is emptied into the slots below.
template <int N, class V>
JAXMD_INLINE void pass_down(V* rest, int k, int limbs) {
  if (limbs <= kUnsettledLimbs) {
    cascade_add<N>(rest, limbs + 1, k + 1, rest[k]);
    return;
  }
  settle<N>(rest, k, limbs + 1);
  rest[limbs] = add_rn(rest[limbs - 1], rest[limbs]);
  each<N>(limbs - 1, [&](int i) JAXMD_LAMBDA {
    const int h = limbs - 1 - i;
    if (h > k) rest[h] = rest[h - 1];
  });
}

template <int K, class V>
JAXMD_INLINE void div_core(const V* a, int na, const V* b, int nb, int limbs, V* q) {
  constexpr int N = K == 0 ? 0 : K + 1;
  const int n = limbs + 1;
  V rest[K == 0 ? kMaxLimbs + 1 : K + 1];
  each<N>(n, [&](int i) JAXMD_LAMBDA { rest[i] = i < na ? a[i] : broadcast<V>(0.0); });
  each<N>(n, [&](int k) JAXMD_LAMBDA {
    const V lead = k + 1 < n ? add_rn(rest[k], rest[k + 1]) : rest[k];
    q[k] = div_rn(lead, b[0]);
    if (k == n - 1) return;
    const V digit = neg(q[k]);
    each<N>(n - k, [&](int j) JAXMD_LAMBDA {
      if (j >= nb || k + j >= n) return;
      V p, e;
      two_prod(digit, b[j], p, e);
      cascade_add<N>(rest, n, k + j, p);
      cascade_add<N>(rest, n, k + j + 1, e);
    });
    pass_down<N>(rest, k, limbs);
  });
}

template <int K, class V>
JAXMD_INLINE MaskOf<V> div_fast(V* x, int nx, V* y, int ny, int limbs, V* r) {
  const V zero = broadcast<V>(0.0);
  V q[K == 0 ? kMaxLimbs + 1 : K + 1];
  MaskOf<V> ok = normalize<K>(x, nx) & normalize<K>(y, ny);
  ok = ok & within_reach(x[0], limbs) & within_reach(y[0], limbs) & less(zero, abs(y[0]));
  div_core<K>(x, nx, y, ny, limbs, q);
  ok = ok & distill<(K == 0 ? 0 : K + 1)>(q, limbs + 1, limbs);
  each<K>(limbs, [&](int i) JAXMD_LAMBDA { r[i] = q[i]; });
  r[0] = select(equal(x[0], zero), div_rn(x[0], y[0]), r[0]);
  return ok;
}

JAXMD_NOINLINE void div_careful(const double* x, int nx, const double* y, int ny, int limbs, double* r) {
  double a[kMaxLimbs + 1], b[kMaxLimbs + 1], q[kMaxLimbs + 1];
  if (fast_operands(x, nx, y, ny, limbs, a, b)) {
    div_core<0>(a, nx, b, ny, limbs, q);
    exact_sum(q, limbs + 1, limbs, 0, r);
    return;
  }
  const int na = nx < limbs + 1 ? nx : limbs + 1, nb = ny < limbs + 1 ? ny : limbs + 1;
  const int ea = normalized_significand(x, nx, na, a), eb = normalized_significand(y, ny, nb, b);
  if (ea == kSpecial || eb == kSpecial) return fill(r, limbs, div_rn(a[0], b[0]));
  div_core<0>(a, na, b, nb, limbs, q);
  exact_sum(q, limbs + 1, limbs, ea - eb, r);
}

// ---- sqrt: digit by digit. d_0 = RN(√x_0), d_k = RN(rest/(2·d_0)), rest = x − (d_0 + … + d_k)² in a cascade.
// |error| ≤ (1 + 2^-10)·2^-53L·√x while no limb of the result is subnormal, as for div.

template <int K, class V>
JAXMD_INLINE void sqrt_core(const V* a, int na, int limbs, V* d) {
  constexpr int N = K == 0 ? 0 : K + 1;
  const int n = limbs + 1;
  V rest[K == 0 ? kMaxLimbs + 1 : K + 1];
  each<N>(n, [&](int i) JAXMD_LAMBDA { rest[i] = i < na ? a[i] : broadcast<V>(0.0); });
  d[0] = sqrt_rn(a[0]);
  const V twice = add_rn(d[0], d[0]);
  each<N>(n, [&](int k) JAXMD_LAMBDA {
    if (k > 0) {
      const V lead = k + 1 < n ? add_rn(rest[k], rest[k + 1]) : rest[k];
      d[k] = div_rn(lead, twice);
    }
    if (k == n - 1) return;
    const V digit = neg(add_rn(d[k], d[k]));
    each<N>(k + 1, [&](int i) JAXMD_LAMBDA {
      if (i > k || i + k >= n) return;
      V p, e;
      two_prod(i == k ? neg(d[k]) : digit, d[i], p, e);
      cascade_add<N>(rest, n, k + i, p);
      cascade_add<N>(rest, n, k + i + 1, e);
    });
    pass_down<N>(rest, k, limbs);
  });
}

template <int K, class V>
JAXMD_INLINE MaskOf<V> sqrt_fast(V* x, int nx, int limbs, V* r) {
  const V zero = broadcast<V>(0.0);
  V d[K == 0 ? kMaxLimbs + 1 : K + 1];
  MaskOf<V> ok = normalize<K>(x, nx);
  const MaskOf<V> vanished = equal(x[0], zero);
  ok = ok & within_reach(x[0], limbs) & less_equal(zero, x[0]);
  const V lead = x[0];
  x[0] = select(vanished, broadcast<V>(1.0), lead);
  sqrt_core<K>(x, nx, limbs, d);
  ok = ok & distill<(K == 0 ? 0 : K + 1)>(d, limbs + 1, limbs);
  each<K>(limbs, [&](int i) JAXMD_LAMBDA { r[i] = select(vanished, zero, d[i]); });
  r[0] = select(vanished, lead, d[0]);
  return ok;
}

JAXMD_NOINLINE void sqrt_careful(const double* x, int nx, int limbs, double* r) {
  double a[kMaxLimbs + 1], d[kMaxLimbs + 1];
  exact_sum(x, nx, nx, 0, a);
  if (within_reach(a[0], limbs) && a[0] > 0) {
    sqrt_core<0>(a, nx, limbs, d);
    exact_sum(d, limbs + 1, limbs, 0, r);
    return;
  }
  const int na = nx < limbs + 1 ? nx : limbs + 1;
  int e = normalized_significand(x, nx, na, a);
  if (e == kSpecial || a[0] < 0) return fill(r, limbs, sqrt_rn(a[0]));
  if (e & 1) {
    for (int i = 0; i < na; ++i) a[i] = mul_rn(a[i], 2.0);
    e -= 1;
  }
  sqrt_core<0>(a, na, limbs, d);
  exact_sum(d, limbs + 1, limbs, e / 2, r);
}

// ---- scale: x·2^e, canonical, rounded only in the subnormal range, overflow to inf.

JAXMD_NOINLINE void scale_careful(const double* x, int n, int exponent, double* r) {
  const int bound = 1 << 14;
  const int e = exponent < -bound ? -bound : exponent > bound ? bound : exponent;
  exact_sum(x, n, n, e, r);
}

// Limb by limb; answers the lanes where that is exact.
template <class V>
JAXMD_INLINE MaskOf<V> scale_limbs(const V* x, int n, V factor, V inverse, V* r) {
  MaskOf<V> ok = equal(x[0], x[0]);
  for (int i = 0; i < n; ++i) {
    r[i] = mul_rn(x[i], factor);
    ok = ok & equal(mul_rn(r[i], inverse), x[i]);
    if (i > 0) r[i] = add_rn(r[i], broadcast<V>(0.0));
  }
  return ok & less(abs(r[0]), broadcast<V>(0x1p1000));
}

template <class V>
JAXMD_INLINE MaskOf<V> scale_fast(V* x, int n, V factor, V inverse, V* r) {
  return certified<0>(x, n, n) & scale_limbs(x, n, factor, inverse, r);
}

// ---- two_sum, two_prod as operations: the error of an infinite or nan result is +0.

template <class V>
JAXMD_INLINE MaskOf<V> two_sum_fast(V a, V b, V* r) {
  two_sum(a, b, r[0], r[1]);
  return less(abs(r[0]), broadcast<V>(0x1p1000)) & less_equal(abs(r[1]), broadcast<V>(0x1p1000));
}

JAXMD_NOINLINE void two_sum_careful(double a, double b, double* r) {
  const double t[2] = {a, b};
  exact_sum(t, 2, 2, 0, r);
  r[0] = one_nan(add_rn(a, b));
}

template <class V>
JAXMD_INLINE MaskOf<V> two_prod_fast(V a, V b, V* r) {
  two_prod(a, b, r[0], r[1]);
  return less(abs(r[0]), broadcast<V>(0x1p1000)) & less_equal(abs(r[1]), broadcast<V>(0x1p1000));
}

JAXMD_NOINLINE void two_prod_careful(double a, double b, double* r) {
  two_prod(a, b, r[0], r[1]);
  r[0] = one_nan(r[0]);
  if (!is_finite(r[0])) r[1] = 0;
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
