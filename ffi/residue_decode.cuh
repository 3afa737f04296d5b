// Multiple doubles from residues: Chinese remainders as an int8 product, carries, one canonical rounding.
//
//   C = 2^(row_i + column_j - bits) 2^(low - bits) (sum_i r_i M_i - q P),    q = round(sum_i r_i M_i / P)
//
// Shapes:  small [n1, batch, m, n] int8, wide [3 n2, batch, m, n] int16, row [batch, m], column [batch, n],
//          out: limbs [batch, m, n]. M_i and P come in slices, M_i = sum_j m_ij 2^(beta j).
// Idea:    M_i in balanced bytes is a table [residues, bytes]; residues x table is an int8 product, whose columns are
//          the digits of the sum, base 256. A two-digit modulus first becomes one residue mod p, of 16 bits, and takes
//          two rows. q follows from the leading words, so neither M_i / P nor a float64 sum over the moduli is needed.
// Tiling:  a warp makes 32 entries at a time, as two fragments of 16; lane 4 g + t loads entries 4 g .. 4 g + 3 of 4
//          one-digit or 2 two-digit moduli, which are what its registers of the fragments hold, and asks for those of
//          the next tile while it works on this one. The table's columns are dealt so that a lane ends with 4 kWords
//          neighbouring bytes, part t of the integer: it carries them into kWords words and one more, and lane 4 g + i
//          fetches the four parts of entry 4 g + i from shared memory and rounds it (residue_decode_round.cuh). With
//          more than kGroup words a part is made in groups, from fragments kept in shared memory.
// Exact:   |sums of bytes| < 2^14 (n1 + 2 n2), 257 times that below 2^31 for all moduli there are. q is safe: what it
//          leaves out moves the quotient by less than 2^-24, and it keeps 2^-18 from every tie (_residues.plan).
// Cost:    n1 + 6 n2 bytes read and 8 L written an entry; instructions an entry: 5 + 2 + 3 + (1 + L) a word of 32 bits,
//          1 a one-digit modulus, 13 a two-digit one, 20 a limb.
// Source:  _residues.py; the int8 product is this project's.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "arithmetic.h"
#include "mma.cuh"
#include "residue.cuh"
#include "residue_decode_round.cuh"
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

// Four entries, of kSize bytes each, the first of them number `entry` of its channel. They may start anywhere if not
// aligned; any that lie outside are 0.
template <int kSize>
__device__ __forceinline__ void load_entries(uint32_t (&to)[kSize], const void* from, int64_t entry,
                                             const DecodeTask& task, bool aligned) {
  if (aligned) {
    if constexpr (kSize == 2) {
      const uint2 v = *reinterpret_cast<const uint2*>(from);
      to[0] = v.x, to[1] = v.y;
    } else {
      to[0] = *reinterpret_cast<const uint32_t*>(from);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (entry + j >= task.entries) continue;
    const uint32_t x = kSize == 1 ? static_cast<uint32_t>(reinterpret_cast<const uint8_t*>(from)[j])
                                  : static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(from)[j]);
    to[j * kSize / 4] |= x << (8 * kSize * j % 32);
  }
}

// Four one-digit channels of a step; what stands in place of channels that do not exist meets zeros of the table.
__device__ __forceinline__ void load_ones(uint32_t (&to)[4], const DecodeTask& task, int step, int t, int64_t entry,
                                          bool aligned) {
  const int first = 16 * step + 4 * t;
  const int8_t* channel = task.small + first * task.entries;
#pragma unroll
  for (int i = 0; i < 4; ++i, channel += task.entries) {
    uint32_t x[1] = {0};
    if (first + i < task.ones && entry < task.entries) load_entries<1>(x, channel + entry, entry, task, aligned);
    to[i] = x[0];
  }
}

// The three channels of two moduli of a step.
__device__ __forceinline__ void load_pairs(uint32_t (&to)[2][3][2], const DecodeTask& task, int step, int t,
                                           int64_t entry, bool aligned) {
  const int first = 8 * step + 2 * t;
  const int16_t* channel = task.wide + 3 * first * task.entries;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int d = 0; d < 3; ++d, channel += task.entries) {
      to[i][d][0] = to[i][d][1] = 0;
      if (first + i >= task.pairs || entry >= task.entries) continue;
      load_entries<2>(to[i][d], channel + entry, entry, task, aligned);
    }
  }
}

