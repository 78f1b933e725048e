// Exact scaling by powers of two. One kernel finds the exponents of rows or columns, another kernel scales rows and
// columns.
//
// The exponent e of a line (a row or column) is stored as a number of the matrix's type. The largest magnitude of the
// line is at least 2^(e - 1) and less than 2^e. A line of zeros has e = ZERO_LINE_EXPONENT, so that scaling back by 2^e
// clears the rounding errors which an algorithm adds to its zeros. A line with an inf or NaN has e = 0.
//
// Index map: each kernel makes one pass over a matrix with thread blocks of 32 x 8 threads; 32 threads are along the
// contiguous axis.
#pragma once

#include "block_sums.cuh"

namespace fmm {

constexpr int RESCALE_THREADS = 256, RESCALE_ACROSS = 32, RESCALE_DOWN = 8;
constexpr int NO_EXPONENT = -(1 << 20), NOT_FINITE = 1 << 20;
constexpr int ZERO_LINE_EXPONENT = -8192;  // ZERO_LINE_EXPONENT in numpy_backend.py

#ifdef __CUDA_ARCH__
__device__ __forceinline__ long long double_bits(double x) { return __double_as_longlong(x); }
__device__ __forceinline__ double double_of(long long x) { return __longlong_as_double(x); }
#else
inline long long double_bits(double x) { return __builtin_bit_cast(long long, x); }
inline double double_of(long long x) { return __builtin_bit_cast(double, x); }
#endif

__device__ __forceinline__ int larger(int x, int y) { return x > y ? x : y; }
__device__ __forceinline__ int smaller(int x, int y) { return x < y ? x : y; }

// Return the exponent of a number as frexp does. A float32 number other than zero is a normal float64 number.
__device__ __forceinline__ int exponent_of(double x) {
    const long long bits = double_bits(x) & 0x7fffffffffffffffll;
    if (bits == 0) return NO_EXPONENT;
    const int found = static_cast<int>(bits >> 52);
    if (found == 0x7ff) return NOT_FINITE;
    if (found) return found - 1022;
    int shift = 0;  // a subnormal double
    for (long long rest = bits; rest < 1ll << 52; rest <<= 1) ++shift;
    return -1021 - shift;
}
template <class Real>
__device__ __forceinline__ int exponent_of(Complex<Real> x) {
    return larger(exponent_of(static_cast<double>(x.re)), exponent_of(static_cast<double>(x.im)));
}

__device__ __forceinline__ double power_of_two(int e) {
    return double_of(static_cast<long long>(smaller(larger(e, -1022), 1023) + 1023) << 52);
}
// Return x 2^e with two multiplications, because 2^e may be outside the range of float64.
__device__ __forceinline__ double scale_by_power(double x, int e) {
    const int half = e / 2;
    return x * power_of_two(half) * power_of_two(e - half);
}
__device__ __forceinline__ float scale_by_power(float x, int e) {
    return static_cast<float>(scale_by_power(static_cast<double>(x), e));
}
template <class Real>
__device__ __forceinline__ Complex<Real> scale_by_power(Complex<Real> x, int e) {
    return {scale_by_power(x.re, e), scale_by_power(x.im, e)};
}

__device__ __forceinline__ int to_integer(float x) { return static_cast<int>(x); }
__device__ __forceinline__ int to_integer(double x) { return static_cast<int>(x); }
template <class Real>
__device__ __forceinline__ int to_integer(Complex<Real> x) { return static_cast<int>(x.re); }

struct Exponents {  // a vector of exponents (null: all are zero), and the sign that multiplies them
    const void* first;
    long long step, sign;

