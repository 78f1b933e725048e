// Add submatrices ("blocks") and store the sums as float16 planes (f16_numbers.cuh), for a level above f16x3 products.
// The float32 sums stay in registers. A sum is scaled by a bound of its largest number: the sum of the blocks' largest
// numbers.
//
//   Extent, line_maxima, position_maxima   find the largest number of every line or position of each block
//   Bounds, bound_sums                     compute the scaling exponents of the sums from these largest numbers
//   Planes, sum_to_planes                  compute the sums as block_sums.cuh does, and store them as planes
//
// The bound can exceed the sum's largest number by a few bits. This costs little precision: hi covers numbers down to
// 2^-29 of the bound, and lo another factor of 2^-11.
#pragma once

#include "block_sums.cuh"
#include "f16_numbers.cuh"

namespace fmm {
namespace planes {

// ---- largest numbers of blocks

constexpr int EXTENT_THREADS = 256, STRIP = 32;  // positions of a thread block in position_maxima

struct Extent {
    const float* source;
    int* found;             // the bits of the largest magnitude, by block and then by line or position
    long long leading;      // numbers from one line to the next
    long long down, right;  // numbers from one block to the block below, and to the block on the right
    int rows, cols;         // size of the matrix; blocks are padded with zeros at its edge
    int height, width;      // size of a block
    int blocks_across, blocks;
};

// Return the bits of |x| as an integer. Integers order like the magnitudes; NaN is the largest.
__device__ __forceinline__ int magnitude_bits(float x) { return __float_as_int(x) & 0x7fffffff; }

struct Most {  // four maxima: x[i] has the bits of the largest magnitude at the positions i, i + 4, ...
    int x[4] = {};
    __device__ __forceinline__ void update_four(const float* from) {
        const float4 v = *reinterpret_cast<const float4*>(from);
        x[0] = max(x[0], magnitude_bits(v.x));
        x[1] = max(x[1], magnitude_bits(v.y));
        x[2] = max(x[2], magnitude_bits(v.z));
        x[3] = max(x[3], magnitude_bits(v.w));
    }
    __device__ __forceinline__ void update_some(const float* from, int remaining) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (i < remaining) x[i] = max(x[i], magnitude_bits(from[i]));
    }
};

// Find the largest number of each line of each block. A warp processes a line.
template <bool WIDE>
__device__ __forceinline__ void line_maxima(const Extent& p) {
    const int unit = blockIdx.x * (EXTENT_THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    const int block = unit / p.height, line = unit % p.height, i = block / p.blocks_across, j = block % p.blocks_across;
    if (block >= p.blocks) return;
    const int length = i * p.height + line < p.rows ? min(p.width, p.cols - j * p.width) : 0;
    const float* const from = p.source + i * p.down + j * p.right + line * p.leading;
    Most most;
    int at = lane * 4;
    if (WIDE)
#pragma unroll 8
        for (; at + 4 <= length; at += 128) most.update_four(from + at);
    for (; at < length; at += 128) most.update_some(from + at, length - at);
    const int found = __reduce_max_sync(~0u, max(max(most.x[0], most.x[1]), max(most.x[2], most.x[3])));
    if (lane == 0) p.found[unit] = found;
}

// Find the largest number of each position of each block. A thread block processes STRIP positions.
template <bool WIDE>
__device__ __forceinline__ void position_maxima(const Extent& p) {
    constexpr int ACROSS = STRIP / 4, DOWN = EXTENT_THREADS / ACROSS;
    __shared__ int shared[DOWN][STRIP];
    const int strips = (p.width + STRIP - 1) / STRIP, block = blockIdx.x / strips, first = blockIdx.x % strips * STRIP;
    const int i = block / p.blocks_across, j = block % p.blocks_across, lines = min(p.height, p.rows - i * p.height);
    const int down = threadIdx.x / ACROSS, mine = threadIdx.x % ACROSS * 4, at = first + mine;
    const int remaining = min(p.width, p.cols - j * p.width) - at;
    const float* const from = p.source + i * p.down + j * p.right + at;
    Most most;
    if (WIDE && remaining >= 4) {
#pragma unroll 8
        for (int line = down; line < lines; line += DOWN) most.update_four(from + line * p.leading);
    } else {
        for (int line = down; line < lines; line += DOWN) most.update_some(from + line * p.leading, remaining);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) shared[down][mine + e] = most.x[e];
    __syncthreads();
    const int column = threadIdx.x;
    if (column >= STRIP || first + column >= p.width) return;
    int found = 0;
    for (int k = 0; k < DOWN; ++k) found = max(found, shared[k][column]);
    p.found[static_cast<long long>(block) * p.width + first + column] = found;
}

// ---- exponents of sums

template <int SUMS>
struct Bounds {
    const int* found;
    int* exponents;                  // the result, by sum and then by line or position
    int outer;                       // number of lines or positions of a block
    int blocks;
    unsigned long long wanted[SUMS];  // bit mask of the blocks in each sum; a block occurs at most once
};

template <class Params>
__device__ __forceinline__ void bound_sums(const Params& p) {
    const int at = blockIdx.x * EXTENT_THREADS + threadIdx.x, sum = blockIdx.y;
    if (at >= p.outer) return;
    float bound = 0;
    for (int block = 0; block < p.blocks; ++block)
        if (p.wanted[sum] >> block & 1) bound = add(bound, __int_as_float(p.found[static_cast<long long>(block) * p.outer + at]));
    p.exponents[static_cast<long long>(sum) * p.outer + at] = scaling(bound);
}

// ---- sums as planes

struct Planes {
    unsigned short* planes;
    const int* exponents;
    long long pitch;             // numbers of one plane from one line to the next; the memory of a line holds hi and lo
    int lines, length, layers;  // size of a sum, and number of sums
};

template <class Sums>
struct PlaneSumParams {  // parameters of a launch of sum_to_planes
    Sums sums;
    Planes to;
};

// The functions that a generated program calls (`Io` of block_sums.cuh); `store` writes planes. LINES is true if lines
// run along the inner dimension.
template <class Step, class Arrangement, int LANES, bool EDGE, bool LINES, class Params>
struct PlaneIo : Io<Step, float, LANES, Access::VECTOR, EDGE, false, Params> {
    using Base = Io<Step, float, LANES, Access::VECTOR, EDGE, false, Params>;
    const Planes& to;

    __device__ __forceinline__ PlaneIo(const Params& p, int r, int c, typename Base::Cell* cells, const Planes& to)
        : Base(p, r, c, cells), to(to) {}

    template <int A, int I, int J, int PART = 0>
    __device__ __forceinline__ void store(const typename Base::Values& v) const {
        static_assert((I == 0 || J == 0) && LANES % 2 == 0, "sums are layers, and numbers leave in pairs");
        const int c = this->c;
        const long long line = static_cast<long long>(I + J) * to.lines + this->r;
        unsigned short* const q = to.planes + Arrangement::STEP * line * to.pitch + Arrangement::place(c);
        const long long low = Arrangement::low(to);
        const int* const e = to.exponents + (LINES ? line : static_cast<long long>(I + J) * to.length + c);
        float x[LANES];
        const Scale whole(LINES ? *e : 0);
#pragma unroll
        for (int i = 0; i < LANES; ++i)
            x[i] = LINES ? whole(v.lane[i]) : Scale(!EDGE || c + i < to.length ? e[i] : 0)(v.lane[i]);
        if constexpr (LANES == 4) {
            store_four(q, low, {x[0], x[1], x[2], x[3]});
        } else {
#pragma unroll
            for (int i = 0; i < LANES; i += 2) {
                const unsigned hi = pair_of(x[i], x[i + 1]);
                *reinterpret_cast<unsigned*>(q + i) = hi;
                *reinterpret_cast<unsigned*>(q + i + low) = pair_of(low_part(x[i], first_of(hi)), low_part(x[i + 1], second_of(hi)));
            }
        }
    }
};

// Compute the sums of a program and store them as planes. blockIdx.x is the row, so that consecutive thread blocks read
// the same exponents of positions from the cache.
template <class Step, class Arrangement, int LANES, bool LINES, class Params>
__device__ __forceinline__ void sum_to_planes(const Params& p, const Planes& to) {
    using Inside = PlaneIo<Step, Arrangement, LANES, false, LINES, Params>;
    using Edge = PlaneIo<Step, Arrangement, LANES, true, LINES, Params>;
    static_assert(!Step::TRANSPOSES, "lines of a sum lie as those of its blocks");
    __shared__ Cell<float, LANES> cells[(Step::SLOTS > 0 ? Step::SLOTS : 1) * fmm::THREADS];
    const int r = blockIdx.x, c = (blockIdx.y * fmm::THREADS + threadIdx.x) * LANES;
    if (c >= p.cols) return;
    if (!Step::LONG && r < p.inner_rows && c + LANES <= p.inner_cols) {
        Inside io(p, r, c, cells + threadIdx.x, to);
        Step::run(io);
    } else {
        Edge io(p, r, c, cells + threadIdx.x, to);
        Step::run(io);
    }
}

}  // namespace planes
}  // namespace fmm
