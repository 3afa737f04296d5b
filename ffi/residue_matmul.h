// Products of residues, C_ij = Σ_l a_il b_jl mod p, a [rows, k] and b [columns, k] int8, both K-major; C centred in
// [-p/2, p/2).
//
//   p ≤ 256 (one digit):             the sum of one channel, in one byte
//   p ≤ kMostTwoDigits (two digits): S_2 + f_1 (S_1 + f_0 S_0) mod p of three channels, the factors centred too, in two
//                                    planes of bytes: balanced low byte, high byte
//
// One task is a tile of C with all of k, as large as the kernels say (ResidueKernels); its scratch holds pieces of a and
// b as the kernel reads them, and sums.
// Exact: |sum| ≤ k 2^14 < 2^31 up to k = 2^17 − 1; longer sums are reduced mod p every 2^16 terms.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace jaxmd {

constexpr int64_t kResidueStep = 16;       // k is a multiple of it
constexpr int32_t kMostTwoDigits = 65279;  // p/2 < 2^15 - 128, so that the high byte is one, and (p/2)^2 < 2^30

struct ResidueTile {
  const int8_t *a, *b;  // the first row of each; rows are k apart
  int64_t rows, columns, k;
  int32_t modulus;
  int channels;                  // 1 or 3
  int64_t channel_a, channel_b;  // bytes from one channel to the next
  int32_t carry[2];              // f_0, f_1
  int8_t *low, *high;            // the first entry of each plane of C, high null for one digit; rows `stride` apart
  int64_t stride;
  std::atomic<bool>* below;  // or, instead of C: set where a sum is below `bound`; k <= 2^16
  int32_t bound;
};

// One variant: of an instruction set (residue_matmul_simd.cc), or of AMX (residue_matmul_amx.cc).
struct ResidueKernels {
  void (*tile)(const ResidueTile& tile, char* scratch);  // scratch aligned to 64 bytes
  size_t (*scratch)(int64_t rows, int64_t columns, int64_t k, int channels);
  int64_t rows, columns;                    // of the largest tile
  int64_t register_rows, register_columns;  // tiles are best multiples of these
  int64_t task;                             // multiply-adds that are worth a task: about 20 µs
};

}  // namespace jaxmd
