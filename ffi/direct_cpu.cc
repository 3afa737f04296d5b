// jaxmd_direct_matmul on the CPU: arguments, checks and tasks for XLA's thread pool. The kernels are direct_simd.cc for
// up to four limbs and window_cpu.cc for more.
#include <algorithm>
#include <vector>

#include "direct_args.h"
#include "direct_panel.h"
#include "threads.h"
#include "window_cpu.h"

namespace jaxmd {
namespace {

namespace ffi = xla::ffi;

// parallel_for over [batch, rows / tile_rows, columns / tile_columns]; cost of a multiply-add in ns.
template <class Body>
void for_tiles(ffi::ThreadPool& pool, const ProductShape& s, int64_t tile_rows, int64_t tile_columns, double cost,
               Body body) {
  const int64_t row_tiles = (s.m + tile_rows - 1) / tile_rows, column_tiles = (s.n + tile_columns - 1) / tile_columns;
  const double tile = cost * std::min(s.m, tile_rows) * std::min(s.n, tile_columns) * (s.k + 20);
  const int64_t grain = std::max<int64_t>(1, static_cast<int64_t>(20000 / std::max(tile, 1.0)));
  parallel_for(pool, s.batch * row_tiles * column_tiles, grain, [=](int64_t begin, int64_t end) {
    body(begin, end, [=](int64_t t, auto call) {
      const int64_t batch = t / (row_tiles * column_tiles), tile = t % (row_tiles * column_tiles);
      call(batch, tile / column_tiles * tile_rows, tile % column_tiles * tile_columns);
    });
  });
}

ffi::Error direct_matmul(ffi::ThreadPool pool, int64_t lhs_limbs, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  DirectTask task;
  JAXMD_CHECK(direct_arguments(lhs_limbs, args, rets, &task));
  const int limbs = task.c.count;
  if (limbs > kDirectMaxLimbs) {
    for_tiles(pool, task.shape, kWindowTile, kWindowTile, limbs * limbs,
              [task](int64_t begin, int64_t end, auto place) {
                for (int64_t t = begin; t < end; ++t) {
                  place(t, [&](int64_t batch, int64_t row, int64_t column) { window_tile(task, batch, row, column); });
                }
              });
    return ffi::Error::Success();
  }
  const DirectPlan plan = direct_plan(limbs, task.shape.k);
  const PanelTask panels = panel_task(task);
  DirectPanel* const panel = JAXMD_CHOSEN(direct_panel);
  for_tiles(pool, panels.product.shape, kDirectRows, kDirectColumns, 0.5 * limbs * limbs,
            [panels, plan, panel](int64_t begin, int64_t end, auto place) {
              std::vector<double> scratch(kDirectScratch);
              for (int64_t t = begin; t < end; ++t) {
                place(t, [&](int64_t batch, int64_t row, int64_t column) {
                  panel(panels, plan, batch, row, column, scratch.data());
                });
              }
            });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_direct_matmul_cpu, direct_matmul,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("lhs_limbs")
                                  .RemainingArgs()
                                  .RemainingRets());

}  // namespace jaxmd
