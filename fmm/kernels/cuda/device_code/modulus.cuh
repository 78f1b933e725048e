// Residues of integers modulo p <= 256. They are centred about zero and fit in a signed byte.
//
// To find the residue of a number, byte i of the number is multiplied by 256^i modulo p, and the products are added.
// The sum is less than 2^19. A constant is added to the sum so that it becomes the bit pattern of a float32 number
// between 2^23 and 2^24, and this float32 number has the same residue. Its quotient by p is rounded to an integer q by
// adding the float32 number 1.5 2^23: the bits of the result are BIAS + q. Then p (BIAS + q) is subtracted. The lowest
// byte of BIAS is zero, so p BIAS does not change the lowest byte, which is the residue. A quotient near the
// middle of two integers can be rounded to the farther integer; for p = 255 the residue is then -128 instead of 127.
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
    int begin, begin64; // the added constant, minus 2^31 modulo p (begin) or minus 2^63 modulo p (begin64)
    int unused[2];

    __device__ __forceinline__ int operator()(int x) const {
        return centred_residue(dot_bytes(static_cast<unsigned>(x) ^ 1u << 31, low, begin), p, inverse);
    }
    // Return a number whose lowest byte is the residue of x - 2^63.
    __device__ __forceinline__ int of_biased(unsigned long long x) const {
        const int upper = dot_bytes(static_cast<unsigned>(x >> 32), high, begin64);
        return centred_residue(dot_bytes(static_cast<unsigned>(x), low, upper), p, inverse);
    }
    // Return the residue of a sum; more terms can be added to it.
    __device__ __forceinline__ int reduced(int x) const { return static_cast<signed char>((*this)(x)); }
};

// A modulus p, and an integer j with j^2 = -1 modulo p. A Gaussian integer re + i im has two residues: those of
// re + j im and of re - j im.
struct alignas(16) GaussianModulus {
    int p;
    float inverse;        // 1 / p
    int low, high;        // 256^i modulo p as signed bytes, for i from 0 and from 4
    int j_low, j_high;    // 256^i j modulo p
    int begins[2];        // as Modulus::begin64, minus 2^63 (1 + j) modulo p, and minus 2^63 (1 - j) modulo p

    // Compute two numbers whose lowest bytes are the residues of (re - 2^63) + j (im - 2^63) and of (re - 2^63) -
    // j (im - 2^63).
    __device__ __forceinline__ void of_biased(unsigned long long re, unsigned long long im, int (&residues)[2]) const {
        const int real = dot_bytes(static_cast<unsigned>(re), low, dot_bytes(static_cast<unsigned>(re >> 32), high, 0));
        const int turned = dot_bytes(static_cast<unsigned>(im), j_low, dot_bytes(static_cast<unsigned>(im >> 32), j_high, 0));
        residues[0] = centred_residue(begins[0] + real + turned, p, inverse);
        residues[1] = centred_residue(begins[1] + real - turned, p, inverse);
    }
};

}  // namespace fmm
