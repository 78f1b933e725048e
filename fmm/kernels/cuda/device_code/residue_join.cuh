// Join: compute C from the residues of an integer product with the Chinese remainder theorem. If the product has levels
// of a fast scheme, the residues of C's submatrices ("blocks") are first computed as sums of the products.
// Floating-point types are scaled back.
//
// Let M be the product of all moduli p_i, and r_i the residues of an integer x with |x| < M / 2. Then x = sum r_i w_i -
// q M. The weight w_i is 1 modulo p_i and 0 modulo the other moduli. q is the quotient (sum r_i w_i) / M, rounded to an
// integer. Rounding is safe, because x / M, the distance of the quotient from q, is clearly less than 1/2.
//
//   join           float64 and float32: the weights and M are split into pieces of few bits, so that the sums over each
//                  piece are exact in float64. Complex numbers: each modulus has two residues, of re + j im and of
//                  re - j im. Their sum gives the real part, and their difference the imaginary part (the weights
//                  contain 1/2 and 1/(2j)).
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
// Threads of a thread block. With levels a thread needs up to 160 registers, and three small thread blocks fit on a
// multiprocessor where one large one would.
template <int LEVELS>
constexpr int JOIN_THREADS = LEVELS ? 128 : THREADS;

template <class Element>
struct Result {
    Element* dest;
    const signed char* planes;
    long long leading, layer;  // strides of C from row to row, and from product to product of a batch
    int m, n, layers;
    int block_rows, block_cols;  // size of a plane
    int lower;  // nonzero if C is symmetric or Hermitian: only the lower triangle is written

    __device__ __forceinline__ int end_of(int line) const { return lower && line < n ? line + 1 : n; }
};

// The type of alpha and beta.
template <class Element>
struct Factor {
    using Type = double;
};
template <class Real>
struct Factor<Complex<Real>> {
    using Type = Complex<double>;
};

template <class Element>
struct Join {
    Result<Element> c;
    const int *rows, *columns;  // scaling exponents of A's rows and B's columns
    int* flag;                  // set to 1 if C gets an inf or NaN
    typename Factor<Element>::Type factor, keep;
    double up, down;            // 2^b and 2^-b, for pieces of b bits
    double inverse;             // 2^(b (PIECES - 1)) / M
    double product[MAX_PIECES];  // the pieces of M, the highest bits first
    double weights[COMPONENTS<Element>][20][MAX_PIECES];  // weights of the real part, then of the imaginary part
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

// Compiler barrier: all loads before the barrier are issued before the code that follows the barrier.
__device__ __forceinline__ void keep_order() { asm volatile("" ::: "memory"); }

template <int VALUE_>
struct Number {
    static constexpr int VALUE = VALUE_;
};

// The position of a thread's numbers (COLS adjacent numbers in a row of every block of C), and loads of their residues.
// With two levels, the thread's blocks are in block PART of the outer level. Neighbouring warps compute the other three
// blocks of the outer level, and read much of the same data.
template <class Sums, int LEVELS, int COLS, int PART, int PLANES = 1>
struct OutputBlock {
    static constexpr int SIDES = 1 << LEVELS, BLOCKS = LEVELS ? 4 : 1, OUTER = LEVELS == 2 ? Sums::PRODUCTS : 1;
    static constexpr int INNER = LEVELS ? Sums::PRODUCTS : 1;
    const signed char* from;
    long long next;
    int layer, row, at;

