// Residues of the integers behind multiple doubles, both operands with k contiguous.
//
//   X = sum over limbs of round(limb 2^(bits - exponent_row - shift_k)),   out[channel] = X mod p, centred
//
// Shapes:  limbs [batch, rows, k] (side 0) or [batch, k, rows] (side 1), exponent [batch, rows], shift [batch, k],
//          out [G, batch, rows, kp]; zeros from k to kp. Moduli [N]: n1 one-digit, n2 = N - n1 two-digit ones.
// Idea:    X mod p = sum over bytes of X of byte_s (256^s mod p): an int8 product of a table [moduli, bytes] with the
//          words of X, which as they stand are the operand of m16n8k16 (bytes 4 t .. 4 t + 3 of column g in lane
//          4 g + t). A two-digit modulus takes two rows, the high and low byte of its weights. 2^(32 W - 1) is added to
//          X and taken off again by the sums' start, so that all bytes are unsigned.
// Tiling:  a block makes kRows x 64 entries at a time. First a thread an entry: limbs -> words in shared memory (side 1
//          reads along rows and so transposes). Then a warp a row: 8 fragments of 8 entries, their columns dealt so
//          that a lane ends with 16 neighbours on k of each of its moduli, one 16-byte store a channel.
// Exact:   |sums| < 2^23 (one-digit) and 2^30 (two-digit) for up to 33 words; residue.cuh.
// Cost:    8 L bytes read and G written an entry; about 3 instructions an entry and one-digit modulus, 35 a two-digit
//          one, 30 a limb.
// Source:  the byte x weight product is this project's; _residues.py for all else.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "mma.cuh"
#include "product_shape.h"
#include "residue.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

struct EncodeTask {
  LimbPointers<const double> limbs;
  const int32_t* exponent;  // [batch, rows]
  const int32_t* shift;     // [batch, k]
  const int32_t* weights;   // [ones + pairs, digits]: 2^(16 s) mod p, the largest s first
  const int32_t* moduli;    // [ones + pairs]
  const int32_t* lattice;   // [pairs, 4]
  int8_t* out;              // [ones + 3 pairs, batch, rows, kp]
  int64_t batch, rows, k, kp;
  int ones, pairs, digits, bits;
  bool transposed;  // side 1
};

constexpr int kEncodeThreads = 256, kEncodeSpan = 64;  // entries of k in a tile

// Shared memory of a block: fragments of the weights, constants of the moduli, words of the entries.
struct EncodeLayout {
  int words, steps;               // of an integer; k16 steps of the product
  int one_tiles, pair_tiles;      // of 16 and of 8 moduli
  int constants, integers, size;  // offsets in bytes
  int row;                        // words from one row of entries to the next
  int tile;                       // words from one tile of entries to the next, where there are two

  static constexpr int kWord = 72;  // words from one word of an entry to the next: 64 entries, 8 mod 32

  __host__ __device__ EncodeLayout(int ones, int pairs, int bits, int rows) {
    words = word_count(bits);
    steps = (words + 3) / 4;
    one_tiles = (ones + 15) / 16;
    pair_tiles = (pairs + 7) / 8;
    constants = (one_tiles + pair_tiles) * steps * 256;
    integers = constants + one_tiles * 256 + pair_tiles * 384;
    row = steps * 4 * kWord + 32 / rows;  // lanes along rows or along k: no bank conflicts
    tile = rows * row;
    size = integers + (steps == 1 ? 2 : 1) * tile * 4;
  }

  // Entry e = 16 i + r of a row: two more a sixteen, so that the columns of a fragment lie in different banks.
  static __host__ __device__ int entry(int e) { return e + e / 16 * 2; }
  // Entry that column c of fragment j holds, and its place.
  static __host__ __device__ int column_entry(int c, int j) { return c / 2 * 16 + 2 * j + c % 2; }
};

// Centred 2^exponent mod p, continued from the table's 2^(16 (digits - 1)) where that ends.
__device__ inline int32_t power_mod(const EncodeTask& task, int modulus, int exponent) {
  const int32_t p = task.moduli[modulus];
  const int have = min(exponent / 16, task.digits - 1);
  int64_t r = task.weights[int64_t{modulus} * task.digits + task.digits - 1 - have];
  for (int left = exponent - 16 * have; left > 0; left -= 16) r = r * (1 << min(left, 16)) % p;
  r %= p;
  return static_cast<int32_t>(r < -(p / 2) ? r + p : r >= p - p / 2 ? r - p : r);
}

