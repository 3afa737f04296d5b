// Which of the compiled instruction sets runs: the best one the machine has, or a lower one named by JAXMD_CPU_ISA.
//
// A *_simd.cc file is compiled once per set, in namespace jaxmd::JAXMD_ISA. Its handler file says
//   JAXMD_FOR_EACH_ISA(extern const Kernels kernels;)   to declare the variants, and
//   JAXMD_CHOSEN(kernels)                               for the one to run.
// Included by *_cpu.cc only: no instruction-set flags are on here.
#pragma once

#include <cstdlib>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#define JAXMD_X86 1
#define JAXMD_FOR_EACH_ISA(...) \
  namespace portable {          \
  __VA_ARGS__                   \
  }                             \
  namespace avx2 {              \
  __VA_ARGS__                   \
  }                             \
  namespace avx512 {            \
  __VA_ARGS__                   \
  }
#define JAXMD_CHOSEN(name)                                     \
  (::jaxmd::chosen_isa() == ::jaxmd::Isa::avx512 ? avx512::name \
   : ::jaxmd::chosen_isa() == ::jaxmd::Isa::avx2 ? avx2::name   \
                                                 : portable::name)
#else
#define JAXMD_FOR_EACH_ISA(...) \
  namespace portable {          \
  __VA_ARGS__                   \
  }
#define JAXMD_CHOSEN(name) (portable::name)
#endif

namespace jaxmd {

enum class Isa { portable, avx2, avx512 };

inline Isa best_isa() {
#if defined(JAXMD_X86)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl")) {
    return Isa::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
  return Isa::portable;
}

// AMX int8 tiles: CPUID leaf 7, EDX bit 25 (needs the operating system's consent besides, which XLA asks for itself).
inline bool has_amx_int8() {
#if defined(JAXMD_X86)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 25 & 1) != 0;
#else
  return false;
#endif
}

inline Isa chosen_isa() {
  static const Isa chosen = [] {
    const Isa best = best_isa();
    const char* name = std::getenv("JAXMD_CPU_ISA");
    Isa wanted = best;
    if (name != nullptr && std::strcmp(name, "portable") == 0) wanted = Isa::portable;
    if (name != nullptr && std::strcmp(name, "avx2") == 0) wanted = Isa::avx2;
    return wanted < best ? wanted : best;
  }();
  return chosen;
}

}  // namespace jaxmd
