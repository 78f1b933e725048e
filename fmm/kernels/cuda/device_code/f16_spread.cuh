// Planes of float16 numbers (f16_planes.cuh) for who wants to be sure of every entry of the product: what is noted of
// each row of A and each column of B beside its exponent, and the inner dimension scaled too, where that is asked for.
//
// A number is kept to 2^-22 of itself if it is at least 2^-28 of its row's largest (with its column's, in B); of smaller
// ones 2^-50 of the largest is lost. So every entry of C is right to a few 2^-22 of the same entry of |A| |B| where
//   - neither its row of A nor its column of B has such small numbers (zeros do not count), or
//   - of its row and its column so many numbers are large, at least 2^-12 of the largest, that they meet in a quarter of
//     the inner dimension: then the entry of |A| |B| is at least 2^-26 K times both largest, and all small ones together
//     lose no more than 2^-49 K times these.
// Of a row or column 1 bit and 15 bits say that: are all numbers not small, and the share of large ones, in 2^-14.
//
// Where some pair of a row and a column has neither, the inner dimension is balanced: column k of A times 2^d, row k of B
// times 2^-d, so that their largest numbers are of one size (which changes no entry of |A| |B|). Then planes are made
// anew. What that does not help, the product's kernel sees (gemm_f16x3.cuh).
//
//   Spread    the rule that notes this, with or without such d
//   Balance   what a launch between the two is told: whether to balance, and the largest numbers
#pragma once

#include "f16_planes.cuh"

namespace fmm {
namespace planes {

constexpr float LARGE = 8, SMALL = 6.103515625e-05f;  // 2^3 and 2^-14: the largest number lies between 2^14 and 2^15
constexpr int WHOLE = 1 << 14, CLEAN = 1 << 15, MEETING = WHOLE + WHOLE / 4;
constexpr int FURTHEST = 80;  // that the inner dimension is scaled by: what overflows is none of its doing
constexpr int LEVELS = 128;   // so much is added to exponents that all are positive, scaled too

struct SpreadOperand : Operand {
    int* inner;              // the largest exponent of every place of the inner dimension, in all layers; zero: none
    const int* other;        // the other operand's
    const int* balanced;     // is the inner dimension to be scaled? Else nothing is to be done
    int depth, sign;         // places of the inner dimension; of d
};

// The exponent of x, plus LEVELS + 127; 0 of zero, and of inf and NaN more than of all others.
__device__ __forceinline__ int level_of(float x) {
    const int bits = __float_as_int(x) & 0x7fffffff;
    if (bits == 0) return 0;
    return bits >> 23 ? (bits >> 23) + LEVELS : LEVELS + 9 - __clz(bits);
}

// In three steps, because neither 2^e nor its root may be a float32.
struct LongScale {
    int e;
    __device__ __forceinline__ explicit LongScale(int e) : e(e) {}
    __device__ __forceinline__ float operator()(float x, int more) const {
        const int whole = e + more, a = whole / 3, b = (whole - a) / 2;
        return x * power_of_two(a) * power_of_two(b) * power_of_two(whole - a - b);
    }
};

// What is noted of a number x, and said of a row or column.
struct Noting {
    static __device__ __forceinline__ void note(Noted& found, float x, float scaled) {
        found.large += fabsf(scaled) >= LARGE;
        found.small |= __float_as_int(x) << 1 && fabsf(scaled) < SMALL;
    }
    // One of zeros is clean, and meets all.
    template <class Most>
    static __device__ __forceinline__ int packed(int e, Most most, const Noted& found, int length) {
        const int share = most != 0 ? static_cast<int>((static_cast<long long>(found.large) << 14) / length) : WHOLE;
        return (share | (found.small ? 0 : CLEAN)) << 16 | (e & 0xffff);
    }
};

// Scaled as usual.
template <bool BALANCED>
struct Spread : Usual<InTurns, CLUSTER>, Noting {
    static constexpr bool NOTES = true;
    __device__ __forceinline__ Spread(const SpreadOperand& p, int layer) : Usual<InTurns, CLUSTER>(p, layer) {}
};

// The inner dimension scaled too.
template <>
struct Spread<true> : Noting {
    using Most = int;
    using Factor = LongScale;
    using Layout = InTurns;
    static constexpr int SHARING = CLUSTER;
    static constexpr bool NOTES = true;
    const int *own, *other;
    int sign;

    __device__ __forceinline__ Spread(const SpreadOperand& p, int layer)
        : own(p.inner + layer * p.depth), other(p.other + layer * p.depth), sign(p.sign) {}

