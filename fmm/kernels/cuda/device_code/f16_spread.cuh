// float16 planes (f16_planes.cuh) for products with a componentwise error bound. The split records a word for each row
// of A and each column of B: its exponent and its spread, that is, how many numbers are large and whether any is small.
// If necessary, a second split also scales the inner dimension.
//
// Let m be the largest magnitude in a row of A or column of B. Numbers of at least 2^-28 m are split with a relative
// error of 2^-22. Smaller numbers have an error of up to 2^-50 m. So the error of an entry of C is a few times 2^-22 of
// the same entry of |A| |B| if one of two conditions holds:
//   - Neither the row of A nor the column of B has nonzero numbers below 2^-28 m.
//   - In a quarter of the inner dimension K, the row and the column have large numbers (at least 2^-12 m) at the same
//     positions. The entry of |A| |B| is then at least 2^-26 K times the product of the row's m and the column's m. The
//     errors of all small numbers are together at most 2^-49 K times this product.
// The word of a row or column has 16 bits for these conditions: 1 bit (CLEAN) that is set if no number is small, and 15
// bits for the fraction of large numbers in units of 2^-14.
//
// If a row and a column satisfy neither condition, the inner dimension is balanced: for every k, column k of A is
// multiplied by 2^d and row k of B by 2^-d, so that both have about the same largest number. No entry of |A| |B|
// changes. The operands are then split again. The product's kernel (gemm_f16x3.cuh) raises the flag if a row and a
// column still satisfy neither condition.
//
//   Spread    the scaling rule that records the spread, with d (BALANCED) or without d; BLOCKS share a strip
//   Balance   parameters of the launch between both splits, which decides whether the inner dimension is balanced
#pragma once

#include "f16_planes.cuh"

namespace fmm {
namespace planes {

// Thresholds of large and small numbers after scaling (2^3 and 2^-14); the largest number is then at least 2^14.
constexpr float LARGE = 8, SMALL = 6.103515625e-05f;
// WHOLE: the fraction 1 of large numbers. CLEAN: the bit that is set if no number is small. MEETING: if the fractions
// of a row and a column have at least this sum, their large numbers are at the same positions in a quarter of K.
constexpr int WHOLE = 1 << 14, CLEAN = 1 << 15, MEETING = WHOLE + WHOLE / 4;
constexpr int FURTHEST = 80;  // upper bound of |d|: balancing itself never overflows
constexpr int LEVELS = 128;   // offset that makes all exponents positive, also after scaling

struct SpreadOperand : Operand {
    int* inner;              // largest exponent at every position of the inner dimension; 0 if all numbers there are 0
    const int* other;        // `inner` of the other operand
    const int* balanced;     // nonzero if the inner dimension is balanced; zero: the second split does nothing
    int depth, sign;         // length of the inner dimension; sign of d
};

// Return the exponent of x plus LEVELS + 127, or 0 for zero. The result is largest for inf and NaN.
__device__ __forceinline__ int offset_exponent(float x) {
    const int bits = __float_as_int(x) & 0x7fffffff;
    if (bits == 0) return 0;
    return bits >> 23 ? (bits >> 23) + LEVELS : LEVELS + 9 - __clz(bits);
}

// Multiplication by 2^e as three multiplications, because 2^e and 2^(e / 2) may be outside the range of float32.
struct LongScale {
    int e;
    __device__ __forceinline__ explicit LongScale(int e) : e(e) {}
    __device__ __forceinline__ float operator()(float x, int more) const {
        const int whole = e + more, a = whole / 3, b = (whole - a) / 2;
        return x * power_of_two(a) * power_of_two(b) * power_of_two(whole - a - b);
    }
};

// Functions that count large and small numbers, and pack the counts of a row or column into its word.
struct RecordsSpread {
    static __device__ __forceinline__ void count(SpreadCounts& found, float x, float scaled) {
        found.large += fabsf(scaled) >= LARGE;
        found.small |= __float_as_int(x) << 1 && fabsf(scaled) < SMALL;
    }
    // Return the word of a row or column. Rows of zeros are CLEAN and have the largest fraction.
    template <class Most>
    static __device__ __forceinline__ int packed(int e, Most most, const SpreadCounts& found, int length) {
        const int share = most != 0 ? static_cast<int>((static_cast<long long>(found.large) << 14) / length) : WHOLE;
        return (share | (found.small ? 0 : CLEAN)) << 16 | (e & 0xffff);
    }
};

// The rule that scales by line or position.
template <bool BALANCED, int BLOCKS>
struct Spread : LineScaling<Alternating, BLOCKS>, RecordsSpread {
    static constexpr bool RECORDS = true;
    __device__ __forceinline__ Spread(const SpreadOperand& p, int layer) : LineScaling<Alternating, BLOCKS>(p, layer) {}
};

// The rule that also scales along the inner dimension.
template <int BLOCKS>
struct Spread<true, BLOCKS> : RecordsSpread {
    using Most = int;
    using Factor = LongScale;
    using Layout = Alternating;
    static constexpr int SHARING = BLOCKS;
    static constexpr bool RECORDS = true;
    const int *own, *other;
    int sign;

