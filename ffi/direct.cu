// jaxmd_direct_matmul on CUDA cores: multiple-double multiply-adds for up to four limbs (window.cu for more).
//
// Shapes, formula and bound: direct.h. a limbs [.., m, k], b limbs [.., k, n], e s32 [.., m], f s32 [.., n].
// Tiling: a block of 8 × 16 threads makes C [8·TM, 16·TN], a thread TM × TN entries in registers. Operands are staged
//   scaled, sA [limb][l][row], sB [limb][l][column]; blocks of one SM hide each other's loads. A warp whose rows lie
//   outside C rests. Slots leave the registers once, at the end, for the canonical rounding.
// Exact: direct.h; __fma_rn and the like, nothing contracted.
// Cost: dd 12.6 FP64 instructions a multiply-add for large k (4 × 2 entries a thread, 6 16-byte loads for 96 of them),
//   td 64, qd 136, against 1.7e13 instructions a second of an H200.
// Source: direct.h; the tiling is the usual one of an FP64 product.
#define JAXMD_ISA cuda

#include <cuda_runtime.h>

#include "direct.h"
#include "direct_args.h"
#include "direct_entry.cuh"
#include "direct_skinny.cuh"
#include "window.cuh"

namespace jaxmd {
namespace cuda {
namespace {

namespace ffi = xla::ffi;

constexpr int kThreadRows = 8, kThreadColumns = 16, kThreads = kThreadRows * kThreadColumns;
constexpr int kSweepEvery = 128;  // merges, at most 256

template <int L_, int W_, int TM_, int TN_, int kDepth_>
struct Tile {
  static constexpr int L = L_, W = W_, TM = TM_, TN = TN_, kDepth = kDepth_;
  static constexpr int kRows = kThreadRows * TM, kColumns = kThreadColumns * TN;
  static constexpr int kPitch = kRows + 2;  // doubles between rows of sA: even, and 4 banks off
  static_assert(kSweepEvery % kDepth == 0 && TN == 2 && TM % 2 == 0, "loads are of pairs");
  double a[W + 1][kDepth][kPitch];
  double b[W + 1][kDepth][kColumns];
  ScaleFactors by_row[kRows], by_column[kColumns];
};

// The tile at inner index l0, scaled, zero outside the operands.
template <class T>
__device__ void stage(const DirectTask& task, int64_t batch, int64_t row, int64_t column, int64_t l0, T& tile) {
  const ProductShape& s = task.shape;
#pragma unroll
  for (int i = 0; i <= T::W; ++i) {
    const bool in_a = i < task.a.count, in_b = i < task.b.count;
#pragma unroll
    for (int t = 0; t < T::kRows * T::kDepth / kThreads; ++t) {
      const int at = threadIdx.x + t * kThreads, r = at / T::kDepth, l = at % T::kDepth;
      const bool inside = in_a && row + r < s.m && l0 + l < s.k;
      const double x = inside ? task.a.limb[i][(batch * s.m + row + r) * s.k + l0 + l] : 0.0;
      tile.a[i][l][r] = scaled(x, tile.by_row[r]);
    }
#pragma unroll
    for (int t = 0; t < T::kColumns * T::kDepth / kThreads; ++t) {
      const int at = threadIdx.x + t * kThreads, l = at / T::kColumns, j = at % T::kColumns;
      const bool inside = in_b && column + j < s.n && l0 + l < s.k;
      const double x = inside ? task.b.limb[i][(batch * s.k + l0 + l) * s.n + column + j] : 0.0;
      tile.b[i][l][j] = scaled(x, tile.by_column[j]);
    }
  }
}

// The operands of one inner index for a thread: x [TM][W + 1], y [TN][W + 1].
template <class T>
__device__ __forceinline__ void fetch(const T& tile, int l, int r0, int c0, double (*x)[T::W + 1],
                                      double (*y)[T::W + 1]) {
#pragma unroll
  for (int i = 0; i <= T::W; ++i) {
#pragma unroll
    for (int r = 0; r < T::TM; r += 2) {
      const double2 v = *reinterpret_cast<const double2*>(&tile.a[i][l][r0 + r]);
      x[r][i] = v.x;
      x[r + 1][i] = v.y;
    }
    const double2 v = *reinterpret_cast<const double2*>(&tile.b[i][l][c0]);
    y[0][i] = v.x;
    y[1][i] = v.y;
  }
}

template <class T, int kMinBlocks>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    direct_matmul_kernel(const __grid_constant__ DirectTask task, int run) {
  constexpr int L = T::L, W = T::W, TM = T::TM, TN = T::TN, kDepth = T::kDepth;
  extern __shared__ __align__(16) unsigned char shared[];
  T& tile = *reinterpret_cast<T*>(shared);
  const ProductShape& s = task.shape;
  const int r0 = threadIdx.x / kThreadColumns * TM, c0 = threadIdx.x % kThreadColumns * TN;
  const int64_t row = int64_t{blockIdx.x} * T::kRows;
  const bool busy = row + threadIdx.x / 32 * 2 * TM < s.m;  // a warp is two thread rows
  for (int64_t batch = blockIdx.z; batch < s.batch; batch += gridDim.z) {
    for (int64_t column = int64_t{blockIdx.y} * T::kColumns; column < s.n; column += int64_t{gridDim.y} * T::kColumns) {
      const int32_t *const e = task.e + batch * s.m + row, *const f = task.f + batch * s.n + column;
      __syncthreads();
      for (int r = threadIdx.x; r < T::kRows; r += kThreads) {
        tile.by_row[r] = scale_factors(row + r < s.m ? kTarget - e[r] : 0);
      }
      for (int j = threadIdx.x; j < T::kColumns; j += kThreads) {
        tile.by_column[j] = scale_factors(column + j < s.n ? kTarget - f[j] : 0);
      }
      double slot[TM][TN][L + 1] = {};
      double sum[TM][TN] = {}, rest[TM][TN] = {};  // of the run, for W = 1
      int met = 0;
      for (int64_t l0 = 0; l0 < s.k; l0 += kDepth) {
        __syncthreads();
        stage(task, batch, row, column, l0, tile);
        __syncthreads();
        if (!busy) continue;
        if constexpr (W == 1) {
          const int step = run < kDepth ? run : kDepth;
          for (int first = 0; first < kDepth; first += step) {
            for (int l = first; l < first + step; ++l) {
              double x[TM][2], y[TN][2];
              fetch(tile, l, r0, c0, x, y);
#pragma unroll
              for (int r = 0; r < TM; ++r) {
#pragma unroll
                for (int j = 0; j < TN; ++j) {
                  double t[2], error;
                  product<1>(x[r], y[j], t);
                  two_sum(sum[r][j], t[0], sum[r][j], error);
                  rest[r][j] = add_rn(rest[r][j], add_rn(t[1], error));
                }
              }
            }
            met += step;
            if (met < run && l0 + kDepth < s.k) continue;
            met = 0;
#pragma unroll
            for (int r = 0; r < TM; ++r) {
#pragma unroll
              for (int j = 0; j < TN; ++j) {
                const double t[2] = {sum[r][j], rest[r][j]};
                merge<L, 1>(slot[r][j], t);
                sum[r][j] = rest[r][j] = 0.0;
              }
            }
          }
        } else {
          for (int l = 0; l < kDepth; ++l) {
            double x[TM][W + 1], y[TN][W + 1];
            fetch(tile, l, r0, c0, x, y);
#pragma unroll
            for (int r = 0; r < TM; ++r) {
#pragma unroll
              for (int j = 0; j < TN; ++j) {
                double t[W + 1];
                product<W>(x[r], y[j], t);
                merge<L, W>(slot[r][j], t);
              }
            }
          }
        }
        if (l0 / kDepth % (kSweepEvery / kDepth) == kSweepEvery / kDepth - 1) {
#pragma unroll
          for (int r = 0; r < TM; ++r) {
#pragma unroll
            for (int j = 0; j < TN; ++j) sweep<L>(slot[r][j]);
          }
        }
      }
      if (!busy) continue;
      double kept[TM * TN][L + 1];  // in local memory, so that the rounding below is one loop
#pragma unroll
      for (int o = 0; o < TM * TN; ++o) {
#pragma unroll
        for (int h = 0; h <= L; ++h) kept[o][h] = slot[o / TN][o % TN][h];
      }
#pragma unroll 1
      for (int o = 0; o < TM * TN; ++o) {
        const int r = r0 + o / TN, j = c0 + o % TN;
        if (row + r >= s.m || column + j >= s.n) continue;
        const int64_t at = (batch * s.m + row + r) * s.n + column + j;
        const int scale = e[r] + f[j] - 2 * kTarget;
        round_entry<L>(kept[o], scale, task, at);
      }
    }
  }
}

template <class T, int kMinBlocks>
cudaError_t launch_direct_matmul(cudaStream_t stream, const DirectTask& task, int run) {
  static_assert(sizeof(T) <= 48 * 1024, "more shared memory must be asked for");
  const dim3 grid = product_grid(task.shape, T::kRows, T::kColumns);
  direct_matmul_kernel<T, kMinBlocks><<<grid, kThreads, sizeof(T), stream>>>(task, run);
  return cudaGetLastError();
}

ffi::Error direct_matmul(cudaStream_t stream, int64_t lhs_limbs, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  DirectTask task;
  JAXMD_CHECK(direct_arguments(lhs_limbs, args, rets, &task));
  if (task.shape.batch * task.shape.m * task.shape.n == 0) return ffi::Error::Success();
  const DirectPlan plan = direct_plan(task.c.count, task.shape.k);
  cudaError_t status = cudaErrorInvalidValue;
  if (task.c.count > kDirectMaxLimbs) {
    status = launch_window_matmul(stream, task);
  } else if (is_skinny(task.shape)) {
    status = launch_skinny_matmul(stream, task, plan);
  } else {
    switch (10 * plan.limbs + plan.order) {
      case 21: status = launch_direct_matmul<Tile<2, 1, 4, 2, 16>, 3>(stream, task, plan.run); break;
      case 22: status = launch_direct_matmul<Tile<2, 2, 4, 2, 16>, 3>(stream, task, 1); break;
      case 32: status = launch_direct_matmul<Tile<3, 2, 2, 2, 8>, 3>(stream, task, 1); break;
      case 33: status = launch_direct_matmul<Tile<3, 3, 2, 2, 8>, 3>(stream, task, 1); break;
      case 43: status = launch_direct_matmul<Tile<4, 3, 2, 2, 8>, 3>(stream, task, 1); break;
      case 44: status = launch_direct_matmul<Tile<4, 4, 2, 2, 8>, 3>(stream, task, 1); break;
    }
  }
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("jaxmd_direct_matmul: ") + cudaGetErrorString(status));
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_direct_matmul_cuda, direct_matmul,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Attr<int64_t>("lhs_limbs")
                                  .RemainingArgs()
                                  .RemainingRets(),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace cuda
}  // namespace jaxmd
