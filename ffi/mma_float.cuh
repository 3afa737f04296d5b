// Products of f16, bf16 and tf32 fragments with float32 accumulators by one warp: c += a b.
//
// PTX ISA, "Warp-level matrix instructions: mma", shapes m16n8k16 for f16 and m16n8k8 for tf32 (sm_80). Lane = 4 g + t:
//   a[i]  row g + 8 (i & 1)     f16: columns 2 t + 8 (i >> 1) + 0..1    tf32: column t + 4 (i >> 1)
//   b[i]  column g              f16: rows 2 t + 8 i + 0..1              tf32: row t + 4 i
//   c[i]  row g + 8 (i >> 1),   column 2 t + (i & 1)
// The sum of a step (all of k on sm_90 and later, half of it before) and c is truncated, not rounded.
#pragma once

#include <cstdint>

namespace jaxmd {

template <bool kTf32>
struct MmaFloat {
  __device__ static void run(float (&c)[4], const uint32_t* a, const uint32_t* b) {
    if constexpr (kTf32) {
      asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
  }
};

// As f16, with bfloat16 in place of it.
struct MmaBF16M16N8K16 {
  __device__ static void run(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

}  // namespace jaxmd
