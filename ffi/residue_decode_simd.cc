// Reconstruction of products from residues, 64 elements at a time. Compiled once per instruction set.
//
// Shapes: residue_decode.h; r [modulus][64] and orders [1 + c][64] in scratch.
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

constexpr int kBlock = kResidueBlock;
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

// Residues of elements begin ... begin + count - 1 as doubles, 0 beyond.
void load_residues(const ResidueDecodeTask& task, int64_t begin, int count, double* r) {
  const int64_t channel = task.batch * task.m * task.n;
  for (int i = 0; i < task.ones; ++i, r += kBlock) {
    const int8_t* from = task.small + i * channel + begin;
    if (count == kBlock) {
      for (int e = 0; e < kBlock; ++e) r[e] = from[e];
    } else {
      for (int e = 0; e < kBlock; ++e) r[e] = e < count ? from[e] : 0;
    }
  }
  for (int j = 0; j < task.pairs; ++j, r += kBlock) {
    const int16_t* from = task.wide + 3 * j * channel + begin;
    const double p = task.moduli[task.ones + j], inverse = 1.0 / p;
    uint32_t w[3];
    for (int c = 0; c < 3; ++c) w[c] = static_cast<uint32_t>(task.combine[3 * j + c]);
    int16_t m[3][kBlock];
    for (int c = 0; c < 3; ++c) {
      memset(m[c], 0, sizeof m[c]);
      memcpy(m[c], from + c * channel, count * sizeof(int16_t));
    }
    for (int e = 0; e < kBlock; ++e) {  // 3 (p/2)^2 < 2^31
      const uint32_t sum = w[0] * static_cast<uint32_t>(m[0][e]) + w[1] * static_cast<uint32_t>(m[1][e]) +
                           w[2] * static_cast<uint32_t>(m[2][e]);
      const double s = static_cast<int32_t>(sum);
      const double q = (s * inverse + kMagic) - kMagic;
      r[e] = s - q * p;
    }
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

// result[0..n)[at ...] *= 2^exponent, canonically, for a pack of elements.
void scale(double* result, int n, const int32_t* exponent, int at) {
  Pack x[kMaxLimbs], r[kMaxLimbs];
  for (int i = 0; i < n; ++i) x[i] = Value<Pack>::load(result + i * kBlock + at);
  const MaskOf<Pack> ok = scale_lanes(x, n, exponent + at, r);
  for (int i = 0; i < n; ++i) Value<Pack>::store(result + i * kBlock + at, r[i]);
  if (all(ok)) return;
  for (int l = 0; l < kLanes; ++l) {
    if (lane(ok, l)) continue;
    double limbs[kMaxLimbs], scaled[kMaxLimbs], buffer[kLanes];
    for (int i = 0; i < n; ++i) {
      Value<Pack>::store(buffer, x[i]);
      limbs[i] = buffer[l];
    }
    scale_careful(limbs, n, exponent[at + l], scaled);
    for (int i = 0; i < n; ++i) result[i * kBlock + at + l] = scaled[i];
  }
}

// result[limb][64] = the terms' canonical sums, scaled. C: the number of slices as a constant, or 0.
template <int C>
void round_and_scale(const ResidueDecodeTask& task, const double* orders, const int32_t* exponent, double* result) {
  const int terms = C > 0 ? C : task.slices, limbs = task.out.count, kept = limbs < terms ? limbs : terms;
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
    scale(result, head, exponent, at);
    if (limbs > head) scale(result + head * kBlock, limbs - head, exponent, at);
  }
}

}  // namespace

extern ResidueDecodeKernel residue_decode_block;
void residue_decode_block(const ResidueDecodeTask& task, int64_t begin, int64_t end, double* scratch) {
  double* const orders = scratch + (task.ones + task.pairs) * kBlock;
  double* const result = orders + (1 + task.slices) * kBlock;
  for (; begin < end; begin += kBlock) {
    const int count = end - begin < kBlock ? static_cast<int>(end - begin) : kBlock;
    load_residues(task, begin, count, scratch);
    multiply(task, scratch, orders);
    int32_t exponent[kBlock] = {};
    int64_t i = begin / task.n, j = begin % task.n;
    const int32_t* column = task.column + i / task.m * task.n;
    for (int e = 0; e < count; ++e) {
      exponent[e] = static_cast<int32_t>(static_cast<uint32_t>(task.row[i]) + static_cast<uint32_t>(column[j]) +
                                         static_cast<uint32_t>(task.raise));
      if (++j == task.n) {
        j = 0;
        column = task.column + ++i / task.m * task.n;
      }
    }
    const auto step = task.slices == 2   ? round_and_scale<2>
                      : task.slices == 3 ? round_and_scale<3>
                      : task.slices == 4 ? round_and_scale<4>
                      : task.slices == 5 ? round_and_scale<5>
                      : task.slices == 7 ? round_and_scale<7>
                                         : round_and_scale<0>;
    step(task, orders, exponent, result);
    for (int l = 0; l < task.out.count; ++l) {
      memcpy(task.out.limb[l] + begin, result + l * kBlock, count * sizeof(double));
    }
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
