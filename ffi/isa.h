// Which of the compiled instruction sets runs: the best one the machine has, or a lower one named by JAXMD_CPU_ISA.
//
// A *_simd.cc file is compiled once per set, in namespace jaxmd::JAXMD_ISA. Its handler file says
//   JAXMD_FOR_EACH_ISA(extern const Kernels kernels;)   to declare the variants, and
//   JAXMD_CHOSEN(kernels)                               for the one to run.
// Products of int8 have two more variants (residue_matmul_cpu.cc), chosen by chosen_dot(): AVX-512 with VNNI, and AMX.
// Included by *_cpu.cc only: no instruction-set flags are on here.
#pragma once

#include <cstdlib>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
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

// How int8 is multiplied: by vectors of the instruction set, by VNNI's sums of products, or by AMX's tiles.
enum class Dot { vectors, vnni, amx };

// Whether the processor has AMX tiles of int8 and the operating system lets this process use them.
inline bool may_use_amx() {
#if defined(JAXMD_AMX) && defined(__linux__) && defined(SYS_arch_prctl)
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;  // CPUID leaf 7, EDX
  constexpr long kRequest = 0x1023, kTileData = 18;       // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTile) == 0 || (d & kInt8) == 0) return false;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}

// JAXMD_CPU_ISA = avx512 (or less) leaves out both, vnni leaves out AMX.
inline Dot chosen_dot() {
  static const Dot chosen = [] {
#if defined(JAXMD_VNNI)
    const char* name = std::getenv("JAXMD_CPU_ISA");
    const auto is = [name](const char* x) { return name != nullptr && std::strcmp(name, x) == 0; };
    if (chosen_isa() != Isa::avx512 || is("avx512")) return Dot::vectors;
    if (!is("vnni") && may_use_amx()) return Dot::amx;
    if (__builtin_cpu_supports("avx512vnni")) return Dot::vnni;
#endif
    return Dot::vectors;
  }();
  return chosen;
}

}  // namespace jaxmd
