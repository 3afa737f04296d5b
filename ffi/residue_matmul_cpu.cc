// jaxmd_residue_matmul on the CPU: shapes, checks, and tiles of all products of all channels on XLA's thread pool. The
// kernel is in residue_matmul_simd.cc, the formula in residue_matmul.h.
#include "residue_matmul.h"

#include <algorithm>
#include <memory>

#include "huge_pages.h"
#include "isa.h"
#include "residue_matmul_args.h"
#include "threads.h"

namespace jaxmd {

JAXMD_FOR_EACH_ISA(extern ResidueKernel residue_tile;)

namespace {

namespace ffi = xla::ffi;

constexpr int64_t kWorthATask = 1500000;  // multiply-adds: about 20 µs

struct Tiling {
  int64_t rows, columns;            // of a tile
  int64_t row_tiles, column_tiles;  // of a product
};

int64_t tiles_of(int64_t x, int64_t size) { return (x + size - 1) / size; }

// Equal tiles: the largest, or smaller ones where that leaves threads idle. Each row of tiles packs b again, which
// costs as much as 4 rows, each column of tiles widens a again, as much as 2 columns: columns are cut first.
Tiling tiling(const ResidueShape& s, int64_t threads) {
  int64_t rows = std::min(s.m, kResidueRows), columns = std::min(s.n, kResidueColumns);
  const int64_t products = s.channels * s.batch;
  while (products * tiles_of(s.m, rows) * tiles_of(s.n, columns) < 4 * threads &&
         rows * columns * s.k >= 2 * kWorthATask && (columns > 128 || rows > 48)) {
    (columns > 128 ? columns : rows) = ((columns > 128 ? columns : rows) + 1) / 2;
  }
  rows = round_up(tiles_of(s.m, tiles_of(s.m, rows)), kResidueRegisterRows);
  columns = round_up(tiles_of(s.n, tiles_of(s.n, columns)), kResidueRegisterColumns);
  return {rows, columns, tiles_of(s.m, rows), tiles_of(s.n, columns)};
}

// At least `bytes`, aligned to 64, kept by the thread: below 1 MB.
char* thread_scratch(size_t bytes) {
  thread_local std::unique_ptr<char[]> memory;
  thread_local size_t size = 0;
  if (size < bytes) {
    memory.reset(new char[bytes + 63]);
    size = bytes;
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory.get());
  return memory.get() + (64 - address % 64) % 64;
}

ffi::Error residue_matmul(ffi::ThreadPool pool, int64_t small, ffi::Buffer<ffi::S8> a, ffi::Buffer<ffi::S8> b,
                          ffi::Buffer<ffi::S32> moduli, ffi::Result<ffi::Buffer<ffi::S8>> narrow,
                          ffi::Result<ffi::Buffer<ffi::S16>> wide) {
  ResidueShape s;
  JAXMD_CHECK(residue_shape(a.dimensions(), b.dimensions(), moduli.dimensions(), narrow->dimensions(),
                            wide->dimensions(), small, &s));
  if (s.channels * s.batch * s.m * s.n == 0) return ffi::Error::Success();
  const Tiling tiles = tiling(s, pool.num_threads());
  const int64_t each = tiles.row_tiles * tiles.column_tiles;
  const int64_t cost = std::min(s.m, tiles.rows) * std::min(s.n, tiles.columns) * (s.k + 16);
  const int64_t grain = std::max<int64_t>(1, kWorthATask / cost);
  ResidueKernel* const kernel = JAXMD_CHOSEN(residue_tile);
  const int8_t *const a_data = a.typed_data(), *const b_data = b.typed_data();
  const int32_t* const modulus = moduli.typed_data();
  int8_t* const narrow_data = narrow->typed_data();
  int16_t* const wide_data = wide->typed_data();
  prefer_huge_pages(narrow_data, narrow->size_bytes());
  prefer_huge_pages(wide_data, wide->size_bytes());
  parallel_for(pool, s.channels * s.batch * each, grain, [=](int64_t begin, int64_t end) {
    char* const scratch = thread_scratch(residue_scratch(tiles.rows, tiles.columns, s.k).bytes);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t product = t / each, channel = product / s.batch;
      const int64_t row = t % each / tiles.column_tiles * tiles.rows, column = t % tiles.column_tiles * tiles.columns;
      ResidueTile tile{};
      tile.a = a_data + (product * s.m + row) * s.k;
      tile.b = b_data + (product * s.n + column) * s.k;
      tile.rows = std::min(tiles.rows, s.m - row);
      tile.columns = std::min(tiles.columns, s.n - column);
      tile.k = s.k;
      tile.modulus = modulus[channel];
      if (channel < s.small) {
        tile.narrow = narrow_data + (product * s.m + row) * s.n + column;
      } else {
        tile.wide = wide_data + ((product - s.small * s.batch) * s.m + row) * s.n + column;
      }
      tile.stride = s.n;
      kernel(tile, scratch);
    }
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_residue_matmul_cpu, residue_matmul,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("small")
                                  .Arg<ffi::Buffer<ffi::S8>>()
                                  .Arg<ffi::Buffer<ffi::S8>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S8>>()
                                  .Ret<ffi::Buffer<ffi::S16>>());

}  // namespace jaxmd
