// jaxmd_certificate on the CPU: grids of both operands, and whether they are settled and magnitudes reach `bound`.
//
// Operands: limbs of A [.., m, k], then of B [.., k, n].
// Results: row s32 [.., m], column s32 [.., n], certified pred [], shift s32 [.., k] (zeros).
// terms: of a sum that its magnitude is taken of, at most 2^16; 0: the limbs need only be settled.
// Cost: one pass over the limbs, and an int8 product of `terms` terms that is never written.
#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "certificate.h"
#include "isa.h"
#include "product_args.h"
#include "residue_tiles.h"
#include "threads.h"

namespace jaxmd {

JAXMD_FOR_EACH_ISA(extern const CertificateKernels certificate_kernels;)

namespace {

namespace ffi = xla::ffi;

constexpr const char* kName = "jaxmd_certificate";
constexpr int64_t kWorthATask = 20000;  // limbs: about 20 µs

ffi::Error certificate(ffi::ThreadPool pool, int64_t lhs_limbs, int64_t bound, int64_t terms, ffi::RemainingArgs args,
                       ffi::Result<ffi::Buffer<ffi::S32>> row, ffi::Result<ffi::Buffer<ffi::S32>> column,
                       ffi::Result<ffi::Buffer<ffi::PRED>> certified, ffi::Result<ffi::Buffer<ffi::S32>> shift) {
  CertificateSide left, right;
  Dimensions a, b;
  ProductShape shape;
  JAXMD_CHECK(operand_limbs(kName, args, 0, lhs_limbs, &a, &left.x));
  JAXMD_CHECK(operand_limbs(kName, args, lhs_limbs, static_cast<int64_t>(args.size()) - lhs_limbs, &b, &right.x));
  JAXMD_CHECK(product_shape(kName, a, b, &shape));
  const size_t keep = a.size() - 2;
  JAXMD_CHECK(expect_shape(kName, "row", row->dimensions(), a, keep, {shape.m}));
  JAXMD_CHECK(expect_shape(kName, "column", column->dimensions(), a, keep, {shape.n}));
  JAXMD_CHECK(expect_shape(kName, "certified", certified->dimensions(), a, 0, {}));
  JAXMD_CHECK(expect_shape(kName, "shift", shift->dimensions(), a, keep, {shape.k}));
  if (terms < 0 || terms > 65536) {
    return invalid(kName, "terms is " + std::to_string(terms) + "; wanted 0 to 65536.");
  }
  left.terms = right.terms = std::min(terms, shape.k);
  left.kept = right.kept = quotient(left.terms, kResidueStep) * kResidueStep;
  left.k = right.k = shape.k;
  left.rows = shape.m;
  right.rows = shape.n;
  left.exponent = row->typed_data();
  right.exponent = column->typed_data();
  std::vector<int8_t> u(shape.batch * shape.m * left.kept), v(shape.batch * shape.n * right.kept);
  left.magnitude = u.data();
  right.magnitude = v.data();
  std::fill(shift->typed_data(), shift->typed_data() + shape.batch * shape.k, 0);

  const CertificateKernels kernels = JAXMD_CHOSEN(certificate_kernels);
  std::atomic<bool> settled{true};
  const int64_t one = std::max<int64_t>(1, shape.k);
  parallel_for(pool, shape.batch * shape.m, std::max<int64_t>(1, kWorthATask / (one * left.x.count)),
               [&](int64_t first, int64_t last) { if (!kernels.rows(left, first, last)) settled = false; });
  parallel_for(pool, shape.batch * quotient(shape.n, kCertificateSpan),
               std::max<int64_t>(1, kWorthATask / (one * right.x.count * kCertificateSpan)),
               [&](int64_t first, int64_t last) { if (!kernels.columns(right, first, last)) settled = false; });
  bool* const answer = certified->typed_data();
  *answer = settled;
  if (!settled || terms == 0) return ffi::Error::Success();
  std::atomic<bool> below{false};
  const int32_t least = static_cast<int32_t>(std::min<int64_t>(bound, INT32_MAX));
  multiply_by_tiles(pool, {shape.batch, shape.m, shape.n, left.kept, 1},
                    [&](int64_t z, int64_t i, int64_t j, ResidueTile& tile) {
                      tile.a = u.data() + (z * shape.m + i) * left.kept;
                      tile.b = v.data() + (z * shape.n + j) * left.kept;
                      tile.below = &below;
                      tile.bound = least;
                    });
  *answer = !below;
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_certificate_cpu, certificate,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("lhs_limbs")
                                  .Attr<int64_t>("bound")
                                  .Attr<int64_t>("terms")
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::PRED>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());

}  // namespace jaxmd
