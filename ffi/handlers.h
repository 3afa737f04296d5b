// The handlers of each module, one line each: X(name) stands for the target jaxmd_<name>, handled by
// jaxmd_<name>_cpu in *_cpu.cc and jaxmd_<name>_cuda in *.cu. Add your line here; the tables follow.
#pragma once

#define JAXMD_CPU_HANDLERS(X) \
  X(add)                      \
  X(mul)                      \
  X(div)                      \
  X(sqrt)                     \
  X(renormalize)              \
  X(scale)                    \
  X(two_sum)                  \
  X(two_prod)                 \
  X(exact_matmul)             \
  X(exponent_span)            \
  X(direct_matmul)            \
  X(residue_encode)           \
  X(residue_matmul)           \
  X(residue_decode)           \
  X(residue_product)          \
  X(certificate)              \
  X(single_matmul)            \
  X(tensorcore_steps)

#define JAXMD_CUDA_HANDLERS(X) \
  X(add)                       \
  X(mul)                       \
  X(div)                       \
  X(sqrt)                      \
  X(renormalize)               \
  X(scale)                     \
  X(two_sum)                   \
  X(two_prod)                  \
  X(exact_matmul)              \
  X(exact_special)             \
  X(exponent_span)             \
  X(direct_matmul)             \
  X(sliced_matmul)             \
  X(residue_encode)            \
  X(residue_decode)            \
  X(residue_matmul)            \
  X(single_largest)            \
  X(single_matmul)             \
  X(uninitialized)             \
  X(certificate)               \
  X(uncertified)               \
  X(float64_repair)            \
  X(tensorcore_issue)