    __device__ __forceinline__ int shift(int inner) const {
        const int x = own[inner], y = other[inner];
        if (x == 0) return 0;
        if (y == 0) return -FURTHEST;  // what is multiplied by zeros alone is not to decide how the others are scaled
        return sign * min(max((sign > 0 ? y - x : x - y) >> 1, -FURTHEST), FURTHEST);
    }
    static __device__ __forceinline__ int most_of(int x, int y) { return max(x, y); }
    __device__ __forceinline__ int seen(int most, float x, int inner) const {
        const int level = level_of(x);
        return level ? max(most, level + shift(inner)) : most;
    }
    static __device__ __forceinline__ int exponent(int most) { return most ? TOP - (most - LEVELS - 127) : 0; }
    __device__ __forceinline__ float scaled(float x, const Factor& by, int inner) const {
        return __float_as_int(x) << 1 ? by(x, shift(inner)) : x;
    }
};

// ---- what the product is told of a row or column

__device__ __forceinline__ int exponent_in(int word) { return static_cast<short>(word & 0xffff); }
__device__ __forceinline__ bool certain(int row, int column) {
    const unsigned x = static_cast<unsigned>(row) >> 16, y = static_cast<unsigned>(column) >> 16;
    return (x & y & CLEAN) != 0 || (x & (CLEAN - 1)) + (y & (CLEAN - 1)) >= MEETING;
}

// ---- between the two

struct Balance {
    SpreadOperand left, right;
    int* balanced;
};

// What all rows, or all columns, have: the least share of large numbers, and whether each is clean.
__device__ __forceinline__ int least_noted(const int* exponents, int count) {
    int share = WHOLE, clean = CLEAN;
#pragma unroll 8
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const int x = static_cast<int>(static_cast<unsigned>(exponents[i]) >> 16);
        share = min(share, x & (CLEAN - 1));
        clean &= x;
    }
    share = __reduce_min_sync(~0u, share);
    clean = __reduce_and_sync(~0u, clean);
    __shared__ int shares[THREADS / 32], cleans[THREADS / 32];
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        shares[threadIdx.x / 32] = share;
        cleans[threadIdx.x / 32] = clean;
    }
    __syncthreads();
    for (int i = 0; i < THREADS / 32; ++i) {
        share = min(share, shares[i]);
        clean &= cleans[i];
    }
    return (share | clean) << 16;
}

// The largest of every place of the inner dimension, of lines along it or across it.
template <bool ALONG>
__device__ __forceinline__ void largest_inner(const SpreadOperand& p) {
    const int warp = (blockIdx.x * THREADS + threadIdx.x) / 32, warps = gridDim.x * (THREADS / 32), lane = threadIdx.x % 32;
    const int strips = (p.length + 31) / 32, parts = ALONG ? max(warps / (strips * p.layers), 1) : strips;
    const int work = ALONG ? strips * p.layers * parts : p.lines * p.layers;
    for (int unit = warp; unit < work; unit += warps) {
        if (ALONG) {  // 32 places, and a part of the lines
            const int layer = unit / parts / strips, at = unit / parts % strips * 32 + lane, part = unit % parts;
            int most = 0;
            if (at < p.length) {
                for (int line = part; line < p.lines; line += parts)
                    most = max(most, level_of(p.source[layer * p.layer + line * p.leading + at]));
                atomicMax(p.inner + layer * p.depth + at, most);
            }
        } else {  // one line
            const int layer = unit / p.lines, line = unit % p.lines;
            int most = 0;
            for (int at = lane; at < p.length; at += 32)
                most = max(most, level_of(p.source[layer * p.layer + line * p.leading + at]));
            most = __reduce_max_sync(~0u, most);
            if (lane == 0) p.inner[layer * p.depth + line] = most;
        }
    }
}

// Every thread block finds by itself whether there is anything to do; mostly there is not.
template <bool LEFT_ALONG, bool RIGHT_ALONG>
__device__ __forceinline__ void balance(const Balance& p) {
    const SpreadOperand &a = p.left, &b = p.right;
    const int rows = (LEFT_ALONG ? a.lines : a.length) * a.layers, columns = (RIGHT_ALONG ? b.lines : b.length) * b.layers;
    const bool needed = !certain(least_noted(a.exponents, rows), least_noted(b.exponents, columns));
    if (blockIdx.x == 0 && threadIdx.x == 0) *p.balanced = needed;
    if (!needed) return;
    largest_inner<LEFT_ALONG>(a);
    largest_inner<RIGHT_ALONG>(b);
}

// Before that, with the first planes: nothing is known yet of the inner dimension.
__device__ __forceinline__ void forget_inner(const SpreadOperand& p, int block) {
    const int count = p.depth * p.layers;
    for (int i = block * THREADS + threadIdx.x; i < count; i += p.blocks * THREADS) p.inner[i] = 0;
}

}  // namespace planes
}  // namespace fmm