    __device__ __forceinline__ Spread(const SpreadOperand& p, int layer)
        : own(p.inner + layer * p.depth), other(p.other + layer * p.depth), sign(p.sign) {}

    __device__ __forceinline__ int shift(int inner) const {
        const int x = own[inner], y = other[inner];
        if (x == 0) return 0;
        if (y == 0) return -FURTHEST;  // numbers multiplied by zeros only must not determine the exponent of the row
        return sign * min(max((sign > 0 ? y - x : x - y) >> 1, -FURTHEST), FURTHEST);
    }
    static __device__ __forceinline__ int larger_of(int x, int y) { return max(x, y); }
    __device__ __forceinline__ int updated_largest(int most, float x, int inner) const {
        const int level = offset_exponent(x);
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

// Return a word that stands for all rows (or all columns): the smallest fraction of large numbers, and CLEAN if all
// rows (columns) are CLEAN.
__device__ __forceinline__ int smallest_spread(const int* exponents, int count) {
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

// Find the largest exponent at every position of the inner dimension. ALONG is true if lines run along this dimension.
template <bool ALONG>
__device__ __forceinline__ void largest_inner(const SpreadOperand& p) {
    const int warp = (blockIdx.x * THREADS + threadIdx.x) / 32, warps = gridDim.x * (THREADS / 32), lane = threadIdx.x % 32;
    const int strips = (p.length + 31) / 32, parts = ALONG ? max(warps / (strips * p.layers), 1) : strips;
    const int work = ALONG ? strips * p.layers * parts : p.lines * p.layers;
    for (int unit = warp; unit < work; unit += warps) {
        if (ALONG) {  // a warp has 32 positions in a part of the lines
            const int layer = unit / parts / strips, at = unit / parts % strips * 32 + lane, part = unit % parts;
            int most = 0;
            if (at < p.length) {
                for (int line = part; line < p.lines; line += parts)
                    most = max(most, offset_exponent(p.source[layer * p.layer + line * p.leading + at]));
                atomicMax(p.inner + layer * p.depth + at, most);
            }
        } else {  // a warp has one line
            const int layer = unit / p.lines, line = unit % p.lines;
            int most = 0;
            for (int at = lane; at < p.length; at += 32)
                most = max(most, offset_exponent(p.source[layer * p.layer + line * p.leading + at]));
            most = __reduce_max_sync(~0u, most);
            if (lane == 0) p.inner[layer * p.depth + line] = most;
        }
    }
}

// Decide whether the inner dimension is balanced; if so, find its largest exponents. All thread blocks make the same
// decision independently.
template <bool LEFT_ALONG, bool RIGHT_ALONG>
__device__ __forceinline__ void balance(const Balance& p) {
    const SpreadOperand &a = p.left, &b = p.right;
    const int rows = (LEFT_ALONG ? a.lines : a.length) * a.layers, columns = (RIGHT_ALONG ? b.lines : b.length) * b.layers;
    const bool needed = !is_accurate(smallest_spread(a.exponents, rows), smallest_spread(b.exponents, columns));
    if (blockIdx.x == 0 && threadIdx.x == 0) *p.balanced = needed;
    if (!needed) return;
    largest_inner<LEFT_ALONG>(a);
    largest_inner<RIGHT_ALONG>(b);
}

// Set the largest exponents of the inner dimension to zero. Part of the first split.
__device__ __forceinline__ void reset_inner(const SpreadOperand& p, int block) {
    const long long count = 1LL * p.depth * p.layers, threads = 1LL * p.blocks * THREADS;
    for (long long i = 1LL * block * THREADS + threadIdx.x; i < count; i += threads) p.inner[i] = 0;
}

}  // namespace planes
}  // namespace fmm
