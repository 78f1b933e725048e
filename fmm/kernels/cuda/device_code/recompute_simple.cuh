// Recompute a product with the classical algorithm, if the result of a fast algorithm has an inf or NaN.
//
// A fast algorithm spreads one inf or NaN over whole submatrices, and its sums can overflow even if the classical
// product is finite. Therefore kernels that write C raise a flag when they store an inf or NaN. `recompute_product`
// runs after the plan's launches, for types that recompute_tiled.cuh does not support. If the flag is down, it returns
// at once. If the flag is up, it recomputes the product, so that C has inf and NaN at the positions where the vendor's
// product has them. The host does not wait: a later call reads a count in host memory. `scan` raises the flag for
// kernels that do not raise it themselves.
//
// Index map: thread block b computes the tiles b, b + gridDim.x, ... of all products. A tile has 16 EACH x 16 EACH
// numbers. Each of 16 x 16 threads computes EACH x EACH numbers that are 16 rows and 16 columns apart.
#pragma once

#include "block_sums.cuh"
#include "nonfinite_flag.cuh"

namespace fmm::classical {

struct Operand {
    void* data;
    long long row, col;  // elements from one row to the next, and from one column to the next
};

struct ClassicalParams {
    Operand a, b, c;
    long long m, k, n;
    Slot* slot;
    unsigned* count;  // the number of recomputed products in host memory
    Operand old;      // the old C or the addend if beta is not zero; else null
    long long lower;  // nonzero if only the lower triangle of C is read and written
    long long conjugates[2];  // nonzero if the plan multiplies the complex conjugate of A or B
    long long layer[3], layers;  // elements from one product of a batch to the next, in A, B and C; number of products
    double alpha[2], beta[2];
};

using fmm::multiply_add;
template <class Real>
__device__ __forceinline__ Complex<Real> multiply_add(Complex<Real> x, Complex<Real> y, Complex<Real> z) {
    return {multiply_add(mul(Real(-1), x.im), y.im, multiply_add(x.re, y.re, z.re)),
            multiply_add(x.im, y.re, multiply_add(x.re, y.im, z.im))};
}

template <class Real>
__device__ __forceinline__ Real conjugate(Real x) { return x; }
template <class Real>
__device__ __forceinline__ Complex<Real> conjugate(Complex<Real> x) { return {x.re, mul(Real(-1), x.im)}; }

// Return alpha times a sum plus beta times the old value. A multiplication by alpha = 1 changes complex numbers with an
// inf or NaN. cuBLAS does not omit it, so this function does not either.
template <class Element, class Number>
__device__ __forceinline__ Number updated(const ClassicalParams& p, Number sum, long long r, long long s) {
    using Stored = typename Traits<Element>::Stored;
    const Number product = mul(NumberFrom<Number>::coefficient(p.alpha[0], p.alpha[1]), sum);
    if (!p.old.data) return product;
    const Stored* old = static_cast<const Stored*>(p.old.data);
    const Number before = Convert<Element>::widen(old[r * p.old.row + s * p.old.col]);
    return add(product, mul(NumberFrom<Number>::coefficient(p.beta[0], p.beta[1]), before));
}

constexpr int SIDE = 16;   // rows and columns of threads in a thread block
constexpr int THREADS = SIDE * SIDE;
constexpr int DEPTH = 16;  // numbers of the inner dimension in shared memory at a time

// Load a tile of an operand to shared memory as tile[inner][outer], where outer is a row of A or a column of B. Numbers
// beyond the operand's edge are zero. If `conjugates` is not zero, the numbers are conjugated.
template <class Element, int TILE, class Stored, class Number>
__device__ __forceinline__ void fetch(Number (*tile)[TILE], const Stored* data, long long outer_step, long long inner_step,
                                      long long outer, long long outers, long long inner, long long inners,
                                      long long conjugates) {
    const bool along_inner = inner_step == 1;  // neighbouring threads read neighbouring elements
#pragma unroll
    for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
        const int o = along_inner ? i / DEPTH : i % TILE, d = along_inner ? i % DEPTH : i / TILE;
        Number value = NumberFrom<Number>::coefficient(0.0, 0.0);
        if (outer + o < outers && inner + d < inners)
            value = Convert<Element>::widen(data[(outer + o) * outer_step + (inner + d) * inner_step]);
        tile[d][o] = conjugates ? conjugate(value) : value;
    }
}

