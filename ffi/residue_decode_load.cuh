// Residues of a tile of 32 entries, from their channels to fragments of the residue decoder (residue_decode.cuh).
//
// Tiling:  lane 4 g + t loads entries 4 g .. 4 g + 3 of 4 one-digit or 2 two-digit moduli a k16 step: what its
//          registers of the fragments hold. Rows are entries (row g + 8 h of fragment f: entry 2 f + h of the lane's
//          four), columns 4 t .. 4 t + 3 are 4 residues, or low and high byte of 2.
//          Lane t's moduli follow one another; where they end early, they start early: some are loaded twice, and once
//          meet zeros of the table. So no load is conditional.
// Two digits: r = x - p round(x / p) for x = c_0 m_0 + c_1 m_1 + c_2 m_2. The weights c are multiplied by a unit of the
//          ring mod p that makes them small, M_i by its inverse: |x| < 2^27, so that one multiplication by 2^32 / p is
//          enough, and r, not always centred, is less than p/2 + p/64, which two balanced bytes hold.
#pragma once

#include "residue_decode_tables.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

// Volatile, like the loads: what is loaded next can take the registers.
__device__ __forceinline__ uint32_t select_bytes(uint32_t x, uint32_t y, uint32_t which) {
#if defined(__CUDA_ARCH__)
  uint32_t r;
  asm volatile("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(which));
  return r;
#else
  return __byte_perm(x, y, which);
#endif
}
// 4 x 4 bytes transposed: byte i of to[j] is byte j of from[i].
__device__ inline void transpose_bytes(const uint32_t (&from)[4], uint32_t (&to)[4]) {
  const uint32_t x = select_bytes(from[0], from[1], 0x5140), y = select_bytes(from[2], from[3], 0x5140);
  const uint32_t z = select_bytes(from[0], from[1], 0x7362), w = select_bytes(from[2], from[3], 0x7362);
  to[0] = select_bytes(x, y, 0x5410);
  to[1] = select_bytes(x, y, 0x7632);
  to[2] = select_bytes(z, w, 0x5410);
  to[3] = select_bytes(z, w, 0x7632);
}

// from + i channel, in one instruction.
template <class T>
__device__ __forceinline__ const T* channel_after(const T* from, uint32_t channel, int i) {
  if (i == 0) return from;
#if defined(__CUDA_ARCH__)
  uint64_t at;
  asm("mad.wide.u32 %0, %1, %2, %3;"
      : "=l"(at)
      : "r"(channel), "r"(i * static_cast<int>(sizeof(T))), "l"(reinterpret_cast<uint64_t>(from)));
  return reinterpret_cast<const T*>(at);
#else
  return from + uint64_t{channel} * i;
#endif
}

// Four entries at once. Volatile: they are asked for here, and not where they are first needed.
__device__ __forceinline__ void load_four(const int8_t* from, uint32_t (&to)[1]) {
#if defined(__CUDA_ARCH__)
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(to[0]) : "l"(from));
#else
  to[0] = *reinterpret_cast<const uint32_t*>(from);
#endif
}
__device__ __forceinline__ void load_four(const int16_t* from, uint32_t (&to)[2]) {
#if defined(__CUDA_ARCH__)
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
#else
  to[0] = reinterpret_cast<const uint32_t*>(from)[0], to[1] = reinterpret_cast<const uint32_t*>(from)[1];
#endif
}

// A lane's four entries; where some lie beyond the last, the last ones in their place.
//   kAligned: the number of entries is a multiple of 4, and channels start on 16 bytes
template <bool kAligned>
struct LaneEntries {
  uint32_t first;
  uint32_t offset[4];

  __device__ __forceinline__ LaneEntries(const DecodeTask& task, uint32_t entry) {
    const uint32_t last = task.entries - (kAligned ? 4 : 1);
    first = entry < last ? entry : last;
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) offset[j] = kAligned || last - first >= j ? j : last - first;
  }

  template <class T>
  __device__ __forceinline__ void load(const T* from, uint32_t (&to)[sizeof(T)]) const {
    if constexpr (kAligned) {
      load_four(from, to);
    } else {
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(T)); ++i) to[i] = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        constexpr int kBits = 8 * sizeof(T);
        const uint32_t x = static_cast<uint32_t>(__ldg(from + offset[j])) & ((1u << kBits) - 1);
        to[kBits * j / 32] |= x << kBits * j % 32;
      }
    }
  }
};

// The first of the moduli of lanes t, which take `each` of `count`.
__device__ inline int first_modulus(int t, int each, int count) {
  const int last = count > each ? count - each : 0;
  return t * each < last ? t * each : last;
}
// A lane's first channels, entry 0.
__device__ __forceinline__ const int8_t* first_ones(const DecodeTask& task, int steps, int t) {
  return task.small + int64_t{first_modulus(t, 4 * steps, task.ones)} * task.entries;
}
__device__ __forceinline__ const int16_t* first_pairs(const DecodeTask& task, int steps, int t) {
  return task.wide + int64_t{3 * first_modulus(t, 2 * steps, task.pairs)} * task.entries;
}

// Four moduli of one digit.
template <bool kAligned>
__device__ __forceinline__ void load_ones(const DecodeTask& task, const LaneEntries<kAligned>& entries,
                                          const int8_t* from, uint32_t (&to)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t x[1];
    entries.load(channel_after(from, task.entries, i), x);
    to[i] = x[0];
  }
}
// The three channels of two moduli of two digits, channels and moduli so many entries apart.
template <bool kAligned>
__device__ __forceinline__ void load_pairs(const LaneEntries<kAligned>& entries, const int16_t* from, int64_t channel,
                                           int64_t modulus, uint32_t (&to)[2][3][2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int d = 0; d < 3; ++d) entries.load(from + i * modulus + d * channel, to[i][d]);
  }
}

// a[f][h]: registers of one k16 step of fragment f.
__device__ __forceinline__ void pack_ones(uint32_t (&a)[2][2], const uint32_t (&from)[4]) {
  uint32_t to[4];
  transpose_bytes(from, to);
  a[0][0] = to[0], a[0][1] = to[1], a[1][0] = to[2], a[1][1] = to[3];
}

// constants: {c_0, c_1, c_2, -p}, {round(2^32 / p), h, b, 0} of each of the two moduli, h = floor(p/2).
// x is h more, hence r in [-p/64, p + p/64] and r - h what is wanted; the bytes of both are balanced at once, in one
// word.
__device__ __forceinline__ void pack_pairs(uint32_t (&a)[2][2], const uint32_t (&from)[2][3][2],
                                           const int4* constants) {
  const uint32_t balance = static_cast<uint32_t>(constants[1].z);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int4 c = constants[2 * i], v = constants[2 * i + 1];
#pragma unroll
    for (int f = 0; f < 2; ++f) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const auto digit = [&](int d) {
          return h == 0 ? static_cast<int32_t>(static_cast<int16_t>(from[i][d][f]))
                        : static_cast<int32_t>(from[i][d][f]) >> 16;
        };
        const int32_t x = c.x * digit(0) + (c.y * digit(1) + (c.z * digit(2) + v.y));
        const uint32_t r = x + high_product(x, v.x) * c.w;
        a[f][h] = i == 0 ? r : (r * 65536 + a[f][h] + balance) ^ 0x80808080u;
      }
    }
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
