// float32 GEMM as three float16 products on the tensor cores of Hopper's warpgroups (wgmma, sm_90a): C = factor A B +
// keep C.
//
// A and B are split into planes: A = hi + lo / 2048, and so is B (f16_planes.cuh). Then A B = hi hi + (hi lo + lo hi) /
// 2048. The term lo lo is smaller than the rounding error of float32. Tensor cores truncate sums in their accumulators,
// so long sums drift. After every tile of the inner dimension, the sums of hi hi are therefore added to float32
// registers. The other two terms are so small that their drift does not matter.
//
// Index map: clusters, thread blocks and warpgroups have the same tiles as in gemm_wgmma.cuh.
//
//   Product3         tensor maps of the planes, C, exponents, sizes and scalars
//   load_planes      one thread loads tiles of hi and lo to shared memory; the planes of B are multicast in a cluster
//   multiply_planes  warpgroups 1 and 2 multiply 64 rows each
//   store_result     writes registers to C; of a symmetric C only the lower triangle, or both triangles with MIRROR
#pragma once

#include "f16_spread.cuh"
#include "gemm_wgmma.cuh"

namespace fmm {

struct Product3 {
    Map left, right;            // planes of float16 numbers
    float* dest;
    // scaling exponents of A's rows and B's columns; for CHECKED products also their spread (f16_spread.cuh)
    const int *rows, *columns;
    int* flag;                  // set to 1 for an inf or NaN in C, and (CHECKED) for an entry that may be inaccurate
    const float* old;           // C or the addend, read only if `keep` is not zero
    long long leading, layer;   // of C: numbers from one row to the next, and from one product of a batch to the next
    long long old_leading;      // of `old`: numbers from one row to the next; 0 if all rows are the same
    int m, n;
    int steps;         // number of tiles along the inner dimension
    int down, across;  // rows and columns of cluster tiles
    int group;         // rows of cluster tiles in a group (tile_of); the tiles of a group share data in the L2 cache
    int units;         // number of cluster tiles of all products of a batch
    float factor, keep;
};

template <int M_S, int N_S, int CLUSTER_, int STAGES_>
struct Sizes3 {
    static constexpr int HEIGHT = M_S, WIDTH = N_S, CLUSTER = CLUSTER_, STAGES = STAGES_, LINE = 64, DEPTH = 64;
    static constexpr int GROUPS = M_S / 64, THREADS = 128 * (GROUPS + 1);
    static constexpr int STAGE = 2 * DEPTH * (HEIGHT + WIDTH), NUMBERS = STAGES * STAGE;
};

// Sizes3 for a symmetric C. The kernel writes the lower triangle; with MIRROR also its mirror in the upper triangle.
template <int M_S, int N_S, int CLUSTER_, int STAGES_, bool MIRROR>
struct LowerSizes3 : Sizes3<M_S, N_S, CLUSTER_, STAGES_> {};
template <int M_S, int N_S, int CLUSTER_, int STAGES_, bool MIRROR>
constexpr bool LOWER_ONLY<LowerSizes3<M_S, N_S, CLUSTER_, STAGES_, MIRROR>> = true;
template <int M_S, int N_S, int CLUSTER_, int STAGES_, bool MIRROR>
constexpr bool MIRRORED<LowerSizes3<M_S, N_S, CLUSTER_, STAGES_, MIRROR>> = MIRROR;

// Load 64 numbers of every line of a plane at a time. In memory, chunks of 64 numbers of hi and lo alternate, so the
// numbers from x on begin at 2 x (hi) or 2 x + 64 (lo).
template <class S, class Left, class Right>
__device__ __forceinline__ void load_planes(const Product3& p, half* memory, const Barriers& barriers) {
    static_assert(S::CLUSTER <= 2, "there are two planes");
    const int rank = cluster_rank();
    StageCursor<S::STAGES> round;
    for_each_tile<S>(p, [&](const TileStart& place) {
#pragma unroll 1
        for (int t = 0; t < p.steps; ++t, round.advance()) {
            wait_barrier(barriers.empty + round.stage, round.parity ^ 1);
            Barrier* const full = barriers.full + round.stage;
            half* const to = memory + round.stage * S::STAGE;
            expect_bytes(full, S::STAGE * static_cast<int>(sizeof(half)));
#pragma unroll
            for (int plane = 0; plane < 2; ++plane) {
                const int beside = plane * 64;
                Left::template copy_part<S::HEIGHT>(
                    to + plane * Left::SIZE, 0, place.row, t * S::DEPTH,
                    [&](half* there, int x, int y) { load_tile(there, &p.left, 2 * x + beside, y, place.layer, full); });
                // one thread block of a cluster loads hi of B for both thread blocks, the other thread block loads lo
                if (plane % S::CLUSTER == rank)
                    Right::template copy_part<S::WIDTH>(
                        to + 2 * Left::SIZE + plane * Right::SIZE, 0, place.col, t * S::DEPTH,
                        [&](half* there, int x, int y) {
                            load_tile_multicast<S::CLUSTER>(there, &p.right, 2 * x + beside, y, place.layer, full);
                        });
            }
        }
    });
}

// Store a thread's numbers in rows `first` and `first` + 8 of a tile to C. Return true if all numbers are finite and,
// with CHECKED, satisfy the componentwise bound (f16_spread.cuh).
//
// The loop over parts of 16 columns is not unrolled, because NVRTC needs twice the time for the unrolled code. The
// exponents of a part's columns are loaded during the previous part, so that no part waits for memory.
template <class S, bool CHECKED, int COUNT>
__device__ __forceinline__ bool store_result(const Product3& p, const TileStart& place, int first, float (&sum)[COUNT]) {
    constexpr int PART = 16, NUMBERS = PART / 2, WORDS = PART / 4;
    float* const dest = p.dest + place.layer * p.layer;
    const float* const old = p.old + place.layer * p.layer;
    const bool wide = p.leading % 2 == 0 && reinterpret_cast<unsigned long long>(dest) % 8 == 0;
    const int left = place.col + threadIdx.x % 4 * 2;
    int rows[2], columns[WORDS], next[WORDS];
#pragma unroll
    for (int r = 0; r < 2; ++r) rows[r] = first + r * 8 < p.m ? p.rows[place.layer * p.m + first + r * 8] : 0;
    const auto load_words = [&](int from) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
            const int col = from + i / 2 * 8 + i % 2;
            next[i] = col < p.n ? p.columns[place.layer * p.n + col] : 0;
        }
    };
    load_words(left);
    bool right = true;
