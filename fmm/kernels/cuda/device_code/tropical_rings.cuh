// The semirings of shortest paths: "addition" is the minimum (or maximum) of two numbers, "multiplication" is their
// sum.
//
// A ring defines the type of its numbers and the number for "no edge" (`none`, the zero of the semiring). It also
// defines how the sum of two numbers updates the best number so far, and how a number is stored. A sum that is NaN is
// never the best. The instructions keep subnormal numbers, although CuPy compiles with -ftz=true.
//
// The file includes no CUDA header, so NVRTC needs no include path.
#pragma once

#include "ieee_arith.cuh"

namespace fmm::tropical {

#ifdef __CUDA_ARCH__
#define FMM_BEST(NAME, PTX)                                            \
    __device__ __forceinline__ float NAME(float x, float y) {          \
        float z;                                                       \
        asm(PTX ".f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));        \
        return z;                                                      \
    }
#define FMM_BITS(NAME, PTX, TYPE, LETTER)                              \
    __device__ __forceinline__ TYPE NAME(TYPE x, TYPE y) {             \
        TYPE z;                                                        \
        asm(PTX " %0, %1, %2;" : "=" LETTER(z) : LETTER(x), LETTER(y)); \
        return z;                                                      \
    }
__device__ __forceinline__ int bits(float x) { return __float_as_int(x); }
__device__ __forceinline__ float number(int x) { return __int_as_float(x); }
__device__ __forceinline__ float infinite() { return __int_as_float(0x7f800000); }
__device__ __forceinline__ bool all_of_warp(bool x) { return __all_sync(~0u, x); }
__device__ __forceinline__ unsigned pairs_least_sum(unsigned a, unsigned b, unsigned c) {
    unsigned z;
#if __CUDA_ARCH__ >= 900  // the assembler fuses both instructions into one
    asm("{.reg .b32 t; add.u16x2 t, %1, %2; min.u16x2 %0, t, %3;}" : "=r"(z) : "r"(a), "r"(b), "r"(c));
#else  // a sum is at most 0xfffe, so there is no carry to the upper number
    const unsigned t = a + b;
    asm("vmin2.u32.u32.u32 %0, %1, %2, %3;" : "=r"(z) : "r"(t), "r"(c), "r"(0));
#endif
    return z;
}
#else
#define FMM_BEST(NAME, PTX) \
    inline float NAME(float x, float y) { return NAME##_of(x, y); }
inline float least_of(float x, float y) { return !(y < x) && x == x ? x : y; }
inline float greatest_of(float x, float y) { return !(x < y) && x == x ? x : y; }
// Return the bits of a float. NaN has the bits of the NaN that sums on a GPU return.
inline int bits(float x) { return x == x ? __builtin_bit_cast(int, x) : 0x7fffffff; }
inline float number(int x) { return __builtin_bit_cast(float, x); }
inline float infinite() { return __builtin_inff(); }
inline bool all_of_warp(bool x) { return x; }  // an emulated thread decides alone, which is correct too
inline unsigned pairs_least_sum(unsigned a, unsigned b, unsigned c) {
    const unsigned low = (a & 0xffff) + (b & 0xffff), high = (a >> 16) + (b >> 16);
    return (low < (c & 0xffff) ? low : c & 0xffff) | (high < c >> 16 ? high : c >> 16) << 16;
}
#endif
FMM_BEST(least, "min")
FMM_BEST(greatest, "max")

// Definitions that most rings use. Here `take_two` does two steps one after the other.
template <class Ring, class Number>
struct StepByStep {
    using Element = Number;
    // True if the kernel switches to the ring BelowZero when all best numbers of a warp are negative.
    static constexpr bool TURNS = false;
    __device__ static __forceinline__ void take_two(Number& c, Number a, Number b, Number x, Number y) {
        Ring::take(c, a, b);
        Ring::take(c, x, y);
    }
    __device__ static __forceinline__ Number stored(Number x) { return x; }
};

// float32 numbers. The best sum is the smallest one, or the greatest one with GREATEST.
template <bool GREATEST>
struct Floats : StepByStep<Floats<GREATEST>, float> {
    __device__ static __forceinline__ float none() { return GREATEST ? -infinite() : infinite(); }
    __device__ static __forceinline__ float sum(float x, float y) { return add(x, y); }
    __device__ static __forceinline__ bool better(float x, float y) { return GREATEST ? x > y : x < y; }
    __device__ static __forceinline__ float best(float x, float y) { return GREATEST ? greatest(x, y) : least(x, y); }
    __device__ static __forceinline__ void take(float& c, float a, float b) { c = best(c, add(a, b)); }
    // The two sums are compared first, because the compiler's registers then have fewer bank conflicts.
    __device__ static __forceinline__ void take_two(float& c, float a, float b, float x, float y) {
        c = best(c, best(add(a, b), add(x, y)));
    }
};

// Nonnegative float32 numbers. Their bits, as integers, have the same order as the numbers, and Hopper finds the
// minimum of three integers with one instruction. So two steps take three instructions instead of four. The bits of NaN
// are larger than those of inf, so NaN is never the best.
struct NonnegativeFloats : Floats<false> {
    __device__ static __forceinline__ void take_two(float& c, float a, float b, float x, float y) {
        c = number(min(min(bits(add(a, b)), bits(add(x, y))), bits(c)));
    }
};

// float32 numbers while the best sum is negative: only negative sums can be better. As unsigned integers, the bits of
// negative numbers are larger than all others, and the smallest number has the largest bits. A sum that is NaN has a
// positive sign, so it is never the best.
struct NegativeFloats : Floats<false> {
    __device__ static __forceinline__ void take_two(float& c, float a, float b, float x, float y) {
        c = number(max(max(unsigned(bits(add(a, b))), unsigned(bits(add(x, y)))), unsigned(bits(c))));
    }
};

// float32 numbers of either sign; the smallest sum is the best. A negative best sum remains negative.
struct SignedFloats : Floats<false> {
    using BelowZero = NegativeFloats;
    static constexpr bool TURNS = true;
    __device__ static __forceinline__ int sign(float x) { return bits(x); }
};

template <bool GREATEST>
struct Doubles : StepByStep<Doubles<GREATEST>, double> {
    __device__ static __forceinline__ double none() { return GREATEST ? -infinite() : infinite(); }
    __device__ static __forceinline__ double sum(double x, double y) { return x + y; }
    __device__ static __forceinline__ bool better(double x, double y) { return GREATEST ? x > y : x < y; }
    __device__ static __forceinline__ double best(double x, double y) { return better(y, x) ? y : x; }
    __device__ static __forceinline__ void take(double& c, double a, double b) { c = best(c, a + b); }
};

// Nonnegative integers. "No edge" is the largest signed integer N, and 2 N fits in an unsigned integer. So a sum above
// N does not overflow, and N is better than the sum: no instruction is needed to saturate sums.
template <unsigned NONE, class Ring>
struct NaturalNumbers : StepByStep<Ring, unsigned> {
    __device__ static __forceinline__ unsigned none() { return NONE; }
    __device__ static __forceinline__ unsigned sum(unsigned x, unsigned y) { return x + y; }
    __device__ static __forceinline__ bool better(unsigned x, unsigned y) { return x < y; }
    __device__ static __forceinline__ unsigned best(unsigned x, unsigned y) { return min(x, y); }
    __device__ static __forceinline__ void take(unsigned& c, unsigned a, unsigned b) { c = min(a + b, c); }
};

template <unsigned NONE>
struct Naturals : NaturalNumbers<NONE, Naturals<NONE>> {};

// Nonnegative 16-bit integers. A word holds two adjacent numbers of B, or a number of A twice.
struct NaturalPairs : NaturalNumbers<0x7fff7fff, NaturalPairs> {
    __device__ static __forceinline__ void take(unsigned& c, unsigned a, unsigned b) { c = pairs_least_sum(a, b, c); }
    __device__ static __forceinline__ unsigned best(unsigned x, unsigned y) { return pairs_least_sum(x, 0, y); }
};

// Integers of either sign with magnitude at most LIMIT. "No edge" plus one of these integers is larger than any sum of
// two of these integers, and twice "no edge" fits in 32 bits.
struct Integers : StepByStep<Integers, int> {
    static constexpr int LIMIT = 1 << 28, NONE = (1 << 30) - 1;
    __device__ static __forceinline__ int none() { return NONE; }
    __device__ static __forceinline__ int sum(int x, int y) { return x + y; }
    __device__ static __forceinline__ bool better(int x, int y) { return x < y; }
    __device__ static __forceinline__ int best(int x, int y) { return min(x, y); }
    __device__ static __forceinline__ void take(int& c, int a, int b) { c = min(a + b, c); }
    __device__ static __forceinline__ int stored(int x) { return x > 2 * LIMIT ? NONE : max(x, -2 * LIMIT); }
};

}  // namespace fmm::tropical
