// A tile of C_ij = Σ_l a_il b_jl mod p (residue_matmul.h) on AMX.
//
// Tiling: squares of 32 × 32 sums in four tiles, two tiles of a and two of b a step of 64 terms: a kilobyte is loaded
//   for each of the four products, which take 16 cycles each. A block of k of all columns of b stays in the second
//   cache; stripes of 32 rows of a are packed one after the other. A part of a stripe, 512 terms in 16 KB, stays in
//   the first cache while it meets all panels of 32 columns of b, whose tiles pass through by streaming loads; between
//   parts the sums of the stripe's squares wait in the second cache. The sums of a square are reduced and stored while
//   the next square is multiplied: TMUL leaves the vector units idle.
// Packed: a as [row / 16][l / 64][row 16][l 64], b as [column / 16][l / 64][l / 4 16][column 16][4]; zeros beyond rows,
//   columns and k. The sums lie in scratch, [column / 32][row 32][column 32] of one stripe, or of all where k is longer
//   than a block.
// Exact: integers, |sum| < 2^31; longer sums are reduced mod p every 2^16 terms, as in residue_matmul_simd.cc.
// Cost: 1024 multiply-adds a cycle at best. Measured on two cores of a Xeon with AMX, shared with others: 30 channels
//   of n = 1024, 12 of 2048 and 4 of 4096 take 16.6, 51 and 137 ms, which makes 3.9, 4.0 and 4.0 int8 TOPS. With whole
//   stripes instead of parts and ordinary loads of b it is 21.7, 63 and 164 ms (in a product of dd at n = 1024 24.6,
//   and 58 while panels of b stayed in the first cache), with parts alone 20.7, 55 and 145, with streaming alone 19.2,
//   59 and 128. Prefetches bring nothing; tiles of 1024 columns and scratch in large pages lose.
// Source: tiles and their order as in Intel's optimization manual (248966), chapter on AMX; the rest is this project's.
#include "residue_matmul.h"

#include <immintrin.h>

#include <algorithm>

#include "amx_tiles.h"
#include "residue_reduce.h"
#include "value.h"

namespace jaxmd {
namespace amx {
namespace {

constexpr int64_t kTile = 16, kBytes = 64, kSquare = 2 * kTile, kSums = kSquare * kSquare;
constexpr int64_t kTileBytes = kTile * kBytes, kDepth = 2048, kPart = 8;  // k of a block; steps

int64_t tiles_of(int64_t x, int64_t size) { return (x + size - 1) / size; }

// Where the parts of a tile's scratch lie: sums, a stripe of a, a block of b.
struct Layout {
  int64_t panels, squares, apart;  // of columns; whose sums are kept; from one stripe to the next
  size_t stripe, b, bytes;         // offsets in bytes, and the whole

  Layout(int64_t rows, int64_t columns, int64_t k, int channels) {
    const int64_t panel = 2 * kTileBytes * steps(std::min(k, kDepth));
    const bool at_once = k <= kDepth && channels == 1;  // then a stripe's sums are done before the next
    panels = tiles_of(columns, kSquare);
    squares = at_once ? panels : tiles_of(rows, kSquare) * panels;
    apart = at_once ? 0 : panels;
    stripe = squares * kSums * sizeof(int32_t);
    b = stripe + panel;
    bytes = b + panels * panel;
  }

  static int64_t steps(int64_t depth) { return std::max<int64_t>(1, tiles_of(depth, kBytes)); }
};

size_t scratch_bytes(int64_t rows, int64_t columns, int64_t k, int channels) {
  return Layout(rows, columns, k, channels).bytes;
}

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
  std::atomic_signal_fence(std::memory_order_seq_cst);  // g++ isn't told that tile loads read memory
}

// The way of a square's sums to C, or to `below`, row by row.
class Finish {
 public:
  explicit Finish(const ResidueTile& tile)
      : tile_(tile), inverse_(1.0f / static_cast<float>(tile.modulus)), once_(one_quotient(tile.k + 2, tile.modulus)) {}

  // From now on the rows are those of the square at (i, j) of the tile.
  void take(const int32_t* sums, int64_t i, int64_t j) {
    sums_ = sums;
    rows_ = std::min(kSquare, tile_.rows - i);
    columns_ = static_cast<__mmask32>(first_bytes(std::min(kSquare, tile_.columns - j)));
    entry_ = i * tile_.stride + j;
  }

  // No square waits.
  void rest() { rows_ = 0; }

  JAXMD_INLINE void row(int64_t r) const {
    if (r >= rows_) return;
    __m512i x = _mm512_load_si512(sums_ + r * kSquare), y = _mm512_load_si512(sums_ + r * kSquare + kTile);
    if (tile_.below != nullptr) {
      const __m512i bound = _mm512_set1_epi32(tile_.bound);
      const __mmask16 left = _mm512_mask_cmplt_epi32_mask(static_cast<__mmask16>(columns_), x, bound);
      const __mmask16 right = _mm512_mask_cmplt_epi32_mask(static_cast<__mmask16>(columns_ >> kTile), y, bound);
      if ((left | right) != 0) tile_.below->store(true, std::memory_order_relaxed);
      return;
    }
    if (!once_) {
      x = reduced(x);
      y = reduced(y);
    }
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const __m512i both = _mm512_permutexvar_epi64(order, _mm512_packs_epi32(centred(reduced(x)), centred(reduced(y))));
    const int64_t at = entry_ + r * tile_.stride;
    _mm256_mask_storeu_epi8(tile_.low + at, columns_, _mm512_cvtepi16_epi8(both));
    if (tile_.high != nullptr) {
      const __m512i high = _mm512_srai_epi16(_mm512_add_epi16(both, _mm512_set1_epi16(128)), 8);
      _mm256_mask_storeu_epi8(tile_.high + at, columns_, _mm512_cvtepi16_epi8(high));
    }
  }

