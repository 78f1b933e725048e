// A product of matrices from the residues of whole numbers: sums of blocks of C, where levels of a fast algorithm are
// below; the Chinese remainder theorem; of float64, unscaled.
//
// A whole number below half of the product P of all moduli p_i is sum r_i w_i - q P, w_i being 1 modulo p_i and 0 modulo
// the others, q the quotient of that sum by P, rounded, which is never near the middle between two whole numbers.
//
//   join        float64: weights and P are cut in pieces of so few bits that the sums of each are exact in float64
//   join_whole  integers: all modulo 2^64, of which a type keeps its lowest bits
#pragma once

#include "fast_sums.cuh"
#include "residue_planes.cuh"

namespace fmm {
namespace residues {

constexpr int MOST_PIECES = 4;

template <class Element>
struct Result {
    Element* dest;
    const signed char* planes;
    long long leading, layer;  // numbers from one row of C to the next, and from one product of a batch to the next
    int m, n, layers;
    int block_rows, block_cols;  // of a plane
    int count;                   // moduli
};

struct Join {
    Result<double> c;
    const int *rows, *columns;  // exponents
    int* flag;                  // raised where C is given an inf or NaN
    double factor, keep;
    double up, down;            // 2^b and 2^-b, b being the bits of a piece
    double inverse;             // 2^(b (PIECES - 1)) / P
    double product[MOST_PIECES];  // from the highest piece on
    double weights[20][MOST_PIECES];
};

template <class Element>
struct JoinWhole {
    Result<Element> c;
    long long factor, keep;
    unsigned long long product, weights[20];  // modulo 2^64
    double shares[20];                        // weights by P
};

// ---- sums of blocks

// So many neighbours in a row of every block of C: where they stand, and their residues modulo one number after another.
template <class Sums, int LEVELS, int COLS>
struct Spot {
    static constexpr int SIDES = 1 << LEVELS, BLOCKS = SIDES * SIDES, OUTER = LEVELS == 2 ? Sums::PRODUCTS : 1;
    static constexpr int ALL = LEVELS ? OUTER * Sums::PRODUCTS : 1;
    const signed char* from;
    long long next;
    int layer, row, at;

    template <class Element>
    __device__ __forceinline__ explicit Spot(const Result<Element>& c) {
        const unsigned number = blockIdx.x * THREADS + threadIdx.x, words = c.block_cols / COLS, lines = number / words;
        at = number % words * COLS;
        row = lines % c.block_rows;
        layer = lines / c.block_rows;
        const long long plane = static_cast<long long>(c.block_rows) * c.block_cols;
        next = plane * c.layers;
        from = c.planes + layer * plane + static_cast<long long>(row) * c.block_cols + at;
    }

    __device__ static __forceinline__ unsigned some_of(const signed char* q) {
        if constexpr (COLS == 4) return *reinterpret_cast<const unsigned*>(q);
        if constexpr (COLS == 2) return *reinterpret_cast<const unsigned short*>(q);
        return static_cast<unsigned char>(*q);
    }

    // `use` is told every block, neighbour and sum of residues.
    template <class Use>
    __device__ __forceinline__ void read(const Use& use) {
        unsigned word[ALL];
#pragma unroll
        for (int q = 0; q < ALL; ++q) word[q] = some_of(from + q * next);
        from += ALL * next;
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
            int found[BLOCKS] = {};
            if constexpr (LEVELS == 0) {
                found[0] = static_cast<signed char>(word[0] >> 8 * c);
            } else {
#pragma unroll
                for (int o = 0; o < OUTER; ++o) {
                    int below[4] = {};
#pragma unroll
                    for (int q = 0; q < Sums::PRODUCTS; ++q)
#pragma unroll
                        for (int b = 0; b < 4; ++b)
                            below[b] += Sums::in(q, b) * static_cast<signed char>(word[o * Sums::PRODUCTS + q] >> 8 * c);
#pragma unroll
                    for (int a = 0; a < BLOCKS / 4; ++a)
#pragma unroll
                        for (int b = 0; b < 4; ++b) {
                            // Of two levels: the row of the block is 2 (a / 2) + b / 2, and so is its column.
                            const int place = LEVELS == 2 ? (2 * (a / 2) + b / 2) * 4 + 2 * (a % 2) + b % 2 : b;
                            found[place] += (LEVELS == 2 ? Sums::in(o, a) : 1) * below[b];
                        }
                }
            }
#pragma unroll
            for (int b = 0; b < BLOCKS; ++b) use(b, c, found[b]);
        }
    }

