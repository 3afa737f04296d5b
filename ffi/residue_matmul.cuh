// Products of residues on int8 tensor cores: what the kernels share.
//
//   modulus of one digit:   C = A B^T mod p, centred, of one channel; one byte
//   modulus of two digits:  C = S_2 + f_1 (S_1 + f_0 S_0) mod p, S = A B^T of three channels; low and high byte
//
// Shapes:  A [channels, batch, m, k], B [channels, batch, n, k] int8, k a multiple of 16; C int8 [bytes, batch, m, n].
//          Channels and bytes of the moduli of one digit come first. A plane is a matrix of A or B, or of bytes of C.
// Tiling:  a block makes a tile of all channels of a modulus: the sums stay where they are, and between two channels
//          they are reduced and multiplied.
// Exact:   sums are reduced after every kBlock terms, |sum| <= kBlock 2^14 + 2^15 < 2^30 (residue.cuh's reducer), and
//          |f S| <= (p/2)^2 < 2^30 (kMostTwoDigits).
// Store:   a warp holds strips of 16 rows; it packs bytes, passes them through its own shared memory and writes 16 of
//          them a lane, whole rows of the strip at a time.
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
  const int32_t* moduli;   // [small + pairs], `small` of one digit first
  const int32_t* carries;  // [pairs, 2], f_0 and f_1
  int8_t* c;
  int64_t batch;
  int small, pairs, m, n, k;
  int piece;  // bytes to store at once: 16, 4 or 1

  __host__ __device__ uint32_t tiles(int moduli, int rows, int columns) const {
    return static_cast<uint32_t>(moduli * batch * ((m + rows - 1) / rows) * ((n + columns - 1) / columns));
  }
};

struct ModulusTile {
  int modulus, channels;  // 1 or 3
  int plane;              // of the first channel in A and B; p.batch on is the next
  int byte;               // plane of the first byte in C
  int row, column;        // first entry of the tile
};

template <int kRows>
constexpr int kBandRows = 2048 / kRows;  // of tiles

// Moduli of two digits come first, which take longer. Of a modulus, matrix by matrix; in it bands of tile rows, so that
// tiles that run together share their operands in L2.
template <int kRows, int kColumns>
__device__ inline ModulusTile modulus_tile(const ResidueProblem& p, uint32_t tile) {
  constexpr uint32_t kBand = kBandRows<kRows>;
  const uint32_t rows = (p.m + kRows - 1) / kRows, columns = (p.n + kColumns - 1) / kColumns;
  const uint32_t matrix = tile / (rows * columns);
  const uint32_t inside = tile - matrix * rows * columns;
  const uint32_t band = inside / (kBand * columns), in_band = inside - band * kBand * columns;
  const uint32_t height = min(kBand, rows - band * kBand);
  const uint32_t column = in_band / height;
  const int batch = static_cast<int>(p.batch);
  const int at = static_cast<int>(matrix / static_cast<uint32_t>(batch)), z = static_cast<int>(matrix) - at * batch;
  const bool two = at < p.pairs;
  const int one = at - p.pairs;
  return {two ? p.small + at : one,
          two ? 3 : 1,
          (two ? p.small + 3 * at : one) * batch + z,
          (two ? p.small + 2 * at : one) * batch + z,
          static_cast<int>(band * kBand + in_band - column * height) * kRows,
          static_cast<int>(column) * kColumns};
}

__device__ inline int32_t carry_of(const ResidueProblem& p, const ModulusTile& tile, int channel) {
  return __ldg(p.carries + 2 * (tile.modulus - p.small) + channel - 1);
}

template <int kFragments>
__device__ __forceinline__ void reduce_all(const Reducer& m, int (&c)[kFragments][4]) {
#pragma unroll
  for (int j = 0; j < kFragments; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) c[j][i] = reduce(m, c[j][i]);
  }
}

// On to the next channel: f sum mod p.
template <int kFragments>
__device__ __forceinline__ void carry_all(const Reducer& m, int32_t f, int (&c)[kFragments][4]) {
#pragma unroll
  for (int j = 0; j < kFragments; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) c[j][i] = reduce(m, reduce(m, c[j][i]) * f);
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
  __device__ __forceinline__ void store(const Reducer& m, const int (&c)[kAll][4], int first, const ModulusTile& tile,
                                        int row, int column) {
    int8_t* const low = p.c + int64_t{tile.byte} * p.m * p.n;
    store_bytes<0>(c, first, low, row, column, [&](int x) { return reduce(m, x); });
    if (tile.channels == 1) return;
    int8_t* const high = low + p.batch * p.m * p.n;
    store_bytes<1>(c, first, high, row, column, [&](int x) { return reduce(m, x) + 128; });
  }

 private:
  // Byte kByte of residue(c). Word t of 16 columns has columns 2 t, 2 t + 1, 8 + 2 t and 9 + 2 t; the reader puts them
  // in order.
  template <int kByte, int kAll, class Residue>
  __device__ __forceinline__ void store_bytes(const int (&c)[kAll][4], int first, int8_t* plane, int row, int column,
                                              Residue residue) {
    constexpr unsigned kPick = kByte == 0 ? 0x0040 : 0x0051;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kFragments; j += 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int (&left)[4] = c[first + j], (&right)[4] = c[first + j + 1];
        const uint32_t x = __byte_perm(residue(left[2 * half]), residue(left[2 * half + 1]), kPick);
        const uint32_t y = __byte_perm(residue(right[2 * half]), residue(right[2 * half + 1]), kPick);
        shared[(g + 8 * half) * kRow + 2 * j + t] = __byte_perm(x, y, 0x5410);
      }
    }
    __syncwarp();
    store_rows(plane, row, column);
  }

  // 16 rows of kFragments/2 times 16 bytes from shared memory.
  __device__ __forceinline__ void store_rows(int8_t* plane, int row, int column) {
    constexpr int kPieces = kFragments / 2, kRows = 32 / kPieces;  // at once
    const int r = lane / kPieces, at = column + 16 * (lane % kPieces);
    const uint4* const from = reinterpret_cast<const uint4*>(shared + r * kRow) + lane % kPieces;
    int8_t* to = plane + int64_t{row + r} * p.n + at;
    const int left = p.n - at, rows = left > 0 ? p.m - row - r : 0;
    if (p.piece == 16) {
#pragma unroll
      for (int i = 0; i < 16; i += kRows, to += int64_t{kRows} * p.n) {
        const uint4 v = in_order(from[i * (kRow / 4)]);
        if (i < rows) *reinterpret_cast<uint4*>(to) = v;
      }
    } else {
      JAXMD_ROLLED
      for (int i = 0; i < 16; i += kRows, to += int64_t{kRows} * p.n) {
        if (i < rows) store_piece(to, in_order(from[i * (kRow / 4)]), left);
      }
    }
  }

  __device__ static __forceinline__ uint4 in_order(const uint4& w) {
    return make_uint4(__byte_perm(w.x, w.y, 0x5410), __byte_perm(w.z, w.w, 0x5410), __byte_perm(w.x, w.y, 0x7632),
                      __byte_perm(w.z, w.w, 0x7632));
  }

  // 16 bytes of which `left` lie in the row, in words or one by one.
  __device__ void store_piece(int8_t* to, const uint4& v, int left) {
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (p.piece == 4) {
        if (4 * i < left) reinterpret_cast<uint32_t*>(to)[i] = word[i];
        continue;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (4 * i + j < left) to[4 * i + j] = static_cast<int8_t>(word[i] >> (8 * j));
      }
    }
  }
};

}  // namespace JAXMD_ISA
}  // namespace jaxmd
