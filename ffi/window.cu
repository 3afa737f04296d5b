// Engine "direct" on CUDA for more than four limbs: window.h with words of 32 bits.
//
// Shapes: a limbs [.., m, k], b limbs [.., k, n], c limbs [.., m, n]; the scaling exponents are not needed.
// Tiling: a block of 256 threads makes C [16, 16], a thread one entry. First pass: exponents of 16 × 16 leading limbs
//   of A and of B at a time, giving T. Second: 8 inner indices at a time, a thread turns one entry of A or B into an
//   integer, sX [l][word / 4][entry 16][4], which 16 threads read as 16-byte loads without conflicts; sums stay in
//   registers. Two sizes are compiled, for L ≤ 8 (14 words) and L ≤ 17 (29 words).
// Exact: window.h.
// Cost of a multiply-add, W words: W(W + 3)/2 wide multiply-adds, 2W additions and up to 6W selections for the shift,
//   most of which a warp skips when its terms are within a few binades: about 220 integer instructions for L ≤ 8 and
//   650 beyond, against 1200 and 9000 FP64 instructions of an exact cascade.
// Source: window.h; the two interleaved carry chains are those of N. Emmart, J. Luitjens, C. Weems, C. Woolley,
//   Optimizing modular multiplication for NVIDIA's Maxwell GPUs (ARITH-23, 2016), for a short product.
#define JAXMD_ISA cuda

#include "exact.h"
#include "window.cuh"
#include "window.h"

