// A tile of C_ij = Σ_l a_il b_jl mod p (residue_matmul.h), on pairs of int16 products.
//
// Compiled once per instruction set. With AVX2 or AVX-512BW:
//   a is widened to int16, [row][l]; b is widened and packed by panels of kColumns columns, [l / 2][column][2], so that
//   one vpmaddwd multiplies a pair a_i(2l), a_i(2l+1), broadcast, by the pairs of 8 or 16 columns, and vpaddd adds
//   (VNNI: vpdpwssd does both).
//   kRows by kVectors vectors of sums stay in registers over a block of k: 6 × 16 entries (AVX2), 12 × 32 (AVX-512).
// Otherwise both operands are widened as they lie, and 4 × 2 scalar products of int16 are left to the compiler's
// vectors (smlal on AArch64, pmaddwd in SSE2).
// Exact: integers, and a pair of products is at most 2^15; the same on every instruction set.
// Cost: 16 (32) multiply-adds for one multiplication and one addition: 32 a cycle on a core that issues two of each
//   256-bit vector, four times its float64 peak. Zen 3 reaches 3.4 times from registers alone; a tile 264 × 512 with
//   k = 512 has 2.9 to 3.2 times, 256^3 2.8 and 128^3 2.4, of which the reduction takes 5 %, 9 % and 17 %.
// Source: the blocking is that of K. Goto and R. van de Geijn, Anatomy of high-performance matrix multiplication
//   (ACM TOMS 34(3), 2008).
#include "residue_matmul.h"

#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#ifndef JAXMD_ISA
#define JAXMD_ISA portable
#endif

#include "residue_reduce.h"
#include "value.h"

namespace jaxmd {
namespace JAXMD_ISA {
namespace {

// int16 of `rows` rows of `depth` bytes, and zeros in the rows up to `all`.
void widen(const int8_t* x, int64_t stride, int64_t rows, int64_t depth, int64_t all, int16_t* out,
           int64_t out_stride) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t l = 0; l < depth; ++l) out[i * out_stride + l] = x[i * stride + l];
  }
  for (int64_t i = rows; i < all; ++i) std::memset(out + i * out_stride, 0, depth * sizeof(int16_t));
}

#if defined(__AVX2__)

#if defined(__AVX512BW__)
constexpr int kRows = 12, kVectors = 2, kLanes = 16;
using Vector = __m512i;
JAXMD_INLINE Vector load(const void* p) { return _mm512_loadu_si512(p); }
JAXMD_INLINE void store(void* p, Vector v) { _mm512_storeu_si512(p, v); }
JAXMD_INLINE Vector repeat(int32_t pair) { return _mm512_set1_epi32(pair); }
JAXMD_INLINE Vector add(Vector x, Vector y) { return _mm512_add_epi32(x, y); }
#if defined(__AVX512VNNI__)
JAXMD_INLINE Vector multiply_add(Vector x, Vector y, Vector sum) { return _mm512_dpwssd_epi32(sum, x, y); }
#else
JAXMD_INLINE Vector multiply_add(Vector x, Vector y, Vector sum) { return add(sum, _mm512_madd_epi16(x, y)); }
#endif
#else
constexpr int kRows = 6, kVectors = 2, kLanes = 8;
using Vector = __m256i;
JAXMD_INLINE Vector load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
JAXMD_INLINE void store(void* p, Vector v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
JAXMD_INLINE Vector repeat(int32_t pair) { return _mm256_set1_epi32(pair); }
JAXMD_INLINE Vector add(Vector x, Vector y) { return _mm256_add_epi32(x, y); }
JAXMD_INLINE Vector multiply_add(Vector x, Vector y, Vector sum) { return add(sum, _mm256_madd_epi16(x, y)); }
#endif
constexpr int kColumns = kVectors * kLanes;

inline int32_t load_pair(const int16_t* p) {
  int32_t pair;
  std::memcpy(&pair, p, sizeof pair);
  return pair;
}

// The transpose of 8 × 8 units of 16 bits.
inline void transpose(__m128i* x) {
  __m128i y[8], z[8];
  for (int i = 0; i < 4; ++i) {
    y[2 * i] = _mm_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
    y[2 * i + 1] = _mm_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
  }
  for (int h = 0; h < 2; ++h) {
    for (int i = 0; i < 2; ++i) {
      z[4 * h + 2 * i] = _mm_unpacklo_epi32(y[4 * h + i], y[4 * h + i + 2]);
      z[4 * h + 2 * i + 1] = _mm_unpackhi_epi32(y[4 * h + i], y[4 * h + i + 2]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = _mm_unpacklo_epi64(z[i], z[i + 4]);
    x[2 * i + 1] = _mm_unpackhi_epi64(z[i], z[i + 4]);
  }
}

// A panel: pairs of bytes of up to kColumns columns, transposed, then widened. Missing columns are zeros.
void pack(const int8_t* b, int64_t stride, int64_t columns, int64_t depth, int16_t* panel) {
  for (int64_t j = 0; j < kColumns; j += 8) {
    for (int64_t l = 0; l < depth; l += 16) {
      __m128i x[8];
      for (int i = 0; i < 8; ++i) {
        const int8_t* row = b + (j + i) * stride + l;
        x[i] = j + i < columns ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(row)) : _mm_setzero_si128();
      }
      transpose(x);
      int16_t* out = panel + l * kColumns + 2 * j;
      for (int i = 0; i < 8; ++i) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i * 2 * kColumns), _mm256_cvtepi8_epi16(x[i]));
      }
    }
  }
}

