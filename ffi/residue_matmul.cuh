// Products of residues on int8 tensor cores: what the kernels share.
//
//   C[c] = A[c] B[c]^T mod p_c, centred,   c = 0 ... channels - 1
//
// Shapes:  A [channels, batch, m, k], B [channels, batch, n, k] int8, k a multiple of 16; C int8 [small, batch, m, n]
//          and int16 [channels - small, batch, m, n]. A plane is a matrix of the channels and the batch.
// Exact:   sums are reduced after every kBlock terms, |sum| <= kBlock 2^14 + 2^15 < 2^30 (residue.cuh's reducer).
// Store:   a warp holds strips of 16 rows; it packs the residues, passes them through its own shared memory and writes
//          16 bytes a lane, whole rows of the strip at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "residue.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

constexpr int kDepth = 128;             // bytes of k in a stage
constexpr int kBlock = 65536 - kDepth;  // terms between two reductions
static_assert(int64_t{kBlock} * (1 << 14) + (1 << 15) < int64_t{1} << 30 && kBlock % kDepth == 0);

struct ResidueProblem {
  const int8_t *a, *b;
  const int32_t* moduli;  // [channels]
  int8_t* narrow;         // the result of the first `small` channels
  int16_t* wide;          // of the others
  int64_t batch;
  int channels, small, m, n, k;
  int piece_narrow, piece_wide;  // bytes to store at once: 16, 4, or one entry
};

struct PlaneTile {
  int plane, row, column;  // row, column: first entry of the tile
};

template <int kRows>
constexpr int kBandRows = 2048 / kRows;  // of tiles

// Plane by plane; in it bands of tile rows, so that tiles that run together share their operands in L2.
template <int kRows, int kColumns>
__device__ inline PlaneTile plane_tile(const ResidueProblem& p, uint32_t tile) {
  constexpr uint32_t kBand = kBandRows<kRows>;
  const uint32_t rows = (p.m + kRows - 1) / kRows, columns = (p.n + kColumns - 1) / kColumns;
  const uint32_t plane = tile / (rows * columns);
  const uint32_t inside = tile - plane * rows * columns;
  const uint32_t band = inside / (kBand * columns), in_band = inside - band * kBand * columns;
  const uint32_t height = min(kBand, rows - band * kBand);
  const uint32_t column = in_band / height;
  return {static_cast<int>(plane), static_cast<int>(band * kBand + in_band - column * height) * kRows,
          static_cast<int>(column) * kColumns};
}

__device__ inline int channel_of(const ResidueProblem& p, int plane) { return plane / static_cast<uint32_t>(p.batch); }

__device__ inline Reducer plane_reducer(const ResidueProblem& p, int plane) {
  return reducer(__ldg(p.moduli + channel_of(p, plane)));
}

template <int kFragments>
__device__ __forceinline__ void reduce_all(const Reducer& m, int (&c)[kFragments][4]) {
#pragma unroll
  for (int j = 0; j < kFragments; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) c[j][i] = reduce(m, c[j][i]);
  }
}

// 16 rows x 8 kFragments columns of one warp, from fragments of m16n8: fragments first ... of an array of them.
template <int kFragments>
struct Strip {
  static constexpr int kRow = 2 * kFragments + 4;  // words from row to row: rows g start 4 banks apart, mod 32
  static constexpr int kBytes = 16 * kRow * 4;     // of shared memory
  static_assert(kFragments % 8 == 0 && (kRow % 8 == 4));

  const ResidueProblem& p;
  uint32_t* shared;
  int lane, g, t;

  __device__ Strip(const ResidueProblem& p, unsigned char* shared, int lane)
      : p(p), shared(reinterpret_cast<uint32_t*>(shared)), lane(lane), g(lane / 4), t(lane % 4) {}

  // row, column: of the strip's first entry.
  template <int kAll>
  __device__ __forceinline__ void store(const Reducer& m, const int (&c)[kAll][4], int first, int plane, int row,
                                        int column) {
    if (channel_of(p, plane) < p.small) {
      store_narrow(m, c, first, p.narrow + int64_t{plane} * p.m * p.n, row, column);
    } else {
      store_wide(m, c, first, p.wide + (plane - p.small * p.batch) * p.m * p.n, row, column);
    }
  }

