// Reconstruction of products from residues, collected from 512 elements and put together for 64 at a time. Compiled
// once per instruction set.
//
// Shapes: residue_decode.h; residues [modulus][512], r [modulus][64] and orders [1 + c][64] in scratch.
// Tiling: two packs of elements by up to six rows of the table stay in registers over all moduli.
// Exact: residues, S_j and their products are integers below 2^53; one canonical rounding, one scaling, as those of
//   jaxmd_renormalize and jaxmd_scale. q is not exact, but C'/P is far enough from a half (`_residues._capacity`).
// Cost: (1 + c) (n1 + n2) multiply-adds an element.
#include "residue_decode.h"

#include "arithmetic.h"
#include "scale_lanes.h"
#include "simd.h"

namespace jaxmd {
namespace JAXMD_ISA {
namespace {

constexpr int kBlock = kResidueDecodeStep;
constexpr int kLanes = Value<Pack>::lanes;
constexpr double kMagic = 0x1.8p52;

// a b + c where a b is exact, or need not be.
template <class V>
JAXMD_INLINE V multiply_add(V a, V b, V c) {
#if defined(__FMA__) || defined(__aarch64__)
  return fma_rn(a, b, c);
#else
  return add_rn(mul_rn(a, b), c);
#endif
}

// Residues of elements begin ... begin + count - 1, from channels far apart to rows of kResidueBlock int16: their
// caches would have to hold one line of every channel in one place. Those of the next block are sent for: there are
// more channels than streams that a processor follows by itself.
void collect(const ResidueDecodeTask& task, int64_t begin, int count, int16_t* r) {
  const int64_t channel = task.batch * task.m * task.n;
  const int8_t* from = task.residues + begin;
  for (int i = 0; i < task.ones; ++i, r += kResidueBlock, from += channel) {
    for (int e = 0; e < count; ++e) r[e] = from[e];
    for (int e = 0; e < kResidueBlock; e += 64) __builtin_prefetch(from + kResidueBlock + e);
  }
  for (int i = 0; i < task.pairs; ++i, r += kResidueBlock, from += 2 * channel) {
    const int8_t* const high = from + channel;
    for (int e = 0; e < count; ++e) r[e] = static_cast<int16_t>(from[e] + 256 * high[e]);
    for (int e = 0; e < kResidueBlock; e += 64) {
      __builtin_prefetch(from + kResidueBlock + e);
      __builtin_prefetch(high + kResidueBlock + e);
    }
  }
}

// r[modulus][64] as doubles.
void widen(const int16_t* residues, int moduli, double* r) {
  for (int i = 0; i < moduli; ++i, r += kBlock, residues += kResidueBlock) {
    for (int e = 0; e < kBlock; ++e) r[e] = residues[e];
  }
}

// orders[row] = sum_i r_i table[i][row] for R rows.
template <int R>
void multiply_rows(const double* r, const double* table, int stride, int moduli, double* orders) {
  for (int at = 0; at < kBlock; at += 2 * kLanes) {
    Pack sum[R][2];
    for (int j = 0; j < R; ++j) sum[j][0] = sum[j][1] = broadcast<Pack>(0.0);
    for (int i = 0; i < moduli; ++i) {
      const Pack r0 = Value<Pack>::load(r + i * kBlock + at), r1 = Value<Pack>::load(r + i * kBlock + at + kLanes);
      for (int j = 0; j < R; ++j) {
        const Pack t = broadcast<Pack>(table[i * stride + j]);
        sum[j][0] = multiply_add(r0, t, sum[j][0]);
        sum[j][1] = multiply_add(r1, t, sum[j][1]);
      }
    }
    for (int j = 0; j < R; ++j) {
      Value<Pack>::store(orders + j * kBlock + at, sum[j][0]);
      Value<Pack>::store(orders + j * kBlock + at + kLanes, sum[j][1]);
    }
  }
}

void multiply(const ResidueDecodeTask& task, const double* r, double* orders) {
  const int rows = 1 + task.slices, moduli = task.ones + task.pairs, steps = (rows + 5) / 6;
  for (int step = 0, row = 0; step < steps; ++step) {
    const int here = (rows - row + steps - step - 1) / (steps - step);
    const double* table = task.table + row;
    double* to = orders + row * kBlock;
    if (here == 1) multiply_rows<1>(r, table, rows, moduli, to);
    if (here == 2) multiply_rows<2>(r, table, rows, moduli, to);
    if (here == 3) multiply_rows<3>(r, table, rows, moduli, to);
    if (here == 4) multiply_rows<4>(r, table, rows, moduli, to);
    if (here == 5) multiply_rows<5>(r, table, rows, moduli, to);
    if (here == 6) multiply_rows<6>(r, table, rows, moduli, to);
    row += here;
  }
}

// The terms S_j weight_j of the elements from `at` on, the largest weight first. No term is -0.
template <int C, class V>
JAXMD_INLINE void load_terms(const ResidueDecodeTask& task, const double* orders, int at, V* x) {
  const V magic = broadcast<V>(kMagic);
  const V q = neg(sub_rn(add_rn(Value<V>::load(orders + at), magic), magic));
  each<C>(task.slices, [&](int j) JAXMD_LAMBDA {
    const V s = multiply_add(q, broadcast<V>(task.product[j]), Value<V>::load(orders + (1 + j) * kBlock + at));
    x[task.slices - 1 - j] = mul_rn(add_rn(s, broadcast<V>(0.0)), broadcast<V>(task.weight[j]));
  });
}

// Exponents of 64 elements, negated too where all are moderate.
struct Exponents {
  int32_t e[kBlock], minus[kBlock];
  bool moderate;
};

// Of elements begin ... begin + count - 1; 0 beyond.
void load_exponents(const ResidueDecodeTask& task, int64_t begin, int count, Exponents* to) {
  for (int e = 0; e < kBlock; ++e) to->e[e] = 0;
  int64_t i = begin / task.n, j = begin % task.n;
  for (int e = 0; e < count; j = 0, ++i) {
    const uint32_t row = static_cast<uint32_t>(task.row[i]) + static_cast<uint32_t>(task.raise);
    const int32_t* column = task.column + i / task.m * task.n + j;
    const int here = task.n - j < count - e ? static_cast<int>(task.n - j) : count - e;
    for (int c = 0; c < here; ++c) to->e[e + c] = static_cast<int32_t>(row + static_cast<uint32_t>(column[c]));
    e += here;
  }
  int32_t far = 0;
  for (int e = 0; e < kBlock; ++e) {
    far |= to->e[e] < -1000 || to->e[e] > 1000;
    to->minus[e] = static_cast<int32_t>(-static_cast<uint32_t>(to->e[e]));
  }
  to->moderate = far == 0;
}

// scale_limbs for one element and any exponent.
bool scaled_exactly(const double* x, int n, int exponent, double* r) {
  bool exact = true;
  for (int i = 0; i < n; ++i) {
    r[i] = std::ldexp(x[i], exponent);
    exact = exact && std::isfinite(r[i]) && std::ldexp(r[i], -exponent) == x[i];
    if (i > 0) r[i] = add_rn(r[i], 0.0);
  }
  return exact;
}

// result[0..n)[at ...] *= 2^exponent, for a pack of elements. K: n as a constant, or 0. Limbs that were rounded one after
// another stay as they are, also where the last is half an ulp of the one before: only what is not exact is summed anew.
template <int K>
JAXMD_INLINE void scale(double* result, int n, const Exponents& exponent, int at) {
  Pack x[K > 0 ? K : kMaxLimbs], r[K > 0 ? K : kMaxLimbs];
  for (int i = 0; i < n; ++i) x[i] = Value<Pack>::load(result + i * kBlock + at);
  const MaskOf<Pack> ok = exponent.moderate ? scale_limbs(x, n, load_power(exponent.e + at, Pack{}),
                                                          load_power(exponent.minus + at, Pack{}), r)
                                            : scale_lanes(x, n, exponent.e + at, r);
  for (int i = 0; i < n; ++i) Value<Pack>::store(result + i * kBlock + at, r[i]);
  if (all(ok)) return;
  for (int l = 0; l < kLanes; ++l) {
    if (lane(ok, l)) continue;
    double limbs[kMaxLimbs] = {}, scaled[kMaxLimbs], buffer[kLanes];
    for (int i = 0; i < n; ++i) {
      Value<Pack>::store(buffer, x[i]);
      limbs[i] = buffer[l];
    }
    if (!scaled_exactly(limbs, n, exponent.e[at + l], scaled)) scale_careful(limbs, n, exponent.e[at + l], scaled);
    for (int i = 0; i < n; ++i) result[i * kBlock + at + l] = scaled[i];
  }
}

// result[limb][64] = the terms' canonical sums, scaled. C, K: the number of slices and of limbs as constants, or 0.
template <int C, int K>
void round_and_scale(const ResidueDecodeTask& task, const double* orders, const Exponents& exponent, double* result) {
  const int terms = C > 0 ? C : task.slices, limbs = K > 0 ? K : task.out.count;
  const int kept = limbs < terms ? limbs : terms;
  for (int at = 0; at < kBlock; at += kLanes) {
    Pack x[C > 0 ? C : kMaxTerms];
    load_terms<C>(task, orders, at, x);
    const MaskOf<Pack> ok = distill<C>(x, terms, kept);
    for (int i = 0; i < limbs; ++i) {
      Value<Pack>::store(result + i * kBlock + at, i < kept ? x[i] : broadcast<Pack>(0.0));
    }
    for (int l = 0; l < kLanes && !all(ok); ++l) {
      if (lane(ok, l)) continue;
      double t[kMaxTerms], sum[kMaxProductLimbs];
      load_terms<0>(task, orders, at + l, t);
      exact_sum(t, terms, limbs, 0, sum);
      for (int i = 0; i < limbs; ++i) result[i * kBlock + at + l] = sum[i];
    }
    const int head = limbs < kMaxLimbs ? limbs : kMaxLimbs;  // a limb more is the guard limb of a sum, by itself
    scale<K>(result, head, exponent, at);
    if (limbs > head) scale<0>(result + head * kBlock, limbs - head, exponent, at);
  }
}

using Rounding = void(const ResidueDecodeTask&, const double*, const Exponents&, double*);

// The one for the numbers of slices that 1 to 4 limbs usually have, or the general one.
Rounding* rounding(int slices, int limbs) {
  if (limbs == 1 && slices == 3) return round_and_scale<3, 1>;
  if (limbs == 2 && slices == 6) return round_and_scale<6, 2>;
  if (limbs == 2 && slices == 7) return round_and_scale<7, 2>;
  if (limbs == 3 && slices == 9) return round_and_scale<9, 3>;
  if (limbs == 4 && slices == 13) return round_and_scale<13, 4>;
  return round_and_scale<0, 0>;
}

}  // namespace

extern ResidueDecodeKernel residue_decode_block;
void residue_decode_block(const ResidueDecodeTask& task, int64_t begin, int64_t end, double* scratch) {
  const int moduli = task.ones + task.pairs, count = static_cast<int>(end - begin);
  double* const orders = scratch + moduli * kBlock;
  double* const result = orders + (1 + task.slices) * kBlock;
  int16_t* const residues = reinterpret_cast<int16_t*>(result + task.out.count * kBlock);
  collect(task, begin, count, residues);
  Rounding* const finish = rounding(task.slices, task.out.count);
  for (int at = 0; at < count; at += kBlock) {
    const int here = count - at < kBlock ? count - at : kBlock;
    Exponents exponent;
    load_exponents(task, begin + at, here, &exponent);
    widen(residues + at, moduli, scratch);
    multiply(task, scratch, orders);
    finish(task, orders, exponent, result);
    for (int l = 0; l < task.out.count; ++l) {
      memcpy(task.out.limb[l] + begin + at, result + l * kBlock, here * sizeof(double));
    }
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
