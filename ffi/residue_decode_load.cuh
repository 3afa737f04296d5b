// Residues of a tile of 32 entries, from their planes of bytes to fragments of the residue decoder
// (residue_decode.cuh).
//
// Tiling:  lane 4 g + t loads 4 bytes of each of entries 4 g .. 4 g + 3 a k16 step: what its registers of the fragments
//          hold. Rows are entries (row g + 8 h of fragment f: entry 2 f + h of the lane's four), columns 4 t .. 4 t + 3
//          are bytes of their residues. Lane t's bytes follow one another; where they end early, they start early: some
//          are loaded twice, and once meet zeros of the table. So no load is conditional.
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

// from + i plane, in one instruction.
__device__ __forceinline__ const int8_t* plane_after(const int8_t* from, uint32_t plane, int i) {
  if (i == 0) return from;
#if defined(__CUDA_ARCH__)
  uint64_t at;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(at) : "r"(plane), "r"(i), "l"(reinterpret_cast<uint64_t>(from)));
  return reinterpret_cast<const int8_t*>(at);
#else
  return from + uint64_t{plane} * i;
#endif
}

// Four entries at once. Volatile: they are asked for here, and not where they are first needed.
__device__ __forceinline__ uint32_t load_four(const int8_t* from) {
#if defined(__CUDA_ARCH__)
  uint32_t to;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(to) : "l"(from));
  return to;
#else
  return *reinterpret_cast<const uint32_t*>(from);
#endif
}

// A lane's four entries; where some lie beyond the last, the last ones in their place.
//   kAligned: the number of entries is a multiple of 4, and planes start on 16 bytes
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

  __device__ __forceinline__ uint32_t load(const int8_t* from) const {
    if constexpr (kAligned) return load_four(from);
    uint32_t to = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) to |= static_cast<uint32_t>(static_cast<uint8_t>(__ldg(from + offset[j]))) << 8 * j;
    return to;
  }
};

// A lane's first plane, entry 0: lanes t take `each` of `count` planes.
__device__ __forceinline__ const int8_t* first_plane(const DecodeTask& task, int each, int t) {
  const int last = task.bytes > each ? task.bytes - each : 0;
  return task.residues + int64_t{t * each < last ? t * each : last} * task.entries;
}

// Four planes.
template <bool kAligned>
__device__ __forceinline__ void load_bytes(const DecodeTask& task, const LaneEntries<kAligned>& entries,
                                           const int8_t* from, uint32_t (&to)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = entries.load(plane_after(from, task.entries, i));
}

// a[f][h]: registers of one k16 step of fragment f.
__device__ __forceinline__ void pack_bytes(uint32_t (&a)[2][2], const uint32_t (&from)[4]) {
  uint32_t to[4];
  transpose_bytes(from, to);
  a[0][0] = to[0], a[0][1] = to[1], a[1][0] = to[2], a[1][1] = to[3];
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
