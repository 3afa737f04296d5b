// The first half of the residue encoder (residue_encode.cuh): limbs of a tile's entries to words in shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "mma.cuh"
#include "residue.cuh"
#include "residue_encode_tables.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

// Where a tile is: matrix b, rows from row0 on, entries of k from l0 on. Tiles are `stride` apart.
template <int kRows>
class EncodeTile {
 public:
  __device__ EncodeTile(const EncodeTask& task, uint32_t tile, uint32_t stride) {
    spans_ = static_cast<uint32_t>((task.kp + kEncodeSpan - 1) / kEncodeSpan);
    bands_ = static_cast<uint32_t>((task.rows + kRows - 1) / kRows);
    span_ = tile % spans_, band_ = tile / spans_ % bands_, b_ = tile / spans_ / bands_;
    span_step_ = stride % spans_, band_step_ = stride / spans_ % bands_, b_step_ = stride / spans_ / bands_;
  }
  __device__ void advance() {
    span_ += span_step_, band_ += band_step_, b_ += b_step_;
    if (span_ >= spans_) span_ -= spans_, ++band_;
    if (band_ >= bands_) band_ -= bands_, ++b_;
  }
  __device__ int64_t b() const { return b_; }
  __device__ int64_t row0() const { return int64_t{band_} * kRows; }
  __device__ int64_t l0() const { return int64_t{span_} * kEncodeSpan; }

 private:
  uint32_t spans_, bands_, span_, band_, b_, span_step_, band_step_, b_step_;
};

// The words of a tile's entries, zero outside the operand. A thread asks for kChunk limbs of each of its entries before
// it uses one.
template <int kRows>
__device__ __forceinline__ void store_integers(const EncodeTask& task, const EncodeLayout& layout, uint32_t* integers,
                                               const EncodeTile<kRows>& at) {
  constexpr int kEach = kRows * kEncodeSpan / kEncodeThreads, kChunk = 4;
  static_assert(kEach == 2);
  struct Column {
    uint32_t* first;
    __device__ uint32_t& operator()(int i) const { return first[i * EncodeLayout::kWord]; }
  };
  Column column[kEach];
  int64_t from[kEach];
  int units[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int place = threadIdx.x + e * kEncodeThreads;
    const int row = task.transposed ? place % kRows : place / kEncodeSpan;
    const int l = task.transposed ? place / kRows : place % kEncodeSpan;
    const int64_t i = at.row0() + row, k = at.l0() + l;
    const bool inside = i < task.rows && k < task.k;
    column[e].first = integers + row * layout.row + EncodeLayout::entry(l);
    from[e] = !inside           ? -1
              : task.transposed ? (at.b() * task.k + k) * task.rows + i
                                : (at.b() * task.rows + i) * task.k + k;
    units[e] = inside ? task.bits - task.exponent[at.b() * task.rows + i] - task.shift[at.b() * task.k + k] : 0;
  }
  IntegerOfOrderedLimbs<Column> sum[kEach] = {{column[0], layout.words}, {column[1], layout.words}};
  bool ordered[kEach] = {true, true};
#pragma unroll 1
  for (int last = task.limbs.count - 1; last >= 0; last -= kChunk) {
    double x[kEach][kChunk];
#pragma unroll
    for (int c = 0; c < kChunk; ++c) {
      const double* limb = task.limbs.limb[max(last - c, 0)];
#pragma unroll
      for (int e = 0; e < kEach; ++e) x[e][c] = from[e] >= 0 && last >= c ? limb[from[e]] : 0.0;
    }
#pragma unroll
    for (int c = 0; c < kChunk; ++c) {
#pragma unroll
      for (int e = 0; e < kEach; ++e) ordered[e] &= sum[e].add(x[e][c], units[e]);
    }
  }
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    if (ordered[e]) {
      sum[e].finish_with_bias();
      continue;
    }
    IntegerOfLimbs<Column> any(column[e], layout.words);
#pragma unroll 1
    for (int c = task.limbs.count - 1; c >= 0; --c) any.add(task.limbs.limb[c][from[e]], units[e]);
    any.finish_with_bias();
  }
}

