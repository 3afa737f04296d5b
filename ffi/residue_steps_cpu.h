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

// C of a and b; moduli [s.moduli], carries [s.moduli - s.small, 2].
void multiply_residues(xla::ffi::ThreadPool& pool, const ResidueShape& s, const int8_t* a, const int8_t* b,
                       const int32_t* moduli, const int32_t* carries, int8_t* c);

// What decoding reads of a plan: the attributes of `_residues.Decoding`, and w.
struct ResidueDecodeBuffers {
  int64_t beta, bits;
  xla::ffi::Buffer<xla::ffi::F64> quotients, slices, product;
};

// Decodes the residues of a task that lacks what `plan` says. `who` is named by errors about the plan.
xla::ffi::Error decode_residues(xla::ffi::ThreadPool& pool, const char* who, const ResidueDecodeBuffers& plan,
                                ResidueDecodeTask task);

}  // namespace jaxmd