 private:
  // Word t of 16 columns has columns 2 t, 2 t + 1, 8 + 2 t and 9 + 2 t; the reader puts them in order.
  template <int kAll>
  __device__ __forceinline__ void store_narrow(const Reducer& m, const int (&c)[kAll][4], int first, int8_t* plane,
                                               int row, int column) {
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kFragments; j += 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int (&left)[4] = c[first + j], (&right)[4] = c[first + j + 1];
        const uint32_t x = __byte_perm(reduce(m, left[2 * half]), reduce(m, left[2 * half + 1]), 0x0040);
        const uint32_t y = __byte_perm(reduce(m, right[2 * half]), reduce(m, right[2 * half + 1]), 0x0040);
        shared[(g + 8 * half) * kRow + 2 * j + t] = __byte_perm(x, y, 0x5410);
      }
    }
    __syncwarp();
    store_rows<1, kFragments / 2>(plane, row, column, p.piece_narrow, [](const uint4& w) {
      return make_uint4(__byte_perm(w.x, w.y, 0x5410), __byte_perm(w.z, w.w, 0x5410), __byte_perm(w.x, w.y, 0x7632),
                        __byte_perm(w.z, w.w, 0x7632));
    });
  }

  template <int kAll>
  __device__ __forceinline__ void store_wide(const Reducer& m, const int (&c)[kAll][4], int first, int16_t* plane,
                                             int row, int column) {
    constexpr int kHalf = kFragments / 2;
#pragma unroll
    for (int pass = 0; pass < 2; ++pass) {
      __syncwarp();
#pragma unroll
      for (int j = 0; j < kHalf; ++j) {
        const int (&x)[4] = c[first + pass * kHalf + j];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          shared[(g + 8 * half) * kRow + 4 * j + t] =
              __byte_perm(reduce(m, x[2 * half]), reduce(m, x[2 * half + 1]), 0x5410);
        }
      }
      __syncwarp();
      store_rows<2, kHalf>(plane, row, column + 8 * kHalf * pass, p.piece_wide, [](const uint4& w) { return w; });
    }
  }

  // 16 rows of kPieces times 16 bytes, entries of kSize, from shared memory; order(words): the entries of 16 bytes.
  template <int kSize, int kPieces, class Entry, class Order>
  __device__ __forceinline__ void store_rows(Entry* plane, int row, int column, int piece, Order order) {
    constexpr int kRows = 32 / kPieces;  // at once
    const int r = lane / kPieces, at = column + 16 / kSize * (lane % kPieces);
    const uint4* const from = reinterpret_cast<const uint4*>(shared + r * kRow) + lane % kPieces;
    Entry* to = plane + int64_t{row + r} * p.n + at;
    const int left = p.n - at, rows = left > 0 ? p.m - row - r : 0;
    if (piece == 16) {
#pragma unroll
      for (int i = 0; i < 16; i += kRows, to += int64_t{kRows} * p.n) {
        const uint4 v = order(from[i * (kRow / 4)]);
        if (i < rows) *reinterpret_cast<uint4*>(to) = v;
      }
    } else {
      JAXMD_ROLLED
      for (int i = 0; i < 16; i += kRows, to += int64_t{kRows} * p.n) {
        if (i < rows) store_piece<kSize>(to, order(from[i * (kRow / 4)]), left, piece);
      }
    }
  }

  // 16 bytes of which `left` entries of kSize lie in the row, in words or entry by entry.
  template <int kSize>
  __device__ static void store_piece(void* to, const uint4& v, int left, int piece) {
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      constexpr int kEntries = 4 / kSize;
      if (piece == 4) {
        if (i * kEntries < left) reinterpret_cast<uint32_t*>(to)[i] = word[i];
        continue;
      }
#pragma unroll
      for (int j = 0; j < kEntries; ++j) {
        if (i * kEntries + j >= left) continue;
        if constexpr (kSize == 1) {
          reinterpret_cast<uint8_t*>(to)[i * 4 + j] = static_cast<uint8_t>(word[i] >> (8 * j));
        } else {
          reinterpret_cast<uint16_t*>(to)[i * 2 + j] = static_cast<uint16_t>(word[i] >> (16 * j));
        }
      }
    }
  }
};

}  // namespace JAXMD_ISA
}  // namespace jaxmd
