// Elementwise kernels: limbs of a pack of elements into registers, the operation of arithmetic.h, and the careful
// scalar path for the lanes that the fast one declines. Compiled once per instruction set.
#include "elementwise.h"

#include "arithmetic.h"
#include "scale_lanes.h"
#include "simd.h"

namespace jaxmd {
namespace JAXMD_ISA {
namespace {

template <class V>
JAXMD_INLINE void load(V* x, Limbs p, int n, int64_t at) {
  for (int i = 0; i < n; ++i) x[i] = Value<V>::load(p[i] + at);
}
template <class V>
JAXMD_INLINE void store(LimbsOut p, const V* r, int n, int64_t at) {
  for (int i = 0; i < n; ++i) Value<V>::store(p[i] + at, r[i]);
}

// step(V(), at) answers the finished lanes of elements at … at + lanes − 1 and repair(at) redoes one element. Whole
// packs first, then the rest one by one.
template <class Step, class Repair>
JAXMD_INLINE void for_packs(int64_t begin, int64_t end, Step step, Repair repair) {
  constexpr int lanes = Value<Pack>::lanes;
  int64_t at = begin;
  for (; at + lanes <= end; at += lanes) {
    const MaskOf<Pack> ok = step(Pack{}, at);
    if (!all(ok)) {
      for (int l = 0; l < lanes; ++l) {
        if (!lane(ok, l)) repair(at + l);
      }
    }
  }
  if constexpr (lanes > 1) {
    for (; at < end; ++at) {
      if (!step(double{}, at)) repair(at);
    }
  }
}

// Packs get unrolled code; the few elements after the last pack share the loops, which compile faster.
template <class V>
constexpr int constant_for(int limbs) {
  return Value<V>::lanes == Value<Pack>::lanes ? limbs : 0;
}

struct Add {
  template <int K, class V>
  static JAXMD_INLINE MaskOf<V> fast(V* x, int nx, V* y, int ny, int limbs, V* r) {
    return add_fast<K>(x, nx, y, ny, limbs, r);
  }
  static constexpr auto careful = add_careful;
};
struct Mul {
  template <int K, class V>
  static JAXMD_INLINE MaskOf<V> fast(V* x, int nx, V* y, int ny, int limbs, V* r) {
    return mul_fast<K>(x, nx, y, ny, limbs, r);
  }
  static constexpr auto careful = mul_careful;
};
struct Div {
  template <int K, class V>
  static JAXMD_INLINE MaskOf<V> fast(V* x, int nx, V* y, int ny, int limbs, V* r) {
    return div_fast<K>(x, nx, y, ny, limbs, r);
  }
  static constexpr auto careful = div_careful;
};

// K: the limb count of operands and result as a constant, or 0 for any counts.
template <class Op, int K>
void binary_kernel(Limbs px, int nx, Limbs py, int ny, LimbsOut pr, int limbs, int64_t begin, int64_t end) {
  if constexpr (K > 0) nx = ny = limbs = K;
  constexpr int size = K == 0 ? kMaxLimbs : K;
  for_packs(
      begin, end,
      [&](auto lanes, int64_t at) JAXMD_LAMBDA {
        using V = decltype(lanes);
        V x[size], y[size], r[size];
        load(x, px, nx, at);
        load(y, py, ny, at);
        const MaskOf<V> ok = Op::template fast<constant_for<V>(K), V>(x, nx, y, ny, limbs, r);
        store(pr, r, limbs, at);
        return ok;
      },
      [&](int64_t at) {
        double x[kMaxLimbs], y[kMaxLimbs], r[kMaxLimbs];
        load(x, px, nx, at);
        load(y, py, ny, at);
        Op::careful(x, nx, y, ny, limbs, r);
        store(pr, r, limbs, at);
      });
}

template <class Op>
void binary(Limbs px, int nx, Limbs py, int ny, LimbsOut pr, int limbs, int64_t begin, int64_t end) {
  ElementwiseKernels::Binary kernel = binary_kernel<Op, 0>;
  if (nx == limbs && ny == limbs) {
    if (limbs == 1) kernel = binary_kernel<Op, 1>;
    if (limbs == 2) kernel = binary_kernel<Op, 2>;
    if (limbs == 3) kernel = binary_kernel<Op, 3>;
    if (limbs == 4) kernel = binary_kernel<Op, 4>;
  }
  kernel(px, nx, py, ny, pr, limbs, begin, end);
}

template <int K>
void sqrt_kernel(Limbs px, int n, LimbsOut pr, int limbs, int64_t begin, int64_t end) {
  if constexpr (K > 0) n = limbs = K;
  constexpr int size = K == 0 ? kMaxLimbs : K;
  for_packs(
      begin, end,
      [&](auto lanes, int64_t at) JAXMD_LAMBDA {
        using V = decltype(lanes);
        V x[size], r[size];
        load(x, px, n, at);
        const MaskOf<V> ok = sqrt_fast<constant_for<V>(K)>(x, n, limbs, r);
        store(pr, r, limbs, at);
        return ok;
      },
      [&](int64_t at) {
        double x[kMaxLimbs], r[kMaxLimbs];
        load(x, px, n, at);
        sqrt_careful(x, n, limbs, r);
        store(pr, r, limbs, at);
      });
}

void sqrt(Limbs px, int n, LimbsOut pr, int limbs, int64_t begin, int64_t end) {
  ElementwiseKernels::Unary kernel = sqrt_kernel<0>;
  if (n == limbs) {
    if (limbs == 1) kernel = sqrt_kernel<1>;
    if (limbs == 2) kernel = sqrt_kernel<2>;
    if (limbs == 3) kernel = sqrt_kernel<3>;
    if (limbs == 4) kernel = sqrt_kernel<4>;
  }
  kernel(px, n, pr, limbs, begin, end);
}

void renormalize(Limbs px, int n, LimbsOut pr, int limbs, int64_t begin, int64_t end) {
  const int kept = limbs < n ? limbs : n;
  for_packs(
      begin, end,
      [&](auto lanes, int64_t at) JAXMD_LAMBDA {
        using V = decltype(lanes);
        V x[kMaxTerms];
        load(x, px, n, at);
        const V zero = broadcast<V>(0.0);
        const MaskOf<V> ok = distill<0>(x, n, kept);
        const MaskOf<V> vanished = equal(x[0], zero);
        if (any(vanished)) {
          V size = zero;
          for (int i = 0; i < n; ++i) size = add_rn(size, abs(Value<V>::load(px[i] + at)));
          x[0] = select(vanished, select(equal(size, zero), Value<V>::load(px[0] + at), zero), x[0]);
        }
        store(pr, x, kept, at);
        for (int i = kept; i < limbs; ++i) Value<V>::store(pr[i] + at, zero);
        return ok;
      },
      [&](int64_t at) {
        double x[kMaxTerms], r[kMaxLimbs];
        load(x, px, n, at);
        exact_sum(x, n, limbs, 0, r);
        store(pr, r, limbs, at);
      });
}

void scale(Limbs px, int n, const int32_t* exponent, LimbsOut pr, int64_t begin, int64_t end) {
  for_packs(
      begin, end,
      [&](auto lanes, int64_t at) JAXMD_LAMBDA {
        using V = decltype(lanes);
        V x[kMaxLimbs], r[kMaxLimbs];
        load(x, px, n, at);
        const MaskOf<V> ok = scale_lanes(x, n, exponent + at, r);
        store(pr, r, n, at);
        return ok;
      },
      [&](int64_t at) {
        double x[kMaxLimbs], r[kMaxLimbs];
        load(x, px, n, at);
        scale_careful(x, n, exponent[at], r);
        store(pr, r, n, at);
      });
}

void two_sum(Limbs ab, LimbsOut pr, int64_t begin, int64_t end) {
  for_packs(
      begin, end,
      [&](auto lanes, int64_t at) JAXMD_LAMBDA {
        using V = decltype(lanes);
        V r[2];
        const MaskOf<V> ok = two_sum_fast(Value<V>::load(ab[0] + at), Value<V>::load(ab[1] + at), r);
        store(pr, r, 2, at);
        return ok;
      },
      [&](int64_t at) {
        double r[2];
        two_sum_careful(ab[0][at], ab[1][at], r);
        store(pr, r, 2, at);
      });
}

void two_prod(Limbs ab, LimbsOut pr, int64_t begin, int64_t end) {
  for_packs(
      begin, end,
      [&](auto lanes, int64_t at) JAXMD_LAMBDA {
        using V = decltype(lanes);
        V r[2];
        const MaskOf<V> ok = two_prod_fast(Value<V>::load(ab[0] + at), Value<V>::load(ab[1] + at), r);
        store(pr, r, 2, at);
        return ok;
      },
      [&](int64_t at) {
        double r[2];
        two_prod_careful(ab[0][at], ab[1][at], r);
        store(pr, r, 2, at);
      });
}

}  // namespace

extern const ElementwiseKernels elementwise;
const ElementwiseKernels elementwise = {binary<Add>, binary<Mul>, binary<Div>, sqrt,
                                        renormalize, scale,       two_sum,     two_prod};

}  // namespace JAXMD_ISA
}  // namespace jaxmd
