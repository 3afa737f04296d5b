// A tile of C_ij = Σ_l a_il b_jl mod p (residue_matmul.h) on AMX.
//
// Tiling: 32 × 32 sums in four tiles, two tiles of a and two of b a step of 64 terms: a kilobyte is loaded for each of
//   the four products, which take 16 cycles each. A panel of b, 32 columns of a block of k, stays in the first cache,
//   the rows of a pass by from the second.
// Packed: a as [row / 16][l / 64][row 16][l 64], b as [column / 16][l / 64][l / 4 16][column 16][4]; zeros beyond rows,
//   columns and k. Of longer k than a block's, the sums wait in scratch, [column / 32][row / 32][row 32][column 32].
// Exact: integers, |sum| < 2^31; longer sums are reduced mod p every 2^16 terms, as in residue_matmul_simd.cc.
// Cost: 1024 multiply-adds a cycle at best. Measured on two cores of a Xeon shared with others: a square with k = 1024
//   takes 0.9 to 2 µs of products, 0.3 of reduction and 0.15 of packing, which makes 1.1 to 2.2 int8 TOPS
//   (examples/bench/residues.py).
// Source: tiles and their order as in Intel's optimization manual (248966), chapter on AMX; the rest is this project's.
#include "residue_matmul.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "amx_tiles.h"
#include "residue_reduce.h"

namespace jaxmd {
namespace amx {
namespace {

constexpr int64_t kTile = 16, kBytes = 64, kSquare = 2 * kTile;
constexpr int64_t kTileBytes = kTile * kBytes, kDepth = 1024;  // k of a block

struct Layout {
  int64_t steps, row_tiles, squares;  // of a block; squares of 32 × 32
  size_t panel, sums, bytes;

