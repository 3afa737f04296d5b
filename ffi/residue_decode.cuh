// Multiple doubles from residues: Chinese remainders as an int8 product, carries, one canonical rounding.
//
//   C = 2^(row_i + column_j - 2w) (sum_i r_i M_i - q P),    q = round(sum_i r_i M_i / P)
//
// Shapes:  residues [n1 + 2 n2, batch, m, n] int8, row [batch, m], column [batch, n], out: limbs [batch, m, n].
// Idea:    M_i in balanced bytes is a table [bytes of residues, bytes]; residues x table is an int8 product, whose
//          columns are the digits of the sum, base 256. A residue of two bytes takes two rows. q follows from the
//          leading words, so neither M_i / P nor a float64 sum over the moduli is needed.
// Tiling:  a warp makes 32 entries at a time, as two fragments of 16 (residue_decode_load.cuh). The table's columns are
//          dealt so that a lane ends with 4 kWords neighbouring bytes, part t of the integer, of four entries: word by
//          word they are multiplied, carried, and written to the entries' columns in shared memory, from where lane e
//          joins the four parts of entry e and rounds them (residue_decode_round.cuh).
//          Up to kWords = 3 all residues are asked for a tile ahead; above, kGroup steps ahead, and packed in the
//          memory that the columns take later.
// Exact:   |sums of bytes| < 2^14 (n1 + 2 n2), 257 times that below 2^31 for all moduli there are. q is safe: what it
//          leaves out moves the quotient by less than 2^-24, and it keeps 2^-18 from every tie (_residues.plan).
// Cost:    n1 + 2 n2 bytes read and 8 L written an entry. Instructions an entry, counted in sm_90a's code, L = 2:
//            232 = 75 to load, transpose and find exponents, 69 to multiply and carry, 82 to join and round
// Source:  _residues.py; the int8 product is this project's.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "arithmetic.h"
#include "mma.cuh"
#include "residue.cuh"
#include "residue_decode_load.cuh"
#include "residue_decode_round.cuh"
#include "residue_decode_tables.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

// Where a lane's entries are, the rows of all matrices counted through.
struct EntryPosition {
  uint32_t row, column;

  // row_i and column_j; the last row's beyond the last entry.
  __device__ __forceinline__ int2 exponents(const DecodeTask& task) const {
    const uint32_t i = row < task.rows ? row : task.rows - 1;
    uint32_t batch = high_product(i, task.batch_of_row);  // i / m, or one less
    if (i - batch * task.m >= task.m) ++batch;
    return make_int2(task.row[i], task.column[uint64_t{batch} * task.n + column]);
  }
  // On by (rows, columns), columns < n.
  __device__ __forceinline__ void advance(const DecodeTask& task, uint32_t rows, uint32_t columns) {
    row += rows;
    column += columns;
    if (column >= task.n) column -= task.n, ++row;
  }
};

// A tile's residues as registers of k32 steps, fragments f: [step][f][row half + 2 k half].
template <int kSteps>
struct Fragments {
  uint32_t a[kSteps][2][4];

  __device__ __forceinline__ void set(int step, const uint32_t (&half)[2][2]) {  // of k16
#pragma unroll
    for (int f = 0; f < 2; ++f) {
#pragma unroll
      for (int h = 0; h < 2; ++h) a[step / 2][f][step % 2 * 2 + h] = half[f][h];
    }
  }
};

// Any number of residues, packed in the lane's own part of shared memory: [k32 step][f][32 lanes][16 bytes]. They are
// asked for by groups of steps, a group ahead.
template <bool kAligned>
__device__ __forceinline__ void collect(const DecodeTask& task, int halves, const LaneEntries<kAligned>& entries,
                                        const int8_t* from, uint4* own) {
  constexpr int kGroup = 4;
  using Group = uint32_t[kGroup][4];
  const int64_t step = int64_t{4} * task.entries;
  from += entries.first;
  const auto load = [&](int first, Group& to) {
#pragma unroll
    for (int s = 0; s < kGroup; ++s) {
      if (first + s < halves) load_bytes(task, entries, from + (first + s) * step, to[s]);
    }
  };
  const auto pack = [&](int first, const Group& group) {
#pragma unroll
    for (int s = 0; s < kGroup; ++s) {
      if (first + s >= halves) break;
      uint32_t a[2][2];
      pack_bytes(a, group[s]);
      uint2* const to = reinterpret_cast<uint2*>(own + (first + s) / 2 * 64) + s % 2;
      to[0] = make_uint2(a[0][0], a[0][1]);
      to[64] = make_uint2(a[1][0], a[1][1]);
    }
  };
  Group x = {}, y = {};
  load(0, x);
#pragma unroll 1
  for (int s = 0; s < halves; s += 2 * kGroup) {
    load(s + kGroup, y);
    pack(s, x);
    load(s + 2 * kGroup, x);
    pack(s + kGroup, y);
  }
}

