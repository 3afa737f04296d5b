// jaxmd_exact_matmul on CUDA: C_ij = canonical limbs of Σ_l A_il·B_lj, exact, for the entries with flag_ij ≠ 0.
//
// Shapes: a limbs [.., m, k], b limbs [.., k, n], flag s8 [.., m, n], c limbs [.., m, n]; results alias c.
// Tiling: a warp an entry (exact_entry.cuh), a block of one warp, six an SM. Warp w looks at the groups of flags w,
//   w + W, w + 2W, … with W odd, so that a flagged row, column or diagonal spreads over all.
// Exact: exact.h.
// Cost: without flags one pass over them. Never captured in a CUDA graph, and so no short product that ends with it is:
//   see certificate.cu.
// Source: exact.h.
#define JAXMD_ISA cuda

#include <algorithm>

#include <cuda_runtime.h>

#include "exact_args.h"
#include "exact_entry.cuh"
#include "exact_launch.cuh"
#include "kernel_launch.cuh"

namespace jaxmd {
namespace cuda {
namespace {

namespace ffi = xla::ffi;

constexpr const char* kName = "jaxmd_exact_matmul";

// Group g of flags is [g·kGroup, (g + 1)·kGroup); flags are 16-byte aligned when kGroup is 32.
template <int kGroup>
__device__ unsigned flags_of_group(const int8_t* flag, int64_t group, int64_t entries) {
  if (group * kGroup >= entries) return 0;
  if constexpr (kGroup == 1) return flag[group] != 0;
  unsigned mask = 0;
  if ((group + 1) * kGroup <= entries) {
    const uint4* const p = reinterpret_cast<const uint4*>(flag + group * kGroup);
    const uint4 v[2] = {p[0], p[1]};
    if ((v[0].x | v[0].y | v[0].z | v[0].w | v[1].x | v[1].y | v[1].z | v[1].w) == 0) return 0;
    const int8_t* const bytes = reinterpret_cast<const int8_t*>(v);
#pragma unroll
    for (int t = 0; t < kGroup; ++t) mask |= static_cast<unsigned>(bytes[t] != 0) << t;
  } else {
    for (int64_t t = group * kGroup; t < entries; ++t) mask |= static_cast<unsigned>(flag[t] != 0) << (t % kGroup);
  }
  return mask;
}

template <int kGroup>
__global__ void __launch_bounds__(kLanes) exact_matmul_kernel(const __grid_constant__ ExactProduct product,
                                                             const int8_t* flag) {
  extern __shared__ int64_t shared[];  // [134][lane 32]
  constexpr int kAhead = 4;            // groups a lane reads at once, to hide the latency of the scan
  const int lane = threadIdx.x;
  const int64_t entries = product.shape.batch * product.shape.m * product.shape.n, warps = gridDim.x;
  const int64_t groups = (entries + kGroup - 1) / kGroup;
  bool cleared = false;
  for (int64_t base = blockIdx.x; base < groups; base += warps * kLanes * kAhead) {
    unsigned mask[kAhead];
#pragma unroll
    for (int h = 0; h < kAhead; ++h) {
      mask[h] = flags_of_group<kGroup>(flag, base + (lane + h * kLanes) * warps, entries);
    }
#pragma unroll
    for (int h = 0; h < kAhead; ++h) {
      for (unsigned owners; (owners = __ballot_sync(kAll, mask[h] != 0)) != 0;) {
        if (!cleared) {
          for (int t = 0; t < kExactWords; ++t) shared[t * kLanes + lane] = 0;
          __syncwarp();
          cleared = true;
        }
        const int owner = __ffs(owners) - 1;
        const int bit = __ffs(__shfl_sync(kAll, mask[h], owner)) - 1;
        exact_entry(product, (base + (owner + h * kLanes) * warps) * kGroup + bit, lane, shared);
        if (lane == owner) mask[h] &= mask[h] - 1;
      }
    }
  }
}

template <int kGroup>
cudaError_t launch_exact_matmul(cudaStream_t stream, const ExactJob& job, int64_t warps) {
  exact_matmul_kernel<kGroup><<<static_cast<unsigned>(warps), kLanes, kSharedBytes, stream>>>(
      {job.shape, job.a, job.b, job.c}, job.flag);
  return cudaGetLastError();
}

ffi::Error exact_matmul(cudaStream_t stream, int64_t lhs_limbs, int64_t rhs_limbs, ffi::RemainingArgs args,
                        ffi::RemainingRets rets) {
  ExactJob job;
  JAXMD_CHECK(exact_arguments(kName, lhs_limbs, rhs_limbs, args, rets, &job));
  const int64_t entries = job.shape.batch * job.shape.m * job.shape.n;
  if (entries == 0) return ffi::Error::Success();
  int ordinal;
  const DeviceLimits& device = current_device(&ordinal);
  cudaError_t status = device.status;
  if (status == cudaSuccess) status = copy_given_limbs(stream, job.c, job.given, entries);
  if (status == cudaSuccess) {
    const int64_t most = int64_t{6} * device.multiprocessors - 1;
    const bool few = entries <= most * kLanes;
    const int64_t groups = few ? entries : (entries + 31) / 32;
    const int64_t warps = std::min(groups, most);
    const bool aligned = reinterpret_cast<uintptr_t>(job.flag) % 16 == 0;
    status = few || !aligned ? launch_exact_matmul<1>(stream, job, std::min(entries, most))
                             : launch_exact_matmul<32>(stream, job, warps);
  }
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string(kName) + ": " + cudaGetErrorString(status));
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_exact_matmul_cuda, exact_matmul,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Attr<int64_t>("lhs_limbs")
                                  .Attr<int64_t>("rhs_limbs")
                                  .RemainingArgs()
                                  .RemainingRets());

}  // namespace cuda
}  // namespace jaxmd