#pragma unroll 1
    for (int part = 0; part < S::WIDTH / PART; ++part) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) columns[i] = next[i];
        load_words(left + (part + 1) * PART);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            // number of columns that are written in this row
            const int line = first + r * 8, end = LOWER_ONLY<S> ? min(p.n, line + 1) : p.n;
            if (line >= p.m) continue;
            float* const to = dest + line * p.leading;
            const int e = CHECKED ? planes::exponent_of(rows[r]) : rows[r];
#pragma unroll
            for (int j = 0; j < PART; j += 8) {
                const int col = left + part * PART + j, i = j / 2 + r * 2;
                float x[2];
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    const bool wanted = col + c < end;
                    int f = columns[j / 4 + c];
                    if (CHECKED) {
                        right = right && (!wanted || planes::is_accurate(rows[r], f));
                        f = planes::exponent_of(f);
                    }
                    x[c] = p.factor * planes::scaled_by(sum[i + c], -e - f);
                    if (p.keep != 0 && wanted) x[c] += p.keep * old[line * p.old_leading + col + c];
                    right = right && (!wanted || fabsf(x[c]) < __int_as_float(0x7f800000));
                    if (MIRRORED<S> && wanted && col + c < line) dest[(col + c) * p.leading + line] = x[c];
                }
                if (wide && col + 1 < end)
                    *reinterpret_cast<float2*>(to + col) = {x[0], x[1]};
                else {
                    if (col < end) to[col] = x[0];
                    if (col + 1 < end) to[col + 1] = x[1];
                }
            }
        }
        next_part<NUMBERS>(sum, part);
    }
    return right;
}

template <class Step, class S, class Left, class Right, bool CHECKED>
__device__ __forceinline__ void multiply_planes(const Product3& p, half* memory, const Barriers& barriers, int group) {
    constexpr int WORDS = S::STAGE / 8, COUNT = S::WIDTH / 2, LOW_A = Left::SIZE / 8, LOW_B = Right::SIZE / 8;
    const auto a = Left::descriptor(memory + group * 64 * S::LINE), b = Right::descriptor(memory + 2 * Left::SIZE);
    const int thread = threadIdx.x % 128, row = group * 64 + thread / 32 * 16 + thread % 32 / 4;
    StageCursor<S::STAGES> round;
    float sum[COUNT], high[COUNT], low[COUNT];  // pairs of numbers in rows `row` and `row` + 8, for every 8 columns
    for_each_tile<S>(p, [&](const TileStart& place) {
#pragma unroll
        for (float& x : sum) x = 0;
        int before = 0;
#pragma unroll 1
        for (int t = 0; t < p.steps; ++t, round.advance()) {
            const auto left = a + round.stage * WORDS, right = b + round.stage * WORDS;
            wait_barrier(barriers.full + round.stage, round.parity);
            wgmma_fence();
            Step::template multiply<!Left::INNER, !Right::INNER, Left::NEXT, Right::NEXT>(high, left, right, 0);
            wgmma_commit();
            Step::template multiply_low<!Left::INNER, !Right::INNER, Left::NEXT, Right::NEXT, LOW_A, LOW_B>(low, left, right, t);
            wgmma_commit();
            wgmma_wait<1>();  // for hi hi of this step, and for all products of the previous stage
            if (t && thread < S::CLUSTER) arrive_remote(barriers.empty + before, thread);
            before = round.stage;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                read_after_wait(high[i]);
                sum[i] += high[i];
            }
        }
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            read_after_wait(low[i]);
            sum[i] += low[i] / planes::BELOW;
        }
        if (thread < S::CLUSTER) arrive_remote(barriers.empty + before, thread);
        const bool right = store_result<S, CHECKED>(p, place, place.row + row, sum);
        if (p.flag && !right) *static_cast<volatile int*>(p.flag) = 1;
    });
}

// Compute all tiles of a thread block. `memory` is shared memory: for every stage, tiles of hi and lo of A and then
// tiles of hi and lo of B; behind all stages, the barriers.
template <class Step, class S, Along LEFT, Along RIGHT, bool CHECKED>
__device__ __forceinline__ void multiply_f16x3(const Product3& p, half* memory) {
    using Left = SwizzledTile<half, LEFT, S::HEIGHT>;
    using Right = SwizzledTile<half, RIGHT, S::WIDTH>;
    const auto copy = [&](const Barriers& barriers, int) {
        if (threadIdx.x == 0) load_planes<S, Left, Right>(p, memory, barriers);
    };
    run_warpgroups<S, false>(memory, copy, [&](const Barriers& barriers, int group) {
        multiply_planes<Step, S, Left, Right, CHECKED>(p, memory, barriers, group);
    });
}

}  // namespace fmm