// sums (+)= kRows rows of a times a panel.
void register_tile(const int16_t* a, int64_t a_stride, const int16_t* panel, int64_t depth, bool first, int32_t* sums,
                   int64_t sum_stride) {
  Vector acc[kRows][kVectors];  // registers: all its indices are constants
  const auto for_each = [&](auto body) JAXMD_LAMBDA {
    each<kRows>(kRows, [&](int r) JAXMD_LAMBDA { each<kVectors>(kVectors, [&](int v) JAXMD_LAMBDA { body(r, v); }); });
  };
  for_each([&](int r, int v) JAXMD_LAMBDA { acc[r][v] = repeat(0); });
  for (int64_t l = 0; l < depth; l += 8) {
    each<4>(4, [&](int step) JAXMD_LAMBDA {
      const int16_t *const al = a + l + 2 * step, *const bl = panel + (l + 2 * step) * kColumns;
      Vector av{}, bv[kVectors];
      each<kVectors>(kVectors, [&](int v) JAXMD_LAMBDA { bv[v] = load(bl + v * 2 * kLanes); });
      for_each([&](int r, int v) JAXMD_LAMBDA {
        if (v == 0) av = repeat(load_pair(al + r * a_stride));
        acc[r][v] = multiply_add(av, bv[v], acc[r][v]);
        asm("" : "+v"(acc[r][v]));  // else g++ adds the products of several l first, and spills them
      });
    });
  }
  for_each([&](int r, int v) JAXMD_LAMBDA {
    int32_t* out = sums + r * sum_stride + v * kLanes;
    store(out, first ? acc[r][v] : add(acc[r][v], load(out)));
  });
}

#else

constexpr int kRows = 4, kColumns = 2;

void pack(const int8_t* b, int64_t stride, int64_t columns, int64_t depth, int16_t* panel) {
  widen(b, stride, columns < kColumns ? columns : kColumns, depth, kColumns, panel, depth);
}

void register_tile(const int16_t* a, int64_t a_stride, const int16_t* panel, int64_t depth, bool first, int32_t* sums,
                   int64_t sum_stride) {
  int32_t acc[kRows][kColumns] = {};
  for (int64_t l = 0; l < depth; ++l) {
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kColumns; ++c) acc[r][c] += int32_t{a[r * a_stride + l]} * panel[c * depth + l];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      int32_t& sum = sums[r * sum_stride + c];
      sum = first ? acc[r][c] : acc[r][c] + sum;
    }
  }
}

#endif

constexpr int64_t kMostRows = 264, kMostColumns = 512, kDepth = 512;  // of a tile; k of a block
static_assert(kMostRows % kRows == 0 && kMostColumns % kColumns == 0);

int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

// Where the parts of a tile's scratch lie; all begin on a cache line. In the largest, a block of a has 279 KB, a panel
// of b 16 or 32 KB, and the sums 558 KB.
struct Layout {
  int64_t a_stride, sum_stride;  // elements from row to row, off the powers of two
  size_t panel, sums, bytes;     // offsets in bytes, and the whole

