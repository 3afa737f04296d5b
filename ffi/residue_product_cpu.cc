// jaxmd_residue_product: a product in residues from limbs to limbs, on the CPU: the three steps of residue_steps_cpu.h
// in scratch of its own (kept_memory.h), where XLA would take fresh memory for the residues at every call.
//
// Shapes: a [.., m, k], b [.., k, n] limbs, row [.., m], column [.., n], shifts [.., k], C [.., m, n] limbs.
// Scratch: G (m + n) k' + (n1 + 2 n2) m n bytes a product of the batch, k' being k rounded up to 16.
#include <string>

#include "kept_memory.h"
#include "product_args.h"
#include "residue_steps_cpu.h"

namespace jaxmd {

namespace {

namespace ffi = xla::ffi;

constexpr const char* kName = "jaxmd_residue_product";

size_t aligned(int64_t bytes) { return static_cast<size_t>((bytes + 4095) / 4096 * 4096); }

ffi::Error residue_product(ffi::ThreadPool pool, int64_t beta, int64_t bits, int64_t lhs_limbs,
                           ffi::Buffer<ffi::S32> row, ffi::Buffer<ffi::S32> column, ffi::Buffer<ffi::S32> lhs_shift,
                           ffi::Buffer<ffi::S32> rhs_shift, ffi::Buffer<ffi::S32> moduli,
                           ffi::Buffer<ffi::S32> carries, ffi::Buffer<ffi::F64> quotients,
                           ffi::Buffer<ffi::F64> slices, ffi::Buffer<ffi::F64> product, ffi::RemainingArgs args,
                           ffi::RemainingRets rets) {
  ResidueEncodeTask left{}, right{};
  ResidueDecodeTask out{};
  Dimensions a, b, c;
  ProductShape s;
  JAXMD_CHECK(operand_limbs(kName, args, 0, lhs_limbs, &a, &left.x));
  JAXMD_CHECK(operand_limbs(kName, args, lhs_limbs, static_cast<int64_t>(args.size()) - lhs_limbs, &b, &right.x));
  JAXMD_CHECK(result_limbs(kName, rets, &c, &out.out));
  JAXMD_CHECK(product_shape(kName, a, b, &s));
  const size_t axes = a.size() - 2;
  JAXMD_CHECK(expect_shape(kName, "the result", c, a, axes, {s.m, s.n}));
  JAXMD_CHECK(expect_shape(kName, "the row exponent", row.dimensions(), a, axes, {s.m}));
  JAXMD_CHECK(expect_shape(kName, "the column exponent", column.dimensions(), a, axes, {s.n}));
  JAXMD_CHECK(expect_shape(kName, "the shift of a", lhs_shift.dimensions(), a, axes, {s.k}));
  JAXMD_CHECK(expect_shape(kName, "the shift of b", rhs_shift.dimensions(), a, axes, {s.k}));
  const int64_t count = moduli.element_count(), pairs = carries.element_count() / 2;
  JAXMD_CHECK(expect_shape(kName, "carries", carries.dimensions(), a, 0, {pairs, 2}));
  if (pairs > count || bits < 1 || bits > INT16_MAX) {
    return invalid(kName, "carries for " + std::to_string(pairs) + " of " + std::to_string(count) + " moduli, bits " +
                              std::to_string(bits) + "; wanted no more than there are, and 1 to 1200.");
  }
  if (s.batch * s.m * s.n == 0) return ffi::Error::Success();

  const ResidueShape shape = {count, count - pairs, s.batch, s.m, s.n, quotient(s.k, 16) * 16};
  const size_t left_size = aligned(shape.channels() * s.batch * s.m * shape.k);
  const size_t right_size = aligned(shape.channels() * s.batch * s.n * shape.k);
  const size_t size = left_size + right_size + aligned(shape.bytes() * s.batch * s.m * s.n);
  const KeptMemory scratch(size);
  if (scratch.data() == nullptr) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted,
                      std::string(kName) + ": no memory for " + std::to_string(size) + " bytes of residues.");
  }
  int8_t* const left_residues = reinterpret_cast<int8_t*>(scratch.data());
  int8_t *const right_residues = left_residues + left_size, *const residues = right_residues + right_size;

  for (ResidueEncodeTask* const task : {&left, &right}) {
    const bool is_right = task == &right;
    task->exponent = (is_right ? column : row).typed_data();
    task->shift = (is_right ? rhs_shift : lhs_shift).typed_data();
    task->out = is_right ? right_residues : left_residues;
    task->batch = s.batch;
    task->rows = is_right ? s.n : s.m;
    task->k = s.k;
    task->padded = shape.k;
    task->transposed = is_right;
    task->bits = static_cast<int>(bits);
    task->small = static_cast<int>(shape.small);
    task->pairs = static_cast<int>(pairs);
    task->moduli = moduli.typed_data();
    JAXMD_CHECK(encode_residues(pool, kName, *task));
  }

  multiply_residues(pool, shape, left_residues, right_residues, moduli.typed_data(), carries.typed_data(), residues);

  out.residues = residues;
  out.row = row.typed_data();
  out.column = column.typed_data();
  out.batch = s.batch;
  out.m = s.m;
  out.n = s.n;
  out.ones = static_cast<int>(shape.small);
  out.pairs = static_cast<int>(pairs);
  return decode_residues(pool, kName, {beta, bits, quotients, slices, product}, out);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_residue_product_cpu, residue_product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("beta")
                                  .Attr<int64_t>("bits")
                                  .Attr<int64_t>("lhs_limbs")
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .RemainingArgs()
                                  .RemainingRets());

}  // namespace jaxmd
