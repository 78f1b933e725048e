// Byte planes of a product by residues: each plane has the residues of an operand modulo one of up to 20 moduli.
// Floating-point operands are first scaled and rounded to integers x 2^e of at most 2^62. Complex numbers become
// Gaussian integers re + i im, with two planes for each modulus p: the residues of re + j im and of re - j im, where
// j^2 = -1 modulo p.
//
//   norm_exponents_...  Floating-point types: for each row of A and each column of B, compute an upper bound of the
//                       2-norm, and from it an exponent e. With e, no entry of the integer product exceeds half of the
//                       product of all moduli, since |sum a b| <= |a| |b| (Cauchy-Schwarz). All types: MN-major
//                       operands (contiguous along the outer dimension) are transposed at the same time.
//   split_both          Scale and round numbers, compute the sums of submatrices ("blocks") for the levels of a fast
//                       scheme, and store the residues of these sums modulo each modulus.
//
// A line is a row of A or a column of B, so lines run along the inner dimension. Index map: in norm_exponents_of_lines,
// GROUP threads process a line. In norm_exponents_and_transpose, a cluster of 8 thread blocks processes 64 lines (32
// lines of complex128), or one thread block processes 16 lines. In split_both, a thread processes four adjacent numbers
// of every block.
//
// Planes are K-major: lines are contiguous. They are padded with zeros to a multiple of 16 bytes.
#pragma once

#include "cluster.cuh"
#include "complex.cuh"
#include "fast_sums.cuh"
#include "gemm_common.cuh"
#include "modulus.cuh"

namespace fmm {
namespace residues {

constexpr int THREADS = 256;
constexpr int NOT_FINITE = 1 << 20;  // the exponent of a line with an inf or NaN, or with a norm that overflows

template <class Element>
constexpr bool SCALED = false;  // true for types that are scaled by powers of two and rounded to integers
template <>
constexpr bool SCALED<double> = true;
template <>
constexpr bool SCALED<float> = true;
template <class Real>
constexpr bool SCALED<Complex<Real>> = true;

template <class Element>
constexpr int COMPONENTS = 1;  // real numbers in an element: 2 for complex numbers; also the planes for a modulus
template <class Real>
constexpr int COMPONENTS<Complex<Real>> = 2;

// Return the real part (0) or the imaginary part (1) of a complex number, or the real number itself.
template <class Real>
__device__ __forceinline__ Real component(Real x, int) { return x; }
template <class Real>
__device__ __forceinline__ Real component(Complex<Real> x, int part) { return part ? x.im : x.re; }

// The number of lines that a cluster transposes together. A square of this side fits in shared memory.
template <class Element>
constexpr int POSITIONS = sizeof(Element) == 16 ? 32 : 64;

template <class Element>
struct Operand {
    const Element* source;
    Element* transposed;      // a K-major copy of an MN-major operand; null for K-major operands
    int* exponents;       // the exponents of the lines of all products of a batch
    signed char* planes;
    long long leading;    // numbers from one line of the source to the next
    long long layer;      // numbers from one product of a batch to the next
    long long pitch;       // numbers from one line of `transposed` to the next
    double top;           // upper bound of scaled norms
    int lines, length;    // number of lines, and numbers in a line
    int layers;           // number of products of a batch
    int blocks;           // number of thread blocks of this operand
    int block_lines, block_length;  // size of a plane; with levels of a fast scheme this is the size of a block
};

// ---- norms

__device__ __forceinline__ double power_of_two(int e) { return __longlong_as_double((e + 1023ll) << 52); }

// A sum of squares that neither overflows nor underflows: large, medium (`usual`) and small numbers are scaled
// differently, and their squares are summed separately (Blue's algorithm).
struct Squares {
    double large, usual, small;