// Registers of one step of both fragments: rows are entries (row g + 8 h of fragment f: entry 2 f + h of the lane's
// four), columns residues.
__device__ __forceinline__ void pack_ones(uint32_t (&a)[2][2], const uint32_t (&from)[4]) {
  uint32_t to[4];
  transpose_bytes(from, to);
  a[0][0] = to[0], a[0][1] = to[1], a[1][0] = to[2], a[1][1] = to[3];
}
__device__ __forceinline__ void pack_pairs(uint32_t (&a)[2][2], const uint32_t (&from)[2][3][2],
                                           const int4* constants) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int4 m = constants[2 * i], v = constants[2 * i + 1];
    const int32_t c[3] = {v.x, v.y, v.z};
#pragma unroll
    for (int f = 0; f < 2; ++f) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const auto field = [&](int d) {
          return h == 0 ? static_cast<int32_t>(static_cast<int16_t>(from[i][d][f]))
                        : static_cast<int32_t>(from[i][d][f]) >> 16;
        };
        // r + 128: its second byte is the high digit, its first is the low one + 128
        const uint32_t r = combine_digits(m.x, m.y, c, field(0), field(1), field(2)) + 128;
        a[f][h] = i == 0 ? r : __byte_perm(a[f][h], r, 0x5410) ^ 0x00800080u;
      }
    }
  }
}

template <int kGroup>
__device__ __forceinline__ void multiply(int (&sums)[2][2 * kGroup][4], const uint32_t (&a)[2][2],
                                         const uint2* table) {
#pragma unroll
  for (int w = 0; w < kGroup; ++w) {
    const uint2 b = table[32 * w];
#pragma unroll
    for (int f = 0; f < 2; ++f) {
      MmaS8M16N8K16::run(sums[f][2 * w], a[f], b.x);
      MmaS8M16N8K16::run(sums[f][2 * w + 1], a[f], b.y);
    }
  }
}

// The lane's bytes of its four entries, carried into words.
template <int kGroup>
__device__ __forceinline__ void store_words(const int (&sums)[2][2 * kGroup][4], int32_t (&carry)[4], uint32_t* to) {
#pragma unroll
  for (int f = 0; f < 2; ++f) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int w = 0; w < kGroup; ++w) {
        const int(&x)[4] = sums[f][2 * w];
        const int(&y)[4] = sums[f][2 * w + 1];
        const int32_t low = x[2 * h] + 256 * x[2 * h + 1] + carry[2 * f + h];
        const int32_t high = y[2 * h] + 256 * y[2 * h + 1];
        const int64_t v = int64_t{high} * 65536 + low;
        to[w * kDecodeStride + 2 * f + h] = static_cast<uint32_t>(v);
        carry[2 * f + h] = static_cast<int32_t>(v >> 32);
      }
    }
  }
}

// Where an entry's exponents are: entry = row * n + column, rows of all matrices counted through.
struct EntryExponents {
  uint32_t row, column;

  // Both exponents of the entry `offset` further on.
  __device__ int2 of(const DecodeTask& task, int offset) const {
    const uint32_t n = static_cast<uint32_t>(task.n), m = static_cast<uint32_t>(task.m);
    uint32_t i = row, j = column + offset;
    if (j >= n) {
      const uint32_t rows = j / n;
      i += rows;
      j -= rows * n;
    }
    const uint32_t batch = i < task.m ? 0 : i / m;
    return make_int2(task.row[i], task.column[int64_t{batch} * task.n + j]);
  }
  // On by (rows, columns), columns < n.
  __device__ void advance(const DecodeTask& task, uint32_t rows, uint32_t columns) {
    row += rows;
    column += columns;
    if (column >= task.n) column -= static_cast<uint32_t>(task.n), ++row;
  }
};

