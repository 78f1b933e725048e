// Small products of any real type and layout in one launch: dest = alpha left right + beta dest. For a symmetric
// dest, the kernel can write the lower triangle only, or the lower triangle and its mirror.
//
// Index map: a thread block computes a 32 x 32 tile. blockIdx.x numbers the tiles row by row; blockIdx.z is the product
// of a batch. Each of 256 threads computes 2 x 2 numbers that are 16 rows and 16 columns apart.
//
// A piece is 32 rows of A (or columns of B) at 32 positions of the inner dimension. Shared memory holds the current
// pieces in the type of the sums. While they are multiplied, the next pieces are loaded to registers. The launch takes
// most of the time of a small product, so the kernel has no further optimizations.
#pragma once

#include "mirror_triangle.cuh"

namespace fmm {

struct SmallProduct {
    const void* left;
    // strides in elements: from row to row, along the inner dimension, and from product to product
    long long left_row, left_inner, left_next;
    const void* right;
    long long right_col, right_inner, right_next;
    void* dest;
    long long dest_row, dest_col, dest_next;
    long long m, n, k;
    double alpha, beta;
};

constexpr int SMALL_TILE = 32, SMALL_THREADS = 256;

// The part of dest that the kernel computes.
enum class Part { ALL, LOWER, MIRRORED };

// The numbers of an operand's pieces that one thread loads. A piece has SMALL_TILE lines along the inner dimension. If
// numbers of a line are adjacent in memory, neighbouring threads read along a line, otherwise across the lines.
template <class Element>
struct SmallPiece {
    using Stored = typename Traits<Element>::Stored;
    using Sum = typename Traits<Element>::Sum;
    static constexpr int HIGH = SMALL_THREADS / SMALL_TILE, EACH = SMALL_TILE / HIGH;
    const Stored* next;  // the thread's first number in the next piece
    long long apart, onward;  // distance between the thread's numbers in a piece, and between pieces
    int line, inner, line_step, inner_step, lines;
    Stored held[EACH];

    __device__ __forceinline__ SmallPiece(const Stored* from, long long step, long long inward, long long first, long long all) {
        const bool across = inward != 1;
        const int low = threadIdx.x % SMALL_TILE, high = threadIdx.x / SMALL_TILE;
        line = across ? low : high;
        inner = across ? high : low;
        line_step = across ? 0 : HIGH;
        inner_step = across ? HIGH : 0;
        lines = static_cast<int>(all - first < SMALL_TILE ? all - first : SMALL_TILE);
        next = from + (first + line) * step + inner * inward;
        apart = line_step * step + inner_step * inward;
        onward = SMALL_TILE * inward;
    }
    __device__ __forceinline__ void load(int count) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const bool inside = line + i * line_step < lines && inner + i * inner_step < count;
            held[i] = inside ? next[i * apart] : Stored{};
        }
        next += onward;
    }
    __device__ __forceinline__ void store_to_shared(Sum (*to)[SMALL_TILE + 1]) const {
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            to[line + i * line_step][inner + i * inner_step] = Convert<Element>::widen(held[i]);
    }
};

template <class Element, Part PART>
__device__ __forceinline__ void small_product(const SmallProduct& p) {
    using Stored = typename Traits<Element>::Stored;
    using Sum = typename Traits<Element>::Sum;
    __shared__ Sum left_piece[SMALL_TILE][SMALL_TILE + 1], right_piece[SMALL_TILE][SMALL_TILE + 1];
    const Stored* left = static_cast<const Stored*>(p.left) + blockIdx.z * p.left_next;
    const Stored* right = static_cast<const Stored*>(p.right) + blockIdx.z * p.right_next;
    Stored* dest = static_cast<Stored*>(p.dest) + blockIdx.z * p.dest_next;

    long long top, beside;
    if (PART == Part::ALL) {
        const long long across = (p.n + SMALL_TILE - 1) / SMALL_TILE;
        top = blockIdx.x / across;
        beside = blockIdx.x % across;
    } else {
        lower_tile(blockIdx.x, top, beside);
    }
    top *= SMALL_TILE;
    beside *= SMALL_TILE;

    constexpr int HALF = SMALL_TILE / 2;
    const int x = threadIdx.x % HALF, y = threadIdx.x / HALF;
    Sum sums[2][2] = {};
    SmallPiece<Element> of_left(left, p.left_row, p.left_inner, top, p.m);
    SmallPiece<Element> of_right(right, p.right_col, p.right_inner, beside, p.n);
    // Length of a piece along the inner dimension. The last piece is not padded: inf times a zero would be NaN.
    int count = static_cast<int>(p.k < SMALL_TILE ? p.k : SMALL_TILE);
    of_left.load(count);
    of_right.load(count);
#pragma unroll 1
    for (long long left_over = p.k; left_over > 0; left_over -= SMALL_TILE) {
        of_left.store_to_shared(left_piece);
        of_right.store_to_shared(right_piece);
        __syncthreads();
        const int here = count;
        if (left_over > SMALL_TILE) {
            count = static_cast<int>(left_over - SMALL_TILE < SMALL_TILE ? left_over - SMALL_TILE : SMALL_TILE);
            of_left.load(count);
            of_right.load(count);
        }
#pragma unroll 4
        for (int i = 0; i < here; ++i) {
#pragma unroll
            for (int r = 0; r < 2; ++r)
#pragma unroll
                for (int c = 0; c < 2; ++c)
                    sums[r][c] = multiply_add(left_piece[y + r * HALF][i], right_piece[x + c * HALF][i], sums[r][c]);
        }
        __syncthreads();
    }

#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const long long row = top + y + r * HALF, col = beside + x + c * HALF;
            if (row >= p.m || col >= p.n || (PART != Part::ALL && col > row)) continue;
            Stored* place = dest + row * p.dest_row + col * p.dest_col;
            Sum value = sums[r][c];
            if (p.alpha != 1) value = scaled(value, p.alpha);
            if (p.beta != 0) value = add(value, scaled(Convert<Element>::widen(*place), p.beta));
            const Stored stored = Convert<Element>::narrow(value);
            *place = stored;
            if (PART == Part::MIRRORED && col < row) dest[col * p.dest_row + row * p.dest_col] = stored;
        }
}

}  // namespace fmm