    __device__ __forceinline__ void add(double x) {
        x = fabs(x);
        const bool is_large = x > 0x1p480, is_small = x < 0x1p-480;
        const double scaled = x * (is_large ? 0x1p-600 : is_small ? 0x1p600 : 1.0);
        if (is_large)
            large += scaled * scaled;
        else if (is_small)
            small += scaled * scaled;
        else
            usual += scaled * scaled;
    }
    template <class Real>
    __device__ __forceinline__ void add(const Complex<Real>& x) {
        add(x.re);
        add(x.im);
    }
    __device__ __forceinline__ void add(const Squares& x) {
        large += x.large;
        usual += x.usual;
        small += x.small;
    }
    // Add a square with two roundings, so that all devices compute the same bits. (`add` may be contracted to an FMA.)
    __device__ __forceinline__ void add_rounded(double x) {
        x = fabs(x);
        const bool is_large = x > 0x1p480, is_small = x < 0x1p-480;
        const double scaled = x * (is_large ? 0x1p-600 : is_small ? 0x1p600 : 1.0), square = __dmul_rn(scaled, scaled);
        if (is_large)
            large = __dadd_rn(large, square);
        else if (is_small)
            small = __dadd_rn(small, square);
        else
            usual = __dadd_rn(usual, square);
    }
    // Return an upper bound of the root of the sum, rounding errors included; 0 if all numbers are zero.
    __device__ __forceinline__ double root() const {
        if (large == 0 && usual == 0 && small == 0) return 0;
        const double found = large != 0   ? sqrt(large + usual * 0x1p-1000 * 0x1p-200) * 0x1p600
                             : usual != 0 ? sqrt(usual + small * 0x1p-1000 * 0x1p-200)
                                          : sqrt(small) * 0x1p-600;
        return __dadd_rn(__dmul_rn(found, 1 + 0x1p-24), 0x1p-1074);
    }
};

// Return the largest e with norm 2^e <= `top`.
__device__ __forceinline__ int exponent_for(double norm, double top) {
    if (norm == 0) return 0;
    if (!(norm < 0x1p1023)) return NOT_FINITE;
    const bool tiny = norm < 0x1p-900;
    const long long x = __double_as_longlong(tiny ? norm * 0x1p200 : norm), t = __double_as_longlong(top);
    const int e = static_cast<int>((t >> 52) - (x >> 52)) + (tiny ? 200 : 0);
    const long long fraction = (1ll << 52) - 1;
    return e - ((x & fraction) > (t & fraction));
}

// Return true if another order of the sum of `count` squares could select another exponent for this norm. Two sums differ
// by less than count + 16 units in the last place of the norm. `exponent_for` compares the fractions of the norm and of
// `top`. Norms near the ends of the range of float64 are always in doubt.
__device__ __forceinline__ bool is_exponent_in_doubt(double norm, double top, long long count) {
    if (norm == 0 || !(norm < __longlong_as_double(0x7ff0000000000000ll))) return false;
    if (norm < 0x1p-900 || norm > 0x1p1000) return true;
    const long long distance = __double_as_longlong(norm) - __double_as_longlong(top), units = 2 * (count + 16);
    return ((distance + units) & ((1ll << 52) - 1)) <= 2 * units;
}

// Return the exponent of a line, with the squares of its numbers summed in any order. In doubt, sum the squares again in
// the order of the line: so every device and every kernel selects the same exponent.
template <class Element>
__device__ __forceinline__ int line_exponent(const Squares& sum, const Operand<Element>& p, const Element* line, long long step) {
    double norm = sum.root();
    if (is_exponent_in_doubt(norm, p.top, static_cast<long long>(COMPONENTS<Element>) * p.length)) {
        Squares ordered{};
#pragma unroll 1
        for (int i = 0; i < p.length; ++i) {
            const Element x = line[i * step];
#pragma unroll
            for (int c = 0; c < COMPONENTS<Element>; ++c) ordered.add_rounded(component(x, c));
        }
        norm = ordered.root();
    }
    return exponent_for(norm, p.top);
}

// Multiplication by 2^e as two multiplications, because 2^e may be outside the range of float64.
struct Scale {
    double first, second;
    __device__ __forceinline__ explicit Scale(int e)
        : first(power_of_two(e == NOT_FINITE ? 0 : e / 2)), second(power_of_two(e == NOT_FINITE ? 0 : e - e / 2)) {}
    __device__ __forceinline__ double operator()(double x) const { return x * first * second; }
};

// ---- reading

template <class Element>
struct Four {
    Element x[4];
};

// Load four adjacent numbers of a line; numbers beyond the line's end are zero. WIDE: lines begin at multiples of four
// numbers or 16 bytes, so vector loads are possible.
template <bool WIDE, class Element>
__device__ __forceinline__ Four<Element> load_four(const Element* line, int at, int length) {
    constexpr int TOGETHER = sizeof(Element) == 16 ? 1 : sizeof(Element) == 8 ? 2 : 4;
    Four<Element> v;
    if (WIDE && at + 4 <= length) {
#pragma unroll
        for (int i = 0; i < 4; i += TOGETHER) {
            const auto some = pack<Element, TOGETHER>(line + at + i);
#pragma unroll
            for (int j = 0; j < TOGETHER; ++j) v.x[i + j] = some.lane[j];
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) v.x[i] = at + i < length ? line[at + i] : Element();
    }
    return v;
}

// ---- norms of operands that are contiguous along the inner dimension

__device__ __forceinline__ double sum_of_warp(double x) {
#pragma unroll
    for (int step = 16; step; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}

// Return the sum over the GROUP threads of a line: the threads of a warp, or of a thread block, which must pass shared
// memory for THREADS / 32 sums.
template <int GROUP>
__device__ __forceinline__ Squares sum_of_group(Squares sum, Squares* shared) {
    sum.large = sum_of_warp(sum.large);
    sum.usual = sum_of_warp(sum.usual);
    sum.small = sum_of_warp(sum.small);
    if (GROUP > 32) {
        if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sum;
        __syncthreads();
        sum = shared[0];
        for (int i = 1; i < THREADS / 32; ++i) sum.add(shared[i]);
    }
    return sum;
}

template <int GROUP, bool WIDE, class Element>
__device__ __forceinline__ void norm_exponents_of_lines(const Operand<Element>& p, int block) {
    __shared__ Squares shared[THREADS / 32];
    const int number = block * (THREADS / GROUP) + threadIdx.x / GROUP, mine = threadIdx.x % GROUP;
    const int layer = number / p.lines;
    if (layer >= p.layers) return;
    const Element* const from = p.source + layer * p.layer + number % p.lines * p.leading;
    Squares sum{};
#pragma unroll 4
    for (int at = 4 * mine; at < p.length; at += 4 * GROUP) {
        const auto v = load_four<WIDE>(from, at, p.length);
#pragma unroll
        for (Element x : v.x) sum.add(x);
    }
    sum = sum_of_group<GROUP>(sum, shared);
    if (mine == 0) p.exponents[number] = line_exponent(sum, p, from, 1);
}

// ---- norms and transposes of operands that are contiguous along the outer dimension

// The shape of the tile that a thread block transposes: LINES lines and DEPTH positions of each line. With a cluster,
// PARTS thread blocks share the positions of a line, and add up the line's norm. Without clusters a thread block computes
// the norm alone; it has fewer lines, so that there are enough thread blocks. Integers have no norms.
template <class Element, int CLUSTER>
struct TransposedTile {
    static constexpr bool ALONE = CLUSTER == 1 && SCALED<Element>;
    static constexpr int LINES = ALONE ? 16 : POSITIONS<Element>;
    static constexpr int DEPTH = ALONE ? (sizeof(Element) == 16 ? 128 : 256) : POSITIONS<Element>, PARTS = ALONE ? 1 : 8;
};

// The lines that PARTS thread blocks process, and the part of their length that this thread block processes.
template <class Element, int CLUSTER>
struct Strip {
    int layer, first, rank, begin, end;
    const Element* from;
    Element* to;

    __device__ __forceinline__ Strip(const Operand<Element>& p, int block) {
        constexpr int LINES = TransposedTile<Element, CLUSTER>::LINES, DEPTH = TransposedTile<Element, CLUSTER>::DEPTH;
        constexpr int PARTS = TransposedTile<Element, CLUSTER>::PARTS;
        const int strips = (p.lines + LINES - 1) / LINES, strip = block / PARTS;
        rank = CLUSTER > 1 ? cluster_rank() : block % PARTS;
        layer = strip / strips;
        first = strip % strips * LINES;
        const int part = ((p.length + PARTS - 1) / PARTS + DEPTH - 1) / DEPTH * DEPTH;
        begin = min(rank * part, p.length);
        end = min(begin + part, p.length);
        from = p.source + layer * p.layer;
        to = p.transposed + static_cast<long long>(layer) * p.lines * p.pitch;
    }
};

// Transpose a 4 x 4 matrix of bytes. A word holds a row, and after the transposition a column.
__device__ __forceinline__ void transpose_square(const unsigned (&row)[4], unsigned (&column)[4]) {
    const unsigned a = __byte_perm(row[0], row[1], 0x5140), b = __byte_perm(row[2], row[3], 0x5140);
    const unsigned c = __byte_perm(row[0], row[1], 0x7362), d = __byte_perm(row[2], row[3], 0x7362);
    column[0] = __byte_perm(a, b, 0x5410);
    column[1] = __byte_perm(a, b, 0x7632);
    column[2] = __byte_perm(c, d, 0x5410);
    column[3] = __byte_perm(c, d, 0x7632);
}

// Transpose an operand of bytes. A thread reads 4 bytes and writes 16 bytes at a time. Lines are padded with zeros to a
// multiple of 16 bytes.
template <int CLUSTER, class Element>
__device__ __forceinline__ void transpose_bytes(const Operand<Element>& p, int block) {
    constexpr int SIDE = POSITIONS<Element>, WORDS = SIDE / 4;
    static_assert(sizeof(Element) == 1 && THREADS == WORDS * WORDS, "a square of bytes for every thread");
    __shared__ unsigned tile[SIDE][WORDS + 1];
    const Strip<Element, CLUSTER> strip(p, block);
    const int across = threadIdx.x % WORDS, down = threadIdx.x / WORDS;
    const int line = strip.first + threadIdx.x / 4, part = threadIdx.x % 4;
    for (int k = strip.begin; k < strip.end; k += SIDE) {
        unsigned row[4], column[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int there = k + 4 * down + i, first = strip.first + 4 * across;
            const auto v = load_four<true>(strip.from + there * p.leading, first, there < strip.end ? p.lines : 0);
            row[i] = low_bytes(v.x[0], v.x[1], v.x[2], v.x[3]);
        }
        transpose_square(row, column);
#pragma unroll
        for (int i = 0; i < 4; ++i) tile[4 * across + i][down] = column[i];
        __syncthreads();
        if (line < p.lines && k + 16 * part < strip.end) {
            Pack<unsigned, 4> some;
#pragma unroll
            for (int i = 0; i < 4; ++i) some.lane[i] = tile[threadIdx.x / 4][4 * part + i];
            pack<unsigned, 4>(reinterpret_cast<unsigned*>(strip.to + line * p.pitch + k + 16 * part)) = some;
        }
        __syncthreads();
    }
}

template <int CLUSTER, class Element>
__device__ __forceinline__ void transpose_numbers(const Operand<Element>& p, int block) {
    constexpr int LINES = TransposedTile<Element, CLUSTER>::LINES, DEPTH = TransposedTile<Element, CLUSTER>::DEPTH;
    constexpr int DOWN = THREADS / LINES;
    // Rows of the tile have an odd number of words, so that a warp reads a column from different banks.
    __shared__ Element tile[DEPTH][LINES + (sizeof(Element) < 4 ? 4 / sizeof(Element) : 1)];
    __shared__ Squares shared[DOWN][LINES];
    const Strip<Element, CLUSTER> strip(p, block);
    const int first = strip.first, begin = strip.begin, end = strip.end, rank = strip.rank, layer = strip.layer;
    const int across = threadIdx.x % LINES, down = threadIdx.x / LINES;
    const int position = LINES == DEPTH ? across : threadIdx.x % DEPTH, line = LINES == DEPTH ? down : threadIdx.x / DEPTH;
    const Element* const from = strip.from;
    Element* const to = strip.to;
    Squares sum{};
    for (int k = begin; k < end; k += DEPTH) {
#pragma unroll
        for (int i = down; i < DEPTH; i += DOWN) {
            const bool inside = k + i < end && first + across < p.lines;
            const Element x = inside ? from[(k + i) * p.leading + first + across] : Element();
            tile[i][across] = x;
            if constexpr (SCALED<Element>) sum.add(x);
        }
        __syncthreads();
#pragma unroll
        for (int i = line; i < LINES; i += LINES == DEPTH ? DOWN : THREADS / DEPTH)
            if (first + i < p.lines && k + position < end) to[(first + i) * p.pitch + k + position] = tile[position][i];
        __syncthreads();
    }
    if (!SCALED<Element>) return;
    shared[down][across] = sum;
    __syncthreads();
    if (down == 0) {
        for (int i = 1; i < DOWN; ++i) sum.add(shared[i][across]);
        shared[0][across] = sum;
    }
    if constexpr (CLUSTER > 1) cluster_sync();
    if (rank == 0 && down == 0) {
        for (int i = 1; i < CLUSTER; ++i)
            sum.add({load_remote(&shared[0][across].large, i), load_remote(&shared[0][across].usual, i),
                     load_remote(&shared[0][across].small, i)});
        const int own = first + across;
        if (own < p.lines) p.exponents[layer * p.lines + own] = line_exponent(sum, p, from + own, p.leading);
    }
    // no thread block exits while others read its shared memory
    if constexpr (CLUSTER > 1) cluster_sync();
}

template <bool WIDE, int CLUSTER, class Element>
__device__ __forceinline__ void norm_exponents_and_transpose(const Operand<Element>& p, int block) {
    if constexpr (WIDE && sizeof(Element) == 1)
        transpose_bytes<CLUSTER>(p, block);
    else
        transpose_numbers<CLUSTER>(p, block);
}

template <class Element>
struct Operands {
    Operand<Element> left, right;
};

// ---- split

template <class Element>
struct SplitModulus {
    using Type = Modulus;
};
template <class Real>
struct SplitModulus<Complex<Real>> {
    using Type = GaussianModulus;
};

template <class Element>
struct Split {
    Operand<Element> left, right;
    typename SplitModulus<Element>::Type moduli[20];
    int count;
    int conjugates[2];  // for A and for B: nonzero if the operand is conjugated; planes of re - j im then come first
};

// Loads four adjacent numbers as integers, at the thread's position in any block of an operand.
template <class Element, bool WIDE>
struct Blocks {
    const Operand<Element>& p;
    int layer, line, at;

    __device__ __forceinline__ void add(int down, int across, int sign, unsigned long long (&to)[COMPONENTS<Element>][4]) const {
        const int there = line + down * p.block_lines, from = at + across * p.block_length;
        if (there >= p.lines || from >= p.length) return;
        const Element* const source = p.transposed ? p.transposed + (static_cast<long long>(layer) * p.lines + there) * p.pitch
                                              : p.source + layer * p.layer + there * p.leading;
        const auto v = load_four<WIDE>(source, from, p.length);
        const int e = SCALED<Element> ? p.exponents[layer * p.lines + there] : 0;
#pragma unroll
        for (int c = 0; c < COMPONENTS<Element>; ++c)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                long long x;
                if constexpr (SCALED<Element>)
                    x = __double2ll_rn(Scale(e)(component(v.x[i], c)));
                else
                    x = v.x[i];
                to[c][i] += sign > 0 ? x : 0ull - x;
            }
    }
};

// Store the residues of four adjacent numbers. The plane of re - j im follows the plane of re + j im at the distance
// `between`; if `conjugated`, their order is reversed.
__device__ __forceinline__ void store_residues(const Modulus& m, const unsigned long long (&x)[1][4], signed char* to, long long, bool) {
    *reinterpret_cast<unsigned*>(to) =
        low_bytes(m.of_biased(x[0][0]), m.of_biased(x[0][1]), m.of_biased(x[0][2]), m.of_biased(x[0][3]));
}
__device__ __forceinline__ void store_residues(const GaussianModulus& m, const unsigned long long (&x)[2][4], signed char* to,
                                               long long between, bool conjugated) {
    int found[4][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) m.of_biased(x[0][i], x[1][i], found[i]);
#pragma unroll
    for (int s = 0; s < 2; ++s)
        *reinterpret_cast<unsigned*>(to + (s != conjugated) * between) =
            low_bytes(found[0][s], found[1][s], found[2][s], found[3][s]);
}

// Split four numbers of every block: compute the sums of blocks for each product, and store their residues. With two
// levels, a loop over the products of the outer level contains the inner level.
template <class Sums, int LEVELS, bool RIGHT, bool WIDE, class Element>
__device__ __forceinline__ void split_one(const Operand<Element>& p, const Split<Element>& split, unsigned long long number) {
    constexpr int OUTER = LEVELS == 2 ? Sums::PRODUCTS : 1, INNER = LEVELS ? Sums::PRODUCTS : 1, PARTS = LEVELS ? 4 : 1;
    constexpr int PLANES = COMPONENTS<Element>;
    const unsigned words = p.block_length / 4, lines = static_cast<unsigned>(number / words);
    const int line = lines % p.block_lines, layer = lines / p.block_lines;
    if (layer >= p.layers) return;
    const int at = (static_cast<unsigned>(number) - lines * words) * 4;
    const Blocks<Element, WIDE> blocks{p, layer, line, at};
    const long long plane = static_cast<long long>(p.block_lines) * p.block_length;
#pragma unroll 1
    for (int outer = 0; outer < OUTER; ++outer) {
        unsigned long long part[PARTS][PLANES][4] = {};
#pragma unroll
        for (int b = 0; b < PARTS; ++b) {
            // The blocks of A and of B are numbered row by row. The lines of A are rows, the lines of B are columns.
            const int down = RIGHT ? b % 2 : b / 2, across = RIGHT ? b / 2 : b % 2;
            if constexpr (LEVELS < 2) {
                blocks.add(down, across, 1, part[b]);
            } else {
#pragma unroll
                for (int a = 0; a < 4; ++a) {
                    const int sign = Sums::operand_sign(RIGHT, outer, a), below = RIGHT ? a % 2 : a / 2, beside = RIGHT ? a / 2 : a % 2;
                    if (sign) blocks.add(2 * below + down, 2 * beside + across, sign, part[b]);
                }
            }
        }
        signed char* const to = p.planes + (static_cast<long long>(outer * INNER) * p.layers + layer) * plane +
                                static_cast<long long>(line) * p.block_length + at;
        const long long next = plane * p.layers;
        // The loop over moduli is inside the loop over sums: one sum at a time needs fewer registers.
#pragma unroll
        for (int q = 0; q < INNER; ++q) {
            unsigned long long sum[PLANES][4];
#pragma unroll
            for (int c = 0; c < PLANES; ++c)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    sum[c][i] = 1ull << 63;
#pragma unroll
                    for (int b = 0; b < PARTS; ++b) {
                        const int sign = LEVELS ? Sums::operand_sign(RIGHT, q, b) : 1;
                        if (sign > 0) sum[c][i] += part[b][c][i];
                        if (sign < 0) sum[c][i] -= part[b][c][i];
                    }
                }
#pragma unroll 1
            for (int i = 0; i < split.count; ++i)
                store_residues(split.moduli[i], sum, to + (static_cast<long long>(i) * PLANES * OUTER * INNER + q) * next,
                               OUTER * INNER * next, split.conjugates[RIGHT]);
        }
    }
}

template <class Sums, int LEVELS, bool LEFT_WIDE, bool RIGHT_WIDE, class Element>
__device__ __forceinline__ void split_both(const Split<Element>& p) {
    const int block = blockIdx.x;
    const unsigned long long threads = THREADS;  // 64 bits, because an operand may have more than 2^32 threads
    if (block < p.left.blocks)
        split_one<Sums, LEVELS, false, LEFT_WIDE>(p.left, p, block * threads + threadIdx.x);
    else
        split_one<Sums, LEVELS, true, RIGHT_WIDE>(p.right, p, (block - p.left.blocks) * threads + threadIdx.x);
}

}  // namespace residues
}  // namespace fmm