    template <class Element>
    __device__ __forceinline__ explicit OutputBlock(const Result<Element>& c) {
        // 64 bits, because a result may have more than 2^32 threads
        const unsigned long long all = static_cast<unsigned long long>(blockIdx.x) * JOIN_THREADS<LEVELS> + threadIdx.x;
        const unsigned long long number = LEVELS == 2 ? all / 128 * 32 + all % 32 : all;
        const unsigned words = c.block_cols / COLS, lines = static_cast<unsigned>(number / words);
        at = (static_cast<unsigned>(number) - lines * words) * COLS;
        row = lines % c.block_rows;
        layer = lines / c.block_rows;
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

    // Compute the sums of residues for SOME moduli, from modulus number i on, in all planes of each modulus.
    // All loads are issued before the first residue is used. `use` is called with the number of the modulus, the block,
    // the column, and the sums of residues.
    template <int SOME, class Use>
    __device__ __forceinline__ void read(int i, const Use& use) const {
        const signed char* const planes = from + i * (PLANES * OUTER * INNER * next);
        unsigned word[SOME][PLANES][OUTER][INNER];
#pragma unroll
        for (int j = 0; j < SOME; ++j)
#pragma unroll
            for (int s = 0; s < PLANES; ++s)
#pragma unroll
                for (int o = 0; o < OUTER; ++o)
#pragma unroll
                    for (int q = 0; q < INNER; ++q)
                        if (outer_sign(o)) word[j][s][o][q] = load_bytes(planes + (((j * PLANES + s) * OUTER + o) * INNER + q) * next);
        keep_order();
#pragma unroll
        for (int j = 0; j < SOME; ++j)
#pragma unroll
            for (int c = 0; c < COLS; ++c)
#pragma unroll
                for (int b = 0; b < BLOCKS; ++b) {
                    int found[PLANES] = {};
#pragma unroll
                    for (int s = 0; s < PLANES; ++s)
#pragma unroll
                        for (int o = 0; o < OUTER; ++o)
#pragma unroll
                            for (int q = 0; q < INNER; ++q) {
                                const int sign = outer_sign(o) * (LEVELS ? Sums::result_sign(q, b) : 1);
                                if (sign) found[s] += sign * static_cast<signed char>(word[j][s][o][q] >> 8 * c);
                            }
                    use(i + j, b, c, found);
                }
    }

    // Return the row (line) and the first column (first) in C of the thread's numbers in block b.
    __device__ __forceinline__ int line(int b, int rows) const { return row + (LEVELS == 2 ? PART / 2 * 2 + b / 2 : b / 2) * rows; }
    __device__ __forceinline__ int first(int b, int cols) const { return at + (LEVELS == 2 ? PART % 2 * 2 + b % 2 : b % 2) * cols; }
};

// Compute the sums of residues for all COUNT moduli, several moduli at a time, so that many loads are in flight.
template <int LEVELS, int COUNT, int PLANES, class Here, class Use>
__device__ __forceinline__ void read_all(const Here& spot, const Use& use) {
    constexpr int SOME = min_of(COUNT, LEVELS == 0 ? 16 / PLANES : LEVELS == 1 ? 4 / PLANES : 1);
#pragma unroll 1
    for (int i = 0; i < COUNT / SOME * SOME; i += SOME) spot.template read<SOME>(i, use);
    if constexpr (COUNT % SOME != 0) spot.template read<COUNT % SOME>(COUNT / SOME * SOME, use);
}

// Call `work` with the number of the block of the outer level that this warp computes; 0 if there are fewer than two
// levels.
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

// Store COLS adjacent numbers, with accesses of up to 16 bytes if the address is aligned.
template <int COLS, class Element>
__device__ __forceinline__ void store_run(Element* to, const Element (&x)[COLS], int remaining) {
    constexpr int TOGETHER = min_of(COLS, 16 / sizeof(Element));  // at most 16 bytes
    if (remaining >= COLS && reinterpret_cast<unsigned long long>(to) % (TOGETHER * sizeof(Element)) == 0) {
#pragma unroll
        for (int first = 0; first < COLS; first += TOGETHER) {
            Pack<Element, TOGETHER> all;
#pragma unroll
            for (int c = 0; c < TOGETHER; ++c) all.lane[c] = x[first + c];
            pack<Element, TOGETHER>(to + first) = all;
        }
    } else {
#pragma unroll
        for (int c = 0; c < COLS; ++c)
            if (c < remaining) to[c] = x[c];
    }
}

// ---- float64 and float32

// Return x 2^e. The result is rounded at most once, or twice if it is subnormal.
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

// Return the integer that the sums over the pieces represent, minus q M. The unit of the last piece is 1. The result is
// exact below 2^53, and otherwise rounded about once.
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

// Combine the residues of one modulus's planes. Real numbers: do nothing. Complex numbers: compute the sum and the
// difference of both residues.
__device__ __forceinline__ void combine_planes(int (&)[1]) {}
__device__ __forceinline__ void combine_planes(int (&x)[2]) {
    const int sum = x[0] + x[1];
    x[1] = x[0] - x[1];
    x[0] = sum;
}

// Store a new entry of C: factor x + keep old. Numbers beyond the range of float32 become inf. Return true if the entry
// is finite.
__device__ __forceinline__ bool is_finite(double x) { return fabs(x) < __longlong_as_double(0x7ff0000000000000ll); }
template <class Element>
__device__ __forceinline__ bool update_entry(Element& found, const double (&x)[1], const Join<Element>& p, const Element* old) {
    double entry = p.factor * x[0];
    if (p.keep != 0) entry += p.keep * *old;
    found = static_cast<Element>(entry);
    return is_finite(static_cast<double>(found));
}
template <class Real>
__device__ __forceinline__ bool update_entry(Complex<Real>& found, const double (&x)[2], const Join<Complex<Real>>& p,
                                             const Complex<Real>* old) {
    double re = p.factor.re * x[0] - p.factor.im * x[1], im = p.factor.re * x[1] + p.factor.im * x[0];
    if (p.keep.re != 0 || p.keep.im != 0) {
        re += p.keep.re * old->re - p.keep.im * old->im;
        im += p.keep.re * old->im + p.keep.im * old->re;
    }
    found = {static_cast<Real>(re), static_cast<Real>(im)};
    return is_finite(static_cast<double>(found.re)) && is_finite(static_cast<double>(found.im));
}

template <class Sums, int LEVELS, int COLS, int COUNT, int PIECES, int PART, class Element>
__device__ __forceinline__ void join_part(const Join<Element>& p) {
    constexpr int PLANES = COMPONENTS<Element>;
    using Here = OutputBlock<Sums, LEVELS, COLS, PART, PLANES>;
    const Result<Element>& c = p.c;
    const Here spot(c);
    if (spot.layer >= c.layers || spot.at >= c.n) return;
    if (LEVELS == 0 && spot.at >= c.end_of(spot.row)) return;
    double sum[Here::BLOCKS][COLS][PLANES][PIECES] = {};
    read_all<LEVELS, COUNT, PLANES>(spot, [&](int i, int block, int col, int (&residues)[PLANES]) {
        combine_planes(residues);
#pragma unroll
        for (int s = 0; s < PLANES; ++s) {
            const double x = as_double(residues[s]);
#pragma unroll
            for (int j = 0; j < PIECES; ++j)
                sum[block][col][s][j] = __fma_rn(x, p.weights[s][i][j], sum[block][col][s][j]);
        }
    });
    const double none = __longlong_as_double(0x7ff8000000000000ll);
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
            double x[PLANES];
#pragma unroll
            for (int s = 0; s < PLANES; ++s) x[s] = is_scaled ? scaled_by(value_of<PIECES>(sum[b][i][s], p), -e - f) : none;
            finite = update_entry(found[i], x, p, to + i) && finite;
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
    read_all<LEVELS, COUNT, 1>(spot, [&](int i, int block, int col, int (&residue)[1]) {
        sum[block][col] += static_cast<unsigned long long>(static_cast<long long>(residue[0])) * p.weights[i];
        share[block][col] = __fma_rn(as_double(residue[0]), p.shares[i], share[block][col]);
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
