// Complete a symmetric or Hermitian matrix in one pass. The kernel writes the lower triangle of dest = alpha source +
// beta dest, and its mirror in the upper triangle. The mirror of complex numbers is conjugated, and their diagonal is
// real.
//
// Index map: a thread block processes one tile on or below the diagonal. Tiles are numbered row by row (lower_tile).
// The tile is also stored in shared memory, and from there written transposed to its mirror position. So neighbouring
// threads read and write adjacent numbers both times. If source is dest itself, the lower triangle is only read.
#pragma once

#include "block_sums.cuh"

namespace fmm {

struct TriangleMirror {
    const void* source;
    long long source_row, source_col;  // elements from one row to the next, and from one column to the next
    void* dest;
    long long dest_row, dest_col;
    long long n;
    double alpha, beta;
    int* flag;  // set to 1 if a stored number is inf or NaN
};

constexpr int MIRROR_THREADS = 256;

// The compile-time variant of the kernel. IN_PLACE: source is dest. TAKES: alpha is not zero, so source is read. ADDS:
// beta is not zero, so the old dest is added. FULL: the upper triangle is written too. FLAG: an inf or NaN raises the
// flag.
template <bool IN_PLACE, bool TAKES, bool ADDS, bool FULL, bool FLAG>
struct MirrorVariant {
    static constexpr bool in_place = IN_PLACE, takes = TAKES, adds = ADDS, full = FULL, flag = FLAG;
};

__device__ __forceinline__ float scaled(float x, double by) { return mul(x, static_cast<float>(by)); }
__device__ __forceinline__ double scaled(double x, double by) { return mul(x, by); }
template <class Real>
__device__ __forceinline__ Complex<Real> scaled(Complex<Real> x, double by) {
    return {scaled(x.re, by), scaled(x.im, by)};
}

template <class Stored>
__device__ __forceinline__ Stored adjoint(Stored x) { return x; }
template <class Real>
__device__ __forceinline__ Complex<Real> adjoint(Complex<Real> x) { return {x.re, -x.im}; }

template <class Stored>
__device__ __forceinline__ Stored on_diagonal(Stored x) { return x; }
template <class Real>
__device__ __forceinline__ Complex<Real> on_diagonal(Complex<Real> x) { return {x.re, Real(0)}; }

template <class Stored>
__device__ __forceinline__ bool is_complex(const Stored*) { return false; }
template <class Real>
__device__ __forceinline__ bool is_complex(const Complex<Real>*) { return true; }

// Find the row and column of a tile on or below the diagonal from its number. Tiles are numbered row by row.
__device__ __forceinline__ void lower_tile(long long number, long long& row, long long& col) {
    row = static_cast<long long>((sqrt(8.0 * static_cast<double>(number) + 1.0) - 1.0) / 2.0);
    while (row * (row + 1) / 2 > number) --row;
    while ((row + 1) * (row + 2) / 2 <= number) ++row;
    col = number - row * (row + 1) / 2;
}

template <class Element, int TILE, class Variant>
__device__ __forceinline__ void mirror_triangle(const TriangleMirror& p) {
    using Stored = typename Traits<Element>::Stored;
    __shared__ __align__(16) unsigned char memory[TILE * (TILE + 1) * sizeof(Stored)];
    Stored(*tile)[TILE + 1] = reinterpret_cast<Stored(*)[TILE + 1]>(memory);
    const Stored* source = static_cast<const Stored*>(p.source);
    Stored* dest = static_cast<Stored*>(p.dest);
    const bool by_columns = p.dest_col != 1;
    const int x = threadIdx.x % TILE, first = threadIdx.x / TILE;
    constexpr int STEP = MIRROR_THREADS / TILE;
    long long top, left;
    lower_tile(blockIdx.x, top, left);
    top *= TILE;
    left *= TILE;

    bool all_finite = true;
#pragma unroll 4
    for (int y = first; y < TILE; y += STEP) {
        const long long r = top + (by_columns ? x : y), c = left + (by_columns ? y : x);
        if (r >= p.n || c > r) continue;
        Stored* place = dest + r * p.dest_row + c * p.dest_col;
        Stored value;
        if (Variant::in_place && Variant::takes) {
            value = *place;
        } else {
            auto sum = decltype(Convert<Element>::widen(*place)){};
            if (Variant::takes) sum = scaled(Convert<Element>::widen(source[r * p.source_row + c * p.source_col]), p.alpha);
            if (Variant::adds) {
                const auto old = scaled(Convert<Element>::widen(*place), p.beta);
                sum = Variant::takes ? add(sum, old) : old;
            }
            value = Convert<Element>::narrow(sum);
        }
        if (r == c) value = on_diagonal(value);
        if (!(Variant::in_place && Variant::takes) || (r == c && is_complex(place))) *place = value;
        if (Variant::flag) all_finite &= finite(Convert<Element>::widen(value));
        if (Variant::full) tile[y][x] = value;
    }
    if (Variant::flag && !all_finite) *static_cast<volatile int*>(p.flag) = 1;
    if (!Variant::full) return;
    __syncthreads();
#pragma unroll 4
    for (int y = first; y < TILE; y += STEP) {
        // Neighbouring threads have entries whose mirrors are adjacent in memory.
        const long long r = top + (by_columns ? y : x), c = left + (by_columns ? x : y);
        if (r < p.n && c < r) dest[c * p.dest_row + r * p.dest_col] = adjoint(tile[x][y]);
    }
}

}  // namespace fmm
