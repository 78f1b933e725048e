// PTX of compute capability 8.0 and newer: asynchronous copies, reads of matrices by a warp, and matrix instructions of
// a warp (mma.sync). Tests on the host replace the whole file.
//
// The file includes no header, so NVRTC needs no include path.
#pragma once

namespace fmm {

// Copy the first `valid` of 16 bytes from global to shared memory; the other bytes become zero.
__device__ __forceinline__ void copy_chunk(unsigned to, const void* from, int valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Wait until all but the last PENDING groups of this thread's copies have arrived.
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ unsigned shared_offset(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Read four matrices of 8 rows of 16 bytes. Lane 8 i + r has the address of row r of matrix i. Lane l gets word l % 4
// of row l / 4 of each matrix; with TRANSPOSED, the 16-bit numbers at rows 2 (l % 4) and 2 (l % 4) + 1 of column l / 4.
template <bool TRANSPOSED>
__device__ __forceinline__ void read_matrices(unsigned (&x)[4], unsigned from) {
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from) : "memory");
}

// Compute c += a b with 16 rows of A, 8 columns of B, and 32 bytes of the inner dimension: float16 numbers with float32
// sums, or bytes with integer sums. A lane has two adjacent sums in rows l / 4 and l / 4 + 8.
__device__ __forceinline__ void mma(float* c, const unsigned (&a)[4], const unsigned* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma(int* c, const unsigned (&a)[4], const unsigned* b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace fmm
