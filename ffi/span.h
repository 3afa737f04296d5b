// (max,+) products of exponents: g_ij = max_l (E_il + F_lj) in int16, and −32000 where there is no l.
//
// What the product needs them for (design 4.5): with exponents of |A| and |B| relative to those of their rows and
// columns, −g_ij is how far the largest term of entry ij lies below what the shared exponents allow. The sums are plain
// int16 additions, so E + F must not leave the type; zeros are written as −16000, hence −32000.
#pragma once

#include <cstdint>

namespace jaxmd {

constexpr int16_t kEmptySpan = -32000;

// One product of the batch, row-major: e [m, k], f [k, n], g [m, n].
struct SpanTask {
  const int16_t* e;
  const int16_t* f;
  int16_t* g;
  int64_t m, k, n;
};

// Columns a kernel call works on; tasks are cut at multiples of it.
constexpr int64_t kSpanColumns = 128;
// Inner indices packed at a time: kSpanColumns · kSpanDepth · 2 bytes = 64 KB stay in the second-level cache.
constexpr int64_t kSpanDepth = 256;

// Rows row … row + rows − 1 and columns column … column + min(128, n − column) − 1; `panel` is scratch of
// kSpanColumns · kSpanDepth int16.
using SpanKernel = void(const SpanTask& task, int64_t row, int64_t rows, int64_t column, int16_t* panel);

}  // namespace jaxmd
