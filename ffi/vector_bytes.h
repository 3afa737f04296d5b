// Bytes of the widest integer vectors of the instruction set that a *_simd.cc file is compiled for.
#pragma once

#ifndef JAXMD_ISA
#define JAXMD_ISA portable
#endif

namespace jaxmd {
namespace JAXMD_ISA {

#if defined(__AVX512BW__)
constexpr int kBytes = 64;
#elif defined(__AVX2__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif

}  // namespace JAXMD_ISA
}  // namespace jaxmd