 private:
  // As `reduce` (residue_reduce.h), but 1/2 is taken from the quotient before it is rounded. It errs by less than 1/2
  // in the last step, so that -p/2 < x < 3p/2 is left, and one correction.
  JAXMD_INLINE __m512i reduced(__m512i x) const {
    const __m512 inverse = _mm512_set1_ps(inverse_), half = _mm512_set1_ps(0.5f);
    const __m512i quotient = _mm512_cvtps_epi32(_mm512_fmsub_ps(_mm512_cvtepi32_ps(x), inverse, half));
    return _mm512_sub_epi32(x, _mm512_mullo_epi32(quotient, _mm512_set1_epi32(tile_.modulus)));
  }

  JAXMD_INLINE __m512i centred(__m512i x) const {
    const __m512i p = _mm512_set1_epi32(tile_.modulus), end = _mm512_set1_epi32(tile_.modulus - tile_.modulus / 2);
    return _mm512_mask_sub_epi32(x, _mm512_cmpge_epi32_mask(x, end), x, p);
  }

  const ResidueTile tile_;
  const float inverse_;
  const bool once_;
  const int32_t* sums_ = nullptr;
  int64_t rows_ = 0, entry_ = 0;
  __mmask32 columns_ = 0;
};

// sums (+)= `steps` of a stripe of a times those of a panel of b; `next`: bytes from the first tile of a step to the
// second. Meanwhile the rows of the square before are finished, whose sums may lie in the same place.
void multiply(const char* a, const char* b, int64_t next, int64_t steps, bool first, int32_t* sums,
              const Finish& before) {
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
  int64_t row = 0;
  for (int64_t s = 1; s <= steps; ++s, a += kTileBytes, b += kTileBytes) {
    JAXMD_TILE_STREAM(6, b, kBytes);
    JAXMD_TILE_LOAD(4, a, kBytes);
    JAXMD_TILE_MULTIPLY(0, 4, 6);
    JAXMD_TILE_STREAM(7, b + next, kBytes);
    JAXMD_TILE_MULTIPLY(1, 4, 7);
    JAXMD_TILE_LOAD(5, a + next, kBytes);
    JAXMD_TILE_MULTIPLY(2, 5, 6);
    JAXMD_TILE_MULTIPLY(3, 5, 7);
    for (; row * steps < kSquare * s; ++row) before.row(row);
  }
  JAXMD_TILE_STORE(0, sums, kStride);
  JAXMD_TILE_STORE(1, sums + kTile, kStride);
  JAXMD_TILE_STORE(2, sums + kLower, kStride);
  JAXMD_TILE_STORE(3, sums + kLower + kTile, kStride);
}

void residue_tile(const ResidueTile& tile, char* scratch) {
  const Layout layout(tile.rows, tile.columns, tile.k, tile.channels);
  const Tiles tiles;
  Finish finish(tile);
  int32_t* const sums = reinterpret_cast<int32_t*>(scratch);
  char *const stripe = scratch + layout.stripe, *const b = scratch + layout.b;
  int64_t summed = 0;  // terms that lie in `sums`
  for (int channel = 0; channel < tile.channels; ++channel) {
    const int8_t *const of_a = tile.a + channel * tile.channel_a, *const of_b = tile.b + channel * tile.channel_b;
    if (channel > 0) {
      const auto all = one_quotient(summed, tile.modulus) ? carry<1> : carry<2>;
      all(sums, layout.squares * kSums, tile.modulus, tile.carry[channel - 1]);
      summed = 2;  // |x| ≤ p/2 is as much as two terms
    }
    int64_t l = 0;
    do {
      const int64_t depth = std::min(kDepth, tile.k - l), steps = Layout::steps(depth);
      const bool first = channel == 0 && l == 0, last = channel + 1 == tile.channels && l + depth >= tile.k;
      pack<true>(of_b + l, tile.k, tile.columns, depth, 2 * layout.panels, steps, b);
      for (int64_t i = 0; i < tile.rows; i += kSquare) {
        pack<false>(of_a + i * tile.k + l, tile.k, tile.rows - i, depth, 2, steps, stripe);
        int32_t* const squares = sums + i / kSquare * layout.apart * kSums;
        for (int64_t part = 0; part < steps; part += kPart) {
          const int64_t count = std::min(kPart, steps - part), next = steps * kTileBytes;
          const char *const x = stripe + part * kTileBytes, *const y = b + part * kTileBytes;
          for (int64_t panel = 0; panel < layout.panels; ++panel) {
            int32_t* const at = squares + panel * kSums;
            multiply(x, y + panel * 2 * next, next, count, first && part == 0, at, finish);
            if (last && part + count == steps) {
              finish.take(at, i, panel * kSquare);
            } else {
              finish.rest();
            }
          }
        }
      }
      summed += depth;
      if (!last && summed >= int64_t{1} << 16) {
        reduce<2>(sums, layout.squares * kSums, tile.modulus);
        summed = 2;
      }
      l += depth;
    } while (l < tile.k);
  }
  for (int64_t r = 0; r < kSquare; ++r) finish.row(r);
}

}  // namespace

extern const ResidueKernels residue_kernels;
const ResidueKernels residue_kernels = {residue_tile, scratch_bytes, 2048, 512, kSquare, kSquare, 16'000'000};

}  // namespace amx
}  // namespace jaxmd