  Layout(int64_t rows, int64_t columns, int64_t k) {
    steps = (std::min(k, kDepth) + kBytes - 1) / kBytes;
    row_tiles = (rows + kSquare - 1) / kSquare * 2;
    squares = k <= kDepth ? 1 : row_tiles / 2 * ((columns + kSquare - 1) / kSquare);
    panel = row_tiles * steps * kTileBytes;
    sums = panel + 2 * steps * kTileBytes;
    bytes = sums + squares * kSquare * kSquare * sizeof(int32_t);
  }
};

size_t scratch_bytes(int64_t rows, int64_t columns, int64_t k) { return Layout(rows, columns, k).bytes; }

inline __mmask64 first_bytes(int64_t count) { return count >= kBytes ? ~__mmask64{0} : (__mmask64{1} << count) - 1; }

// 16 rows of 64 bytes, of which `rows` rows and `depth` bytes are there.
inline void load_rows(const int8_t* x, int64_t stride, int64_t rows, int64_t depth, __m512i (&v)[kTile]) {
  const __mmask64 mask = first_bytes(depth);
  for (int i = 0; i < kTile; ++i) {
    v[i] = i < rows ? _mm512_maskz_loadu_epi8(mask, x + i * stride) : _mm512_setzero_si512();
  }
}

// The transpose of 16 × 16 units of 32 bits.
inline void transpose(__m512i (&x)[kTile]) {
  __m512i y[kTile];
  for (int i = 0; i < kTile; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < kTile; i += 4) {  // x[i + c]: column c of each 128 bits, of rows i … i + 3
    for (int h = 0; h < 2; ++h) {
      x[i + 2 * h] = _mm512_unpacklo_epi64(y[i + h], y[i + h + 2]);
      x[i + 2 * h + 1] = _mm512_unpackhi_epi64(y[i + h], y[i + h + 2]);
    }
  }
  for (int c = 0; c < 4; ++c) {
    for (int i = 0; i < 2; ++i) {  // pairs of four rows: 128-bit quarters 0, 2 and 1, 3
      y[c + 8 * i] = _mm512_shuffle_i32x4(x[c + 8 * i], x[c + 8 * i + 4], 0x88);
      y[c + 8 * i + 4] = _mm512_shuffle_i32x4(x[c + 8 * i], x[c + 8 * i + 4], 0xdd);
    }
  }
  for (int c = 0; c < 4; ++c) {
    x[c] = _mm512_shuffle_i32x4(y[c], y[c + 8], 0x88);
    x[c + 8] = _mm512_shuffle_i32x4(y[c], y[c + 8], 0xdd);
    x[c + 4] = _mm512_shuffle_i32x4(y[c + 4], y[c + 12], 0x88);
    x[c + 12] = _mm512_shuffle_i32x4(y[c + 4], y[c + 12], 0xdd);
  }
}

// Tiles of rows of x, `steps` each; transposed for b.
template <bool kTransposed>
void pack(const int8_t* x, int64_t stride, int64_t rows, int64_t depth, int64_t tiles, int64_t steps, char* out) {
  for (int64_t t = 0; t < tiles; ++t) {
    for (int64_t s = 0; s < steps; ++s, out += kTileBytes) {
      __m512i v[kTile];
      load_rows(x + t * kTile * stride + s * kBytes, stride, rows - t * kTile, depth - s * kBytes, v);
      if (kTransposed) transpose(v);
      for (int i = 0; i < kTile; ++i) _mm512_store_si512(out + i * kBytes, v[i]);
    }
  }
}

// sums (+)= two tiles of rows times two of columns, [row 32][column 32].
void multiply(const char* a, const char* b, int64_t steps, bool first, int32_t* sums) {
  constexpr int64_t kStride = kSquare * sizeof(int32_t), kLower = kTile * kSquare;
  if (first) {
    JAXMD_TILE_ZERO(0);
    JAXMD_TILE_ZERO(1);
    JAXMD_TILE_ZERO(2);
    JAXMD_TILE_ZERO(3);
  } else {
    JAXMD_TILE_LOAD(0, sums, kStride);
    JAXMD_TILE_LOAD(1, sums + kTile, kStride);
    JAXMD_TILE_LOAD(2, sums + kLower, kStride);
    JAXMD_TILE_LOAD(3, sums + kLower + kTile, kStride);
  }
  const int64_t next = steps * kTileBytes;
  for (int64_t s = 0; s < steps; ++s, a += kTileBytes, b += kTileBytes) {
    JAXMD_TILE_LOAD(6, b, kBytes);
    JAXMD_TILE_LOAD(4, a, kBytes);
    JAXMD_TILE_MULTIPLY(0, 4, 6);
    JAXMD_TILE_LOAD(7, b + next, kBytes);
    JAXMD_TILE_MULTIPLY(1, 4, 7);
    JAXMD_TILE_LOAD(5, a + next, kBytes);
    JAXMD_TILE_MULTIPLY(2, 5, 6);
    JAXMD_TILE_MULTIPLY(3, 5, 7);
  }
  JAXMD_TILE_STORE(0, sums, kStride);
  JAXMD_TILE_STORE(1, sums + kTile, kStride);
  JAXMD_TILE_STORE(2, sums + kLower, kStride);
  JAXMD_TILE_STORE(3, sums + kLower + kTile, kStride);
}

// A square at (i, j) of the tile, of sums of `terms` products, to its place in C. The reduction runs over the whole
// square: in rows of 32 the compiler's vectors would be half empty.
template <class T>
void reduce_square(const int32_t* sums, const ResidueTile& tile, int64_t i, int64_t j, int64_t terms, T* out) {
  const int64_t rows = std::min(kSquare, tile.rows - i), columns = std::min(kSquare, tile.columns - j);
  alignas(64) T reduced[kSquare * kSquare];
  if (one_quotient(terms, tile.modulus)) {
    reduce<1>(sums, kSquare * kSquare, tile.modulus, reduced);
  } else {
    reduce<2>(sums, kSquare * kSquare, tile.modulus, reduced);
  }
  out += i * tile.stride + j;
  for (int64_t r = 0; r < rows; ++r) std::memcpy(out + r * tile.stride, reduced + r * kSquare, columns * sizeof(T));
}

void finish(const int32_t* sums, const ResidueTile& tile, int64_t i, int64_t j, int64_t terms) {
  if (tile.narrow != nullptr) return reduce_square(sums, tile, i, j, terms, tile.narrow);
  if (tile.wide != nullptr) return reduce_square(sums, tile, i, j, terms, tile.wide);
  int32_t smallest = tile.bound;
  const int64_t rows = std::min(kSquare, tile.rows - i), columns = std::min(kSquare, tile.columns - j);
  for (int64_t r = 0; r < rows; ++r) smallest = least(sums + r * kSquare, columns, smallest);
  if (smallest < tile.bound) tile.below->store(true, std::memory_order_relaxed);
}

void residue_tile(const ResidueTile& tile, char* scratch) {
  const Layout layout(tile.rows, tile.columns, tile.k);
  const Tiles tiles;
  char* const panel = scratch + layout.panel;
  int32_t* const sums = reinterpret_cast<int32_t*>(scratch + layout.sums);
  const int64_t square = kSquare * kSquare;
  int64_t l = 0, summed = 0;  // terms that lie in `sums`
  do {
    const int64_t depth = std::min(kDepth, tile.k - l), steps = (depth + kBytes - 1) / kBytes;
    const bool first = l == 0, last = l + depth >= tile.k;
    pack<false>(tile.a + l, tile.k, tile.rows, depth, layout.row_tiles, steps, scratch);
    summed += depth;
    int32_t* at = sums;
    for (int64_t j = 0; j < tile.columns; j += kSquare) {
      pack<true>(tile.b + j * tile.k + l, tile.k, tile.columns - j, depth, 2, steps, panel);
      for (int64_t i = 0; i < tile.rows; i += kSquare) {
        multiply(scratch + i / kTile * steps * kTileBytes, panel, steps, first, at);
        if (last) finish(at, tile, i, j, summed);
        if (layout.squares > 1) at += square;
      }
    }
    if (!last && summed >= int64_t{1} << 16) {
      reduce<2>(sums, layout.squares * square, tile.modulus, sums);
      summed = 2;  // |x| ≤ p/2 is as much as two terms
    }
    l += depth;
  } while (l < tile.k);
}

}  // namespace

extern const ResidueKernels residue_kernels;
const ResidueKernels residue_kernels = {residue_tile, scratch_bytes, 1024, 512, kSquare, kSquare, 16'000'000};

}  // namespace amx
}  // namespace jaxmd