// Compute one tile of product `layer` of a batch.
template <class Element, int EACH>
__device__ __forceinline__ void classical_tile(const ClassicalParams& p, long long layer, long long row, long long col) {
    using Stored = typename Traits<Element>::Stored;
    using Number = typename Traits<Element>::Sum;
    constexpr int TILE = SIDE * EACH;
    __shared__ __align__(16) unsigned char memory[2 * DEPTH * TILE * sizeof(Number)];
    Number(*left)[TILE] = reinterpret_cast<Number(*)[TILE]>(memory);
    Number(*right)[TILE] = left + DEPTH;
    const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    const Stored* const a = static_cast<const Stored*>(p.a.data) + layer * p.layer[0];
    const Stored* const b = static_cast<const Stored*>(p.b.data) + layer * p.layer[1];

    Number sums[EACH][EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i)
#pragma unroll
        for (int j = 0; j < EACH; ++j) sums[i][j] = NumberFrom<Number>::coefficient(0.0, 0.0);

    for (long long inner = 0; inner < p.k; inner += DEPTH) {
        __syncthreads();
        fetch<Element, TILE>(left, a, p.a.row, p.a.col, row, p.m, inner, p.k, p.conjugates[0]);
        fetch<Element, TILE>(right, b, p.b.col, p.b.row, col, p.n, inner, p.k, p.conjugates[1]);
        __syncthreads();
        // Positions beyond k are skipped: multiplying their zeros would only take time.
        const int depth = p.k - inner < DEPTH ? static_cast<int>(p.k - inner) : DEPTH;
        for (int d = 0; d < depth; ++d) {
            Number l[EACH], r[EACH];
#pragma unroll
            for (int i = 0; i < EACH; ++i) l[i] = left[d][y + i * SIDE];
#pragma unroll
            for (int j = 0; j < EACH; ++j) r[j] = right[d][x + j * SIDE];
#pragma unroll
            for (int i = 0; i < EACH; ++i)
#pragma unroll
                for (int j = 0; j < EACH; ++j) sums[i][j] = multiply_add(l[i], r[j], sums[i][j]);
        }
    }
    Stored* const c = static_cast<Stored*>(p.c.data) + layer * p.layer[2];
#pragma unroll
    for (int i = 0; i < EACH; ++i)
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            const long long r = row + y + i * SIDE, s = col + x + j * SIDE;
            if (r < p.m && s < p.n && (!p.lower || s <= r))
                c[r * p.c.row + s * p.c.col] = Convert<Element>::narrow(updated<Element>(p, sums[i][j], r, s));
        }
}

template <class Element, int EACH>
__device__ __forceinline__ void recompute_product(const ClassicalParams& p) {
    if (!is_flag_up(&p.slot->flag)) return;
    constexpr int TILE = SIDE * EACH;
    const long long down = (p.m + TILE - 1) / TILE, across = (p.n + TILE - 1) / TILE;
    for (long long tile = blockIdx.x; tile < down * across * p.layers; tile += gridDim.x) {
        const long long row = tile / across % down * TILE, col = tile % across * TILE;
        if (!p.lower || col < row + TILE) classical_tile<Element, EACH>(p, tile / across / down, row, col);
    }
    finish_recompute(p.slot, p.count);
}

// Raise the flag if C has an inf or NaN. Used after kernels that do not raise the flag themselves, for example a vendor
// GEMM.
template <class Element>
__device__ __forceinline__ void scan(const ClassicalParams& p) {
    using Stored = typename Traits<Element>::Stored;
    const bool rows_first = p.c.row == 1;
    const long long near = rows_first ? p.m : p.n, far = rows_first ? p.n : p.m;
    const long long step = rows_first ? p.c.col : p.c.row;
    bool all_finite = true;
    for (long long line = blockIdx.x; line < far * p.layers; line += gridDim.x) {
        const long long y = line % far;
        const Stored* const c = static_cast<const Stored*>(p.c.data) + line / far * p.layer[2] + y * step;
        for (long long x = threadIdx.x; x < near; x += THREADS)
            if (!p.lower || (rows_first ? x >= y : x <= y)) all_finite &= finite(Convert<Element>::widen(c[x]));
    }
    if (!all_finite) *static_cast<volatile int*>(&p.slot->flag) = 1;
}

}  // namespace fmm::classical