    // Where the first neighbour of a block stands in C.
    __device__ __forceinline__ int line(int block, int rows) const { return row + block / SIDES * rows; }
    __device__ __forceinline__ int first(int block, int cols) const { return at + block % SIDES * cols; }
};

// Together, where they stand so.
template <int COLS, class Element>
__device__ __forceinline__ void put(Element* to, const Element (&x)[COLS], int room) {
    if (COLS == 2 && room > 1 && reinterpret_cast<unsigned long long>(to) % (2 * sizeof(Element)) == 0)
        pack<Element, 2>(to) = {x[0], x[COLS - 1]};
    else
#pragma unroll
        for (int c = 0; c < COLS; ++c)
            if (c < room) to[c] = x[c];
}

// ---- float64

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

// What the pieces' sums make together, the last of which counts whole, less a multiple of P: rounded about once, and not
// at all if it is below 2^53.
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

template <class Sums, int LEVELS, int COLS, int PIECES>
__device__ __forceinline__ void join(const Join& p) {
    using Here = Spot<Sums, LEVELS, COLS>;
    const Result<double>& c = p.c;
    Here spot(c);
    if (spot.layer >= c.layers || spot.at >= c.n) return;
    double sum[Here::BLOCKS][COLS][PIECES] = {};
#pragma unroll 1
    for (int i = 0; i < c.count; ++i)
        spot.read([&](int block, int col, int residue) {
            const double x = as_double(residue);
#pragma unroll
            for (int j = 0; j < PIECES; ++j) sum[block][col][j] = __fma_rn(x, p.weights[i][j], sum[block][col][j]);
        });
    const double none = __longlong_as_double(0x7ff8000000000000ll), infinite = __longlong_as_double(0x7ff0000000000000ll);
    bool finite = true;
#pragma unroll
    for (int b = 0; b < Here::BLOCKS; ++b) {
        const int line = spot.line(b, c.block_rows), first = spot.first(b, c.block_cols);
        if (line >= c.m) continue;
        const int e = p.rows[spot.layer * c.m + line];
        double* const to = c.dest + spot.layer * c.layer + line * c.leading + first;
        double found[COLS];
#pragma unroll
        for (int i = 0; i < COLS; ++i) {
            if (first + i >= c.n) continue;
            const int f = p.columns[spot.layer * c.n + first + i];
            const bool known = e != NOT_FINITE && f != NOT_FINITE;
            found[i] = known ? p.factor * scaled_by(value_of<PIECES>(sum[b][i], p), -e - f) : none;
            if (p.keep != 0) found[i] += p.keep * to[i];
            finite = finite && fabs(found[i]) < infinite;
        }
        put<COLS>(to, found, c.n - first);
    }
    if (p.flag && !finite) *static_cast<volatile int*>(p.flag) = 1;
}

// ---- integers

template <class Element>
__device__ __forceinline__ Element lowest_bits(unsigned long long x) {
    return static_cast<Element>(x);  // of bool: is it not zero?
}

template <class Sums, int LEVELS, int COLS, class Element>
__device__ __forceinline__ void join_whole(const JoinWhole<Element>& p) {
    using Here = Spot<Sums, LEVELS, COLS>;
    const Result<Element>& c = p.c;
    Here spot(c);
    if (spot.layer >= c.layers || spot.at >= c.n) return;
    unsigned long long sum[Here::BLOCKS][COLS] = {};
    double share[Here::BLOCKS][COLS] = {};
#pragma unroll 1
    for (int i = 0; i < c.count; ++i)
        spot.read([&](int block, int col, int residue) {
            sum[block][col] += static_cast<unsigned long long>(static_cast<long long>(residue)) * p.weights[i];
            share[block][col] = __fma_rn(as_double(residue), p.shares[i], share[block][col]);
        });
#pragma unroll
    for (int b = 0; b < Here::BLOCKS; ++b) {
        const int line = spot.line(b, c.block_rows), first = spot.first(b, c.block_cols);
        if (line >= c.m) continue;
        Element* const to = c.dest + spot.layer * c.layer + line * c.leading + first;
        Element found[COLS];
#pragma unroll
        for (int i = 0; i < COLS; ++i) {
            if (first + i >= c.n) continue;
            const auto q = static_cast<unsigned long long>(__double2ll_rn(share[b][i]));
            unsigned long long x = static_cast<unsigned long long>(p.factor) * (sum[b][i] - q * p.product);
            if (p.keep) x += static_cast<unsigned long long>(p.keep) * static_cast<unsigned long long>(to[i]);
            found[i] = lowest_bits<Element>(x);
        }
        put<COLS>(to, found, c.n - first);
    }
}

}  // namespace residues
}  // namespace fmm
