// The CPU module: a table from target name to handler, and what the processor offers.
#include <nanobind/nanobind.h>

#include "handlers.h"
#include "isa.h"
#include "xla/ffi/api/c_api.h"

#define JAXMD_DECLARE(name) extern "C" XLA_FFI_Error* jaxmd_##name##_cpu(XLA_FFI_CallFrame* frame);
JAXMD_CPU_HANDLERS(JAXMD_DECLARE)

namespace {

nanobind::dict handlers() {
  nanobind::dict table;
#define JAXMD_ENTRY(name) \
  table["jaxmd_" #name] = nanobind::capsule(reinterpret_cast<void*>(jaxmd_##name##_cpu));
  JAXMD_CPU_HANDLERS(JAXMD_ENTRY)
  return table;
}

nanobind::list targets() {
  nanobind::list names;
#define JAXMD_NAME(name) names.append("jaxmd_" #name);
  JAXMD_CPU_HANDLERS(JAXMD_NAME)
  JAXMD_CUDA_HANDLERS(JAXMD_NAME)
  return names;
}

nanobind::dict features() {
  const jaxmd::Isa isa = jaxmd::chosen_isa();
  nanobind::dict table;
  table["isa"] = isa == jaxmd::Isa::avx512 ? "avx512" : isa == jaxmd::Isa::avx2 ? "avx2" : "portable";
  table["avx2"] = jaxmd::best_isa() >= jaxmd::Isa::avx2;
  table["avx512"] = jaxmd::best_isa() >= jaxmd::Isa::avx512;
  table["avx512_vnni"] = jaxmd::chosen_dot() >= jaxmd::Dot::vnni;
  table["amx_int8"] = jaxmd::chosen_dot() == jaxmd::Dot::amx;
  return table;
}

}  // namespace

NB_MODULE(_cpu, m) {
  m.def("handlers", &handlers, "Target name to handler, for jax.ffi.register_ffi_target on platform cpu.");
  m.def("targets", &targets, "The names of all handlers, those of a CUDA module that was not built among them.");
  m.def("features", &features, "The instruction set in use (JAXMD_CPU_ISA may lower it) and what the processor has.");
}
