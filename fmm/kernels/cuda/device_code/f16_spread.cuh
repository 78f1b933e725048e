// float16 planes (f16_planes.cuh) for componentwise products, where every entry must be accurate: record the spread of
// each row of A and each column of B beside its exponent, and scale the inner dimension too if needed.
//
// A number keeps a relative precision of 2^-22 if it is at least 2^-28 of the largest of its row (A) or column (B). Of
// smaller numbers, up to 2^-50 of the largest is lost. An entry of C is therefore accurate to a few 2^-22 of the same
// entry of |A| |B| if
//   - neither its row of A nor its column of B has numbers that small (zeros do not count), or
//   - its row and its column have so many large numbers (at least 2^-12 of the largest) that these coincide in a
//   quarter of the inner dimension. The entry of |A| |B| is then at least 2^-26 K times both largest numbers, and all
//   small numbers together lose at most 2^-49 K times these.
// A row or column records this in 16 bits: 1 bit if no number is small (CLEAN), and 15 bits for the share of large
// numbers in units of 2^-14.
//
// If some pair of a row and a column satisfies neither condition, the inner dimension is balanced: column k of A is
// multiplied by 2^d and row k of B by 2^-d, so that their largest numbers are of one size. This changes no entry of |A|
// |B|. The operands are then split again. Pairs that still fail are found by the product's kernel (gemm_f16x3.cuh).
//
//   Spread    the scaling rule that records the spread, with or without d
//   Balance   parameters of the launch between both splits: decides whether to balance
#pragma once

#include "f16_planes.cuh"

namespace fmm {
namespace planes {

constexpr float LARGE = 8, SMALL = 6.103515625e-05f;  // 2^3 and 2^-14; the largest number is between 2^14 and 2^15
constexpr int WHOLE = 1 << 14, CLEAN = 1 << 15, MEETING = WHOLE + WHOLE / 4;
constexpr int FURTHEST = 80;  // upper bound of |d|, so that balancing itself never causes an overflow
constexpr int LEVELS = 128;   // added to exponents, so that all are positive, after scaling too

struct SpreadOperand : Operand {
    int* inner;              // largest exponent of every position of the inner dimension, in all products; zero: none
    const int* other;        // the same of the other operand
    const int* balanced;     // nonzero if the inner dimension must be balanced; else the second split does nothing
    int depth, sign;         // length of the inner dimension; sign of d
};

// The exponent of x plus LEVELS + 127; 0 for zero. Inf and NaN have the largest value.
__device__ __forceinline__ int level_of(float x) {
    const int bits = __float_as_int(x) & 0x7fffffff;
    if (bits == 0) return 0;
    return bits >> 23 ? (bits >> 23) + LEVELS : LEVELS + 9 - __clz(bits);
}

// Multiplication by 2^e in three steps, because neither 2^e nor its root need be a float32 number.
struct LongScale {
    int e;
    __device__ __forceinline__ explicit LongScale(int e) : e(e) {}
    __device__ __forceinline__ float operator()(float x, int more) const {
        const int whole = e + more, a = whole / 3, b = (whole - a) / 2;
        return x * power_of_two(a) * power_of_two(b) * power_of_two(whole - a - b);
    }
};

// Counts of a number x, and the word of a row or column.
struct RecordsSpread {
    static __device__ __forceinline__ void count(SpreadCounts& found, float x, float scaled) {
        found.large += fabsf(scaled) >= LARGE;
        found.small |= __float_as_int(x) << 1 && fabsf(scaled) < SMALL;
    }
    // A row of zeros is CLEAN, with the share of a row of large numbers.
    template <class Most>
    static __device__ __forceinline__ int packed(int e, Most most, const SpreadCounts& found, int length) {
        const int share = most != 0 ? static_cast<int>((static_cast<long long>(found.large) << 14) / length) : WHOLE;
        return (share | (found.small ? 0 : CLEAN)) << 16 | (e & 0xffff);
    }
};

// Scaled by line or position only.
template <bool BALANCED>
struct Spread : LineScaling<Alternating, CLUSTER>, RecordsSpread {
    static constexpr bool RECORDS = true;
    __device__ __forceinline__ Spread(const SpreadOperand& p, int layer) : LineScaling<Alternating, CLUSTER>(p, layer) {}
};

// Scaled along the inner dimension too.
template <>
struct Spread<true> : RecordsSpread {
    using Most = int;
    using Factor = LongScale;
    using Layout = Alternating;
    static constexpr int SHARING = CLUSTER;
    static constexpr bool RECORDS = true;
    const int *own, *other;
    int sign;

    __device__ __forceinline__ Spread(const SpreadOperand& p, int layer)
        : own(p.inner + layer * p.depth), other(p.other + layer * p.depth), sign(p.sign) {}

    __device__ __forceinline__ int shift(int inner) const {
        const int x = own[inner], y = other[inner];
        if (x == 0) return 0;
        if (y == 0) return -FURTHEST;  // numbers that meet only zeros must not determine how the others are scaled
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

// ---- the word of a row or column, as the product reads it

__device__ __forceinline__ int exponent_of(int word) { return static_cast<short>(word & 0xffff); }
__device__ __forceinline__ bool is_accurate(int row, int column) {
    const unsigned x = static_cast<unsigned>(row) >> 16, y = static_cast<unsigned>(column) >> 16;
    return (x & y & CLEAN) != 0 || (x & (CLEAN - 1)) + (y & (CLEAN - 1)) >= MEETING;
}

// ---- between the two splits

struct Balance {
    SpreadOperand left, right;
    int* balanced;
};

// The least share of large numbers in all rows or columns, and whether all are CLEAN.
__device__ __forceinline__ int least_spread(const int* exponents, int count) {
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

// The largest exponent of every position of the inner dimension, for lines along it (ALONG) or across it.
template <bool ALONG>
__device__ __forceinline__ void largest_inner(const SpreadOperand& p) {
    const int warp = (blockIdx.x * THREADS + threadIdx.x) / 32, warps = gridDim.x * (THREADS / 32), lane = threadIdx.x % 32;
    const int strips = (p.length + 31) / 32, parts = ALONG ? max(warps / (strips * p.layers), 1) : strips;
    const int work = ALONG ? strips * p.layers * parts : p.lines * p.layers;
    for (int unit = warp; unit < work; unit += warps) {
        if (ALONG) {  // 32 positions, and a part of the lines
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

// Every thread block decides by itself whether to balance; mostly there is nothing to do.
template <bool LEFT_ALONG, bool RIGHT_ALONG>
__device__ __forceinline__ void balance(const Balance& p) {
    const SpreadOperand &a = p.left, &b = p.right;
    const int rows = (LEFT_ALONG ? a.lines : a.length) * a.layers, columns = (RIGHT_ALONG ? b.lines : b.length) * b.layers;
    const bool needed = !is_accurate(least_spread(a.exponents, rows), least_spread(b.exponents, columns));
    if (blockIdx.x == 0 && threadIdx.x == 0) *p.balanced = needed;
    if (!needed) return;
    largest_inner<LEFT_ALONG>(a);
    largest_inner<RIGHT_ALONG>(b);
}

// During the first split: clear the largest exponents of the inner dimension.
__device__ __forceinline__ void reset_inner(const SpreadOperand& p, int block) {
    const int count = p.depth * p.layers;
    for (int i = block * THREADS + threadIdx.x; i < count; i += p.blocks * THREADS) p.inner[i] = 0;
}

}  // namespace planes
}  // namespace fmm
