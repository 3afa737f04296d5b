// Products of int8 matrices on XLA's thread pool, cut into tiles for the kernels of residue_matmul.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "isa.h"
#include "residue_matmul.h"
#include "threads.h"

namespace jaxmd {

// The best variant that this machine runs.
const ResidueKernels& chosen_residue_kernels();

struct Int8Products {
  int64_t count, m, n, k;
  int channels;  // the most that one of them sums
};

struct Tiling {
  int64_t rows, columns;            // of a tile
  int64_t row_tiles, column_tiles;  // of a product
};

// Equal tiles: the largest, or smaller ones where that leaves threads idle. Each row of tiles packs b again, each
// column of tiles a, which costs as much as 2 to 4 rows or columns of products, with AMX 40: the longer side is cut.
inline Tiling tiling(const Int8Products& s, const ResidueKernels& kernels, int64_t threads) {
  const auto tiles_of = [](int64_t x, int64_t size) { return (x + size - 1) / size; };
  int64_t rows = std::min(s.m, kernels.rows), columns = std::min(s.n, kernels.columns);
  while (s.count * tiles_of(s.m, rows) * tiles_of(s.n, columns) < 4 * threads &&
         rows * columns * s.k >= 2 * kernels.task && std::max(rows, columns) > 48) {
    int64_t& longer = rows > columns ? rows : columns;
    longer = (longer + 1) / 2;
  }
  rows = tiles_of(tiles_of(s.m, tiles_of(s.m, rows)), kernels.register_rows) * kernels.register_rows;
  columns = tiles_of(tiles_of(s.n, tiles_of(s.n, columns)), kernels.register_columns) * kernels.register_columns;
  return {rows, columns, tiles_of(s.m, rows), tiles_of(s.n, columns)};
}

// At least `bytes`, aligned to 64, kept by the thread: below 1 MB, with AMX 1.2, or 5.3 where k > 2048 or two digits.
inline char* thread_scratch(size_t bytes) {
  thread_local std::unique_ptr<char[]> memory;
  thread_local size_t size = 0;
  if (size < bytes) {
    memory.reset(new char[bytes + 63]);
    size = bytes;
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory.get());
  return memory.get() + (64 - address % 64) % 64;
}

// prepare(product, row, column, tile) says where the factors of a tile are, whose first entry of C is (row, column), and
// what becomes of it.
template <class Prepare>
void multiply_by_tiles(xla::ffi::ThreadPool& pool, const Int8Products& s, Prepare prepare) {
  if (s.count * s.m * s.n == 0) return;
  const ResidueKernels kernels = chosen_residue_kernels();
  const Tiling tiles = tiling(s, kernels, pool.num_threads());
  const int64_t each = tiles.row_tiles * tiles.column_tiles;
  const int64_t cost = std::min(s.m, tiles.rows) * std::min(s.n, tiles.columns) * (s.k + 16);
  const int64_t grain = std::max<int64_t>(1, kernels.task / cost);
  parallel_for(pool, s.count * each, grain, [=](int64_t begin, int64_t end) {
    char* const scratch = thread_scratch(kernels.scratch(tiles.rows, tiles.columns, s.k, s.channels));
    for (int64_t t = begin; t < end; ++t) {
      const int64_t product = t / each;
      const int64_t row = t % each / tiles.column_tiles * tiles.rows, column = t % tiles.column_tiles * tiles.columns;
      ResidueTile tile{};
      tile.rows = std::min(tiles.rows, s.m - row);
      tile.columns = std::min(tiles.columns, s.n - column);
      tile.k = s.k;
      tile.channels = 1;
      tile.stride = s.n;
      prepare(product, row, column, tile);
      kernels.tile(tile, scratch);
    }
  });
}

}  // namespace jaxmd