// Row i of the weights of tile `tile`, at byte s: of tiles of 16 one-digit moduli, then of 8 two-digit ones.
__device__ inline int32_t weight_byte(const EncodeTask& task, const EncodeLayout& layout, int tile, int row, int byte) {
  const bool pair = tile >= layout.one_tiles;
  const int modulus = pair ? task.ones + 8 * (tile - layout.one_tiles) + row % 8 : 16 * tile + row;
  if (byte >= 4 * layout.words || modulus >= (pair ? task.ones + task.pairs : task.ones)) return 0;
  const int32_t w = power_mod(task, modulus, 8 * byte);
  if (!pair) return w;
  const int32_t low = static_cast<int8_t>(w);
  return row < 8 ? (w - low) / 256 : low;
}

// kFloat: sums of one-digit moduli are reduced in float32.
constexpr uint32_t kFloatSum = 0x4b400000;  // 1.5 2^23: bits of a float, to which integers below 2^22 may be added
template <bool kFloat>
__device__ inline void fill_encode_tables(const EncodeTask& task, const EncodeLayout& layout, unsigned char* shared) {
  const int tiles = layout.one_tiles + layout.pair_tiles;
  for (int i = threadIdx.x; i < tiles * layout.steps * 64; i += kEncodeThreads) {
    const int half = i % 2, lane = i / 2 % 32, step = i / 64 % layout.steps, tile = i / 64 / layout.steps;
    uint32_t packed = 0;
    for (int s = 0; s < 4; ++s) {
      const int32_t w = weight_byte(task, layout, tile, lane / 4 + 8 * half, 16 * step + lane % 4 * 4 + s);
      packed |= (static_cast<uint32_t>(w) & 0xff) << (8 * s);
    }
    reinterpret_cast<uint32_t*>(shared)[i] = packed;
  }
  int4* constants = reinterpret_cast<int4*>(shared + layout.constants);
  const int top = 32 * layout.words - 1;
  for (int i = threadIdx.x; i < layout.one_tiles * 16 + layout.pair_tiles * 8; i += kEncodeThreads) {
    if (i < layout.one_tiles * 16) {
      if (i >= task.ones) {
        constants[i] = make_int4(1, 0, 0, 0);
        continue;
      }
      const Reducer m = quick_reducer(task.moduli[i]);
      const int32_t start = -power_mod(task, i, top);
      constants[i] = kFloat ? make_int4(-m.modulus, __float_as_int(__frcp_rn(static_cast<float>(m.modulus))), 0,
                                        static_cast<int32_t>(kFloatSum) + start)
                            : make_int4(m.modulus, m.factor, static_cast<int32_t>(m.offset), start);
    } else {
      const int j = i - layout.one_tiles * 16;
      int4* to = constants + layout.one_tiles * 16 + 3 * j;
      to[0] = to[1] = to[2] = make_int4(1, 0, 0, 0);
      if (j >= task.pairs) continue;
      const int modulus = task.ones + j;
      const FloorReducer m = make_floor_reducer(task.moduli[modulus]);
      const Lattice v = make_lattice(m.modulus, task.lattice + int64_t{4} * j);
      to[0] = make_int4(m.modulus, static_cast<int32_t>(m.factor), m.lift - power_mod(task, modulus, top), 0);
      to[1] = make_int4(v.factor_n, v.factor_l, 0, 0);
      to[2] = make_int4(v.va, v.vb, v.wa, v.wb);
    }
  }
}