// Integers of at most four words: a thread's entries of a tile are asked for while the last tile is at work. They wait
// in shared memory, each thread's in places of its own: limbs [entry][limb][thread], exponents [entry][2][thread].
template <int kRows>
struct ShortEntries {
  static constexpr int kEach = kRows * kEncodeSpan / kEncodeThreads, kAhead = kEncodeAhead;
  static_assert(kEach * kAhead * kEncodeThreads == kRows * kEncodeSpan * kEncodeAhead);

  double* waiting;
  int* exponents;
  int64_t offset, step;  // of the limbs of a thread's first entry in a tile, and on to the next

  __device__ ShortEntries(const EncodeTask& task, unsigned char* ahead)
      : waiting(reinterpret_cast<double*>(ahead) + threadIdx.x),
        exponents(reinterpret_cast<int*>(ahead + kEach * kAhead * kEncodeThreads * 8) + threadIdx.x) {
    const int64_t r = row(task, 0), l = entry(task, 0);
    offset = task.transposed ? l * task.rows + r : r * task.k + l;
    step = kEncodeThreads / (task.transposed ? kRows : kEncodeSpan) * (task.transposed ? task.rows : task.k);
  }
  static __device__ int row(const EncodeTask& task, int e) {
    const int i = threadIdx.x + e * kEncodeThreads;
    return task.transposed ? i % kRows : i / kEncodeSpan;
  }
  static __device__ int entry(const EncodeTask& task, int e) {
    const int i = threadIdx.x + e * kEncodeThreads;
    return task.transposed ? i / kRows : i % kEncodeSpan;
  }
  static __device__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
  }
  static __device__ bool inside(const EncodeTask& task, const EncodeTile<kRows>& at, int e) {
    return at.row0() + row(task, e) < task.rows && at.l0() + entry(task, e) < task.k;
  }
  __device__ int64_t first(const EncodeTask& task, const EncodeTile<kRows>& at) const {
    return offset + (task.transposed ? (at.b() * task.k + at.l0()) * task.rows + at.row0()
                                     : (at.b() * task.rows + at.row0()) * task.k + at.l0());
  }

  __device__ __forceinline__ void load(const EncodeTask& task, const EncodeTile<kRows>& at) {
    const int last = task.limbs.count - 1;
    const int32_t* rows = task.exponent + at.b() * task.rows + at.row0();
    const int32_t* shifts = task.shift + at.b() * task.k + at.l0();
    const int64_t from = first(task, at);
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const bool here = inside(task, at, e);
      int* to = exponents + 2 * e * kEncodeThreads;
      cp_async_4(shared_address(to), here ? rows + row(task, e) : task.exponent, here ? 4 : 0);
      cp_async_4(shared_address(to + kEncodeThreads), here ? shifts + entry(task, e) : task.shift, here ? 4 : 0);
#pragma unroll
      for (int c = 0; c < kAhead; ++c) {
        if (c > last) continue;
        const double* limb = task.limbs.limb[last - c];
        cp_async_8(shared_address(waiting + (e * kAhead + c) * kEncodeThreads),
                   here ? limb + from + e * step : limb, here ? 8 : 0);
      }
    }
    cp_async_commit();
  }

  __device__ __forceinline__ void store(const EncodeTask& task, const EncodeLayout& layout, const EncodeTile<kRows>& at,
                                        uint32_t* integers) const {
    cp_async_wait<0>();
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int* own = exponents + 2 * e * kEncodeThreads;
      const int units = task.bits - own[0] - own[kEncodeThreads];
      ShortInteger sum;
#pragma unroll
      for (int c = 0; c < kAhead; ++c) {
        if (c < task.limbs.count) sum.add(waiting[(e * kAhead + c) * kEncodeThreads], units);
      }
#pragma unroll 1
      for (int c = task.limbs.count - 1 - kAhead; c >= 0; --c) {
        if (inside(task, at, e)) sum.add(task.limbs.limb[c][first(task, at) + e * step], units);
      }
      uint32_t* first = integers + row(task, e) * layout.row + EncodeLayout::entry(entry(task, e));
#pragma unroll
      for (int w = 0; w < 4; ++w) {  // those beyond the integer meet zeros of the table
        first[w * EncodeLayout::kWord] = sum.word(w) ^ (w == layout.words - 1 ? 0x80000000u : 0);
      }
    }
  }
};

}  // namespace JAXMD_ISA
}  // namespace jaxmd
