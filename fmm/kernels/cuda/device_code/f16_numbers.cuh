// How float32 numbers become two of float16: x 2^e = hi + lo / 2048, and where hi and lo stand.
//
// Arithmetic is that of ieee_arith.cuh: where CuPy compiles this, plain operations would take subnormal numbers for zero,
// which are an operand's whole range if its numbers are about 2^-126.
#pragma once

#include "ieee_arith.cuh"

namespace fmm {
namespace planes {

constexpr int TOP = 14;        // the largest number has this exponent
constexpr int CHUNK = 64;      // numbers whose hi and lo stand behind each other
constexpr float BELOW = 2048;  // lo is so many times what hi leaves

__device__ __forceinline__ float power_of_two(int e) { return __int_as_float((e + 127) << 23); }

// The exponent by which the numbers whose largest magnitude is x are scaled; zeros, inf and NaN stay what they are.
__device__ __forceinline__ int scaling(float x) {
    const int up = __float_as_int(x) >> 23 < 27 ? 64 : 0;
    const int bits = __float_as_int(mul(x, power_of_two(up))), e = bits >> 23 & 255;
    return e == 255 || bits == 0 ? 0 : TOP - (e - 127 - up);
}

// x 2^e, rounded once (twice below the normal numbers).
__device__ __forceinline__ float scaled_by(float x, int e) {
    const int first = max(min(e, 120), -120), second = max(min(e - first, 120), -120), third = e - first - second;
    return mul(mul(mul(x, power_of_two(first)), power_of_two(second)), power_of_two(max(min(third, 120), -120)));
}

// In two steps, because 2^e may be no float32.
struct Scale {
    float first, second;
    __device__ __forceinline__ explicit Scale(int e) : first(power_of_two(e / 2)), second(power_of_two(e - e / 2)) {}
    __device__ __forceinline__ float operator()(float x) const { return mul(mul(x, first), second); }
};

__device__ __forceinline__ float magnitude(float x) { return __int_as_float(__float_as_int(x) & 0x7fffffff); }

#ifdef __CUDA_ARCH__  // on the host, where tests run, a header of theirs has these
__device__ __forceinline__ float larger(float x, float y) {  // a NaN is larger than all
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

// Where hi and lo stand: of every 64 numbers of a line one behind the other, or all hi before all lo.
struct InTurns {
    static constexpr int STEP = 2;  // as many planes' lines are one behind the other
    static __device__ __forceinline__ int place(int at) { return at / CHUNK * (2 * CHUNK) + at % CHUNK; }
    template <class Told>
    static __device__ __forceinline__ long long low(const Told&) {
        return CHUNK;
    }
};
struct Apart {
    static constexpr int STEP = 1;
    static __device__ __forceinline__ int place(int at) { return at; }
    template <class Told>
    static __device__ __forceinline__ long long low(const Told& p) {
        return static_cast<long long>(p.layers) * p.lines * p.room;
    }
};

// What hi leaves of x, as lo is kept.
__device__ __forceinline__ float below(float x, float hi) { return mul(sub(x, hi), BELOW); }

// Hi and lo of four neighbours, the first of which stands at `to`; lo so far behind.
__device__ __forceinline__ void put_four(unsigned short* to, long long low, const Four& v) {
    const unsigned a = pair_of(v.x[0], v.x[1]), b = pair_of(v.x[2], v.x[3]);
    *reinterpret_cast<uint2*>(to) = {a, b};
    const unsigned c = pair_of(below(v.x[0], first_of(a)), below(v.x[1], second_of(a)));
    const unsigned d = pair_of(below(v.x[2], first_of(b)), below(v.x[3], second_of(b)));
    *reinterpret_cast<uint2*>(to + low) = {c, d};
}

}  // namespace planes
}  // namespace fmm
