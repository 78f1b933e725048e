// Residues of whole numbers modulo some p of at most 256: about centred ones, which fit in a signed byte.
//
// A number's bytes are multiplied by 256^i modulo p and added up, to less than 2^19. To that a multiple of p is added that
// makes it a float32 number between 2^23 and 2^24 by its bits alone; its quotient by p is rounded by adding BIAS, the
// lowest byte of whose bits is zero, so that it is nothing modulo 256. What is rounded may be the wrong one of two whole
// numbers that are about as near: then the residue is -128 where 127 is nearer to zero, modulo 255. (That no residue is
// beyond a byte is tested with all sums that there can be.)
#pragma once

#include "whole_bytes.cuh"

namespace fmm {

constexpr int BIAS = 0x4b400000;  // the bits of 1.5 * 2^23

struct alignas(16) Modulus {
    int p;
    float inverse;      // 1 / p
    int low, high;      // 256^i modulo p, i from 0 and from 4, a signed byte each
    int begin, begin64; // the bits of that multiple, less 2^31, less 2^63, modulo p
    int unused[2];

    // A number whose lowest byte is the residue, of such a sum.
    __device__ __forceinline__ int centred(int sum) const {
        return sum - p * __float_as_int(__fmaf_rn(__int_as_float(sum), inverse, __int_as_float(BIAS)));
    }
    __device__ __forceinline__ int operator()(int x) const {
        return centred(dot_bytes(static_cast<unsigned>(x) ^ 1u << 31, low, begin));
    }
    // Of a number of 64 bits to which 2^63 was added.
    __device__ __forceinline__ int of_raised(unsigned long long x) const {
        const int upper = dot_bytes(static_cast<unsigned>(x >> 32), high, begin64);
        return centred(dot_bytes(static_cast<unsigned>(x), low, upper));
    }
    // The residue itself, for a sum that goes on.
    __device__ __forceinline__ int still(int x) const { return static_cast<signed char>((*this)(x)); }
};

}  // namespace fmm