  Layout(int64_t rows, int64_t columns, int64_t k) {
    const int64_t depth = k < kDepth ? k : kDepth, all_rows = round_up(rows, kRows);
    a_stride = round_up(depth, 32) + 32;
    sum_stride = round_up(columns, kColumns) + 16;
    panel = round_up(all_rows * a_stride * sizeof(int16_t), 64);
    sums = panel + round_up(kColumns * depth * sizeof(int16_t), 64);
    bytes = sums + all_rows * sum_stride * sizeof(int32_t);
  }
};

size_t scratch_bytes(int64_t rows, int64_t columns, int64_t k, int) { return Layout(rows, columns, k).bytes; }

// use(first sum of the row, i) for all rows of a tile.
template <class Use>
void each_row(int32_t* sums, int64_t sum_stride, const ResidueTile& tile, Use use) {
  for (int64_t i = 0; i < tile.rows; ++i) use(sums + i * sum_stride, i);
}

// From sums to C.
template <int kQuotients>
void finish(int32_t* sums, int64_t sum_stride, const ResidueTile& tile) {
  each_row(sums, sum_stride, tile, [&](const int32_t* row, int64_t i) {
    int8_t* const low = tile.low + i * tile.stride;
    if (tile.high == nullptr) {
      reduce<kQuotients>(row, tile.columns, tile.modulus, low);
    } else {
      reduce<kQuotients>(row, tile.columns, tile.modulus, low, tile.high + i * tile.stride);
    }
  });
}

void residue_tile(const ResidueTile& tile, char* scratch) {
  const Layout layout(tile.rows, tile.columns, tile.k);
  int16_t* const block = reinterpret_cast<int16_t*>(scratch);
  int16_t* const panel = reinterpret_cast<int16_t*>(scratch + layout.panel);
  int32_t* const sums = reinterpret_cast<int32_t*>(scratch + layout.sums);
  const int64_t rows = round_up(tile.rows, kRows);
  const int64_t blocks = tile.k <= kDepth ? 1 : (tile.k + kDepth - 1) / kDepth;
  const int64_t step = round_up((tile.k + blocks - 1) / blocks, kResidueStep);
  int64_t summed = 0;  // terms that lie in `sums`
  for (int channel = 0; channel < tile.channels; ++channel) {
    const int8_t *const a = tile.a + channel * tile.channel_a, *const b = tile.b + channel * tile.channel_b;
    if (channel > 0) {
      const auto carry_row = one_quotient(summed, tile.modulus) ? carry<1> : carry<2>;
      each_row(sums, layout.sum_stride, tile, [&](int32_t* row, int64_t) {
        carry_row(row, tile.columns, tile.modulus, tile.carry[channel - 1]);
      });
      summed = 2;  // |x| ≤ p/2 is as much as two terms
    }
    int64_t l = 0;
    do {
      const int64_t depth = tile.k - l < step ? tile.k - l : step;
      widen(a + l, tile.k, tile.rows, depth, rows, block, layout.a_stride);
      for (int64_t j = 0; j < tile.columns; j += kColumns) {
        pack(b + j * tile.k + l, tile.k, tile.columns - j, depth, panel);
        for (int64_t i = 0; i < rows; i += kRows) {
          register_tile(block + i * layout.a_stride, layout.a_stride, panel, depth, channel == 0 && l == 0,
                        sums + i * layout.sum_stride + j, layout.sum_stride);
        }
      }
      summed += depth;
      if (summed >= int64_t{1} << 16) {
        each_row(sums, layout.sum_stride, tile,
                 [&](int32_t* row, int64_t) { reduce<2>(row, tile.columns, tile.modulus); });
        summed = 2;
      }
      l += depth;
    } while (l < tile.k);
  }
  if (tile.below != nullptr) {
    int32_t smallest = tile.bound;
    for (int64_t i = 0; i < tile.rows; ++i) smallest = least(sums + i * layout.sum_stride, tile.columns, smallest);
    if (smallest < tile.bound) tile.below->store(true, std::memory_order_relaxed);
  } else if (one_quotient(summed, tile.modulus)) {
    finish<1>(sums, layout.sum_stride, tile);
  } else {
    finish<2>(sums, layout.sum_stride, tile);
  }
}

}  // namespace

extern const ResidueKernels residue_kernels;
const ResidueKernels residue_kernels = {
    residue_tile, scratch_bytes, kMostRows, kMostColumns, kRows, kColumns, 1'500'000};

}  // namespace JAXMD_ISA
}  // namespace jaxmd
