// float32 GEMM as three float16 products on tensor cores by matrix instructions of a warp (mma.sync), for compute
// capability 8.0 and newer: C = factor A B + keep C.
//
// The planes, their products and the result are the same as in gemm_f16x3.cuh. Sums of hi hi are added to float32
// registers after 128 positions of the inner dimension, or after 64 positions if the inner dimension is short: SGEMM's
// own sums have a small error then, and the truncation in the tensor cores must not exceed it.
//
// Index map: thread block b computes tile b in the order of tile_of. Each warp computes WARP_HEIGHT x WARP_WIDTH numbers.
#pragma once

#include "f16x3_result.cuh"
#include "mma_tiles.cuh"

namespace fmm {

struct MmaProduct3 {
    Lines left, right;  // planes of float16 numbers
    float* dest;
    // scaling exponents of A's rows and B's columns; for CHECKED products also their spread (f16_spread.cuh)
    const int *rows, *columns;
    int* flag;                  // set to 1 for an inf or NaN in C, and (CHECKED) for an entry that may be inaccurate
    const float* old;           // C or the addend, read only if `keep` is not zero
    long long leading, layer;   // of C: numbers from one row to the next, and from one product of a batch to the next
    long long old_leading;      // of `old`: numbers from one row to the next; 0 if all rows are the same
    int m, n;
    int steps;         // number of tiles along the inner dimension
    int down, across;  // rows and columns of tiles
    int group;         // rows of tiles in a group (tile_of); the tiles of a group share data in the L2 cache
    float factor, keep;
};

constexpr int SHORT_STEPS = 2048 / PLANE_DEPTH;  // the inner dimension is short if it has fewer tiles

// The sizes of a warp's 16 rows of C, for store_result.
template <class S>
struct WarpRows {
    static constexpr int WIDTH = S::WARP_WIDTH;
};
template <class S>
constexpr bool LOWER_ONLY<WarpRows<S>> = LOWER_ONLY<S>;
template <class S>
constexpr bool MIRRORED<WarpRows<S>> = MIRRORED<S>;

template <class S, Along LEFT, Along RIGHT, bool CHECKED>
__device__ __forceinline__ void multiply_f16x3_by_warps(const MmaProduct3& p, char* memory) {
    using Left = PlaneLines<LEFT>;
    using Right = PlaneLines<RIGHT>;
    constexpr int ROWS = S::WARP_HEIGHT / 16, COLS = S::WARP_WIDTH / 16, COUNT = 8 * COLS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int down = warp % S::DOWN * S::WARP_HEIGHT, across = warp / S::DOWN * S::WARP_WIDTH;
    const TileStart place = start_of_tile<S>(p);
    const int last_tile = (p.steps < SHORT_STEPS ? 64 : 128) / PLANE_DEPTH - 1;  // number of tiles whose sums are promoted together, minus 1
    const unsigned shared = shared_offset(memory);
    const OperandReader<Left, true> left(shared, down);
    const OperandReader<Right, false> right(shared + S::HEIGHT * LINE_BYTES, across);
    float sum[ROWS][COUNT], high[ROWS][COUNT], low[ROWS][COUNT];
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int j = 0; j < COUNT; ++j) sum[i][j] = high[i][j] = low[i][j] = 0;
    const auto promote = [&] {
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int j = 0; j < COUNT; ++j) {
                sum[i][j] += high[i][j];
                high[i][j] = 0;
            }
    };
    // Operands are read up to one part (16 rows) before their use. hi of A is read to a second set of registers, all
    // other operands to their own registers after the last use.
    StagePipeline<S, Left, Right, MmaProduct3> stages(p, place, shared);
    unsigned a_high[2][4], a_low[4], b_high[COLS][4], b_low[COLS][4];
    const auto read_columns = [&](unsigned (&b)[COLS][4], unsigned stage, int step) {
#pragma unroll
        for (int j = 0; j < COLS; ++j) right.read(b[j], stage, j, step);
    };
    read_columns(b_low, 0, 2);
    left.read(a_high[0], 0, 0, 0);
    read_columns(b_high, 0, 0);
    left.read(a_low, 0, 0, 2);
#pragma unroll 1
    for (int t = 0; t < p.steps; ++t) {
#pragma unroll
        for (int part = 0; part < 2 * ROWS; ++part) {
            const int i = part % ROWS, after = (part + 1) % (2 * ROWS), next_i = after % ROWS, next_step = after / ROWS;
            const bool last_rows = i == ROWS - 1, last = after == 0;
            const auto& a = a_high[part % 2];
            if (last) stages.wait_for_next();
            const unsigned stage = last ? stages.next() : stages.now;
            left.read(a_high[1 - part % 2], stage, next_i, next_step);
#pragma unroll
            for (int j = 0; j < COUNT; j += 4) mma(low[i] + j, a, b_low[j / 8] + j % 8 / 2);
            if (last_rows) read_columns(b_low, stage, next_step + 2);
            if (last) stages.copy_left(t + S::STAGES, stages.now);
#pragma unroll
            for (int j = 0; j < COUNT; j += 4) mma(high[i] + j, a, b_high[j / 8] + j % 8 / 2);
            if (last) stages.copy_right(t + S::STAGES, stages.now);
#pragma unroll
            for (int j = 0; j < COUNT; j += 4) mma(low[i] + j, a_low, b_high[j / 8] + j % 8 / 2);
            if (last_rows) read_columns(b_high, stage, next_step);
            left.read(a_low, stage, next_i, next_step + 2);
        }
        stages.now = stages.next();
        if ((t & last_tile) == last_tile) promote();
    }
    wait_copies<0>();
    promote();
    bool right_result = true;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
        for (int j = 0; j < COUNT; ++j) sum[i][j] += low[i][j] / planes::BELOW;
        const TileStart columns{place.layer, place.row, place.col + across};
        right_result &= store_result<WarpRows<S>, CHECKED>(p, columns, place.row + down + i * 16 + lane / 4, sum[i]);
    }
    if (p.flag && !right_result) *static_cast<volatile int*>(p.flag) = 1;
}

}  // namespace fmm
