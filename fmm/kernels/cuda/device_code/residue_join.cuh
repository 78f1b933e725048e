// Join: compute C from the residues of an integer product with the Chinese remainder theorem. If the product has levels
// of a fast scheme, the residues of C's submatrices ("blocks") are first computed as sums of the products.
// Floating-point types are scaled back.
//
// Let M be the product of all moduli p_i, and r_i the residues of an integer x with |x| < M / 2. Then x = sum r_i w_i -
// q M. The weight w_i is 1 modulo p_i and 0 modulo the other moduli. q is the quotient of the sum by M, rounded to an
// integer. The quotient is never near the middle of two integers.
//
//   join           float64 and float32: the weights and M are split into pieces of few bits, so that the sums of a
//                  piece are exact in float64
//   join_integers  integers: all sums are computed modulo 2^64, and the result is truncated to the type's bits
//
// Index map: a thread computes COLS adjacent numbers in a row of every block of C. With two levels, the blocks of a
// warp are in one block of the outer level, and four neighbouring warps compute the four blocks of the outer level.
#pragma once

#include "fast_sums.cuh"
#include "residue_planes.cuh"

namespace fmm {
namespace residues {

constexpr int MAX_PIECES = 4;

template <class Element>
struct Result {
    Element* dest;
    const signed char* planes;
    long long leading, layer;  // strides of C from row to row, and from product to product of a batch
    int m, n, layers;
    int block_rows, block_cols;  // size of a plane
    int lower;  // nonzero if C is its own adjoint: only the lower triangle is written

    __device__ __forceinline__ int end_of(int line) const { return lower && line < n ? line + 1 : n; }
};

template <class Element>
struct Join {
    Result<Element> c;
    const int *rows, *columns;  // scaling exponents of A's rows and B's columns
    int* flag;                  // set to 1 if C gets an inf or NaN
    double factor, keep;
    double up, down;            // 2^b and 2^-b, for pieces of b bits
    double inverse;             // 2^(b (PIECES - 1)) / M
    double product[MAX_PIECES];  // the pieces of M, the highest bits first
    double weights[20][MAX_PIECES];
};

template <class Element>
struct JoinIntegers {
    Result<Element> c;
    long long factor, keep;
    unsigned long long product, weights[20];  // modulo 2^64
    double shares[20];                        // weights divided by M
};

// ---- sums of blocks

__device__ constexpr int min_of(int x, int y) { return x < y ? x : y; }

// Compiler barrier: loads in front of the barrier are issued before the code behind it.
__device__ __forceinline__ void keep_order() { asm volatile("" ::: "memory"); }

template <int VALUE_>
struct Number {
    static constexpr int VALUE = VALUE_;
};

// The position of COLS adjacent numbers in a row of every block of C, and loads of their residues. With two levels, the
// thread's blocks are in block PART of the outer level. Neighbouring warps compute the other three blocks of the outer
// level, and read much of the same data.
template <class Sums, int LEVELS, int COLS, int PART>
struct OutputBlock {
    static constexpr int SIDES = 1 << LEVELS, BLOCKS = LEVELS ? 4 : 1, OUTER = LEVELS == 2 ? Sums::PRODUCTS : 1;
    static constexpr int INNER = LEVELS ? Sums::PRODUCTS : 1;
    const signed char* from;
    long long next;
    int layer, row, at;

    template <class Element>
    __device__ __forceinline__ explicit OutputBlock(const Result<Element>& c) {
        const unsigned all = blockIdx.x * THREADS + threadIdx.x;
        const unsigned number = LEVELS == 2 ? all / 128 * 32 + all % 32 : all, words = c.block_cols / COLS;
        at = number % words * COLS;
        row = number / words % c.block_rows;
        layer = number / words / c.block_rows;
        const long long plane = static_cast<long long>(c.block_rows) * c.block_cols;
        next = plane * c.layers;
        from = c.planes + layer * plane + static_cast<long long>(row) * c.block_cols + at;
    }

