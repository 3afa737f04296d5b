// Multiple doubles from residues: Chinese remainders as an int8 product, carries, one canonical rounding.
//
//   C = 2^(row_i + column_j - bits) 2^(low - bits) (sum_i r_i M_i - q P),    q = round(sum_i r_i M_i / P)
//
// Shapes:  small [n1, batch, m, n] int8, wide [3 n2, batch, m, n] int16, row [batch, m], column [batch, n],
//          out: limbs [batch, m, n]. M_i and P come in slices, M_i = sum_j m_ij 2^(beta j).
// Idea:    M_i in balanced bytes is a table [residues, bytes]; residues x table is an int8 product, whose columns are
//          the digits of the sum, base 256. A two-digit modulus first becomes one residue mod p, of 16 bits, and takes
//          two rows: its high byte meets the same bytes of M_i one place up. q follows from the leading digits, so
//          neither M_i / P nor a float64 sum over the moduli is needed.
// Tiling:  a warp makes 16 kHalves entries at a time, as kHalves fragments of 16; a lane loads 2 kHalves neighbouring
//          entries of 4 one-digit or 2 two-digit moduli, which are what its registers of the fragment hold. The sums of
//          two bytes make one int32 digit of base 2^16, pass through shared memory to the lane that owns the entry, and
//          become words. kLimbs > 0: words in registers, rounded by two_sum sweeps in doubles (limbs.h). kLimbs = 0:
//          any number of limbs; the tile's fragments stay in shared memory while groups of kTiles x 8 bytes are made,
//          words too, and are rounded as integers (digits.h).
// Exact:   |sums of bytes| < 2^14 (n1 + 2 n2), digits 257 times that, below 2^31 for all moduli there are. q is safe:
//          digits left out move the quotient by less than 2^-24, and it keeps 2^-18 from every tie (_residues.plan).
// Cost:    n1 + 6 n2 bytes read and 8 L written an entry.
// Source:  _residues.py; the int8 product is this project's.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "arithmetic.h"
#include "digits.h"
#include "mma.cuh"
#include "residue.cuh"
#include "residue_decode_tables.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

// 4 x 4 bytes transposed: byte i of to[j] is byte j of from[i].
__device__ inline void transpose_bytes(const uint32_t (&from)[4], uint32_t (&to)[4]) {
  const uint32_t x = __byte_perm(from[0], from[1], 0x5140), y = __byte_perm(from[2], from[3], 0x5140);
  const uint32_t z = __byte_perm(from[0], from[1], 0x7362), w = __byte_perm(from[2], from[3], 0x7362);
  to[0] = __byte_perm(x, y, 0x5410);
  to[1] = __byte_perm(x, y, 0x7632);
  to[2] = __byte_perm(z, w, 0x5410);
  to[3] = __byte_perm(z, w, 0x7632);
}

