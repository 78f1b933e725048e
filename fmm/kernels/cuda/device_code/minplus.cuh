// Tiled products over the semirings of shortest paths: dest[i][j] is the best of old[i][j] and a[i][k] + b[k][j] for
// all k. "Best" is the minimum or the maximum.
//
// Tiles are loaded as in gemm_simt.cuh: 16 bytes at a time, some tiles before their use. A is K-major, and B is
// row-major. In an ordinary product, a multiply-add is one instruction. Here a step is an addition and a comparison,
// and comparisons run at half the rate. tropical_rings.cuh has shorter sequences for two steps. The loader stores zeros
// beyond the edge of a matrix, but zero does not mean "no edge" of the graph. Therefore A's numbers beyond the end of
// the inner dimension are overwritten in the last tile. Results beyond the other edges are never stored.
//
// Index map: as in gemm_simt.cuh, for one or two products in a launch. With ARGS the kernel also returns an argument of
// each number: the first best k, or (with `via`) the last node before j on the path. `via` holds the last nodes on the
// paths from k to j.
//
// The file includes no CUDA header, so NVRTC needs no include path.
#pragma once

#include "gemm_simt.cuh"
#include "tropical_rings.cuh"

namespace fmm::tropical {

template <class Element>
struct Task {  // one product
    Block<Element> left[1], right[1];
    Element* dest;
    const Element* old;  // the old values; null: none
    int* args;           // the argument of each number of dest (only with ARGS)
    const int* old_args;
    const int* via;      // null: the argument is k, or -1 if the old number remains
    long long leading[4];  // numbers from one row to the next of left, right, dest, old
    long long args_leading[3];  // numbers from one row to the next of args, old_args, via
    int m, n, k;
    int down, across, group;  // rows of tiles, columns of tiles, and rows of tiles in a group, for tile_of
    int wide;  // 1 if dest and old can be accessed 16 bytes at a time
    int unused;
};

template <class Element>
struct Tasks {
    Task<Element> task[2];
    int first;  // number of thread blocks of the first product
};

// Overwrite A's numbers beyond the end of the inner dimension with "no edge", so that no sum with them is the best.
template <class Ring, class S, class Lines>
__device__ __forceinline__ void overwrite_tail(typename Ring::Element* tile, int left) {
    for (int x = threadIdx.x; x < S::HEIGHT * S::DEPTH; x += S::THREADS)
        if (x % S::DEPTH >= left) tile[x / S::DEPTH * Lines::PITCH + x % S::DEPTH] = Ring::none();
}

template <class Ring, bool ARGS, int ROWS, int COLS>
struct BestNumbers {
    using Element = typename Ring::Element;
    // True if the loop over the steps of a tile is not unrolled. With arguments, a step has several times as many
    // instructions: unrolled, the loop would take twice the time to compile, and would not fit in the instruction
    // cache.
    static constexpr bool LOOPS = ARGS;
    Element c[ROWS][COLS];
    int arg[ARGS ? ROWS : 1][ARGS ? COLS : 1];

    __device__ __forceinline__ void begin() {
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int j = 0; j < COLS; ++j) {
                c[i][j] = Ring::none();
                if constexpr (ARGS) arg[i][j] = -1;
            }
    }
    __device__ __forceinline__ void take(int i, int j, int k, Element a, Element b) {
        const Element sum = Ring::sum(a, b);
        if (Ring::better(sum, c[i][j])) {
            c[i][j] = sum;
            arg[ARGS ? i : 0][ARGS ? j : 0] = k;
        }
    }
    // Do steps k and k + 1 with the instructions of the ring Now.
    template <class Now>
    __device__ __forceinline__ void take_two(int i, int j, int k, Element a, Element b, Element x, Element y) {
        if constexpr (ARGS) {
            take(i, j, k, a, b);
            take(i, j, k + 1, x, y);
        } else {
            Now::take_two(c[i][j], a, b, x, y);
        }
    }
    // Return true if all best numbers of this warp are negative. From then on they remain negative.
    __device__ __forceinline__ bool all_negative() const {
        int signs = -1;
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int j = 0; j < COLS; ++j) signs &= Ring::sign(c[i][j]);
        return all_of_warp(signs < 0);
    }
};

