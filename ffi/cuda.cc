// The CUDA module: a table from target name to handler, and the architectures it was compiled for.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "handlers.h"
#include "xla/ffi/api/c_api.h"

#define JAXMD_DECLARE(name) extern "C" XLA_FFI_Error* jaxmd_##name##_cuda(XLA_FFI_CallFrame* frame);
JAXMD_CUDA_HANDLERS(JAXMD_DECLARE)

namespace {

nanobind::dict handlers() {
  nanobind::dict table;
#define JAXMD_ENTRY(name) \
  table["jaxmd_" #name] = nanobind::capsule(reinterpret_cast<void*>(jaxmd_##name##_cuda));
  JAXMD_CUDA_HANDLERS(JAXMD_ENTRY)
  return table;
}

std::string architectures() { return JAXMD_CUDA_ARCHITECTURES; }

}  // namespace

NB_MODULE(_cuda, m) {
  m.def("handlers", &handlers, "Target name to handler, for jax.ffi.register_ffi_target on platform CUDA.");
  m.def("architectures", &architectures, "What was compiled for: sm_XX machine code, compute_XX PTX, blank-separated.");
}