// kBytes bytes, of entries that may end or start anywhere if not aligned.
template <int kBytes, int kSize>
__device__ __forceinline__ void load_entries(uint32_t (&to)[kBytes / 4], const void* channel, int64_t entry,
                                             int64_t entries, bool aligned) {
  const char* from = static_cast<const char*>(channel) + entry * kSize;
  if (aligned) {
    if (entry >= entries) {
#pragma unroll
      for (int i = 0; i < kBytes / 4; ++i) to[i] = 0;
    } else if constexpr (kBytes == 16) {
      const uint4 v = *reinterpret_cast<const uint4*>(from);
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else if constexpr (kBytes == 8) {
      const uint2 v = *reinterpret_cast<const uint2*>(from);
      to[0] = v.x, to[1] = v.y;
    } else {
      to[0] = *reinterpret_cast<const uint32_t*>(from);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kBytes / 4; ++i) {
    uint32_t v = 0;
#pragma unroll
    for (int j = 0; j < 4 / kSize; ++j) {
      if (entry + i * (4 / kSize) + j >= entries) continue;
      const uint32_t x = kSize == 1 ? static_cast<uint32_t>(reinterpret_cast<const uint8_t*>(from)[i * 4 + j])
                                    : static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(from)[i * 2 + j]);
      v |= x << (8 * kSize * j);
    }
    to[i] = v;
  }
}

// Registers of step `step` of kHalves fragments: rows are entries (row g + 8 h of fragment f: entry 2 f + h of the
// lane's own, first, first + 1 ...), columns residues.
template <int kHalves, class Layout>
__device__ __forceinline__ void load_residues(uint32_t (&a)[kHalves][2], const DecodeTask& task, const Layout& layout,
                                              const unsigned char* shared, int step, int t, int64_t first) {
  if (step < layout.one_steps) {
    uint32_t bytes[4][kHalves / 2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int channel = 16 * step + 4 * t + i;
      const bool inside = channel < task.ones;
      load_entries<2 * kHalves, 1>(bytes[i], task.small + (inside ? channel : 0) * task.entries, first, task.entries,
                                   task.aligned);
#pragma unroll
      for (int j = 0; j < kHalves / 2; ++j) bytes[i][j] = inside ? bytes[i][j] : 0;
    }
#pragma unroll
    for (int j = 0; j < kHalves / 2; ++j) {
      const uint32_t from[4] = {bytes[0][j], bytes[1][j], bytes[2][j], bytes[3][j]};
      uint32_t to[4];
      transpose_bytes(from, to);
      a[2 * j][0] = to[0], a[2 * j][1] = to[1], a[2 * j + 1][0] = to[2], a[2 * j + 1][1] = to[3];
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int pair = 8 * (step - layout.one_steps) + 2 * t + i;
    const int4* constants = reinterpret_cast<const int4*>(shared + layout.triples) + 2 * pair;
    const int4 m = constants[0], v = constants[1];
    const int32_t c[3] = {v.x, v.y, v.z};
    uint32_t digits[3][kHalves];
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      const int64_t channel = pair < task.pairs ? 3 * pair + d : 0;
      load_entries<4 * kHalves, 2>(digits[d], task.wide + channel * task.entries, first, task.entries, task.aligned);
    }
#pragma unroll
    for (int f = 0; f < kHalves; ++f) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const auto field = [&](int d) {
          return h == 0 ? static_cast<int32_t>(static_cast<int16_t>(digits[d][f]))
                        : static_cast<int32_t>(digits[d][f]) >> 16;
        };
        // r + 128: its second byte is the high digit, its first is the low one + 128
        const uint32_t r = combine_digits(m.x, m.y, c, field(0), field(1), field(2)) + 128;
        a[f][h] = i == 0 ? r : __byte_perm(a[f][h], r, 0x5410) ^ 0x00800080u;
      }
    }
  }
}

// Digits of base 2^16 to shared memory: column 2 t + i of tile nt is byte 8 nt + 2 t + i.
template <int kHalves, int kTiles, class Layout>
__device__ __forceinline__ void store_digits(const int (&sums)[kHalves][kTiles][4], int32_t* digits, int g, int t,
                                             int tiles) {
#pragma unroll
  for (int f = 0; f < kHalves; ++f) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int nt = 0; nt < kTiles; ++nt) {
        if (nt >= tiles) break;
        digits[(4 * nt + t) * Layout::kStride + (2 * f + h) * 8 + g] =
            sums[f][nt][2 * h] + 256 * sums[f][nt][2 * h + 1];
      }
    }
  }
}

// Where an entry's exponents are: entry = row * n + column, rows of all matrices counted through.
struct EntryExponents {
  int64_t row, column;

  __device__ int of(const DecodeTask& task, int offset) const {
    int64_t i = row, j = column + offset;
    if (j >= task.n) {
      const uint32_t rows = static_cast<uint32_t>(static_cast<uint32_t>(j) / static_cast<uint32_t>(task.n));
      i += rows;
      j -= rows * task.n;
    }
    const int64_t batch = i < task.m ? 0 : static_cast<uint32_t>(i) / static_cast<uint32_t>(task.m);
    return task.row[i] + task.column[batch * task.n + j] - task.bits;
  }
  // On by (rows, columns), columns < n.
  __device__ void advance(const DecodeTask& task, int64_t rows, int64_t columns) {
    row += rows;
    column += columns;
    if (column >= task.n) column -= task.n, ++row;
  }
};