// kWords, kGroup: DecodeLayout. kAligned: channels may be loaded four entries at once.
template <int kWords, int kGroup, bool kAligned>
__global__ void __launch_bounds__(decode_threads(kWords), kWords == 1 ? 3 : kWords == 2 ? 5 : kWords <= 4 ? 2 : 1)
    residue_decode_kernel(const __grid_constant__ DecodeTask task) {
  using Layout = DecodeLayout<kWords, kGroup>;
  constexpr int kAhead = 2;  // steps whose residues are asked for a tile ahead
  extern __shared__ __align__(16) unsigned char decode_shared[];
  const Layout layout(task);
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t step_entries = int64_t{gridDim.x} * warps * kDecodeTile;
  int64_t base = (int64_t{blockIdx.x} * warps + warp) * kDecodeTile;
  EntryExponents exponents{static_cast<uint32_t>(base / task.n), static_cast<uint32_t>(base % task.n)};
  const uint32_t step_rows = static_cast<uint32_t>(step_entries / task.n);
  const uint32_t step_columns = static_cast<uint32_t>(step_entries % task.n);
  const int8_t* ones = task.small + 4 * t * task.entries + base + 4 * g;  // of the tile that is asked for
  uint32_t exist = 0;  // bit 4 s + i: the lane's channel i of step s
#pragma unroll
  for (int i = 0; i < 4 * kAhead; ++i) exist |= (i / 4 * 16 + 4 * t + i % 4 < task.ones ? 1u : 0u) << i;
  uint32_t ahead[kAhead][4];
  int2 exponent = {};
  const auto look_ahead = [&](int64_t entry) {
    const uint32_t here = entry + 4 * g < task.entries ? exist : 0;
    const int8_t* from = ones;
#pragma unroll
    for (int s = 0; s < kAhead; ++s, from += 12 * task.entries) {
#pragma unroll
      for (int i = 0; i < 4; ++i, from += task.entries) {
        uint32_t x[1] = {0};
        if ((here >> (4 * s + i) & 1) != 0) load_entries<1>(x, from, entry + 4 * g, task, kAligned);
        ahead[s][i] = x[0];
      }
    }
    ones += step_entries;
    if (entry + lane < task.entries) exponent = exponents.of(task, lane);
  };
  look_ahead(base);
  fill_decode_tables(task, layout, decode_shared);
  __syncthreads();
  unsigned char* own = decode_shared + layout.warps + warp * layout.size;
  uint32_t* exchange = reinterpret_cast<uint32_t*>(own);
  uint2* fragments = reinterpret_cast<uint2*>(own + layout.fragments) + lane;
  const uint2* table = reinterpret_cast<const uint2*>(decode_shared) + lane;
  const int4* triples = reinterpret_cast<const int4*>(decode_shared + layout.triples) + 4 * t;
  const uint32_t* product = reinterpret_cast<const uint32_t*>(decode_shared + layout.product);
  for (; base < task.entries; base += step_entries) {
    const int64_t first = base + 4 * g, at = base + lane;
    int32_t carry[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) carry[i] = t > 0 ? -kDecodeCarry : 0;
    int sums[2][2 * kGroup][4] = {};
    const auto step_of = [&](int step, const uint32_t(&a)[2][2]) {
      if (Layout::kGroups > 1) {
        fragments[(2 * step) * 32] = make_uint2(a[0][0], a[0][1]);
        fragments[(2 * step + 1) * 32] = make_uint2(a[1][0], a[1][1]);
      }
      multiply<kGroup>(sums, a, table + step * kWords * 32);
    };
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      if (s >= layout.one_steps) break;
      uint32_t a[2][2];
      pack_ones(a, ahead[s]);
      step_of(s, a);
    }
    const int scale = exponent.x + exponent.y - task.bits;
    exponents.advance(task, step_rows, step_columns);
    look_ahead(base + step_entries);
#pragma unroll 2
    for (int s = kAhead; s < layout.one_steps; ++s) {
      uint32_t raw[4], a[2][2];
      load_ones(raw, task, s, t, first, kAligned);
      pack_ones(a, raw);
      step_of(s, a);
    }
#pragma unroll 1
    for (int s = 0; s < layout.steps - layout.one_steps; ++s) {
      uint32_t raw[2][3][2], a[2][2];
      load_pairs(raw, task, s, t, first, kAligned);
      pack_pairs(a, raw, triples + 16 * s);
      step_of(layout.one_steps + s, a);
    }
    uint32_t* part = exchange + t * Layout::kPart * kDecodeStride + 4 * g;
    store_words<kGroup>(sums, carry, part);
#pragma unroll 1
    for (int group = 1; group < Layout::kGroups; ++group) {
      int next[2][2 * kGroup][4] = {};
#pragma unroll 1
      for (int s = 0; s < layout.steps; ++s) {
        const uint2 x = fragments[(2 * s) * 32], y = fragments[(2 * s + 1) * 32];
        const uint32_t a[2][2] = {{x.x, x.y}, {y.x, y.y}};
        multiply<kGroup>(next, a, table + (s * kWords + group * kGroup) * 32);
      }
      store_words<kGroup>(next, carry, part + group * kGroup * kDecodeStride);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) part[kWords * kDecodeStride + i] = carry[i] + (t < 3 ? kDecodeCarry : 0);
    __syncwarp();
    if (at < task.entries) {
      const EntryParts<Layout, kWords> parts{exchange + lane};
      round_entry(task, parts, product, layout.raised, scale, at);
    }
    __syncwarp();
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
