// The first half of the residue encoder (residue_encode.cuh): limbs of a tile's entries to words in shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "mma.cuh"
#include "residue.cuh"
#include "residue_encode_cut.cuh"
#include "residue_encode_tables.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

// Where a tile is: matrix b, rows from row0 on, entries of k from l0 on.
struct EncodeTile {
  uint32_t b, row0, l0;

  __device__ EncodeTile(const EncodeTask& task, uint32_t tile) {
    const uint32_t spans = static_cast<uint32_t>((task.kp + kEncodeSpan - 1) / kEncodeSpan);
    const uint32_t bands = static_cast<uint32_t>((task.rows + kEncodeRows - 1) / kEncodeRows);
    const uint32_t rest = tile / spans;
    b = rest / bands;
    row0 = (rest - b * bands) * kEncodeRows;
    l0 = (tile - rest * spans) * kEncodeSpan;
  }
};

// A column of words in shared memory.
struct WordColumn {
  uint32_t* first;
  int stride;

  __device__ uint32_t& operator()(int i) const { return first[i * stride]; }
};

// Where a thread's entry number e of a tile is.
struct EncodePlace {
  WordColumn column;
  int64_t from;  // of its limbs; -1 outside the operand
  int units;

  __device__ __forceinline__ EncodePlace(const EncodeTask& task, const EncodeLayout& layout, uint32_t* integers,
                                         const EncodeTile& at, int e) {
    const int place = threadIdx.x + e * kEncodeThreads;
    const int row = task.transposed ? place % kEncodeRows : place / kEncodeSpan;
    const int l = task.transposed ? place / kEncodeRows : place % kEncodeSpan;
    const int64_t i = int64_t{at.row0} + row, k = int64_t{at.l0} + l;
    const bool inside = i < task.rows && k < task.k;
    column = {integers + row * layout.row + l, EncodeLayout::kWord};
    from = !inside           ? -1
           : task.transposed ? (at.b * task.k + k) * task.rows + i
                             : (at.b * task.rows + i) * task.k + k;
    units = inside ? task.bits - task.exponent[at.b * task.rows + i] - task.shift[at.b * task.k + k] : 0;
  }
};

__device__ __noinline__ inline void store_any_integer(const EncodeTask& task, WordColumn column, int words,
                                                      int64_t from, int units) {
  IntegerOfLimbs<WordColumn> any(column, words);
#pragma unroll 1
  for (int c = task.limbs.count - 1; c >= 0 && from >= 0; --c) any.add(task.limbs.limb[c][from], units);
  any.finish_with_bias();
}

// The words of a tile's entries, zero outside the operand. A thread asks for kChunk limbs of each of its entries before
// it uses one.
__device__ __forceinline__ void store_integers(const EncodeTask& task, const EncodeLayout& layout, uint32_t* integers,
                                               const EncodeTile& at) {
  constexpr int kChunk = 4;
  static_assert(kEncodeRows * kEncodeSpan == 2 * kEncodeThreads);
  const EncodePlace place[2] = {{task, layout, integers, at, 0}, {task, layout, integers, at, 1}};
  IntegerOfOrderedLimbs<WordColumn> sum[2] = {{place[0].column, layout.words}, {place[1].column, layout.words}};
  bool ordered[2] = {true, true};
#pragma unroll 1
  for (int last = task.limbs.count - 1; last >= 0; last -= kChunk) {
    double x[2][kChunk];
#pragma unroll
    for (int c = 0; c < kChunk; ++c) {
      const double* limb = task.limbs.limb[max(last - c, 0)];
#pragma unroll
      for (int e = 0; e < 2; ++e) x[e][c] = place[e].from >= 0 && last >= c ? limb[place[e].from] : 0.0;
    }
#pragma unroll
    for (int c = 0; c < kChunk; ++c) {
#pragma unroll
      for (int e = 0; e < 2; ++e) ordered[e] &= sum[e].add(x[e][c], place[e].units);
    }
  }
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    if (ordered[e]) {
      sum[e].finish_with_bias();
    } else {
      store_any_integer(task, place[e].column, layout.words, place[e].from, place[e].units);
    }
  }
}

// The same of kLimbs limbs that make kWords words (residue_encode_cut.cuh).
template <int kWords, int kLimbs>
__device__ __forceinline__ void store_cut_integers(const EncodeTask& task, const EncodeLayout& layout,
                                                   uint32_t* integers, const EncodeTile& at) {
  constexpr int kChunk = 8 < kLimbs ? 8 : kLimbs;
#pragma unroll 1
  for (int e = 0; e < kEncodeRows * kEncodeSpan / kEncodeThreads; ++e) {
    const EncodePlace place(task, layout, integers, at, e);
    CutInteger<kWords, kLimbs> sum(place.units);
#pragma unroll
    for (int first = 0; first < kLimbs; first += kChunk) {
      double x[kChunk];
#pragma unroll
      for (int c = 0; c < kChunk; ++c) x[c] = place.from >= 0 ? task.limbs.limb[first + c][place.from] : 0.0;
#pragma unroll
      for (int c = 0; c < kChunk; ++c) sum.add(first + c, x[c]);
    }
    if (sum.plain()) {
      sum.finish([&](int j, uint32_t word) { place.column(j) = word; });
    } else {
      store_any_integer(task, place.column, kWords, place.from, place.units);
    }
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
