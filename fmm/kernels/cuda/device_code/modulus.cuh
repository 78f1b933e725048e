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

// Return a number whose lowest byte is the residue modulo p of this sum. `inverse` is 1 / p.
__device__ __forceinline__ int centred_residue(int sum, int p, float inverse) {
    return sum - p * __float_as_int(__fmaf_rn(__int_as_float(sum), inverse, __int_as_float(BIAS)));
}

struct alignas(16) Modulus {
    int p;
    float inverse;      // 1 / p
    int low, high;      // 256^i modulo p as signed bytes, for i from 0 and from 4
    int begin, begin64; // the bits of the multiple, minus 2^31 modulo p (begin) or minus 2^63 modulo p (begin64)
    int unused[2];

    __device__ __forceinline__ int operator()(int x) const {
        return centred_residue(dot_bytes(static_cast<unsigned>(x) ^ 1u << 31, low, begin), p, inverse);
    }
    // Return a number whose lowest byte is the residue of x - 2^63.
    __device__ __forceinline__ int of_biased(unsigned long long x) const {
        const int upper = dot_bytes(static_cast<unsigned>(x >> 32), high, begin64);
        return centred_residue(dot_bytes(static_cast<unsigned>(x), low, upper), p, inverse);
    }
    // Return the residue itself, with which a sum can continue.
    __device__ __forceinline__ int reduced(int x) const { return static_cast<signed char>((*this)(x)); }
};

// A modulus p with an integer j, j^2 = -1 modulo p. A Gaussian integer re + i im has two residues: re + j im and re - j
// im.
struct alignas(16) GaussianModulus {
    int p;
    float inverse;        // 1 / p
    int low, high;        // 256^i modulo p as signed bytes, for i from 0 and from 4
    int j_low, j_high;    // 256^i j modulo p
    int begins[2];        // as Modulus::begin64, minus 2^63 (1 + j) modulo p, and minus 2^63 (1 - j) modulo p

    // Compute numbers with the residues of (re - 2^63) + j (im - 2^63) and of (re - 2^63) - j (im - 2^63) in their
    // lowest bytes.
    __device__ __forceinline__ void of_biased(unsigned long long re, unsigned long long im, int (&residues)[2]) const {
        const int real = dot_bytes(static_cast<unsigned>(re), low, dot_bytes(static_cast<unsigned>(re >> 32), high, 0));
        const int turned = dot_bytes(static_cast<unsigned>(im), j_low, dot_bytes(static_cast<unsigned>(im >> 32), j_high, 0));
        residues[0] = centred_residue(begins[0] + real + turned, p, inverse);
        residues[1] = centred_residue(begins[1] + real - turned, p, inverse);
    }
};

}  // namespace fmm
