// Instructions on the four bytes of a word: dot product and packing. Tests on the host replace these functions.
//
// The file includes no header, so NVRTC needs no include path.
#pragma once

namespace fmm {

// Return c plus the dot product of the unsigned bytes of a with the signed bytes of b.
__device__ __forceinline__ int dot_bytes(unsigned a, int b, int c) {
    int d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
// Return the lowest bytes of two or four numbers, packed in a word.
__device__ __forceinline__ unsigned low_bytes(unsigned a, unsigned b) { return __byte_perm(a, b, 0x0040); }
__device__ __forceinline__ unsigned low_bytes(unsigned a, unsigned b, unsigned c, unsigned d) {
    return __byte_perm(low_bytes(a, b), low_bytes(c, d), 0x5410);
}

}  // namespace fmm