// Word w of the lane's part of its four entries. carry: what is carried, times 2^16.
__device__ __forceinline__ uint4 carried(const int (&x)[2][4], const int (&y)[2][4], int32_t (&carry)[4]) {
  uint32_t word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int f = i / 2, h = i % 2;
    const int32_t low = x[f][2 * h] + (carry[i] >> 16) + 256 * x[f][2 * h + 1];
    const int32_t high = y[f][2 * h] + 256 * y[f][2 * h + 1];
    word[i] = static_cast<uint32_t>(low) + 65536u * static_cast<uint32_t>(high);
    carry[i] = high + (low >> 16);
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

// Fragments of the table; those of a single step stay in registers.
template <class Layout, int kWords>
class Table {
 public:
  __device__ explicit Table(const uint4* own) : own_(own) {
#pragma unroll
    for (int w = 0; w < kKept; ++w) kept_[w] = own[w * 32];
  }
  __device__ __forceinline__ uint4 at(int step, int word) const {
    if constexpr (kKept > 0) return kept_[word];
    return own_[(step * kWords + word) * 32];
  }

 private:
  static constexpr int kKept = Layout::kSteps == 1 ? kWords : 0;
  const uint4* own_;
  uint4 kept_[kKept > 0 ? kKept : 1];
};

// Residues x table, carried: part t of the integers of entries 4 g .. 4 g + 3.
template <class Layout, int kWords>
__device__ __forceinline__ void multiply(const Fragments<Layout::kSteps>& residues, const Table<Layout, kWords>& table,
                                         int steps, int t, uint32_t* columns) {
  constexpr int kStride = Layout::kStride;
  int32_t carry[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) carry[i] = t > 0 ? -kDecodeCarry * 65536 : 0;
  uint32_t* to = columns + (Layout::kSpare + t * kWords) * kStride;
#pragma unroll(kWords <= 2 ? kWords : 1)
  for (int w = 0; w < kWords; ++w) {
    int x[2][4] = {}, y[2][4] = {};
#pragma unroll
    for (int s = 0; s < Layout::kSteps; ++s) {
      if (s > 0 && s == Layout::kSteps - 1 && s >= steps) break;
      const uint4 b = table.at(s, w);
#pragma unroll
      for (int f = 0; f < 2; ++f) {
        MmaS8M16N8K32::run(x[f], residues.a[s][f], b.x, b.y);
        MmaS8M16N8K32::run(y[f], residues.a[s][f], b.z, b.w);
      }
    }
    *reinterpret_cast<uint4*>(to + w * kStride) = carried(x, y, carry);
  }
  const int32_t lift = t < 3 ? kDecodeCarry : 0;
  *reinterpret_cast<uint4*>(columns + t * kStride) =
      make_uint4((carry[0] >> 16) + lift, (carry[1] >> 16) + lift, (carry[2] >> 16) + lift, (carry[3] >> 16) + lift);
}

// kAligned: LaneEntries.
template <int kWords, bool kAligned>
__global__ void __launch_bounds__(decode_threads(kWords), decode_blocks(kWords))
    residue_decode_kernel(const __grid_constant__ DecodeTask task) {
  using Layout = DecodeLayout<kWords>;
  extern __shared__ __align__(16) unsigned char decode_shared[];
  const Layout layout(task.bytes);
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = kept(threadIdx.x % 32), g = lane / 4, t = lane % 4;
  const uint32_t step = kept(gridDim.x * warps * kDecodeTile);
  uint32_t base = (blockIdx.x * warps + warp) * kDecodeTile;
  EntryPosition position{(base + lane) / task.n, (base + lane) % task.n};
  const uint32_t step_rows = step / task.n, step_columns = step % task.n;
  const int8_t* const planes = first_plane(task, 4 * layout.halves, t);
  uint32_t ahead[2 * Layout::kSteps][4] = {};  // up to kWords = 3
  int2 exponents;
  const auto look_ahead = [&](uint32_t entry) {
    if constexpr (Layout::kAhead) {
      const LaneEntries<kAligned> entries(task, entry + 4 * g);
      const int8_t* from = planes + entries.first;
#pragma unroll
      for (int s = 0; s < 2 * Layout::kSteps; ++s) {
        if (s > 0 && s >= layout.halves) break;
        load_bytes(task, entries, plane_after(from, task.entries, 4 * s), ahead[s]);
      }
    }
    exponents = position.exponents(task);
    position.advance(task, step_rows, step_columns);
  };
  look_ahead(base);
  for (int i = threadIdx.x; i < layout.tables / 16; i += blockDim.x) {
    reinterpret_cast<uint4*>(decode_shared)[i] = task.tables[i];
  }
  __syncthreads();
  unsigned char* own = decode_shared + layout.tables + warp * Layout::kOwn;
  uint32_t* columns = reinterpret_cast<uint32_t*>(own);
  uint4* packed = reinterpret_cast<uint4*>(own) + lane;
  const Table<Layout, kWords> table(reinterpret_cast<const uint4*>(decode_shared) + lane);
  const uint32_t* product = reinterpret_cast<const uint32_t*>(decode_shared + layout.product);
#pragma unroll 1
  for (; base < task.entries; base += step) {
    Fragments<Layout::kSteps> residues;
    const int exponent = exponents.x + exponents.y;
    if constexpr (!Layout::kAhead) {
      look_ahead(base + step);
      collect(task, layout.halves, LaneEntries<kAligned>(task, base + 4 * g), planes, packed);
#pragma unroll
      for (int i = 0; i < 2 * Layout::kSteps; ++i) {
        const uint4 v = packed[32 * i];
        uint32_t(&a)[4] = residues.a[i / 2][i % 2];
        a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
      }
      __syncwarp();
    } else {
#pragma unroll
      for (int s = 0; s < 2 * Layout::kSteps; ++s) {
        uint32_t a[2][2];
        pack_bytes(a, ahead[s]);
        residues.set(s, a);
      }
      __syncwarp();
      look_ahead(base + step);
    }
    multiply<Layout, kWords>(residues, table, layout.steps, t, columns + 4 * g);
    __syncwarp();
    if (base + lane < task.entries) {
      finish_entry(task, EntryColumn<kWords>{columns + lane}, product, exponent, base + lane);
    }
    __syncwarp();
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