// The words of a tile's entries, zero outside the operand. A thread makes kEach of them at once, and asks for kChunk
// limbs of each before it uses one.
template <int kRows>
__device__ __forceinline__ void store_integers(const EncodeTask& task, const EncodeLayout& layout, uint32_t* integers,
                                               int64_t b, int64_t row0, int64_t l0) {
  constexpr int kEach = kRows * kEncodeSpan / kEncodeThreads, kChunk = 8 / kEach;
  static_assert(kEach * kEncodeThreads == kRows * kEncodeSpan && kChunk > 0);
  struct Column {
    uint32_t* first;
    __device__ uint32_t& operator()(int i) const { return first[i * EncodeLayout::kWord]; }
  };
  const auto column = [&](int e, int& row, int& l) {
    const int i = threadIdx.x + e * kEncodeThreads;
    row = task.transposed ? i % kRows : i / kEncodeSpan;
    l = task.transposed ? i / kRows : i % kEncodeSpan;
    return Column{integers + row * layout.row + EncodeLayout::entry(l)};
  };
  const auto limbs = [&](auto&&... sum) {
    int64_t from[kEach];
    int units[kEach];
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      int row, l;
      column(e, row, l);
      const int64_t i = row0 + row, k = l0 + l;
      const bool inside = i < task.rows && k < task.k;
      from[e] = !inside ? -1 : task.transposed ? (b * task.k + k) * task.rows + i : (b * task.rows + i) * task.k + k;
      units[e] = inside ? task.bits - task.exponent[b * task.rows + i] - task.shift[b * task.k + k] : 0;
    }
#pragma unroll 1
    for (int last = task.limbs.count - 1; last >= 0; last -= kChunk) {
      double x[kEach][kChunk];
#pragma unroll
      for (int c = 0; c < kChunk; ++c) {
        const double* limb = task.limbs.limb[max(last - c, 0)];
#pragma unroll
        for (int e = 0; e < kEach; ++e) x[e][c] = from[e] >= 0 && last >= c ? limb[from[e]] : 0.0;
      }
      int e = 0;
      const auto add = [&](auto& integer) {
#pragma unroll
        for (int c = 0; c < kChunk; ++c) integer.add(x[e][c], units[e]);
        ++e;
      };
      (add(sum), ...);
    }
    (sum.finish_with_bias(), ...);
  };
  int row, l;
  const auto integer = [&](int e) { return IntegerOfLimbs<Column>(column(e, row, l), layout.words); };
  if constexpr (kEach == 2) {
    limbs(integer(0), integer(1));
  } else {
    static_assert(kEach == 4);
    limbs(integer(0), integer(1), integer(2), integer(3));
  }
}

// Bytes 0 of the two fields of x and of y.
__device__ inline uint32_t low_bytes(uint32_t x, uint32_t y) { return __byte_perm(x, y, 0x6420); }
__device__ inline uint32_t four_bytes(int a, int b, int c, int d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// One row of a tile: a warp's 64 entries.
template <int kSteps>
struct EncodeRow {
  const EncodeLayout& layout;
  const unsigned char* shared;
  const uint32_t* words;  // of this row
  int g, t, lane;
  uint32_t b[8][kSteps];  // chunk of the integers

  __device__ EncodeRow(const EncodeLayout& layout, const unsigned char* shared, int first, int lane)
      : layout(layout),
        shared(shared),
        words(reinterpret_cast<const uint32_t*>(shared + layout.integers) + first),
        g(lane / 4),
        t(lane % 4),
        lane(lane) {}

  __device__ void load(int first) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int e = EncodeLayout::entry(EncodeLayout::column_entry(g, j));
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        if (s == 0 || first + s < layout.steps) b[j][s] = words[(4 * (first + s) + t) * EncodeLayout::kWord + e];
      }
    }
  }

  // sums[j] from `start` on: rows g (entries 0, 1 of sums[j]) and g + 8 (2, 3) of the tile, entries 16 t + 2 j and
  // 16 t + 2 j + 1.
  __device__ void multiply(int (&sums)[8][4], const int (&start)[4], int tile, bool loaded) {
    const uint2* weights = reinterpret_cast<const uint2*>(shared) + tile * layout.steps * 32 + lane;
    if (!loaded) load(0);
    multiply_step(sums, weights[0], 0, start);
    multiply_steps(sums, weights, 1, layout.steps);
    if (loaded) return;
#pragma unroll 1
    for (int first = kSteps; first < layout.steps; first += kSteps) {
      load(first);
      multiply_steps(sums, weights + first * 32, 0, layout.steps - first);
    }
  }

 private:
  __device__ void multiply_step(int (&sums)[8][4], uint2 w, int s, const int (&start)[4]) {
    const uint32_t a[2] = {w.x, w.y};
#pragma unroll
    for (int j = 0; j < 8; ++j) MmaS8U8M16N8K16::run(sums[j], a, b[j][s], start);
  }
  __device__ void multiply_steps(int (&sums)[8][4], const uint2* weights, int from, int left) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (s < from) continue;
      if (s >= left) break;
      const uint2 w = weights[s * 32];
      const uint32_t a[2] = {w.x, w.y};
#pragma unroll
      for (int j = 0; j < 8; ++j) MmaS8U8M16N8K16::run(sums[j], a, b[j][s]);
    }
  }
};

// Low byte: centred x mod p, of x + kFloatSum as an accumulator, p odd or 256.
// Exact: |x| < 2^22, so that x / p is off by less than 1 / (4 p), and x / p keeps 1 / (2 p) from a half.
__device__ __forceinline__ int float_reduce(int minus_p, float inverse, int sum) {
  const float magic = __uint_as_float(kFloatSum);
  const float x = __fsub_rn(__int_as_float(sum), magic);
  return __float_as_int(__fmaf_rn(x, inverse, magic)) * minus_p + sum;
}

