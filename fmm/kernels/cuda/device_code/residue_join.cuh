// A product of float64 matrices from the residues of its whole numbers: sums of blocks of C, where levels of a fast
// algorithm are below; the Chinese remainder theorem; unscaled.
//
// A whole number below half of the product P of all moduli p_i is sum r_i w_i - q P, w_i being 1 modulo p_i and 0 modulo
// the others. Weights and P are cut in pieces of so few bits that the sums of each are exact in float64; q is their
// quotient by P, rounded, which is never near the middle between two whole numbers.
#pragma once

#include "fast_sums.cuh"
#include "residue_planes.cuh"

namespace fmm {
namespace residues {

constexpr int MOST_PIECES = 4;

struct Join {
    double* dest;
    const signed char* planes;
    const int *rows, *columns;  // exponents
    int* flag;                  // raised where C is given an inf or NaN
    long long leading, layer;   // numbers from one row of C to the next, and from one product of a batch to the next
    double factor, keep;
    double up, down;            // 2^b and 2^-b, b being the bits of a piece
    double inverse;             // 2^(b (PIECES - 1)) / P
    double product[MOST_PIECES];  // from the highest piece on
    double weights[20][MOST_PIECES];
    int m, n, layers;
    int block_rows, block_cols;  // of a plane
    int count;                   // moduli
    int unused;
};

// x 2^e, rounded once (twice below the normal numbers).
__device__ __forceinline__ double scaled_by(double x, int e) {
    const int first = max(min(e, 1000), -1000), second = max(min(e - first, 1000), -1000), third = e - first - second;
    return x * power_of_two(first) * power_of_two(second) * power_of_two(max(min(third, 1000), -1000));
}

// A whole number of less than 2^31 as float64, without the slow instruction for it.
__device__ __forceinline__ double as_double(int x) {
    const long long bits = 0x4330000000000000ll | static_cast<unsigned>(x ^ 1 << 31);
    return __longlong_as_double(bits) - (0x1p52 + 0x1p31);
}

// What the pieces' sums make together, the last of which counts whole, less a multiple of P: rounded about once, and not at all if it
// is below 2^53.
template <int PIECES>
__device__ __forceinline__ double value_of(const double (&sum)[PIECES], const Join& p) {
    const double q = rint((sum[0] + sum[1] * p.down) * p.inverse);
    double high = 0, low = 0;
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        const double x = high * p.up, y = __fma_rn(-q, p.product[i], sum[i]), both = x + y, part = both - x;
        low = low * p.up + ((x - (both - part)) + (y - part));
        high = both;
    }
    return high + low;
}

template <int COLS>
__device__ __forceinline__ unsigned some_of(const signed char* q) {
    if constexpr (COLS == 4) return *reinterpret_cast<const unsigned*>(q);
    if constexpr (COLS == 2) return *reinterpret_cast<const unsigned short*>(q);
    return static_cast<unsigned char>(*q);
}

// A thread has COLS neighbours in a row of every block of C.
template <class Sums, int LEVELS, int COLS, int PIECES>
__device__ __forceinline__ void join(const Join& p) {
    constexpr int SIDES = 1 << LEVELS, ALL = LEVELS == 0 ? 1 : LEVELS == 1 ? Sums::PRODUCTS : Sums::PRODUCTS * Sums::PRODUCTS;
    const unsigned number = blockIdx.x * THREADS + threadIdx.x, words = p.block_cols / COLS, lines = number / words;
    const int at = number % words * COLS, row = lines % p.block_rows, layer = lines / p.block_rows;
    if (layer >= p.layers || at >= p.n) return;
    const long long plane = static_cast<long long>(p.block_rows) * p.block_cols, next = plane * p.layers;
    const signed char* from = p.planes + layer * plane + static_cast<long long>(row) * p.block_cols + at;
    double sum[SIDES * SIDES][COLS][PIECES] = {};
#pragma unroll 1
    for (int i = 0; i < p.count; ++i, from += ALL * next) {
        unsigned word[ALL];
#pragma unroll
        for (int q = 0; q < ALL; ++q) word[q] = some_of<COLS>(from + q * next);
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
            int found[SIDES * SIDES] = {};
            if constexpr (LEVELS == 0) {
                found[0] = static_cast<signed char>(word[0] >> 8 * c);
            } else {
                constexpr int OUTER = LEVELS == 2 ? Sums::PRODUCTS : 1, BLOCKS = LEVELS == 2 ? 4 : 1;
#pragma unroll
                for (int o = 0; o < OUTER; ++o) {
                    int below[4] = {};
#pragma unroll
                    for (int q = 0; q < Sums::PRODUCTS; ++q)
#pragma unroll
                        for (int b = 0; b < 4; ++b)
                            below[b] += Sums::in(q, b) * static_cast<signed char>(word[o * Sums::PRODUCTS + q] >> 8 * c);
#pragma unroll
                    for (int a = 0; a < BLOCKS; ++a)
#pragma unroll
                        for (int b = 0; b < 4; ++b) {
                            // Of two levels: the row of the block is 2 (a / 2) + b / 2, and so is its column.
                            const int place = LEVELS == 2 ? (2 * (a / 2) + b / 2) * 4 + 2 * (a % 2) + b % 2 : b;
                            found[place] += (LEVELS == 2 ? Sums::in(o, a) : 1) * below[b];
                        }
                }
            }
#pragma unroll
            for (int b = 0; b < SIDES * SIDES; ++b) {
                const double x = as_double(found[b]);
#pragma unroll
                for (int j = 0; j < PIECES; ++j) sum[b][c][j] = __fma_rn(x, p.weights[i][j], sum[b][c][j]);
            }
        }
    }
    bool finite = true;
#pragma unroll
    for (int b = 0; b < SIDES * SIDES; ++b) {
        const int line = row + b / SIDES * p.block_rows, first = at + b % SIDES * p.block_cols;
        if (line >= p.m) continue;
        const int e = p.rows[layer * p.m + line];
        double* const to = p.dest + layer * p.layer + line * p.leading + first;
        double found[COLS];
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
            if (first + c >= p.n) continue;
            const int f = p.columns[layer * p.n + first + c];
            const double nan = __longlong_as_double(0x7ff8000000000000ll);
            const bool known = e != NOT_FINITE && f != NOT_FINITE;
            found[c] = known ? p.factor * scaled_by(value_of<PIECES>(sum[b][c], p), -e - f) : nan;
            if (p.keep != 0) found[c] += p.keep * to[c];
            finite = finite && fabs(found[c]) < __longlong_as_double(0x7ff0000000000000ll);
        }
        if (COLS == 2 && first + 1 < p.n && reinterpret_cast<unsigned long long>(to) % 16 == 0)
            *reinterpret_cast<double2*>(to) = {found[0], found[COLS - 1]};
        else
#pragma unroll
            for (int c = 0; c < COLS; ++c)
                if (first + c < p.n) to[c] = found[c];
    }
    if (p.flag && !finite) *static_cast<volatile int*>(p.flag) = 1;
}

}  // namespace residues
}  // namespace fmm