    __device__ static __forceinline__ unsigned load_bytes(const signed char* q) {
        if constexpr (COLS == 4) return *reinterpret_cast<const unsigned*>(q);
        if constexpr (COLS == 2) return *reinterpret_cast<const unsigned short*>(q);
        return static_cast<unsigned char>(*q);
    }
    // Return the coefficient of a product of the outer level in block PART.
    __device__ static constexpr int outer_sign(int product) { return LEVELS == 2 ? Sums::result_sign(product, PART) : 1; }

    // Compute the sums of residues modulo SOME moduli, from modulus i on. All loads are issued before the first residue
    // is used. `use` is called with the number of the modulus, the block, the column, and the sum of residues.
    template <int SOME, class Use>
    __device__ __forceinline__ void read(int i, const Use& use) const {
        const signed char* const planes = from + i * (OUTER * INNER * next);
        unsigned word[SOME][OUTER][INNER];
#pragma unroll
        for (int j = 0; j < SOME; ++j)
#pragma unroll
            for (int o = 0; o < OUTER; ++o)
#pragma unroll
                for (int q = 0; q < INNER; ++q)
                    if (outer_sign(o)) word[j][o][q] = load_bytes(planes + ((j * OUTER + o) * INNER + q) * next);
        keep_order();
#pragma unroll
        for (int j = 0; j < SOME; ++j)
#pragma unroll
            for (int c = 0; c < COLS; ++c)
#pragma unroll
                for (int b = 0; b < BLOCKS; ++b) {
                    int found = 0;
#pragma unroll
                    for (int o = 0; o < OUTER; ++o)
#pragma unroll
                        for (int q = 0; q < INNER; ++q) {
                            const int sign = outer_sign(o) * (LEVELS ? Sums::result_sign(q, b) : 1);
                            if (sign) found += sign * static_cast<signed char>(word[j][o][q] >> 8 * c);
                        }
                    use(i + j, b, c, found);
                }
    }

