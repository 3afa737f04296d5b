// What the handlers of exact sums on CUDA do before they launch: limbs that the results do not alias, and how many warps.
#pragma once

#include <cuda_runtime.h>

#include "kernel_launch.cuh"
#include "product_shape.h"

namespace jaxmd {
namespace cuda {

// Copies the limbs of `given` that `c` does not alias; then *most is the number of warps that a device holds, less one
// so that it is odd.
inline cudaError_t prepare_exact_sums(cudaStream_t stream, const LimbPointers<double>& c,
                                      const LimbPointers<const double>& given, int64_t entries, int64_t* most) {
  for (int i = 0; i < c.count; ++i) {
    if (c.limb[i] == given.limb[i]) continue;
    const cudaError_t status =
        cudaMemcpyAsync(c.limb[i], given.limb[i], entries * sizeof(double), cudaMemcpyDeviceToDevice, stream);
    if (status != cudaSuccess) return status;
  }
  int ordinal;
  const DeviceLimits& device = current_device(&ordinal);
  *most = int64_t{6} * device.multiprocessors - 1;
  return device.status;
}

}  // namespace cuda
}  // namespace jaxmd
