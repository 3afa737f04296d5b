// The three steps of a product in residues on XLA's thread pool, for their own handlers and for the handler of a whole
// product (residue_product_cpu.cc).
#pragma once

#include "residue_decode.h"
#include "residue_encode.h"
#include "residue_matmul_args.h"
#include "xla/ffi/api/ffi.h"

namespace jaxmd {

// Encodes the operand of a task that lacks weights and digit_pairs. `who` is named by errors about its numbers.
xla::ffi::Error encode_residues(xla::ffi::ThreadPool& pool, const char* who, ResidueEncodeTask task);

// C in `narrow` and `wide` of a and b; moduli [s.channels].
void multiply_residues(xla::ffi::ThreadPool& pool, const ResidueShape& s, const int8_t* a, const int8_t* b,
                       const int32_t* moduli, int8_t* narrow, int16_t* wide);

// What decoding reads of a plan: the attributes of `_residues.Decoding`, and w.
struct ResidueDecodeBuffers {
  int64_t beta, bits;
  xla::ffi::Buffer<xla::ffi::S32> moduli;
  xla::ffi::Buffer<xla::ffi::F64> quotients, slices, product;
  xla::ffi::Buffer<xla::ffi::S32> combine;
};

// Decodes the residues of a task that lacks what `plan` says. `who` is named by errors about the plan.
xla::ffi::Error decode_residues(xla::ffi::ThreadPool& pool, const char* who, const ResidueDecodeBuffers& plan,
                                ResidueDecodeTask task);

}  // namespace jaxmd
