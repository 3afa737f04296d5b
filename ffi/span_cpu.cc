// jaxmd_exponent_span on the CPU: shapes, checks, and panels of the product on XLA's thread pool. The kernel is in
// span_simd.cc, the formula in span.h.
#include <algorithm>
#include <vector>

#include "isa.h"
#include "span.h"
#include "span_args.h"
#include "threads.h"

namespace jaxmd {

JAXMD_FOR_EACH_ISA(extern SpanKernel span_panel;)

namespace {

namespace ffi = xla::ffi;

ffi::Error exponent_span(ffi::ThreadPool pool, ffi::Buffer<ffi::S16> e, ffi::Buffer<ffi::S16> f,
                         ffi::Result<ffi::Buffer<ffi::S16>> g) {
  ProductShape s;
  JAXMD_CHECK(span_shape(e.dimensions(), f.dimensions(), g->dimensions(), &s));
  constexpr int64_t kRows = 128;
  const int64_t row_tiles = (s.m + kRows - 1) / kRows, column_tiles = (s.n + kSpanColumns - 1) / kSpanColumns;
  const int64_t tiles = s.batch * row_tiles * column_tiles;
  if (tiles == 0) return ffi::Error::Success();
  const int64_t cost = std::min(s.m, kRows) * std::min(s.n, kSpanColumns) * (s.k + 1);  // of a tile, in max-adds
  const int64_t grain = std::max<int64_t>(1, 500000 / cost);
  SpanKernel* const kernel = JAXMD_CHOSEN(span_panel);
  const int16_t *const e_data = e.typed_data(), *const f_data = f.typed_data();
  int16_t* const g_data = g->typed_data();
  parallel_for(pool, tiles, grain, [=](int64_t begin, int64_t end) {
    std::vector<int16_t> panel(kSpanColumns * std::min(std::max<int64_t>(s.k, 1), kSpanDepth));
    for (int64_t t = begin; t < end; ++t) {
      const int64_t batch = t / (row_tiles * column_tiles), tile = t % (row_tiles * column_tiles);
      const SpanTask task{e_data + batch * s.m * s.k, f_data + batch * s.k * s.n, g_data + batch * s.m * s.n,
                          s.m, s.k, s.n};
      const int64_t row = tile / column_tiles * kRows;
      kernel(task, row, std::min(kRows, s.m - row), tile % column_tiles * kSpanColumns, panel.data());
    }
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_exponent_span_cpu, exponent_span,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::S16>>()
                                  .Arg<ffi::Buffer<ffi::S16>>()
                                  .Ret<ffi::Buffer<ffi::S16>>());

}  // namespace jaxmd
