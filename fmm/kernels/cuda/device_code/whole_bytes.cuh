// Bytes as whole numbers: what a GPU's instructions do with four of them, and residues by these. Tests on the host put
// functions in the place of the first part.
//
// No header is needed, so that NVRTC alone compiles this.
#pragma once

namespace fmm {

// c and the products of four unsigned bytes with four signed ones.
__device__ __forceinline__ int dot_bytes(unsigned a, int b, int c) {
    int d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
// The lowest bytes of two and of four numbers, side by side.
__device__ __forceinline__ unsigned low_bytes(unsigned a, unsigned b) { return __byte_perm(a, b, 0x0040); }
__device__ __forceinline__ unsigned low_bytes(unsigned a, unsigned b, unsigned c, unsigned d) {
    return __byte_perm(low_bytes(a, b), low_bytes(c, d), 0x5410);
}

}  // namespace fmm
