// g_ij = max_l (E_il + F_lj) for a panel of 128 columns, on vectors of int16.
//
// Shapes: span.h. Compiled once per instruction set: vectors of 8 (SSE2, NEON), 16 (AVX2) or 32 (AVX-512BW) lanes.
// Tiling: F is packed [l 256][column 128], short panels padded, so that every inner loop runs over whole vectors; four
//   rows by two vectors of g stay in registers over the 256 l of a panel, and then go to g.
// Exact: integers; the same on every instruction set.
// Cost: one addition and one maximum a vector and row: 32 max-adds a cycle on a core with AVX2 that issues two each.
// Source: the register tile is that of K. Goto and R. van de Geijn, Anatomy of high-performance matrix multiplication
//   (ACM TOMS 34(3), 2008), over the (max,+) semiring.
#include "span.h"

#include <cstring>

#include "vector_bytes.h"

namespace jaxmd {
namespace JAXMD_ISA {
namespace {

constexpr int kLanes = kBytes / 2;
typedef int16_t Vector __attribute__((vector_size(kBytes)));

inline Vector load(const int16_t* p) {
  Vector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline void max_add(Vector& g, int16_t e, const Vector& f) {
  const Vector sum = f + e;
  g = sum > g ? sum : g;
}

// kRows rows by kVectors vectors of g; e has rows k apart, panel has depth rows.
template <int kRows, int kVectors>
void register_tile(const int16_t* e, int64_t k, const int16_t* panel, int64_t depth, int16_t* g, int64_t stride) {
  Vector acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) acc[r][v] = load(g + r * stride + v * kLanes);
  }
  for (int64_t l = 0; l < depth; ++l) {
    const int16_t* f = panel + l * kSpanColumns;
    for (int v = 0; v < kVectors; ++v) {
      const Vector fv = load(f + v * kLanes);
      for (int r = 0; r < kRows; ++r) max_add(acc[r][v], e[r * k + l], fv);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) std::memcpy(g + r * stride + v * kLanes, &acc[r][v], kBytes);
  }
}

}  // namespace

extern SpanKernel span_panel;
void span_panel(const SpanTask& task, int64_t row, int64_t rows, int64_t column, int16_t* panel) {
  constexpr int kRows = 4, kVectors = 2;
  const int64_t columns = task.n - column < kSpanColumns ? task.n - column : kSpanColumns;
  for (int64_t l0 = 0; l0 < task.k || l0 == 0; l0 += kSpanDepth) {
    const int64_t depth = task.k - l0 < kSpanDepth ? task.k - l0 : kSpanDepth;
    for (int64_t l = 0; l < depth; ++l) {
      std::memcpy(panel + l * kSpanColumns, task.f + (l0 + l) * task.n + column, columns * sizeof(int16_t));
      std::memset(panel + l * kSpanColumns + columns, 0, (kSpanColumns - columns) * sizeof(int16_t));
    }
    for (int64_t i = row; i < row + rows; i += kRows) {
      const int64_t here = row + rows - i < kRows ? row + rows - i : kRows;
      int16_t block[kRows][kSpanColumns] = {};
      for (int64_t r = 0; r < here; ++r) {
        int16_t* g = task.g + (i + r) * task.n + column;
        for (int64_t j = 0; j < columns; ++j) block[r][j] = l0 != 0 ? g[j] : task.k == 0 ? kEmptySpan : INT16_MIN;
      }
      const int16_t* e = task.e + i * task.k + l0;
      for (int64_t j = 0; j < columns; j += kVectors * kLanes) {
        if (here == kRows) {
          register_tile<kRows, kVectors>(e, task.k, panel + j, depth, block[0] + j, kSpanColumns);
        } else {
          for (int64_t r = 0; r < here; ++r) {
            register_tile<1, kVectors>(e + r * task.k, task.k, panel + j, depth, block[r] + j, kSpanColumns);
          }
        }
      }
      for (int64_t r = 0; r < here; ++r) {
        std::memcpy(task.g + (i + r) * task.n + column, block[r], columns * sizeof(int16_t));
      }
    }
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
