// Products of float32 by three products of float16, by the tensor cores of Hopper's warpgroups (sm_90a).
//
// With A = hi + lo / 2048 and B likewise (f16_planes.cuh), A B is hi hi + (hi lo + lo hi) / 2048: what lo lo would add is
// below the rounding of float32. The tensor cores cut what they add to their accumulators, so that long sums drift; the
// sums of hi hi are therefore added in ordinary registers after every STEP of the inner dimension (the rest is so small
// that its drift does not matter).
//
//   Product3  where the planes and C lie, and what is to be done with them
//   bring     one thread: tiles of hi and lo to shared memory; what both thread blocks of a cluster want comes once for both
//   multiply  two warpgroups, 64 rows each
//   written   these, from their registers to C, or of a C that is symmetric to its lower half, perhaps to both
#pragma once

#include "f16_spread.cuh"
#include "gemm_wgmma.cuh"

namespace fmm {

struct Product3 {
    Map left, right;            // planes, as numbers of 16 bits
    float* dest;
    const int *rows, *columns;  // exponents by which rows of A and columns of B were scaled, and what was noted beside
    int* flag;                  // raised where C is given an inf or NaN, or an entry that is not certain
    const float* old;           // `keep` times which is added, unless that is 0: C itself, or what lies as C does
    long long leading, layer;   // numbers from one row of C to the next, and from one product of a batch to the next
    long long old_leading;      // and from one row of what is added, which may be the same for all
    int m, n;
    int steps;         // tiles of the inner dimension
    int down, across;  // clusters' tiles below each other and side by side
    int group;         // so many rows of them are done together
    int units;         // clusters' tiles of all products of a batch
    float factor, keep;
};

template <int M_S, int N_S, int CLUSTER_, int STAGES_>
struct Sizes3 {
    static constexpr int HEIGHT = M_S, WIDTH = N_S, CLUSTER = CLUSTER_, STAGES = STAGES_, LINE = 64, DEPTH = 64;
    static constexpr int GROUPS = M_S / 64, THREADS = 128 * (GROUPS + 1);
    static constexpr int STAGE = 2 * DEPTH * (HEIGHT + WIDTH), NUMBERS = STAGES * STAGE;
};

// The same, of a C that is symmetric: of its upper half nothing is written, or, with a MIRROR, what stands below.
template <int M_S, int N_S, int CLUSTER_, int STAGES_, bool MIRROR>
struct LowerSizes3 : Sizes3<M_S, N_S, CLUSTER_, STAGES_> {};
template <int M_S, int N_S, int CLUSTER_, int STAGES_, bool MIRROR>
constexpr bool LOWER_ONLY<LowerSizes3<M_S, N_S, CLUSTER_, STAGES_, MIRROR>> = true;
template <int M_S, int N_S, int CLUSTER_, int STAGES_, bool MIRROR>
constexpr bool MIRRORED<LowerSizes3<M_S, N_S, CLUSTER_, STAGES_, MIRROR>> = MIRROR;

// Of every line of a plane 64 numbers at a time, which stand at twice their place in the line, lo behind hi.
template <class S, class Left, class Right>
__device__ __forceinline__ void bring_planes(const Product3& p, half* memory, const Gates& gates) {
    static_assert(S::CLUSTER <= 2, "there are two planes");
    const int rank = cluster_rank();
    Round<S::STAGES> round;
    every_tile<S>(p, [&](const Place& place) {
#pragma unroll 1
        for (int t = 0; t < p.steps; ++t, round.next()) {
            pass(gates.empty + round.stage, round.parity ^ 1);
            Gate* const full = gates.full + round.stage;
            half* const to = memory + round.stage * S::STAGE;
            expect(full, S::STAGE * static_cast<int>(sizeof(half)));
#pragma unroll
            for (int plane = 0; plane < 2; ++plane) {
                const int beside = plane * 64;
                Left::template copied<S::HEIGHT>(
                    to + plane * Left::SIZE, 0, place.row, t * S::DEPTH,
                    [&](half* there, int x, int y) { bring(there, &p.left, 2 * x + beside, y, place.layer, full); });
                if (plane % S::CLUSTER == rank)  // of B, a thread block of a cluster brings hi for both, the other one lo
                    Right::template copied<S::WIDTH>(
                        to + 2 * Left::SIZE + plane * Right::SIZE, 0, place.col, t * S::DEPTH,
                        [&](half* there, int x, int y) {
                            bring_to_all<S::CLUSTER>(there, &p.right, 2 * x + beside, y, place.layer, full);
                        });
            }
        }
    });
}

// A thread's numbers of a tile, of line `first` and of the eighth line behind it, to C. Are they finite? CHECKED: and is it
// certain of each that it is right beside its own size (f16_spread.cuh)?
template <class S, bool CHECKED, int COUNT>
__device__ __forceinline__ bool written(const Product3& p, const Place& place, int first, const float (&sum)[COUNT],
                                        const float (&low)[COUNT]) {
    float* const dest = p.dest + place.layer * p.layer;
    const float* const old = p.old + place.layer * p.layer;
    const bool wide = p.leading % 2 == 0 && reinterpret_cast<unsigned long long>(dest) % 8 == 0;
    bool right = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int line = first + r * 8, end = LOWER_ONLY<S> ? min(p.n, line + 1) : p.n;  // of what is wanted of the line
        if (line >= p.m) continue;
        float* const to = dest + line * p.leading;
        const int noted = p.rows[place.layer * p.m + line], e = CHECKED ? planes::exponent_in(noted) : noted;
#pragma unroll
        for (int j = 0; j < S::WIDTH; j += 8) {
            const int col = place.col + j + threadIdx.x % 4 * 2, i = j / 2 + r * 2;
            float x[2];
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const bool wanted = col + c < end;
                int f = wanted ? p.columns[place.layer * p.n + col + c] : 0;
                if (CHECKED) {
                    right = right && (!wanted || planes::certain(noted, f));
                    f = planes::exponent_in(f);
                }
                x[c] = p.factor * planes::scaled_by(sum[i + c] + low[i + c] / planes::BELOW, -e - f);
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
    return right;
}

template <class Step, class S, class Left, class Right, bool CHECKED>
__device__ __forceinline__ void multiply_planes(const Product3& p, half* memory, const Gates& gates, int group) {
    constexpr int WORDS = S::STAGE / 8, COUNT = S::WIDTH / 2, LOW_A = Left::SIZE / 8, LOW_B = Right::SIZE / 8;
    const auto a = Left::described(memory + group * 64 * S::LINE), b = Right::described(memory + 2 * Left::SIZE);
    const int thread = threadIdx.x % 128, row = group * 64 + thread / 32 * 16 + thread % 32 / 4;
    Round<S::STAGES> round;
    float sum[COUNT], high[COUNT], low[COUNT];  // pairs: of line `row` and of the eighth line behind it, in every 8 columns
    every_tile<S>(p, [&](const Place& place) {
#pragma unroll
        for (float& x : sum) x = 0;
        int before = 0;
#pragma unroll 1
        for (int t = 0; t < p.steps; ++t, round.next()) {
            const auto left = a + round.stage * WORDS, right = b + round.stage * WORDS;
            pass(gates.full + round.stage, round.parity);
            begin_multiplying();
#pragma unroll
            for (int k = 0; k < S::DEPTH / Left::DEEP; ++k)
                Step::template multiply<!Left::INNER, !Right::INNER>(high, left + k * Left::NEXT, right + k * Right::NEXT, k);
            end_of_multiplying();
#pragma unroll
            for (int k = 0; k < S::DEPTH / Left::DEEP; ++k) {
                Step::template multiply<!Left::INNER, !Right::INNER>(low, left + k * Left::NEXT,
                                                                     right + LOW_B + k * Right::NEXT, t || k);
                Step::template multiply<!Left::INNER, !Right::INNER>(low, left + LOW_A + k * Left::NEXT,
                                                                     right + k * Right::NEXT, 1);
            }
            end_of_multiplying();
            until_multiplied<1>();  // hi hi of this step, and all of the stage before
            if (t && thread < S::CLUSTER) arrive_at(gates.empty + before, thread);
            before = round.stage;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                settled(high[i]);
                sum[i] += high[i];
            }
        }
        until_multiplied<0>();
#pragma unroll
        for (float& x : low) settled(x);
        if (thread < S::CLUSTER) arrive_at(gates.empty + before, thread);
        const bool right = written<S, CHECKED>(p, place, place.row + row, sum, low);
        if (p.flag && !right) *static_cast<volatile int*>(p.flag) = 1;
    });
}

// `memory`: for every stage tiles of hi and lo of A, of hi and lo of B; gates.
template <class Step, class S, Along LEFT, Along RIGHT, bool CHECKED>
__device__ __forceinline__ void multiply_f16x3(const Product3& p, half* memory) {
    using Left = Panel<half, LEFT, S::HEIGHT>;
    using Right = Panel<half, RIGHT, S::WIDTH>;
    const auto copy = [&](const Gates& gates, int) {
        if (threadIdx.x == 0) bring_planes<S, Left, Right>(p, memory, gates);
    };
    in_warpgroups<S, false>(memory, copy, [&](const Gates& gates, int group) {
        multiply_planes<Step, S, Left, Right, CHECKED>(p, memory, gates, group);
    });
}

}  // namespace fmm
