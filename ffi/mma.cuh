// One struct or function per PTX instruction that the kernels use; nothing here knows a layout beyond one fragment.
//
// Fragment of a 16 x 8 x 8 double tile (lane = 4 * g + t, g = 0..7, t = 0..3):
//   a[i]  row g + 8 * (i & 1),   column t + 4 * (i >> 1)       i < 4
//   b[i]  row t + 4 * i,         column g                      i < 2
//   c[i]  row g + 8 * (i >> 1),  column 2 * t + (i & 1)        i < 4
// Arithmetic: every entry is a chain of fused multiply-adds, k ascending, rounded to nearest.
#pragma once

#include <cstdint>

namespace jaxmd {

// PTX ISA, "Warp-level matrix instructions: mma", shape m8n8k4, type f64 (sm_80): rows g of the fragment, 4 columns.
struct MmaM8N8K4 {
  __device__ static void run(double& c0, double& c1, double a, double b) {
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(c0), "+d"(c1)
        : "d"(a), "d"(b));
  }
};

// PTX ISA, "Warp-level matrix instructions: mma", shape m16n8k8, type f64 (sm_90). m16n8k4 and m16n8k16 run at the same
// measured rate, 66.4 TFLOP/s on one H200; m8n8k4 at half of it.
struct MmaM16N8K8 {
  __device__ static void run(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
  }
};

// c += a b on a 16 x 8 x 8 tile with the widest instruction of the architecture; the same bits on each.
__device__ inline void multiply_add(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    MmaM8N8K4::run(c[0], c[1], a[2 * i], b[i]);
    MmaM8N8K4::run(c[2], c[3], a[2 * i + 1], b[i]);
  }
#else
  MmaM16N8K8::run(c, a, b);
#endif
}

// PTX ISA, "Warp-level matrix instructions: mma", shapes m16n8k16 and m16n8k32, 8-bit integers (sm_80). With four
// entries along k to a register, bytes ascending, lane = 4 * g + t, the fragments are
//   a[i]  row g + 8 * (i & 1),   columns 4 * t + 16 * (i >> 1) + 0..3     i < 2 or 4
//   b[i]  column g,              rows 4 * t + 16 * i + 0..3               i < 1 or 2
//   c[i]  row g + 8 * (i >> 1),  column 2 * t + (i & 1)                   i < 4
// Arithmetic: int32, modulo 2^32.
struct MmaS8U8M16N8K16 {
  // d = c + a b
  __device__ static void run(int (&d)[4], const uint32_t (&a)[2], uint32_t b, const int (&c)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
  }
  __device__ static void run(int (&c)[4], const uint32_t (&a)[2], uint32_t b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
  }
};
struct MmaS8U8M16N8K32 {
  // d = c + a b
  __device__ static void run(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const int (&c)[4]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
  }
  __device__ static void run(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

struct MmaS8M16N8K32 {
  __device__ static void run(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

// PTX ISA, "Warp-level matrix instructions: ldmatrix" (sm_75): four matrices of 8 rows x 16 bytes; lane 8 i + r gives
// the address of row r of matrix i, lane 4 g + t receives bytes 4 t .. 4 t + 3 of row g of each.
__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

// The same with each matrix, 8 rows of 8 16-bit entries, transposed: lane 4 g + t gets rows 2 t, 2 t + 1 of column g.
__device__ inline void load_transposed(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

// PTX ISA, "Data movement: cp.async" (sm_80): `valid` of 16, 8 or 4 bytes to shared memory, the others become zeros.
__device__ inline void cp_async_16(uint32_t shared, const void* global, int valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(valid)
               : "memory");
}
__device__ inline void cp_async_8(uint32_t shared, const void* global, int valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global), "r"(valid) : "memory");
}

// PTX ISA, "Data movement: cp.async.commit_group" and "cp.async.wait_group" (sm_80).
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// PTX ISA, "Data movement: ld.shared.v2": two doubles, 16 bytes.
__device__ inline void load_shared(double* pair, uint32_t shared) {
  asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];" : "=d"(pair[0]), "=d"(pair[1]) : "r"(shared) : "memory");
}

// PTX ISA, "Miscellaneous instructions: setmaxnreg" (sm_90a; elsewhere nothing): by whole warpgroups.
template <int kRegisters>
__device__ inline void registers_increase() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ inline void registers_decrease() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// PTX ISA, "mbarrier" (sm_80; expect_tx and try_wait sm_90).
__device__ inline void mbarrier_init(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ inline void mbarrier_fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void mbarrier_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n .reg .pred p;\n"
      "wait:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n @p bra done;\n bra wait;\n"
      "done:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// PTX ISA, "Data movement: cp.async.bulk.tensor", 3-D tile to shared memory (sm_90); entries
// outside the tensor arrive as zeros.
__device__ inline void copy_tile(uint32_t shared, const void* tensor_map, int x, int y, int z, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared),
      "l"(tensor_map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}
#endif

}  // namespace jaxmd