// `out`: where the lane's entries of channel g of the tile go.
template <int kSteps, bool kFloat>
__device__ __forceinline__ void encode_ones(const EncodeTask& task, EncodeRow<kSteps>& row, int tile, int8_t* out,
                                            int64_t eight_channels, bool inside) {
  const int4* constants = reinterpret_cast<const int4*>(row.shared + row.layout.constants) + tile * 16 + row.g;
  const int4 m[2] = {constants[0], constants[8]};
  const int start[4] = {m[0].w, m[0].w, m[1].w, m[1].w};
  int sums[8][4];
  row.multiply(sums, start, tile, kFloat);
#pragma unroll
  for (int half = 0; half < 2; ++half, out += eight_channels) {
    const int64_t offset = static_cast<uint32_t>(m[half].z);
    uint32_t packed[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      int r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int sum = sums[2 * q + i / 2][2 * half + i % 2];
        r[i] = kFloat ? float_reduce(m[half].x, __int_as_float(m[half].y), sum)
                      : quick_reduce(m[half].x, m[half].y, offset, sum);
      }
      packed[q] = four_bytes(r[0], r[1], r[2], r[3]);
    }
    if (inside && tile * 16 + row.g + 8 * half < task.ones) {
      *reinterpret_cast<uint4*>(out) = make_uint4(packed[0], packed[1], packed[2], packed[3]);
    }
  }
}

template <int kSteps>
__device__ __forceinline__ void encode_pairs(const EncodeTask& task, EncodeRow<kSteps>& row, int tile, bool loaded,
                                             int8_t* out, int64_t channel_size, bool inside) {
  const int pair = 8 * (tile - row.layout.one_tiles) + row.g;
  const int4* constants =
      reinterpret_cast<const int4*>(row.shared + row.layout.constants) + row.layout.one_tiles * 16 + 3 * pair;
  const int4 m = constants[0], f = constants[1], v = constants[2];
  const int start[4] = {0, 0, m.z, m.z};
  int sums[8][4];
  row.multiply(sums, start, tile, loaded);
  const FloorReducer reducer = {m.x, static_cast<uint32_t>(m.y), 0};
  const Lattice lattice = {f.x, f.y, v.x, v.y, v.z, v.w};
  uint32_t packed[3][4];
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    DigitFields d[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int (&x)[4] = sums[2 * q + i];
      const auto residue = [&](int high, int low) {
        return reduce(reducer, 256 * static_cast<uint32_t>(high) + static_cast<uint32_t>(low));
      };
      d[i] = two_digits(lattice, residue(x[0], x[2]), residue(x[1], x[3]));
    }
    packed[0][q] = low_bytes(d[0].a, d[1].a);
    packed[1][q] = low_bytes(d[0].b, d[1].b);
    packed[2][q] = low_bytes(d[0].sum, d[1].sum);
  }
  if (!inside || pair >= task.pairs) return;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    *reinterpret_cast<uint4*>(out + (task.ones + 3 * pair + i) * channel_size) =
        make_uint4(packed[i][0], packed[i][1], packed[i][2], packed[i][3]);
  }
}

// Where a tile is: matrix b, rows from row0 on, entries of k from l0 on.
struct EncodeTile {
  int64_t b, row0, l0;

  __device__ EncodeTile(uint32_t tile, uint32_t spans, uint32_t bands, int rows) {
    const uint32_t outer = tile / spans;
    b = outer / bands;
    row0 = int64_t{outer - static_cast<uint32_t>(b) * bands} * rows;
    l0 = int64_t{tile - outer * spans} * kEncodeSpan;
  }
};

// Integers of at most four words: a thread's entries of a tile are asked for while the last tile is at work.
template <int kRows>
struct ShortEntries {
  static constexpr int kEach = kRows * kEncodeSpan / kEncodeThreads, kAhead = 2;  // limbs asked for early, the last ones

  int row[kEach], entry[kEach];  // in a tile
  int64_t offset[kEach];         // of the limbs, from the tile's first on
  int64_t from[kEach];           // where the limbs are, -1 outside
  double x[kEach][kAhead];
  int exponent[kEach], shift[kEach];

