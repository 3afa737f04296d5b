// Engine "direct" on the CPU for up to four limbs: one panel of C, 64 rows by 16 columns, on packs over columns.
//
// Shapes, formula and bound: direct.h. Compiled once per instruction set, the same bits on each.
// Tiling: 128 inner indices of B, scaled, are packed [l][limb][column 16]; a row of A, scaled, [limb][l]. One row by
//   two packs is worked on at a time, since a multiply-add is all latency-tolerant arithmetic and few loads; the slots live
//   in [row][slot][column 16] between packings.
// Cost: dd 12 instructions a multiply-add and pack, of which 8 are additions.
// Source: direct.h.
#include <algorithm>

#include "direct_panel.h"
#include "simd.h"

namespace jaxmd {
namespace JAXMD_ISA {
namespace {

constexpr int kPacks = 2;
constexpr int kLanes = Value<Pack>::lanes;

// slot [L + 1][16] += Σ_l a·b over the packed l: a [W + 1][128], b [l][W + 1][16].
template <int L, int W>
void multiply_row(const double* a, const double* b, int64_t depth, int64_t run, double* slot) {
  for (int64_t j = 0; j < kDirectColumns; j += kPacks * kLanes) {
    Pack g[kPacks][L + 1];
    for (int p = 0; p < kPacks; ++p) {
      each<L + 1>(L + 1, [&](int h) JAXMD_LAMBDA {
        g[p][h] = Value<Pack>::load(slot + h * kDirectColumns + j + p * kLanes);
      });
    }
    const auto load = [&](int64_t l, int p, Pack* x, Pack* y) JAXMD_LAMBDA {
      each<W + 1>(W + 1, [&](int i) JAXMD_LAMBDA {
        x[i] = broadcast<Pack>(a[i * kDirectDepth + l]);
        y[i] = Value<Pack>::load(b + (l * (W + 1) + i) * kDirectColumns + j + p * kLanes);
      });
    };
    if constexpr (W == 1) {
      for (int64_t l0 = 0; l0 < depth; l0 += run) {
        const int64_t end = std::min(l0 + run, depth);
        Pack s[kPacks], c[kPacks];
        for (int p = 0; p < kPacks; ++p) s[p] = c[p] = broadcast<Pack>(0.0);
        for (int64_t l = l0; l < end; ++l) {
          each<kPacks>(kPacks, [&](int p) JAXMD_LAMBDA {
            Pack x[2], y[2], t[2], error;
            load(l, p, x, y);
            product<1>(x, y, t);
            two_sum(s[p], t[0], s[p], error);
            c[p] = add_rn(c[p], add_rn(t[1], error));
          });
        }
        each<kPacks>(kPacks, [&](int p) JAXMD_LAMBDA {
          const Pack t[2] = {s[p], c[p]};
          merge<L, 1>(g[p], t);
        });
      }
    } else {
      for (int64_t l = 0; l < depth; ++l) {
        each<kPacks>(kPacks, [&](int p) JAXMD_LAMBDA {
          Pack x[W + 1], y[W + 1], t[W + 1];
          load(l, p, x, y);
          product<W>(x, y, t);
          merge<L, W>(g[p], t);
        });
      }
    }
    for (int p = 0; p < kPacks; ++p) {
      sweep<L>(g[p]);
      each<L + 1>(L + 1, [&](int h) JAXMD_LAMBDA {
        Value<Pack>::store(slot + h * kDirectColumns + j + p * kLanes, g[p][h]);
      });
    }
  }
}

// c = canonical limbs of 2^scale·slots, for one row of the panel.
template <int L, int kLimbs>
void round_row(const double* slot, const int32_t* scale, int64_t columns, double* const* c, int64_t stride) {
  constexpr double kBig = 0x1p1000;
  double rounded[kLimbs][kDirectColumns], power[kDirectColumns];
  bool done[kDirectColumns];
  for (int64_t j = 0; j < kDirectColumns; ++j) {
    const int s = std::min(std::max(scale[j], -1000), 1000);
    power[j] = from_bits(static_cast<uint64_t>(s + 1023) << 52);
    done[j] = s == scale[j];
  }
  for (int64_t j = 0; j < kDirectColumns; j += kLanes) {
    Pack x[L + 1];
    each<L + 1>(L + 1, [&](int h) JAXMD_LAMBDA { x[h] = Value<Pack>::load(slot + h * kDirectColumns + j); });
    const Pack factor = Value<Pack>::load(power + j);
    MaskOf<Pack> ok = distill<L + 1>(x, L + 1, kLimbs);
    ok = ok & less(abs(mul_rn(x[0], factor)), broadcast<Pack>(kBig));
    for (int i = 0; i < kLanes; ++i) done[j + i] = done[j + i] && lane(ok, i);
    each<kLimbs>(kLimbs, [&](int h) JAXMD_LAMBDA {
      const Pack y = mul_rn(x[h], factor);
      Value<Pack>::store(rounded[h] + j, h == 0 ? y : add_rn(y, broadcast<Pack>(0.0)));
    });
  }
  for (int64_t j = 0; j < columns; ++j) {
    double in[L + 1], out[kLimbs];
    for (int h = 0; h < kLimbs; ++h) out[h] = rounded[h][j];
    if (!done[j]) {
      for (int h = 0; h <= L; ++h) in[h] = slot[h * kDirectColumns + j];
      exact_sum(in, L + 1, kLimbs, scale[j], out);
    }
    for (int h = 0; h < kLimbs; ++h) c[h][j * stride] = out[h];
  }
}

// count values, stride apart, times one power of two.
void scale_into(const double* from, int64_t stride, int64_t count, const ScaleFactors& by, double* to, int64_t step) {
  if (stride == 1 && step == 1) {
    for (int64_t t = 0; t < count; ++t) to[t] = from[t] * by.first * by.second;
  } else {
    for (int64_t t = 0; t < count; ++t) to[t * step] = from[t * stride] * by.first * by.second;
  }
}

// Up to 16 columns of B from inner index l0 on, scaled: panel [l][limb][column].
void pack_b(const PanelTask& task, int64_t batch, int64_t l0, int64_t depth, int64_t column, int64_t columns, int limbs,
            const ScaleFactors* by, double* panel) {
  const DirectTask& p = task.product;
  std::fill(panel, panel + depth * limbs * kDirectColumns, 0.0);
  for (int i = 0; i < std::min(limbs, p.b.count); ++i) {
    const double* from = p.b.limb[i] + batch * p.shape.k * p.shape.n + l0 * task.b_inner + column * task.b_column;
    double* const to = panel + i * kDirectColumns;
    if (task.b_column == 1) {
      for (int64_t l = 0; l < depth; ++l) {
        for (int64_t j = 0; j < columns; ++j) {
          to[l * limbs * kDirectColumns + j] = from[l * task.b_inner + j] * by[j].first * by[j].second;
        }
      }
    } else {
      for (int64_t j = 0; j < columns; ++j) {
        scale_into(from + j * task.b_column, task.b_inner, depth, by[j], to + j, limbs * kDirectColumns);
      }
    }
  }
}

template <int L, int W>
void panel(const PanelTask& task, int64_t run, int64_t batch, int64_t row, int64_t column, double* scratch) {
  const DirectTask& p = task.product;
  const ProductShape& s = p.shape;
  const int64_t rows = std::min(kDirectRows, s.m - row), columns = std::min(kDirectColumns, s.n - column);
  double *const b = scratch, *const a = b + (W + 1) * kDirectDepth * kDirectColumns;
  double* const slots = a + (W + 1) * kDirectDepth;
  std::fill(slots, slots + rows * (L + 1) * kDirectColumns, 0.0);
  std::fill(a, slots, 0.0);
  const int32_t *const e = p.e + batch * s.m + row, *const f = p.f + batch * s.n + column;
  ScaleFactors by[kDirectColumns];
  for (int64_t j = 0; j < columns; ++j) by[j] = scale_factors(kTarget - f[j]);
  for (int64_t l0 = 0; l0 < s.k; l0 += kDirectDepth) {
    const int64_t depth = std::min(kDirectDepth, s.k - l0);
    pack_b(task, batch, l0, depth, column, columns, W + 1, by, b);
    for (int64_t r = 0; r < rows; ++r) {
      for (int i = 0; i < std::min(W + 1, p.a.count); ++i) {
        const double* from = p.a.limb[i] + batch * s.m * s.k + (row + r) * task.a_row + l0 * task.a_inner;
        scale_into(from, task.a_inner, depth, scale_factors(kTarget - e[r]), a + i * kDirectDepth, 1);
      }
      multiply_row<L, W>(a, b, depth, run, slots + r * (L + 1) * kDirectColumns);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    int32_t scale[kDirectColumns] = {};
    double* c[L];
    for (int64_t j = 0; j < columns; ++j) scale[j] = e[r] + f[j] - 2 * kTarget;
    for (int h = 0; h < p.c.count; ++h) {
      c[h] = p.c.limb[h] + batch * s.m * s.n + (row + r) * task.c_row + column * task.c_column;
    }
    const double* const slot = slots + r * (L + 1) * kDirectColumns;
    if (p.c.count == L) {
      round_row<L, L>(slot, scale, columns, c, task.c_column);
    } else {
      round_row<L, 1>(slot, scale, columns, c, task.c_column);
    }
  }
}

}  // namespace

void direct_panel(const PanelTask& task, const DirectPlan& plan, int64_t batch, int64_t row, int64_t column,
                  double* scratch) {
  switch (10 * plan.limbs + plan.order) {
    case 21: return panel<2, 1>(task, plan.run, batch, row, column, scratch);
    case 22: return panel<2, 2>(task, plan.run, batch, row, column, scratch);
    case 32: return panel<3, 2>(task, plan.run, batch, row, column, scratch);
    case 33: return panel<3, 3>(task, plan.run, batch, row, column, scratch);
    case 43: return panel<4, 3>(task, plan.run, batch, row, column, scratch);
    case 44: return panel<4, 4>(task, plan.run, batch, row, column, scratch);
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
