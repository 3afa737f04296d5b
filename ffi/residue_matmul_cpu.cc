// jaxmd_residue_matmul on the CPU: shapes, checks, and tiles of all products of all channels on XLA's thread pool. The
// kernels are in residue_matmul_simd.cc and residue_matmul_amx.cc, the formula in residue_matmul.h.
#include "residue_matmul.h"

#include "huge_pages.h"
#include "residue_matmul_args.h"
#include "residue_steps_cpu.h"
#include "residue_tiles.h"

namespace jaxmd {

JAXMD_FOR_EACH_ISA(extern const ResidueKernels residue_kernels;)
#if defined(JAXMD_VNNI)
namespace vnni {
extern const ResidueKernels residue_kernels;
}
#endif
#if defined(JAXMD_AMX)
namespace amx {
extern const ResidueKernels residue_kernels;
}
#endif

const ResidueKernels& chosen_residue_kernels() {
#if defined(JAXMD_AMX)
  if (chosen_dot() == Dot::amx) return amx::residue_kernels;
#endif
#if defined(JAXMD_VNNI)
  if (chosen_dot() == Dot::vnni) return vnni::residue_kernels;
#endif
  return JAXMD_CHOSEN(residue_kernels);
}

namespace ffi = xla::ffi;

void multiply_residues(ffi::ThreadPool& pool, const ResidueShape& s, const int8_t* a, const int8_t* b,
                       const int32_t* moduli, const int32_t* carries, int8_t* c) {
  const int64_t pairs = s.moduli - s.small, plane = s.m * s.n;
  multiply_by_tiles(pool, {s.moduli * s.batch, s.m, s.n, s.k, pairs > 0 ? 3 : 1},
                    [=](int64_t product, int64_t row, int64_t column, ResidueTile& tile) {
                      // two-digit moduli, which take longer, come first
                      const int64_t from_last = product / s.batch, z = product % s.batch, entry = row * s.n + column;
                      const bool two = from_last < pairs;
                      const int64_t modulus = two ? s.small + from_last : from_last - pairs;
                      const int64_t channel = two ? s.small + 3 * from_last : modulus;
                      const int64_t byte = two ? s.small + 2 * from_last : modulus;
                      tile.a = a + ((channel * s.batch + z) * s.m + row) * s.k;
                      tile.b = b + ((channel * s.batch + z) * s.n + column) * s.k;
                      tile.modulus = moduli[modulus];
                      tile.low = c + (byte * s.batch + z) * plane + entry;
                      if (!two) return;
                      tile.channels = 3;
                      tile.channel_a = s.batch * s.m * s.k;
                      tile.channel_b = s.batch * s.n * s.k;
                      tile.carry[0] = carries[2 * from_last];
                      tile.carry[1] = carries[2 * from_last + 1];
                      tile.high = tile.low + s.batch * plane;
                    });
}

namespace {

ffi::Error residue_matmul(ffi::ThreadPool pool, ffi::Buffer<ffi::S8> a, ffi::Buffer<ffi::S8> b,
                          ffi::Buffer<ffi::S32> moduli, ffi::Buffer<ffi::S32> carries,
                          ffi::Result<ffi::Buffer<ffi::S8>> c) {
  ResidueShape s;
  JAXMD_CHECK(residue_shape(a.dimensions(), b.dimensions(), moduli.dimensions(), carries.dimensions(),
                            c->dimensions(), &s));
  prefer_huge_pages(c->typed_data(), c->size_bytes());
  multiply_residues(pool, s, a.typed_data(), b.typed_data(), moduli.typed_data(), carries.typed_data(),
                    c->typed_data());
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_residue_matmul_cpu, residue_matmul,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::S8>>()
                                  .Arg<ffi::Buffer<ffi::S8>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S8>>());

}  // namespace jaxmd
