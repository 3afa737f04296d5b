// What the handlers of exact sums on CUDA do before they launch: limbs that the results do not alias are copied.
#pragma once

#include <cuda_runtime.h>

#include "product_shape.h"

namespace jaxmd {
namespace cuda {

inline cudaError_t copy_given_limbs(cudaStream_t stream, const LimbPointers<double>& c,
                                    const LimbPointers<const double>& given, int64_t entries) {
  for (int i = 0; i < c.count; ++i) {
    if (c.limb[i] == given.limb[i]) continue;
    const cudaError_t status =
        cudaMemcpyAsync(c.limb[i], given.limb[i], entries * sizeof(double), cudaMemcpyDeviceToDevice, stream);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace cuda
}  // namespace jaxmd
