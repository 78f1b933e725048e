// Residues of integers modulo p <= 256. They are centred about zero and fit in a signed byte.
//
// Byte i of a number is multiplied by 256^i modulo p. The sum of these products is less than 2^19. After a multiple of
// p is added, the sum is the bit pattern of a float32 number between 2^23 and 2^24. Adding BIAS to the quotient by p
// rounds the quotient. The lowest byte of BIAS is zero, so BIAS does not change the residue's byte. A quotient near the
// middle of two integers may be rounded to the farther integer. For p = 255 the residue is then -128 instead of 127.
// Tests check all possible sums: every residue fits in a byte.
#pragma once

#include "whole_bytes.cuh"

namespace fmm {

constexpr int BIAS = 0x4b400000;  // bits of 1.5 * 2^23 as float32

struct alignas(16) Modulus {
    int p;
    float inverse;      // 1 / p
    int low, high;      // 256^i modulo p as signed bytes, for i from 0 and from 4
    int begin, begin64; // the bits of the multiple, minus 2^31 modulo p (begin) or minus 2^63 modulo p (begin64)
    int unused[2];

    // Return a number whose lowest byte is the residue of this sum.
    __device__ __forceinline__ int centred(int sum) const {
        return sum - p * __float_as_int(__fmaf_rn(__int_as_float(sum), inverse, __int_as_float(BIAS)));
    }
    __device__ __forceinline__ int operator()(int x) const {
        return centred(dot_bytes(static_cast<unsigned>(x) ^ 1u << 31, low, begin));
    }
    // Return a number whose lowest byte is the residue of x - 2^63.
    __device__ __forceinline__ int of_biased(unsigned long long x) const {
        const int upper = dot_bytes(static_cast<unsigned>(x >> 32), high, begin64);
        return centred(dot_bytes(static_cast<unsigned>(x), low, upper));
    }
    // Return the residue itself, with which a sum can continue.
    __device__ __forceinline__ int reduced(int x) const { return static_cast<signed char>((*this)(x)); }
};

}  // namespace fmm