    template <class Stored>
    __device__ __forceinline__ int at(long long i) const {
        return first ? static_cast<int>(sign) * to_integer(static_cast<const Stored*>(first)[i * step]) : 0;
    }
};

struct LineExponents {
    const void* source;
    long long line_step, along_step;  // elements from one line to the next, and from one number of a line to the next
    long long lines, length;
    Exponents shifts;   // exponents that scale the numbers of a line: number i is multiplied by 2^shifts[i]
    Exponents against;  // if not null: half the difference between the line's exponent and this exponent is stored
    void* dest;
    long long dest_step;
};

// Find the exponent of each line. LINES_ADJACENT is true if numbers at the same position of neighbouring lines are
// adjacent in memory.
template <class Element, bool LINES_ADJACENT>
__device__ __forceinline__ void line_exponents(const LineExponents& p) {
    using Stored = typename Traits<Element>::Stored;
    __shared__ int found[RESCALE_DOWN][RESCALE_ACROSS];
    const int x = threadIdx.x % RESCALE_ACROSS, y = threadIdx.x / RESCALE_ACROSS;
    constexpr int LINES = LINES_ADJACENT ? RESCALE_ACROSS : RESCALE_DOWN;
    constexpr int STEP = LINES_ADJACENT ? RESCALE_DOWN : RESCALE_ACROSS;
    const long long line = static_cast<long long>(blockIdx.x) * LINES + (LINES_ADJACENT ? x : y);
    const Stored* const from = static_cast<const Stored*>(p.source) + line * p.line_step;
    int largest = NO_EXPONENT;
    if (line < p.lines) {
#pragma unroll 4
        for (long long i = LINES_ADJACENT ? y : x; i < p.length; i += STEP) {
            const int e = exponent_of(from[i * p.along_step]);
            const bool plain = e != NO_EXPONENT && e != NOT_FINITE;
            largest = larger(largest, plain ? e + p.shifts.template at<Stored>(i) : e);
        }
    }
    found[y][x] = largest;
    __syncthreads();
    if (threadIdx.x >= LINES) return;
    const long long mine = static_cast<long long>(blockIdx.x) * LINES + threadIdx.x;
    if (mine >= p.lines) return;
    largest = NO_EXPONENT;
    for (int i = 0; i < STEP; ++i) largest = larger(largest, LINES_ADJACENT ? found[i][threadIdx.x] : found[threadIdx.x][i]);
    largest = largest == NOT_FINITE ? 0 : larger(largest, ZERO_LINE_EXPONENT);
    if (p.against.first) largest = (largest - p.against.template at<Stored>(mine)) >> 1;
    static_cast<Stored*>(p.dest)[mine * p.dest_step] = NumberFrom<Stored>::coefficient(largest, 0);
}

struct Rescaled {
    const void* source;
    long long source_row, source_col;  // elements from one row to the next, and from one column to the next
    void* dest;
    long long dest_row, dest_col;
    long long rows, cols;
    Exponents by_row, by_col;
    int* flag;  // set to 1 if a stored number is inf or NaN
};

constexpr int RESCALE_TILE = 32;

// Scale rows and columns by powers of two. BY_COLUMNS: true if dest is column-major.
template <class Element, bool BY_COLUMNS, bool FLAG>
__device__ __forceinline__ void rescale(const Rescaled& p) {
    using Stored = typename Traits<Element>::Stored;
    const int x = threadIdx.x % RESCALE_ACROSS, y = threadIdx.x / RESCALE_ACROSS;
    const long long wide = BY_COLUMNS ? p.rows : p.cols, across = (wide + RESCALE_TILE - 1) / RESCALE_TILE;
    const long long left = blockIdx.x % across * RESCALE_TILE, top = blockIdx.x / across * RESCALE_TILE;
    bool all_finite = true;
#pragma unroll
    for (int i = y; i < RESCALE_TILE; i += RESCALE_DOWN) {
        const long long r = BY_COLUMNS ? left + x : top + i, c = BY_COLUMNS ? top + i : left + x;
        if (r >= p.rows || c >= p.cols) continue;
        const int e = p.by_row.template at<Stored>(r) + p.by_col.template at<Stored>(c);
        const Stored value =
            scale_by_power(static_cast<const Stored*>(p.source)[r * p.source_row + c * p.source_col], e);
        static_cast<Stored*>(p.dest)[r * p.dest_row + c * p.dest_col] = value;
        if (FLAG) all_finite &= finite(value);
    }
    if (FLAG && !all_finite) *static_cast<volatile int*>(p.flag) = 1;
}

}  // namespace fmm