JAXMD_INLINE bool is_moderate(int exponent) { return exponent >= -1000 && exponent <= 1000; }

// The rounded limbs, scaled as jaxmd_scale does.
template <int kLimbs>
__device__ __forceinline__ void store_scaled(const DecodeTask& task, const double* limbs, int exponent, int64_t at) {
  const bool moderate = is_moderate(exponent);
  const double factor = power_of_two(moderate ? exponent : 0), inverse = power_of_two(moderate ? -exponent : 0);
  double scaled[kLimbs];
  bool exact = moderate;
  each<kLimbs>(kLimbs, [&](int i) {
    scaled[i] = mul_rn(limbs[i], factor);
    exact = exact && mul_rn(scaled[i], inverse) == limbs[i];
  });
  exact = exact && abs(scaled[0]) < 0x1p1000;
  if (!exact) {
    double x[kLimbs], r[kLimbs];
    each<kLimbs>(kLimbs, [&](int i) { x[i] = limbs[i]; });
    scale_careful(x, kLimbs, exponent, r);
    each<kLimbs>(kLimbs, [&](int i) { scaled[i] = r[i]; });
  }
  each<kLimbs>(kLimbs, [&](int i) { task.out.limb[i][at] = scaled[i]; });
}

// q for the entry at `digits`, from the digits first <= d < last.
template <class Layout>
__device__ __forceinline__ int32_t quotient(const int32_t* digits, int first, int last, double inverse) {
  double sum = 0;
#pragma unroll 1
  for (int d = last - 1; d >= first; --d) sum = fma_rn(sum, 65536.0, static_cast<double>(digits[d * Layout::kStride]));
  return static_cast<int32_t>(rint(mul_rn(sum, inverse)));
}

// Signed parts of 48 bits as doubles; word(i) is word i of a number in two's complement, its sign beyond the last.
template <int kTerms, int kWords>
__device__ __forceinline__ void signed_terms(const uint32_t (&word)[kWords], double (&term)[kTerms], int low) {
  int64_t carry = 0;
  each<kTerms>(kTerms, [&](int i) {
    const int first = 3 * i / 2;
    const uint32_t sign = static_cast<int32_t>(word[kWords - 1]) < 0 ? 0xffffffffu : 0;
    const uint64_t x = first < kWords ? word[first < kWords ? first : 0] : sign;
    const uint64_t y = first + 1 < kWords ? word[first + 1 < kWords ? first + 1 : 0] : sign;
    const uint64_t both = x | y << 32;
    const int64_t part = static_cast<int64_t>(i % 2 == 0 ? both : both >> 16) & 0xffffffffffffll;
    const int64_t v = part + carry;
    const int64_t balanced = static_cast<int64_t>(static_cast<uint64_t>(v) << 16) >> 16;
    carry = (v - balanced) >> 48;
    const double shifted = from_bits(static_cast<uint64_t>(balanced) + 0x4338000000000000ull);  // + 1.5 * 2^52
    term[kTerms - 1 - i] = mul_rn(sub_rn(shifted, 0x1.8p52), power_of_two(48 * i + low));
  });
}

// The next word of the digits less q P.
__device__ __forceinline__ uint32_t less_product(const int32_t* low, const int32_t* high, int32_t q, uint32_t product,
                                                 int64_t& carry) {
  const int64_t v = int64_t{*low} + int64_t{*high} * 65536 - int64_t{q} * product + carry;
  carry = v >> 32;
  return static_cast<uint32_t>(v);
}

