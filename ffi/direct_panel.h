// The CPU kernel of engine "direct", as its handler sees it: one panel of 16 columns, up to 64 rows.
#pragma once

#include "isa.h"
#include "direct.h"

namespace jaxmd {

constexpr int64_t kDirectColumns = 16;  // a multiple of every pack's lanes
constexpr int64_t kDirectRows = 64;
constexpr int64_t kDirectDepth = 128;  // inner indices packed at a time; a sweep follows each
constexpr int64_t kDirectScratch =     // doubles: packed B, a scaled row of A, the slots of all entries
    (kDirectMaxLimbs + 1) * (kDirectDepth * kDirectColumns + kDirectDepth + kDirectRows * kDirectColumns);

// A product and the strides of its buffers. Few columns would leave most lanes idle, so Cᵀ = Bᵀ·Aᵀ is made instead.
struct PanelTask {
  DirectTask product;
  int64_t a_row, a_inner, b_inner, b_column, c_row, c_column;
};

inline PanelTask panel_task(const DirectTask& task) {
  const ProductShape& s = task.shape;
  if (s.n >= kDirectColumns || s.n >= s.m) return {task, s.k, 1, s.n, 1, s.n, 1};
  const DirectTask transposed{{s.batch, s.n, s.k, s.m}, task.b, task.a, task.f, task.e, task.c};
  return {transposed, 1, s.n, 1, s.k, 1, s.n};
}

using DirectPanel = void(const PanelTask& task, const DirectPlan& plan, int64_t batch, int64_t row, int64_t column,
                         double* scratch);

JAXMD_FOR_EACH_ISA(extern DirectPanel direct_panel;)

}  // namespace jaxmd
