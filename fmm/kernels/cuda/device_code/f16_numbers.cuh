// Split a float32 number x into two float16 numbers hi and lo: x 2^e = hi + lo / 2048. Store hi and lo in memory.
//
// A line is a row or column of an operand. All numbers of a line (or all numbers at one position of the lines) have the
// same exponent e.
//
// Arithmetic uses ieee_arith.cuh, which keeps subnormal numbers. CuPy compiles with -ftz=true, so C++ operators would
// flush subnormal numbers to zero. In an operand with magnitudes about 2^-126, every number can be subnormal.
#pragma once

#include "ieee_arith.cuh"

namespace fmm {
namespace planes {

constexpr int TOP = 14;        // scaling brings the largest number of a line into [2^14, 2^15)
constexpr int CHUNK = 64;      // hi and lo alternate in chunks of this many numbers
constexpr float BELOW = 2048;  // lo is the remainder x 2^e - hi times this factor

__device__ __forceinline__ float power_of_two(int e) { return __int_as_float((e + 127) << 23); }

// Return the exponent e with x 2^e in [2^14, 2^15), for the largest magnitude x of a line; 0 for zero, inf and NaN.
__device__ __forceinline__ int scaling(float x) {
    const int up = __float_as_int(x) >> 23 < 27 ? 64 : 0;
    const int bits = __float_as_int(mul(x, power_of_two(up))), e = bits >> 23 & 255;
    return e == 255 || bits == 0 ? 0 : TOP - (e - 127 - up);
}

// Return x 2^e. The result is rounded at most once, or twice if it is subnormal.
__device__ __forceinline__ float scaled_by(float x, int e) {
    const int first = max(min(e, 120), -120), second = max(min(e - first, 120), -120), third = e - first - second;
    return mul(mul(mul(x, power_of_two(first)), power_of_two(second)), power_of_two(max(min(third, 120), -120)));
}

// Multiplication by 2^e as two multiplications, because 2^e may be outside the range of float32.
struct Scale {
    float first, second;
    __device__ __forceinline__ explicit Scale(int e) : first(power_of_two(e / 2)), second(power_of_two(e - e / 2)) {}
    __device__ __forceinline__ float operator()(float x) const { return mul(mul(x, first), second); }
};

__device__ __forceinline__ float magnitude(float x) { return __int_as_float(__float_as_int(x) & 0x7fffffff); }

#ifdef __CUDA_ARCH__  // on the host, a header of the tests provides these
__device__ __forceinline__ float larger(float x, float y) {  // NaN counts as the largest number
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(magnitude(y)));
    return z;
}

__device__ __forceinline__ unsigned pair_of(float x, float y) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
    return both;
}
__device__ __forceinline__ float first_of(unsigned both) {
    float x;
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, a;}" : "=f"(x) : "r"(both));
    return x;
}
__device__ __forceinline__ float second_of(unsigned both) {
    float x;
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, b;}" : "=f"(x) : "r"(both));
    return x;
}
#endif

struct Four {
    float x[4];
};

// The arrangements of hi and lo in memory. Alternating: 64 numbers hi of a line, then their 64 numbers lo, and so on.
// Separate: one plane with all hi, then one plane with all lo.
struct Alternating {
    static constexpr int STEP = 2;  // number of planes (hi and lo) in a line of memory
    static __device__ __forceinline__ int place(int at) { return at / CHUNK * (2 * CHUNK) + at % CHUNK; }
    template <class Params>
    static __device__ __forceinline__ long long low(const Params&) {
        return CHUNK;
    }
};
struct Separate {
    static constexpr int STEP = 1;
    static __device__ __forceinline__ int place(int at) { return at; }
    template <class Params>
    static __device__ __forceinline__ long long low(const Params& p) {
        return static_cast<long long>(p.layers) * p.lines * p.pitch;
    }
};

// Return lo for a scaled number x: the remainder x - hi times BELOW.
__device__ __forceinline__ float low_part(float x, float hi) { return mul(sub(x, hi), BELOW); }

// Store hi of four adjacent numbers at `to`, and lo of these numbers at `to + low`.
__device__ __forceinline__ void store_four(unsigned short* to, long long low, const Four& v) {
    const unsigned a = pair_of(v.x[0], v.x[1]), b = pair_of(v.x[2], v.x[3]);
    *reinterpret_cast<uint2*>(to) = {a, b};
    const unsigned c = pair_of(low_part(v.x[0], first_of(a)), low_part(v.x[1], second_of(a)));
    const unsigned d = pair_of(low_part(v.x[2], first_of(b)), low_part(v.x[3], second_of(b)));
    *reinterpret_cast<uint2*>(to + low) = {c, d};
}

}  // namespace planes
}  // namespace fmm