// Do steps `begin` to `begin` + WIDE - 1 of a tile. Two lines of B are read at a time.
template <class Ring, class S, class LeftLines, class Right, class Best>
__device__ __forceinline__ void use_steps(Best& best, const typename Ring::Element* left,
                                          const typename Ring::Element* right, int position, int begin) {
    using Element = typename Ring::Element;
    constexpr int WIDE = LeftLines::WIDE, PACK = Right::PACK;
    static_assert(S::DEPTH % WIDE == 0 && S::COLS % PACK == 0);
    Pack<Element, WIDE> a[S::ROWS];
#pragma unroll
    for (int i = 0; i < S::ROWS; ++i) a[i] = pack<Element, WIDE>(left + i * S::WARP_HEIGHT * LeftLines::PITCH + begin);
#pragma unroll
    for (int e = 0; e < WIDE; e += 2) {
        const Element* const line = right + (begin + e) * Right::PITCH;
#pragma unroll
        for (int j = 0; j < S::COLS; j += PACK) {
            const auto b = pack<Element, PACK>(line + Right::place(j));
            const auto y = pack<Element, PACK>(line + Right::PITCH + Right::place(j));
#pragma unroll
            for (int z = 0; z < S::ROWS; ++z) {
                const int i = j / PACK % 2 ? S::ROWS - 1 - z : z;
#pragma unroll
                for (int x = 0; x < PACK; ++x)
                    best.template take_two<Ring>(i, j + x, position + begin + e, a[i].lane[e], b.lane[x],
                                                 a[i].lane[e + 1], y.lane[x]);
            }
        }
    }
}

// Do all steps of one tile.
template <class Ring, class S, class LeftLines, class Right, class Best>
__device__ __forceinline__ void use_tile(Best& best, const typename Ring::Element* left,
                                         const typename Ring::Element* right, int position) {
    if constexpr (Best::LOOPS) {
#pragma unroll 1
        for (int begin = 0; begin < S::DEPTH; begin += LeftLines::WIDE)
            use_steps<Ring, S, LeftLines, Right>(best, left, right, position, begin);
    } else {
#pragma unroll
        for (int begin = 0; begin < S::DEPTH; begin += LeftLines::WIDE)
            use_steps<Ring, S, LeftLines, Right>(best, left, right, position, begin);
    }
}

// The positions of a thread's numbers of B, as in `Fragment` of gemm_common.cuh.
template <class Element, class Lines, int COLS, int LANES>
struct RightPositions : Fragment<Element, Lines, COLS, LANES> {
    static constexpr int PITCH = Lines::PITCH;
};

// Combine a number with its old value, and store its argument.
template <class Ring, bool ARGS, class Task>
__device__ __forceinline__ void combine_with_old(const Task& p, typename Ring::Element& value, int arg, int row, int col,
                                       typename Ring::Element old) {
    const bool improved = p.old == nullptr || Ring::better(value, old);
    if constexpr (ARGS) {
        int argument = improved ? arg : -1;
        const int* const from = argument < 0 ? p.old_args + row * p.args_leading[1] : p.via + argument * p.args_leading[2];
        if (p.via) argument = from[col];
        p.args[row * p.args_leading[0] + col] = argument;
    }
    value = Ring::stored(p.old == nullptr ? value : ARGS ? (improved ? value : old) : Ring::best(value, old));
}

template <class Ring, bool ARGS, class S, class Left, class Right, class Task, class Best>
__device__ __forceinline__ void store_best(const Task& p, Best& best, int row, int col) {
    using Element = typename Ring::Element;
    constexpr int PACK = Right::PACK;
#pragma unroll
    for (int i = 0; i < S::ROWS; ++i) {
        const int r = row + Left::place(i);
        if (r >= p.m) continue;
#pragma unroll
        for (int j = 0; j < S::COLS; j += PACK) {
            const int s = col + Right::place(j), valid = p.n - s;
            if (valid <= 0) continue;
            const bool whole = p.wide && valid >= PACK;
            const Element* const from = p.old + r * p.leading[3] + s;
            Pack<Element, PACK> old, value;
            if (p.old && whole) old = pack<Element, PACK>(from);
#pragma unroll
            for (int e = 0; e < PACK; ++e) {
                if (!p.old || (!whole && e >= valid)) old.lane[e] = Ring::none();
                else if (!whole) old.lane[e] = from[e];
                value.lane[e] = best.c[i][j + e];
                if (e < valid) combine_with_old<Ring, ARGS>(p, value.lane[e], best.arg[ARGS ? i : 0][ARGS ? j + e : 0], r, s + e, old.lane[e]);
            }
            Element* const to = p.dest + r * p.leading[2] + s;
            if (whole) {
                pack<Element, PACK>(to) = value;
            } else {
#pragma unroll
                for (int e = 0; e < PACK; ++e)
                    if (e < valid) to[e] = value.lane[e];
            }
        }
    }
}