  __device__ explicit ShortEntries(const EncodeTask& task) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int i = threadIdx.x + e * kEncodeThreads;
      row[e] = task.transposed ? i % kRows : i / kEncodeSpan;
      entry[e] = task.transposed ? i / kRows : i % kEncodeSpan;
      offset[e] = task.transposed ? entry[e] * task.rows + row[e] : row[e] * task.k + entry[e];
    }
  }

  __device__ __forceinline__ void load(const EncodeTask& task, const EncodeTile& at) {
    const int last = task.limbs.count - 1;
    const int64_t row0 = at.b * task.rows + at.row0, l0 = at.b * task.k + at.l0;
    const int64_t first = task.transposed ? l0 * task.rows + at.row0 : row0 * task.k + at.l0;
    const int rows = static_cast<int>(min(task.rows - at.row0, int64_t{kRows}));
    const int length = static_cast<int>(min(task.k - at.l0, int64_t{kEncodeSpan}));
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const bool inside = row[e] < rows && entry[e] < length;
      from[e] = inside ? first + offset[e] : -1;
      exponent[e] = inside ? task.exponent[row0 + row[e]] : 0;
      shift[e] = inside ? task.shift[l0 + entry[e]] : 0;
#pragma unroll
      for (int c = 0; c < kAhead; ++c) x[e][c] = inside && c <= last ? task.limbs.limb[max(last - c, 0)][from[e]] : 0.0;
    }
  }

  __device__ __forceinline__ void store(const EncodeTask& task, const EncodeLayout& layout, uint32_t* integers) const {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int units = task.bits - exponent[e] - shift[e];
      ShortInteger sum;
#pragma unroll
      for (int c = 0; c < kAhead; ++c) {
        if (c < task.limbs.count) sum.add(x[e][c], units);
      }
#pragma unroll 1
      for (int c = task.limbs.count - 1 - kAhead; c >= 0; --c) {
        if (from[e] >= 0) sum.add(task.limbs.limb[c][from[e]], units);
      }
      uint32_t* first = integers + row[e] * layout.row + EncodeLayout::entry(entry[e]);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        if (w >= layout.words) break;
        first[w * EncodeLayout::kWord] = sum.word(w) ^ (w == layout.words - 1 ? 0x80000000u : 0);
      }
    }
  }
};

// kSteps: k16 steps whose integers a warp holds in registers; all of them if kWhole.
template <int kSteps, bool kWhole, int kRows>
__global__ void __launch_bounds__(kEncodeThreads, kSteps == 1 ? 3 : kSteps > 4 ? 1 : 2)
    residue_encode_kernel(const __grid_constant__ EncodeTask task) {
  extern __shared__ __align__(16) unsigned char encode_shared[];
  const EncodeLayout layout(task.ones, task.pairs, task.bits, kRows);
  const uint32_t spans = static_cast<uint32_t>((task.kp + kEncodeSpan - 1) / kEncodeSpan);
  const uint32_t bands = static_cast<uint32_t>((task.rows + kRows - 1) / kRows);
  const uint32_t tiles = spans * bands * static_cast<uint32_t>(task.batch);
  const int64_t channel_size = task.batch * task.rows * task.kp, eight_channels = 8 * channel_size;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t* integers = reinterpret_cast<uint32_t*>(encode_shared + layout.integers);
  ShortEntries<kRows> entries(task);
  if (kSteps == 1) entries.load(task, EncodeTile(blockIdx.x, spans, bands, kRows));
  fill_encode_tables<kWhole>(task, layout, encode_shared);
  int other = 0;  // words to the tile of integers in use, of two that take turns
  for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const EncodeTile at(tile, spans, bands, kRows);
    if (kSteps == 1) {
      entries.store(task, layout, integers + other);
      if (gridDim.x < tiles - tile) entries.load(task, EncodeTile(tile + gridDim.x, spans, bands, kRows));
    } else {
      __syncthreads();  // the tables are written; the last tile's integers are read
      store_integers<kRows>(task, layout, integers, at.b, at.row0, at.l0);
    }
    __syncthreads();
#pragma unroll 1
    for (int r = warp; r < kRows; r += kEncodeThreads / 32) {
      if (at.row0 + r >= task.rows) break;
      EncodeRow<kSteps> row(layout, encode_shared, other + r * layout.row, lane);
      if (kWhole) row.load(0);
      const int64_t l = at.l0 + 16 * row.t;
      int8_t* out = task.out + (at.b * task.rows + at.row0 + r) * task.kp + l;
      const bool inside = l < task.kp;
      int8_t* channel = out + row.g * channel_size;
#pragma unroll 1
      for (int i = 0; i < layout.one_tiles; ++i, channel += 2 * eight_channels) {
        encode_ones<kSteps, kWhole>(task, row, i, channel, eight_channels, inside);
      }
#pragma unroll 1
      for (int i = 0; i < layout.pair_tiles; ++i) {
        encode_pairs(task, row, layout.one_tiles + i, kWhole, out, channel_size, inside);
      }
    }
    if (kSteps == 1) other = layout.tile - other;
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
