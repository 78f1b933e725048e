// Residues of integers modulo p <= 256, centred about zero so that they fit in a signed byte.
//
// The bytes of a number are multiplied by 256^i modulo p and added up, to less than 2^19. Adding a multiple of p makes
// the sum the bit pattern of a float32 number between 2^23 and 2^24. Its quotient by p is rounded by adding BIAS; the
// lowest byte of BIAS is zero, so that it vanishes modulo 256. If the quotient is near the middle of two integers, it
// may be rounded to the wrong one: then the residue is -128 where 127 is nearer to zero, for p = 255. (Tests check for
// all possible sums that no residue exceeds a byte.)
#pragma once

#include "whole_bytes.cuh"

namespace fmm {

constexpr int BIAS = 0x4b400000;  // bits of 1.5 * 2^23 as float32

struct alignas(16) Modulus {
    int p;
    float inverse;      // 1 / p
    int low, high;      // 256^i modulo p as signed bytes, for i from 0 and from 4
    int begin, begin64; // the multiple's bits, less 2^31 modulo p, and less 2^63 modulo p
    int unused[2];

    // Return a number that has the residue of this sum in its lowest byte.
    __device__ __forceinline__ int centred(int sum) const {
        return sum - p * __float_as_int(__fmaf_rn(__int_as_float(sum), inverse, __int_as_float(BIAS)));
    }
    __device__ __forceinline__ int operator()(int x) const {
        return centred(dot_bytes(static_cast<unsigned>(x) ^ 1u << 31, low, begin));
    }
    // The same for a 64-bit number to which 2^63 was added.
    __device__ __forceinline__ int of_biased(unsigned long long x) const {
        const int upper = dot_bytes(static_cast<unsigned>(x >> 32), high, begin64);
        return centred(dot_bytes(static_cast<unsigned>(x), low, upper));
    }
    // The residue itself, for a sum that continues.
    __device__ __forceinline__ int reduced(int x) const { return static_cast<signed char>((*this)(x)); }
};

}  // namespace fmm
