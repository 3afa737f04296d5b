// What direct.cu and window.cu share: the launch of window.h's kernel, and the grid of a product.
#pragma once

#include <cuda_runtime.h>

#include "direct.h"

namespace jaxmd {

// x: tiles of rows; y and z: tiles of columns and products of the batch, which a kernel walks in steps of the grid.
inline dim3 product_grid(const ProductShape& s, int64_t rows, int64_t columns) {
  const auto most = [](int64_t x) { return static_cast<unsigned>(x < 65535 ? x : 65535); };
  return dim3(static_cast<unsigned>((s.m + rows - 1) / rows), most((s.n + columns - 1) / columns), most(s.batch));
}

cudaError_t launch_window_matmul(cudaStream_t stream, const DirectTask& task);

}  // namespace jaxmd