template <int kHalves, int kTiles, int kLimbs>
__device__ __forceinline__ void round_entry(const DecodeTask& task, const DecodeLayout<kHalves, kTiles, kLimbs>& layout,
                                            const unsigned char* shared, const int32_t* digits, int exponent,
                                            int64_t at) {
  using Layout = DecodeLayout<kHalves, kTiles, kLimbs>;
  constexpr int kWords = 2 * kTiles, kTerms = (kWords * 32 + 47) / 48;
  const uint32_t* product = reinterpret_cast<const uint32_t*>(shared + layout.product);
  double inverse;
  memcpy(&inverse, product + layout.words, 8);
  const int32_t q = quotient<Layout>(digits, Layout::leading(task), 2 * layout.words, inverse);
  uint32_t word[kWords], last = 0;
  int64_t carry = 0;
  each<kWords>(kWords, [&](int w) {
    if (w < layout.words) {
      last = less_product(digits, digits + Layout::kStride, q, product[w], carry);
      digits += 2 * Layout::kStride;
    } else {
      last = static_cast<int32_t>(last) < 0 ? 0xffffffffu : 0;  // the sign
    }
    word[w] = last;
  });
  double term[kTerms], limbs[kTerms > kLimbs ? kTerms : kLimbs];
  signed_terms<kTerms, kWords>(word, term, task.low - task.bits);
  each<kTerms>(kTerms, [&](int i) { limbs[i] = term[i]; });
  if (!distill<kTerms>(limbs, kTerms, kLimbs)) exact_sum(term, kTerms, kLimbs, 0, limbs);
  if (limbs[0] == 0) limbs[0] = 0;
  store_scaled<kLimbs>(task, limbs, exponent, at);
}

// Words in shared memory, any number of limbs.
template <class Layout>
__device__ __forceinline__ void round_words(const DecodeTask& task, const Layout& layout, const uint32_t* words,
                                            int exponent, int64_t at) {
  const int count = layout.words, limbs = task.out.count;
  const auto word = [words](int i) { return words[i * Layout::kStride]; };
  const bool negative = static_cast<int32_t>(word(count - 1)) < 0;
  int low = task.low - task.bits;  // the integer times 2^low is rounded, then scaled
  if (task.bits > 990) {           // up to 2^2048: within range from the last bit of all on
    exponent += low + 1074;
    low = -1074;
  }
  const bool moderate = is_moderate(exponent);
  const double factor = power_of_two(moderate ? exponent : 0), inverse = power_of_two(moderate ? -exponent : 0);
  bool exact = moderate;
  round_to_limbs(word, count, low, negative, negative, limbs, [&](int i, double x) {
    const double r = mul_rn(x, factor);
    exact = exact && mul_rn(r, inverse) == x && (i > 0 || abs(r) < 0x1p1000);
    task.out.limb[i][at] = moderate ? r : x;
  });
  if (exact) return;
  double x[kMaxProductLimbs], r[kMaxProductLimbs];
  round_to_limbs(word, count, low, negative, negative, limbs, [&](int i, double limb) { x[i] = limb; });
  const int head = limbs < kMaxLimbs ? limbs : kMaxLimbs;  // limbs beyond are a number of their own
  scale_careful(x, head, exponent, r);
  if (limbs > head) scale_careful(x + head, limbs - head, exponent, r + head);
  JAXMD_ROLLED
  for (int i = 0; i < limbs; ++i) task.out.limb[i][at] = r[i];
}

