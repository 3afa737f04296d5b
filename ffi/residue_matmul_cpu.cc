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
                       const int32_t* modulus, int8_t* narrow, int16_t* wide) {
  multiply_by_tiles(pool, {s.channels * s.batch, s.m, s.n, s.k}, a, b,
                    [=](int64_t product, int64_t entry, ResidueTile& tile) {
                      const int64_t channel = product / s.batch;
                      tile.modulus = modulus[channel];
                      if (channel < s.small) {
                        tile.narrow = narrow + product * s.m * s.n + entry;
                      } else {
                        tile.wide = wide + (product - s.small * s.batch) * s.m * s.n + entry;
                      }
                    });
}

namespace {

ffi::Error residue_matmul(ffi::ThreadPool pool, int64_t small, ffi::Buffer<ffi::S8> a, ffi::Buffer<ffi::S8> b,
                          ffi::Buffer<ffi::S32> moduli, ffi::Result<ffi::Buffer<ffi::S8>> narrow,
                          ffi::Result<ffi::Buffer<ffi::S16>> wide) {
  ResidueShape s;
  JAXMD_CHECK(residue_shape(a.dimensions(), b.dimensions(), moduli.dimensions(), narrow->dimensions(),
                            wide->dimensions(), small, &s));
  prefer_huge_pages(narrow->typed_data(), narrow->size_bytes());
  prefer_huge_pages(wide->typed_data(), wide->size_bytes());
  multiply_residues(pool, s, a.typed_data(), b.typed_data(), moduli.typed_data(), narrow->typed_data(),
                    wide->typed_data());
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_residue_matmul_cpu, residue_matmul,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("small")
                                  .Arg<ffi::Buffer<ffi::S8>>()
                                  .Arg<ffi::Buffer<ffi::S8>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S8>>()
                                  .Ret<ffi::Buffer<ffi::S16>>());

}  // namespace jaxmd
