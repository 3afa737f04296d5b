// Products of residues: C_ij = Σ_l a_il b_jl mod p, a [rows, k] and b [columns, k] int8, both K-major, C centred in
// [-p/2, p/2) and stored in one byte (one-digit moduli, p ≤ 256) or two.
//
// One task is a tile of C: up to kResidueRows by kResidueColumns entries with all of k, cut into blocks of at most
// kResidueDepth. The scratch of a tile is a block of a (279 KB), a panel of b (16 or 32 KB) and the sums (558 KB).
// Exact: |sum| ≤ k 2^14 < 2^31 up to k = 2^17 − 1; longer sums are reduced mod p every 2^16 terms.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxmd {

constexpr int64_t kResidueStep = 16;  // k is a multiple of it
constexpr int64_t kResidueRows = 264, kResidueColumns = 512, kResidueDepth = 512;
constexpr int64_t kResidueRegisterRows = 12, kResidueRegisterColumns = 32;  // multiples of those of every kernel

// Internal linkage: these are compiled once per instruction set, and the linker must not merge them.
static constexpr int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

struct ResidueTile {
  const int8_t *a, *b;  // the first row of each; rows are k apart
  int64_t rows, columns, k;
  int32_t modulus;
  int8_t* narrow;  // the first entry of C, or null where C is wide; rows are `stride` apart
  int16_t* wide;
  int64_t stride;
};

// Where the parts of a tile's scratch lie; all begin on a cache line.
struct ResidueScratch {
  int64_t a_stride, sum_stride;  // elements from row to row, off the powers of two
  size_t panel, sums, bytes;     // offsets in bytes, and the whole
};

static inline ResidueScratch residue_scratch(int64_t rows, int64_t columns, int64_t k) {
  const int64_t depth = k < kResidueDepth ? k : kResidueDepth;
  const int64_t all_rows = round_up(rows, kResidueRegisterRows);
  ResidueScratch s;
  s.a_stride = round_up(depth, 32) + 32;
  s.sum_stride = round_up(columns, kResidueRegisterColumns) + 16;
  s.panel = all_rows * s.a_stride * sizeof(int16_t);
  s.sums = s.panel + round_up(kResidueRegisterColumns * depth * sizeof(int16_t), 64);
  s.bytes = s.sums + all_rows * s.sum_stride * sizeof(int32_t);
  return s;
}

// `scratch` holds residue_scratch(tile.rows, tile.columns, tile.k).bytes, aligned to 64.
using ResidueKernel = void(const ResidueTile& tile, char* scratch);

}  // namespace jaxmd
