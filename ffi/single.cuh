// Single-precision products on tensor cores: what the kernels share (single_matmul.h has the arithmetic).
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "single_matmul.h"

namespace jaxmd {

struct SingleProblem {
  const float *a, *b;            // [batch, m, k], [batch, k, n]
  const int32_t *row, *column;   // bits of the largest magnitudes, [batch, m], [batch, n]
  float* c;                      // [batch, m, n]
  int batch, m, n, k;
};

struct SingleTileAt {
  int plane, row, column;  // row, column: first entry of the tile
};

// Plane by plane; in it bands of kBand tile rows, so that tiles that run together share their operands in L2.
template <int kRows, int kColumns>
__device__ inline SingleTileAt single_tile_at(const SingleProblem& p, uint32_t tile) {
  constexpr uint32_t kBand = 2048 / kRows;
  const uint32_t rows = (p.m + kRows - 1) / kRows, columns = (p.n + kColumns - 1) / kColumns;
  const uint32_t plane = tile / (rows * columns), inside = tile - plane * rows * columns;
  const uint32_t band = inside / (kBand * columns), in_band = inside - band * kBand * columns;
  const uint32_t height = min(kBand, rows - band * kBand), column = in_band / height;
  return {static_cast<int>(plane), static_cast<int>(band * kBand + in_band - column * height) * kRows,
          static_cast<int>(column) * kColumns};
}

// The shift of row or column i; 0 outside.
__device__ inline int shift_of(const int32_t* max_bits, int i, int count) {
  return i < count ? single_shift(__ldg(max_bits + i)) : 0;
}

// 2^shift, -126 <= shift <= 127
__device__ inline float power_of_two(int shift) { return __int_as_float((shift + 127) << 23); }

// x 2^-shift, rounded once: a change of the exponent, unless the result, or x, is zero, subnormal or infinite.
__device__ inline float unscaled(float x, int shift) {
  const int bits = __float_as_int(x), biased = bits >> 23 & 255, after = biased - shift;
  if (biased > 0 && after > 0 && after < 255) return __int_as_float(bits - (shift << 23));
  const double power = __hiloint2double((1023 - shift) << 20, 0);
  return __double2float_rn(__dmul_rn(static_cast<double>(x), power));
}

// The first pieces of two scaled entries, that of x in the lower half.
template <int kPieces>
__device__ __forceinline__ void split_f16(float x, float y, uint32_t (&piece)[kPieces]) {
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const __half2 nearest = __floats2half2_rn(x, y);
    const float2 back = __half22float2(nearest);
    piece[i] = *reinterpret_cast<const uint32_t*>(&nearest);
    x = __fsub_rn(x, back.x), y = __fsub_rn(y, back.y);
  }
}

// Pieces of a scaled entry: what "cvt.rna.tf32.f32" gives, in two instructions for its four, which mind Inf and NaN;
// but their rows and columns are replaced (single_repair.cuh). Tensor cores ignore the low 13 bits of tf32, so
// the last piece keeps them.
template <int kPieces>
__device__ __forceinline__ void split_tf32(float x, uint32_t (&piece)[kPieces]) {
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    piece[i] = __float_as_uint(x) + 0x1000;
    if (i == kPieces - 1) break;
    piece[i] &= 0xffffe000;
    x = __fsub_rn(x, __uint_as_float(piece[i]));
  }
}

// sum + rest <- sum + rest + x without error but that of rest (TwoSum).
__device__ __forceinline__ void add_with_rest(float& sum, float& rest, float x) {
  const float total = __fadd_rn(sum, x), of_x = __fsub_rn(total, sum);
  rest = __fadd_rn(rest, __fadd_rn(__fsub_rn(sum, __fsub_rn(total, of_x)), __fsub_rn(x, of_x)));
  sum = total;
}

// "%laneid", as a value that the compiler keeps: reading it anew takes as long as a load.
__device__ inline int lane_once() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// PTX ISA, "ld.shared", "st.shared"
__device__ inline float load_shared_float(uint32_t shared) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(shared) : "memory");
  return x;
}
__device__ inline float4 load_shared_float4(uint32_t shared) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(shared)
               : "memory");
  return x;
}
__device__ inline void store_shared(uint32_t shared, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// Stores fragments of 16 rows x 8 columns (mma.cuh) of a warp's sums: rows row + g and row + g + 8, columns
// column + 8 j + 2 t and the next. The shifts of the columns are read once, a lane each, and handed around.
template <int kFragments>
__device__ __forceinline__ void store_sums(const SingleProblem& p, const float (&sum)[kFragments][4], int plane,
                                           int row, int column, int lane) {
  static_assert(kFragments % 4 == 0);
  const int32_t *const rows = p.row + int64_t{plane} * p.m, *const columns = p.column + int64_t{plane} * p.n;
  const int i0 = row + lane / 4, j0 = column + lane % 4 * 2;
  int shift[kFragments / 4];
#pragma unroll
  for (int r = 0; r < kFragments / 4; ++r) shift[r] = shift_of(columns, column + 32 * r + lane, p.n);
  const int top = shift_of(rows, i0, p.m), bottom = shift_of(rows, i0 + 8, p.m);
  float* const to = p.c + (int64_t{plane} * p.m + i0) * p.n + j0;
  const bool inside = i0 < p.m, inside_8 = i0 + 8 < p.m;
#pragma unroll
  for (int j = 0; j < kFragments; ++j) {
    const int from = j % 4 * 8 + lane % 4 * 2;
    const int left = __shfl_sync(~0u, shift[j / 4], from), right = __shfl_sync(~0u, shift[j / 4], from + 1);
    if (j0 + 8 * j >= p.n) continue;  // n is even
    if (inside) {
      *reinterpret_cast<float2*>(to + 8 * j) =
          make_float2(unscaled(sum[j][0], top + left), unscaled(sum[j][1], top + right));
    }
    if (inside_8) {
      *reinterpret_cast<float2*>(to + 8 * int64_t{p.n} + 8 * j) =
          make_float2(unscaled(sum[j][2], bottom + left), unscaled(sum[j][3], bottom + right));
    }
  }
}

}  // namespace jaxmd