template <int kHalves, int kTiles, int kLimbs>
__global__ void __launch_bounds__(256, kLimbs == 0 ? 1 : 2)
    residue_decode_kernel(const __grid_constant__ DecodeTask task) {
  using Layout = DecodeLayout<kHalves, kTiles, kLimbs>;
  extern __shared__ __align__(16) unsigned char decode_shared[];
  const Layout layout(task);
  fill_decode_tables(task, layout, decode_shared);
  __syncthreads();
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  unsigned char* own = decode_shared + layout.warps + warp * layout.size;
  int32_t* digits = reinterpret_cast<int32_t*>(own);
  uint32_t* fragments = reinterpret_cast<uint32_t*>(own + layout.fragments) + lane;
  uint32_t* words = reinterpret_cast<uint32_t*>(own + layout.integers);
  const uint32_t* product = reinterpret_cast<const uint32_t*>(decode_shared + layout.product);
  const int64_t step_entries = int64_t{gridDim.x} * warps * Layout::kEntries;
  int64_t base = (int64_t{blockIdx.x} * warps + warp) * Layout::kEntries;
  EntryExponents exponents{base / task.n, base % task.n};
  const int64_t step_rows = step_entries / task.n, step_columns = step_entries % task.n;
  for (; base < task.entries; base += step_entries, exponents.advance(task, step_rows, step_columns)) {
    const int64_t first = base + 2 * kHalves * g;
#pragma unroll 1
    for (int group = 0; group < (kLimbs > 0 ? 1 : layout.tiles); group += kTiles) {
      int sums[kHalves][kTiles][4] = {};
#pragma unroll 1
      for (int step = 0; step < layout.steps; ++step) {
        uint32_t a[kHalves][2];
        if (group == 0) load_residues<kHalves>(a, task, layout, decode_shared, step, t, first);
        if (kLimbs == 0) {
#pragma unroll
          for (int i = 0; i < 2 * kHalves; ++i) {
            uint32_t& kept = fragments[(step * 2 * kHalves + i) * 32];
            if (group == 0) {
              kept = a[i / 2][i % 2];
            } else {
              a[i / 2][i % 2] = kept;
            }
          }
        }
        const uint32_t* table =
            reinterpret_cast<const uint32_t*>(decode_shared) + (step * layout.tiles + group) * 32 + lane;
#pragma unroll
        for (int nt = 0; nt < kTiles; ++nt) {
          if (group + nt >= layout.tiles) break;
          const uint32_t b = table[nt * 32];
#pragma unroll
          for (int f = 0; f < kHalves; ++f) MmaS8M16N8K16::run(sums[f][nt], a[f], b);
        }
      }
      __syncwarp();  // the last group's digits are read
      store_digits<kHalves, kTiles, Layout>(sums, digits, g, t, layout.tiles - group);
      __syncwarp();
      if constexpr (kLimbs == 0) {
#pragma unroll
        for (int place = lane; place < Layout::kEntries; place += 32) {
          // Digits of a group to words without q; the carry into the next group waits in its first word.
          int64_t carry = group == 0 ? 0 : static_cast<int32_t>(words[2 * group * Layout::kStride + place]);
          const int last = min(2 * kTiles, layout.words - 2 * group);
#pragma unroll 1
          for (int w = 0; w < last; ++w) {
            const int64_t low = digits[2 * w * Layout::kStride + place],
                          high = digits[(2 * w + 1) * Layout::kStride + place];
            const int64_t v = low + high * 65536 + carry;
            words[(2 * group + w) * Layout::kStride + place] = static_cast<uint32_t>(v);
            carry = v >> 32;
          }
          if (2 * group + last < layout.words) {
            words[(2 * group + last) * Layout::kStride + place] = static_cast<uint32_t>(carry);
          }
        }
      }
    }
#pragma unroll 1
    for (int place = lane; place < Layout::kEntries; place += 32) {
      const int offset = Layout::entry(place);
      if (base + offset >= task.entries) continue;
      const int exponent = exponents.of(task, offset);
      if constexpr (kLimbs > 0) {
        round_entry<kHalves, kTiles, kLimbs>(task, layout, decode_shared, digits + place, exponent, base + offset);
      } else {
        double inverse;
        memcpy(&inverse, product + layout.words, 8);
        const int lead = Layout::leading(task) / 2;
        double sum = static_cast<int32_t>(words[(layout.words - 1) * Layout::kStride + place]);
#pragma unroll 1
        for (int w = layout.words - 2; w >= lead; --w) {
          sum = fma_rn(sum, 0x1p32, static_cast<double>(words[w * Layout::kStride + place]));
        }
        // P's inverse counts from digit leading(task), which may be the upper half of a word
        const int32_t q =
            static_cast<int32_t>(rint(mul_rn(Layout::leading(task) % 2 == 0 ? sum : mul_rn(sum, 0x1p-16), inverse)));
        int64_t carry = 0;
#pragma unroll 1
        for (int w = 0; w < layout.words; ++w) {
          uint32_t& word = words[w * Layout::kStride + place];
          const int64_t v = int64_t{word} - int64_t{q} * product[w] + carry;
          word = static_cast<uint32_t>(v);
          carry = v >> 32;
        }
        round_words(task, layout, words + place, exponent, base + offset);
      }
    }
    __syncwarp();
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
