// Shortest paths among the nodes of one tile with the Floyd-Warshall algorithm. R-Kleene's recursion ends here.
//
// Index map: one thread block of 16 x 16 threads. The tile is in registers: each thread has a square of SIDE / 16 rows
// and columns. Step k needs row k and column k. The threads that have these numbers write them to shared memory right
// after step k - 1. Two buffers are used alternately, so each step needs one barrier. With ARGS, each path length has
// an argument: the last node before the end of the path.
//
// The file includes no CUDA header, so NVRTC needs no include path.
#pragma once

#include "gemm_common.cuh"
#include "tropical_rings.cuh"

namespace fmm::tropical {

constexpr int TILE_THREADS = 256;

template <class Stored>
struct DiagonalTile {
    Stored* data;
    long long leading;
    int* args;
    long long args_leading;
    int n;  // rows and columns of the tile
    int unused;
};

template <class Element, int SIDE, bool ARGS>
struct SharedLines {  // row k and column k in shared memory, in two buffers
    Element row[2][SIDE], col[2][SIDE];
    int args[2][ARGS ? SIDE : 1];
};

template <class Ring, class Stored, int SIDE, bool ARGS>
struct TileCloser {
    using Element = typename Ring::Element;
    // A thread's rows (and columns) are groups of four neighbours, 64 rows apart. A vector access reads a group.
    static constexpr int EACH = SIDE / 16, FOUR = 4, GROUPS = EACH / FOUR, APART = 16 * FOUR;
    static_assert(SIDE % APART == 0, "whole groups");

    SharedLines<Element, SIDE, ARGS>& lane;
    const int down, right;
    Element c[EACH][EACH];
    int arg[ARGS ? EACH : 1][ARGS ? EACH : 1];

    __device__ __forceinline__ TileCloser(SharedLines<Element, SIDE, ARGS>& lane)
        : lane(lane), down(threadIdx.x / 16 * FOUR), right(threadIdx.x % 16 * FOUR) {}

    __device__ static __forceinline__ constexpr int line_offset(int i) { return i / FOUR * APART + i % FOUR; }

    __device__ __forceinline__ void read(const DiagonalTile<Stored>& p) {
#pragma unroll
        for (int i = 0; i < EACH; ++i)
#pragma unroll
            for (int j = 0; j < EACH; ++j) {
                const int r = down + line_offset(i), s = right + line_offset(j);
                const bool there = r < p.n && s < p.n;
                c[i][j] = there ? Element(p.data[r * p.leading + s]) : Ring::none();
                if constexpr (ARGS) arg[i][j] = there ? p.args[r * p.args_leading + s] : 0;
            }
    }
    __device__ __forceinline__ void write(const DiagonalTile<Stored>& p) const {
#pragma unroll
        for (int i = 0; i < EACH; ++i)
#pragma unroll
            for (int j = 0; j < EACH; ++j) {
                const int r = down + line_offset(i), s = right + line_offset(j);
                if (r >= p.n || s >= p.n) continue;
                p.data[r * p.leading + s] = Stored(c[i][j]);
                if constexpr (ARGS) p.args[r * p.args_leading + s] = arg[i][j];
            }
    }

    // Write row k and column k to shared memory. All threads call the function, but only threads with row or column k
    // write; k is the I-th row or column of the thread.
    template <int I>
    __device__ __forceinline__ void publish(int k) {
        const int mine = k % APART / FOUR * FOUR, turn = k % 2;
        if (down == mine) {
#pragma unroll
            for (int j = 0; j < EACH; ++j) {
                lane.row[turn][right + line_offset(j)] = c[I][j];
                if constexpr (ARGS) lane.args[turn][right + line_offset(j)] = arg[I][j];
            }
        }
        if (right == mine) {
#pragma unroll
            for (int i = 0; i < EACH; ++i) lane.col[turn][down + line_offset(i)] = c[i][I];
        }
    }

    __device__ __forceinline__ void step(int k) {
        const int turn = k % 2;
        Element row[EACH], col[EACH];
        int args[EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            row[i] = lane.row[turn][right + line_offset(i)];
            col[i] = lane.col[turn][down + line_offset(i)];
            if constexpr (ARGS) args[i] = lane.args[turn][right + line_offset(i)];
        }
#pragma unroll
        for (int i = 0; i < EACH; ++i)
#pragma unroll
            for (int j = 0; j < EACH; ++j) {
                if constexpr (ARGS) {
                    const Element sum = Ring::sum(col[i], row[j]);
                    if (Ring::better(sum, c[i][j])) {
                        c[i][j] = Ring::stored(sum);
                        arg[i][j] = args[j];
                    }
                } else {
                    Ring::take(c[i][j], col[i], row[j]);
                    c[i][j] = Ring::stored(c[i][j]);
                }
            }
    }

    // Do steps 64 G to 64 G + 63.
    template <int G>
    __device__ __forceinline__ void step_group(int n) {
#pragma unroll 1
        for (int k = G * APART; k < min(n, (G + 1) * APART); k += FOUR) {
            step_and_publish<G * FOUR + 1>(k);
            step_and_publish<G * FOUR + 2>(k + 1);
            step_and_publish<G * FOUR + 3>(k + 2);
            step(k + 3);
            if (k + FOUR < (G + 1) * APART) publish<G * FOUR>(k + FOUR);
            else if constexpr (G + 1 < GROUPS) publish<(G + 1) * FOUR>(k + FOUR);
            __syncthreads();
        }
    }
    // Do step k and publish row and column k + 1. Steps beyond the last node change nothing: all numbers are "no edge".
    template <int NEXT>
    __device__ __forceinline__ void step_and_publish(int k) {
        step(k);
        publish<NEXT>(k + 1);
        __syncthreads();
    }

    __device__ __forceinline__ void close(int n) {
        publish<0>(0);
        __syncthreads();
        step_group<0>(n);
        if constexpr (GROUPS > 1) step_group<1>(n);
        static_assert(GROUPS <= 2);
    }
};

template <class Ring, class Stored, int SIDE, bool ARGS>
__device__ __forceinline__ void close_tile(const DiagonalTile<Stored>& p, void* memory) {
    using Element = typename Ring::Element;
    TileCloser<Ring, Stored, SIDE, ARGS> closer(*static_cast<SharedLines<Element, SIDE, ARGS>*>(memory));
    closer.read(p);
    closer.close(p.n);
    closer.write(p);
}

}  // namespace fmm::tropical
