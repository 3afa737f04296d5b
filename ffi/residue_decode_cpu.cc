// jaxmd_residue_decode on the CPU: shapes, checks, tables, and blocks of elements on XLA's thread pool. The kernel is
// in residue_decode_simd.cc, the formula in residue_decode.h.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "huge_pages.h"
#include "isa.h"
#include "product_args.h"
#include "residue_decode.h"
#include "residue_steps_cpu.h"
#include "threads.h"

namespace jaxmd {

JAXMD_FOR_EACH_ISA(extern ResidueDecodeKernel residue_decode_block;)

namespace ffi = xla::ffi;

ffi::Error decode_residues(ffi::ThreadPool& pool, const char* who, const ResidueDecodeBuffers& plan,
                           ResidueDecodeTask task) {
  const int64_t count = task.ones + task.pairs, terms = plan.product.element_count();
  const Dimensions none = plan.product.dimensions();
  JAXMD_CHECK(expect_shape(who, "quotients", plan.quotients.dimensions(), none, 0, {count}));
  JAXMD_CHECK(expect_shape(who, "slices", plan.slices.dimensions(), none, 0, {terms, count}));
  JAXMD_CHECK(expect_shape(who, "product", plan.product.dimensions(), none, 0, {terms}));
  if (terms < 1 || terms > kMaxResidueSlices) {
    return invalid(who, std::to_string(terms) + " slices; wanted 1 to " + std::to_string(kMaxResidueSlices) + ".");
  }
  const int64_t elements = task.batch * task.m * task.n;
  if (elements == 0) return ffi::Error::Success();

  const double *const quotients = plan.quotients.typed_data(), *const slices = plan.slices.typed_data();
  std::vector<double> table(count * (1 + terms)), weight(terms);
  for (int64_t i = 0; i < count; ++i) {
    table[i * (1 + terms)] = quotients[i];
    for (int64_t j = 0; j < terms; ++j) table[i * (1 + terms) + 1 + j] = slices[j * count + i];
  }
  const GradualUnderflow guard;  // a weight may be subnormal
  // C' 2^-w is in the middle of the range; where w is near its end, the slices, up to 2^20 C', need some room above
  const int64_t down = plan.bits > 900 ? plan.bits + 40 : plan.bits;
  for (int64_t j = 0; j < terms; ++j) {
    const int64_t power = std::min<int64_t>(2000, std::max<int64_t>(-2000, plan.beta * j - down));
    weight[j] = std::ldexp(1.0, static_cast<int>(power));
  }
  task.raise = static_cast<int>(down - 2 * plan.bits);
  task.slices = static_cast<int>(terms);
  task.table = table.data();
  task.product = plan.product.typed_data();
  task.weight = weight.data();
  for (int i = 0; i < task.out.count; ++i) prefer_huge_pages(task.out.limb[i], elements * sizeof(double));
  ResidueDecodeKernel* const kernel = JAXMD_CHOSEN(residue_decode_block);
  const int64_t blocks = std::max<int64_t>(1, 200000 / ((1 + terms) * (count + 20) * kResidueBlock / 4));
  parallel_for(pool, elements, blocks * kResidueBlock, [=, &task](int64_t begin, int64_t end) {
    std::vector<double> scratch(residue_decode_scratch(task));
    for (; begin < end; begin += kResidueBlock) {
      kernel(task, begin, std::min<int64_t>(end, begin + kResidueBlock), scratch.data());
    }
  });
  return ffi::Error::Success();
}

namespace {

constexpr const char* kName = "jaxmd_residue_decode";

// The axes after the first.
Dimensions tail(Dimensions d) { return d.last(d.size() - 1); }

ffi::Error residue_decode(ffi::ThreadPool pool, int64_t beta, int64_t bits, ffi::Buffer<ffi::S8> residues,
                          ffi::Buffer<ffi::S32> row, ffi::Buffer<ffi::S32> column, ffi::Buffer<ffi::F64> quotients,
                          ffi::Buffer<ffi::F64> slices, ffi::Buffer<ffi::F64> product, ffi::RemainingRets rets) {
  ResidueDecodeTask task{};
  Dimensions c;
  JAXMD_CHECK(result_limbs(kName, rets, &c, &task.out));
  const Dimensions r = residues.dimensions();
  const size_t rank = c.size();
  const int64_t count = quotients.element_count();
  if (task.out.count > kMaxProductLimbs || rank < 2 || r.size() != rank + 1 || r[0] < count || r[0] > 2 * count ||
      !same_shape(tail(r), c)) {
    return invalid(kName, "residues have shape " + shape_text(r) + ", " + std::to_string(task.out.count) +
                              " results " + shape_text(c) + ", and there are " + std::to_string(count) +
                              " moduli; wanted (n1 + 2 n2, .., m, n), results (.., m, n) and n1 + n2 moduli.");
  }
  task.m = c[rank - 2];
  task.n = c[rank - 1];
  task.batch = 1;
  for (size_t i = 0; i + 2 < rank; ++i) task.batch *= c[i];
  task.pairs = static_cast<int>(r[0] - count);
  task.ones = static_cast<int>(count - task.pairs);
  JAXMD_CHECK(expect_shape(kName, "the row exponent", row.dimensions(), c, rank - 2, {task.m}));
  JAXMD_CHECK(expect_shape(kName, "the column exponent", column.dimensions(), c, rank - 2, {task.n}));
  task.residues = residues.typed_data();
  task.row = row.typed_data();
  task.column = column.typed_data();
  return decode_residues(pool, kName, {beta, bits, quotients, slices, product}, task);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_residue_decode_cpu, residue_decode,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("beta")
                                  .Attr<int64_t>("bits")
                                  .Arg<ffi::Buffer<ffi::S8>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .RemainingRets());

}  // namespace jaxmd