namespace jaxmd {
namespace cuda {
namespace {

constexpr int kTile = 16, kThreads = kTile * kTile;
constexpr int kZero = INT32_MIN / 4;  // the exponent of 0
constexpr unsigned kAll = 0xffffffffu;

// The least e with |x| < 2^e, from the bits.
__device__ int exponent_of(double x) {
  const Factor f = unpack(x);
  return f.mantissa == 0 ? kZero : f.exponent - 1011 - leading_zeros(f.mantissa);
}

template <int kWords>
struct Integers {
  static constexpr int kDepth = kThreads / (2 * kTile);  // 8
  static constexpr int kQuads = (kWords + 3) / 4;
  uint32_t word[2][kDepth][kQuads][kTile][4];  // of A and of B
  int exponent[2][kDepth][kTile];
  uint32_t sign[2][kDepth][kTile];  // 0 or 0xffffffff
};

// word ± m·2^position, m of 53 bits; what lies below bit 0 is dropped. Word i is at (i / 4)·4·kTile + i % 4.
template <int kWords>
__device__ void add_shifted(uint32_t* word, uint64_t m, int position, bool minus) {
  if (position < 0) {
    m = position > -64 ? m >> -position : 0;
    position = 0;
  }
  const int s = position & 31;
  uint64_t low = m << s;
  uint32_t high = s == 0 ? 0 : static_cast<uint32_t>(m >> (64 - s));
  uint32_t carry = 0;
  for (int i = position >> 5; i < kWords && (low | high | carry) != 0; ++i) {
    uint32_t& at = word[(i >> 2) * (4 * kTile) + (i & 3)];
    const uint64_t v = (low & 0xffffffffu) + carry;
    const uint64_t next = minus ? at - v : at + v;
    at = static_cast<uint32_t>(next);
    carry = static_cast<uint32_t>(minus ? -(next >> 32) : next >> 32);
    low = low >> 32 | static_cast<uint64_t>(high) << 32;
    high = 0;
  }
}

// Thread's share of the second pass: one entry of A (side 0) or B (side 1), zero outside the operand.
template <int kWords>
__device__ void convert(const DirectTask& task, int64_t batch, int64_t row, int64_t column, int64_t l0,
                        Integers<kWords>& shared) {
  const int side = threadIdx.x / (kThreads / 2), t = threadIdx.x % (kThreads / 2);
  constexpr int kDepth = Integers<kWords>::kDepth;
  const int l = side == 0 ? t % kDepth : t / kTile, x = side == 0 ? t / kDepth : t % kTile;
  const ProductShape& s = task.shape;
  const bool inside = l0 + l < s.k && (side == 0 ? row + x < s.m : column + x < s.n);
  const int64_t at = side == 0 ? (batch * s.m + row + x) * s.k + l0 + l : (batch * s.k + l0 + l) * s.n + column + x;
  const LimbPointers<const double>& operand = side == 0 ? task.a : task.b;
  uint32_t* const word = &shared.word[side][l][0][x][0];
#pragma unroll
  for (int q = 0; q < Integers<kWords>::kQuads; ++q) {
    *reinterpret_cast<uint4*>(word + q * 4 * kTile) = make_uint4(0, 0, 0, 0);
  }
  const double lead = inside ? operand.limb[0][at] : 0.0;
  const int exponent = exponent_of(lead);
  const bool negative = lead < 0;
  shared.exponent[side][l][x] = exponent;
  shared.sign[side][l][x] = negative ? kAll : 0;
  if (exponent == kZero) return;
  for (int i = 0; i < operand.count; ++i) {
    const Factor f = unpack(operand.limb[i][at]);
    add_shifted<kWords>(word, f.mantissa, f.exponent - 1075 - exponent + 32 * kWords, (f.sign != 0) != negative);
  }
}

__device__ __forceinline__ void mad_first(uint32_t& low, uint32_t& high, uint32_t x, uint32_t y) {
  asm volatile("mad.lo.cc.u32 %0, %2, %3, %0;\n\tmadc.hi.cc.u32 %1, %2, %3, %1;"
               : "+r"(low), "+r"(high)
               : "r"(x), "r"(y));
}
__device__ __forceinline__ void mad_next(uint32_t& low, uint32_t& high, uint32_t x, uint32_t y) {
  asm volatile("madc.lo.cc.u32 %0, %2, %3, %0;\n\tmadc.hi.cc.u32 %1, %2, %3, %1;"
               : "+r"(low), "+r"(high)
               : "r"(x), "r"(y));
}
__device__ __forceinline__ void add_carry(uint32_t& x) { asm volatile("addc.u32 %0, %0, 0;" : "+r"(x)); }
__device__ __forceinline__ void set_carry(uint32_t mask) {  // of 0 or 0xffffffff
  asm volatile("{\n\t.reg .u32 t;\n\tadd.cc.u32 t, %0, %0;\n\t}" : : "r"(mask));
}
__device__ __forceinline__ void add_with_carry(uint32_t& x, uint32_t y) {
  asm volatile("addc.cc.u32 %0, %0, %1;" : "+r"(x) : "r"(y));
}

// q = words kWords … 2·kWords − 1 of x·y, up to the columns i + j < kWords − 2. Products of even and odd columns go
// through separate chains of carries, so that each is one wide multiply-add.
template <int kWords>
__device__ __forceinline__ void short_product(const uint32_t* x, const uint32_t* y, uint32_t* q) {
  constexpr int kLow = kWords - 2;  // the first column
  uint32_t chain[2][kWords + 3] = {};  // words kLow …, of columns kLow + 2t and kLow + 2t + 1
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
#pragma unroll
    for (int parity = 0; parity < 2; ++parity) {
      int last = -1;
#pragma unroll
      for (int j = 0; j < kWords; ++j) {
        const int c = i + j - kLow;
        if (c < 0 || c % 2 != parity) continue;
        if (last < 0) {
          mad_first(chain[parity][c], chain[parity][c + 1], x[i], y[j]);
        } else {
          mad_next(chain[parity][c], chain[parity][c + 1], x[i], y[j]);
        }
        last = c;
      }
      if (last >= 0) add_carry(chain[parity][last + 2]);
    }
  }
  set_carry(0);
#pragma unroll
  for (int c = 0; c < kWords + 2; ++c) add_with_carry(chain[0][c], chain[1][c]);
#pragma unroll
  for (int c = 0; c < kWords; ++c) q[c] = chain[0][c + 2];
}

// q >>= shift, for all lanes of the warp; word shifts that no lane needs are skipped.
template <int kWords>
__device__ __forceinline__ void shift_right(uint32_t* q, int shift) {
  constexpr int kMost = kWords < 16 ? 15 : 31;
  const int words = min(shift >> 5, kMost), bits = shift & 31;
#pragma unroll
  for (int step = 1; step <= kMost; step *= 2) {
    const bool mine = (words & step) != 0;
    if (!__any_sync(kAll, mine)) continue;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const uint32_t from = i + step < kWords ? q[i + step] : 0;
      q[i] = mine ? from : q[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) q[i] = __funnelshift_r(q[i], i + 1 < kWords ? q[i + 1] : 0, bits);
}

// The largest exponent sum of the thread's entry.
__device__ int top_exponent(const DirectTask& task, int64_t batch, int64_t row, int64_t column, int (*e)[kTile + 1],
                            int (*f)[kTile + 1]) {
  const ProductShape& s = task.shape;
  const int i = threadIdx.x / kTile, j = threadIdx.x % kTile;
  int top = 2 * kZero;
  for (int64_t l0 = 0; l0 < s.k; l0 += kTile) {
    __syncthreads();
    const bool in_a = row + i < s.m && l0 + j < s.k, in_b = l0 + i < s.k && column + j < s.n;
    e[j][i] = in_a ? exponent_of(task.a.limb[0][(batch * s.m + row + i) * s.k + l0 + j]) : kZero;
    f[i][j] = in_b ? exponent_of(task.b.limb[0][(batch * s.k + l0 + i) * s.n + column + j]) : kZero;
    __syncthreads();
#pragma unroll
    for (int l = 0; l < kTile; ++l) top = max(top, e[l][i] + f[l][j]);
  }
  return top;
}

template <int kWords, int kMinBlocks>
__global__ void __launch_bounds__(kThreads, kMinBlocks) window_matmul_kernel(const __grid_constant__ DirectTask task) {
  __shared__ __align__(16) Integers<kWords> shared;
  __shared__ int e[kTile][kTile + 1], f[kTile][kTile + 1];
  const ProductShape& s = task.shape;
  const int i = threadIdx.x / kTile, j = threadIdx.x % kTile;
  const int64_t row = int64_t{blockIdx.x} * kTile;
  for (int64_t batch = blockIdx.z; batch < s.batch; batch += gridDim.z) {
    for (int64_t column = int64_t{blockIdx.y} * kTile; column < s.n; column += int64_t{gridDim.y} * kTile) {
      const int top = top_exponent(task, batch, row, column, e, f);
      uint32_t sum[kWords + 1] = {};
      for (int64_t l0 = 0; l0 < s.k; l0 += Integers<kWords>::kDepth) {
        __syncthreads();
        convert(task, batch, row, column, l0, shared);
        __syncthreads();
#pragma unroll 1
        for (int l = 0; l < Integers<kWords>::kDepth; ++l) {
          uint32_t x[4 * Integers<kWords>::kQuads], y[4 * Integers<kWords>::kQuads], q[kWords];
#pragma unroll
          for (int g = 0; g < Integers<kWords>::kQuads; ++g) {
            *reinterpret_cast<uint4*>(x + 4 * g) = *reinterpret_cast<const uint4*>(shared.word[0][l][g][i]);
            *reinterpret_cast<uint4*>(y + 4 * g) = *reinterpret_cast<const uint4*>(shared.word[1][l][g][j]);
          }
          short_product<kWords>(x, y, q);
          shift_right<kWords>(q, top - shared.exponent[0][l][i] - shared.exponent[1][l][j]);
          const uint32_t mask = shared.sign[0][l][i] ^ shared.sign[1][l][j];
          set_carry(mask);
#pragma unroll
          for (int w = 0; w < kWords; ++w) add_with_carry(sum[w], q[w] ^ mask);
          add_with_carry(sum[kWords], mask);
        }
      }
      if (row + i >= s.m || column + j >= s.n) continue;
      uint32_t kept[kWords + 1];
#pragma unroll
      for (int w = 0; w <= kWords; ++w) kept[w] = sum[w];
      const bool negative = sum[kWords] >> 31 != 0;
      const int64_t at = (batch * s.m + row + i) * s.n + column + j;
      const int low = top < kZero / 2 ? 0 : top - 32 * kWords;  // without a term the sum is zero
      round_to_limbs([&](int w) { return kept[w]; }, kWords + 1, low, negative, negative, task.c.count,
                     [&](int g, double c) { task.c.limb[g][at] = c; });
    }
  }
}

}  // namespace
}  // namespace cuda

cudaError_t launch_window_matmul(cudaStream_t stream, const DirectTask& task) {
  const dim3 grid = product_grid(task.shape, cuda::kTile, cuda::kTile);
  if (task.c.count <= 8) {
    cuda::window_matmul_kernel<window_words(8, 32), 2><<<grid, cuda::kThreads, 0, stream>>>(task);
  } else {
    cuda::window_matmul_kernel<window_words(kMaxProductLimbs, 32), 1><<<grid, cuda::kThreads, 0, stream>>>(task);
  }
  return cudaGetLastError();
}

}  // namespace jaxmd