// Compute the thread block's tile of its task. `memory` is shared memory for both operands' tiles.
template <class Ring, class S, bool ARGS>
__device__ __forceinline__ void minplus(const Tasks<typename Ring::Element>& all, typename Ring::Element* memory) {
    using Element = typename Ring::Element;
    using LeftLines = Lines<Element, Along::INNER, Access::VECTOR, S::HEIGHT, S::DEPTH, S::THREADS>;
    using RightLines = Lines<Element, Along::OUTER, Access::VECTOR, S::WIDTH, S::DEPTH, S::THREADS>;
    using LeftTiles = Operand<Element, LeftLines, 1, S::STAGES, false, Path::ASYNC, true>;
    using RightTiles = Operand<Element, RightLines, 1, S::STAGES, false, Path::ASYNC, false>;
    using Left = Fragment<Element, typename LeftTiles::TileLayout, S::ROWS, S::WARP_HEIGHT>;
    using Right = RightPositions<Element, typename RightTiles::TileLayout, S::COLS, S::WARP_WIDTH>;

    const int number = blockIdx.x, second = number >= all.first;
    const Task<Element>& p = all.task[second];
    const Tile tile = tile_of(p, number - (second ? all.first : 0));
    const int row = tile.row * S::HEIGHT, col = tile.col * S::WIDTH;
    LeftTiles left{memory, {p.left, p.leading[0], 0, row}};
    RightTiles right{memory + LeftTiles::SIZE, {p.right, p.leading[1], 0, col}};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int down = warp % S::WARPS_DOWN * (S::ROWS * S::WARP_HEIGHT) + Left::first(lane % S::WARP_HEIGHT);
    const int across = warp / S::WARPS_DOWN * (S::COLS * S::WARP_WIDTH) + Right::first(lane / S::WARP_HEIGHT);

    BestNumbers<Ring, ARGS, S::ROWS, S::COLS> best;
    best.begin();
#pragma unroll
    for (int t = 0; t < S::STAGES - 1; ++t) {
        left.copy(t);
        right.copy(t);
        commit();
    }
    int stage = 0, filled = S::STAGES - 1;
    [[maybe_unused]] bool below = false;
#pragma unroll 1
    for (int position = 0; position < p.k; position += S::DEPTH) {
        wait<S::STAGES - 2>();
        __syncthreads();  // this tile has arrived; all threads have read the tile that the next copies overwrite
        Element* const left_now = left.tile(stage);
        if (position + S::DEPTH > p.k) {
            overwrite_tail<Ring, S, LeftLines>(left_now, p.k - position);
            __syncthreads();
        } else if (position + (S::STAGES - 1) * S::DEPTH < p.k) {
            left.copy(filled);
            right.copy(filled);
        }
        commit();
        filled = filled + 1 == S::STAGES ? 0 : filled + 1;
        const Element *const a = left_now + Left::offset(down), *const b = right.tile(stage) + Right::offset(across);
        if constexpr (Ring::TURNS && !ARGS) {
            if (below) {
                use_tile<typename Ring::BelowZero, S, LeftLines, Right>(best, a, b, position);
            } else {
                use_tile<Ring, S, LeftLines, Right>(best, a, b, position);
                const int tiles = position / S::DEPTH + 1;
                if ((tiles & (tiles - 1)) == 0) below = best.all_negative();  // checked after 1, 2, 4, 8, ... tiles
            }
        } else {
            use_tile<Ring, S, LeftLines, Right>(best, a, b, position);
        }
        stage = stage + 1 == S::STAGES ? 0 : stage + 1;
    }
    store_best<Ring, ARGS, S, Left, Right>(p, best, row + down, col + across);
}

// ---- 16-bit numbers: a word holds each number of A twice

struct Doubling {
    const unsigned short* source;
    unsigned* dest;
    long long source_leading, dest_leading;
    int rows, cols;
};

__device__ __forceinline__ void write_twice(const Doubling& p) {
    for (long long x = blockIdx.x * 256ll + threadIdx.x; x < (long long)p.rows * p.cols; x += gridDim.x * 256ll) {
        const int row = x / p.cols, col = x % p.cols;
        p.dest[row * p.dest_leading + col] = p.source[row * p.source_leading + col] * 0x10001u;
    }
}

}  // namespace fmm::tropical