    // Return the row (line) and the first column (first) in C of the thread's numbers in block b.
    __device__ __forceinline__ int line(int b, int rows) const { return row + (LEVELS == 2 ? PART / 2 * 2 + b / 2 : b / 2) * rows; }
    __device__ __forceinline__ int first(int b, int cols) const { return at + (LEVELS == 2 ? PART % 2 * 2 + b % 2 : b % 2) * cols; }
};

// Compute the sums of residues modulo all COUNT moduli, several moduli at a time, so that many loads are in flight.
template <int LEVELS, int COUNT, class Here, class Use>
__device__ __forceinline__ void read_all(const Here& spot, const Use& use) {
    constexpr int SOME = min_of(COUNT, LEVELS == 0 ? 16 : LEVELS == 1 ? 4 : 1);
#pragma unroll 1
    for (int i = 0; i < COUNT / SOME * SOME; i += SOME) spot.template read<SOME>(i, use);
    if constexpr (COUNT % SOME != 0) spot.template read<COUNT % SOME>(COUNT / SOME * SOME, use);
}

// Call `work` with the block PART of the outer level that this warp computes; with fewer than two levels, with 0.
template <int LEVELS, class Work>
__device__ __forceinline__ void for_each_part(const Work& work) {
    if constexpr (LEVELS < 2) {
        work(Number<0>{});
    } else {
        switch (threadIdx.x / 32 % 4) {
            case 0: return work(Number<0>{});
            case 1: return work(Number<1>{});
            case 2: return work(Number<2>{});
            default: return work(Number<3>{});
        }
    }
}

// Store COLS adjacent numbers, with one access if the address is aligned.
template <int COLS, class Element>
__device__ __forceinline__ void store_run(Element* to, const Element (&x)[COLS], int remaining) {
    if (remaining >= COLS && reinterpret_cast<unsigned long long>(to) % (COLS * sizeof(Element)) == 0) {
        Pack<Element, COLS> all;
#pragma unroll
        for (int c = 0; c < COLS; ++c) all.lane[c] = x[c];
        pack<Element, COLS>(to) = all;
    } else {
#pragma unroll
        for (int c = 0; c < COLS; ++c)
            if (c < remaining) to[c] = x[c];
    }
}

// ---- float64 and float32

// Return x 2^e, rounded once; in the subnormal range it may be rounded twice.
__device__ __forceinline__ double scaled_by(double x, int e) {
    if (abs(e) <= 1000) return x * power_of_two(e);
    const int first = max(min(e, 1000), -1000), second = max(min(e - first, 1000), -1000), third = e - first - second;
    return x * power_of_two(first) * power_of_two(second) * power_of_two(max(min(third, 1000), -1000));
}

// Return a 32-bit integer as float64, without the slow conversion instruction.
__device__ __forceinline__ double as_double(int x) {
    const long long bits = 0x4330000000000000ll | static_cast<unsigned>(x ^ 1 << 31);
    return __longlong_as_double(bits) - (0x1p52 + 0x1p31);
}

// Return the integer that the sums of the pieces represent, minus q M. The last piece has weight 1. The result is exact
// below 2^53 and otherwise rounded about once.
template <int PIECES, class Element>
__device__ __forceinline__ double value_of(const double (&sum)[PIECES], const Join<Element>& p) {
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

template <class Sums, int LEVELS, int COLS, int COUNT, int PIECES, int PART, class Element>
__device__ __forceinline__ void join_part(const Join<Element>& p) {
    using Here = OutputBlock<Sums, LEVELS, COLS, PART>;
    const Result<Element>& c = p.c;
    const Here spot(c);
    if (spot.layer >= c.layers || spot.at >= c.n) return;
    if (LEVELS == 0 && spot.at >= c.end_of(spot.row)) return;
    double sum[Here::BLOCKS][COLS][PIECES] = {};
    read_all<LEVELS, COUNT>(spot, [&](int i, int block, int col, int residue) {
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
        const int end = LEVELS == 0 ? c.end_of(line) : c.n;
        const int e = p.rows[spot.layer * c.m + line];
        Element* const to = c.dest + spot.layer * c.layer + line * c.leading + first;
        Element found[COLS];
#pragma unroll
        for (int i = 0; i < COLS; ++i) {
            if (first + i >= end) continue;
            const int f = p.columns[spot.layer * c.n + first + i];
            const bool is_scaled = e != NOT_FINITE && f != NOT_FINITE;
            double x = is_scaled ? p.factor * scaled_by(value_of<PIECES>(sum[b][i], p), -e - f) : none;
            if (p.keep != 0) x += p.keep * to[i];
            found[i] = static_cast<Element>(x);  // numbers beyond the range of float32 become inf
            finite = finite && fabs(static_cast<double>(found[i])) < infinite;
        }
        store_run<COLS>(to, found, end - first);
    }
    if (p.flag && !finite) *static_cast<volatile int*>(p.flag) = 1;
}

template <class Sums, int LEVELS, int COLS, int COUNT, int PIECES, class Element>
__device__ __forceinline__ void join(const Join<Element>& p) {
    for_each_part<LEVELS>([&](auto part) { join_part<Sums, LEVELS, COLS, COUNT, PIECES, decltype(part)::VALUE>(p); });
}

// ---- integers

template <class Element>
__device__ __forceinline__ Element lowest_bits(unsigned long long x) {
    return static_cast<Element>(x);  // bool: true if x is not zero
}

template <class Sums, int LEVELS, int COLS, int COUNT, int PART, class Element>
__device__ __forceinline__ void join_integers_part(const JoinIntegers<Element>& p) {
    using Here = OutputBlock<Sums, LEVELS, COLS, PART>;
    const Result<Element>& c = p.c;
    const Here spot(c);
    if (spot.layer >= c.layers || spot.at >= c.n) return;
    unsigned long long sum[Here::BLOCKS][COLS] = {};
    double share[Here::BLOCKS][COLS] = {};
    read_all<LEVELS, COUNT>(spot, [&](int i, int block, int col, int residue) {
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
        store_run<COLS>(to, found, c.n - first);
    }
}

template <class Sums, int LEVELS, int COLS, int COUNT, class Element>
__device__ __forceinline__ void join_integers(const JoinIntegers<Element>& p) {
    for_each_part<LEVELS>([&](auto part) { join_integers_part<Sums, LEVELS, COLS, COUNT, decltype(part)::VALUE>(p); });
}

}  // namespace residues
}  // namespace fmm
