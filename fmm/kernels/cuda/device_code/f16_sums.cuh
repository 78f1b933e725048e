// Sums of blocks that leave as planes of float16 numbers (f16_numbers.cuh), without a float32 between: for a level whose
// products are f16x3's. How far a sum reaches is bounded beforehand by how far its blocks do.
//
//   Extent, block_maxima   the largest of every line, or of every position, of each block of an operand
//   Bounds, bound_sums     exponents of all sums' lines or positions, from these
//   Planes, sum_to_planes  a split of block_sums.cuh, stored as planes
//
// A bound is at most a few bits too large: float16 numbers have exponents for 2^29 below the largest, lo for 2^11 more.
#pragma once

#include "block_sums.cuh"
#include "f16_numbers.cuh"

namespace fmm {
namespace planes {

// ---- how far blocks reach

constexpr int EXTENT_THREADS = 256, STRIP = 32;  // positions that a thread block looks at, where lines run across them

struct Extent {
    const float* source;
    int* found;             // by block, then by line or position: the bits of the largest magnitude
    long long leading;      // numbers from one line to the next
    long long down, right;  // numbers from one block to the one below it, to the one right of it
    int rows, cols;         // what there is; the rest of blocks at the edge is zero
    int height, width;      // of a block
    int blocks_across, blocks;
};

__device__ __forceinline__ int bits_of(float x) { return __float_as_int(x) & 0x7fffffff; }  // those of NaN are the largest

struct Most {  // of four neighbours, or of numbers four apart
    int x[4] = {};
    __device__ __forceinline__ void see_four(const float* from) {
        const float4 v = *reinterpret_cast<const float4*>(from);
        x[0] = max(x[0], bits_of(v.x));
        x[1] = max(x[1], bits_of(v.y));
        x[2] = max(x[2], bits_of(v.z));
        x[3] = max(x[3], bits_of(v.w));
    }
    __device__ __forceinline__ void see_some(const float* from, int room) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (i < room) x[i] = max(x[i], bits_of(from[i]));
    }
};

// The largest of each line of each block: a warp for each.
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
        for (; at + 4 <= length; at += 128) most.see_four(from + at);
    for (; at < length; at += 128) most.see_some(from + at, length - at);
    const int found = __reduce_max_sync(~0u, max(max(most.x[0], most.x[1]), max(most.x[2], most.x[3])));
    if (lane == 0) p.found[unit] = found;
}

// The largest in each position of the lines of each block: a thread block for STRIP of them.
template <bool WIDE>
__device__ __forceinline__ void position_maxima(const Extent& p) {
    constexpr int ACROSS = STRIP / 4, DOWN = EXTENT_THREADS / ACROSS;
    __shared__ int shared[DOWN][STRIP];
    const int strips = (p.width + STRIP - 1) / STRIP, block = blockIdx.x / strips, first = blockIdx.x % strips * STRIP;
    const int i = block / p.blocks_across, j = block % p.blocks_across, lines = min(p.height, p.rows - i * p.height);
    const int down = threadIdx.x / ACROSS, mine = threadIdx.x % ACROSS * 4, at = first + mine;
    const int room = min(p.width, p.cols - j * p.width) - at;
    const float* const from = p.source + i * p.down + j * p.right + at;
    Most most;
    if (WIDE && room >= 4) {
#pragma unroll 8
        for (int line = down; line < lines; line += DOWN) most.see_four(from + line * p.leading);
    } else {
        for (int line = down; line < lines; line += DOWN) most.see_some(from + line * p.leading, room);
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

// ---- how far sums reach

template <int SUMS>
struct Bounds {
    const int* found;
    int* exponents;                  // by sum, then by line or position
    int outer;                       // lines or positions of a block
    int blocks;
    unsigned long long wanted[SUMS];  // which blocks are in a sum, each once at most
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
    long long room;             // numbers from one line of the planes to the next, hi and lo as one
    int lines, length, layers;  // of a sum, and how many there are
};

template <class Sums>
struct Told {  // of a launch
    Sums sums;
    Planes to;
};

// What a split sees, but that its one output is the planes, hi and lo as `Where` says. LINES: do lines run along the inner
// dimension?
template <class Step, class Where, int LANES, bool EDGE, bool LINES, class Params>
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
        unsigned short* const q = to.planes + Where::STEP * line * to.room + Where::place(c);
        const long long low = Where::low(to);
        const int* const e = to.exponents + (LINES ? line : static_cast<long long>(I + J) * to.length + c);
        float x[LANES];
        const Scale whole(LINES ? *e : 0);
#pragma unroll
        for (int i = 0; i < LANES; ++i)
            x[i] = LINES ? whole(v.lane[i]) : Scale(!EDGE || c + i < to.length ? e[i] : 0)(v.lane[i]);
        if constexpr (LANES == 4) {
            put_four(q, low, {x[0], x[1], x[2], x[3]});
        } else {
#pragma unroll
            for (int i = 0; i < LANES; i += 2) {
                const unsigned hi = pair_of(x[i], x[i + 1]);
                *reinterpret_cast<unsigned*>(q + i) = hi;
                *reinterpret_cast<unsigned*>(q + i + low) = pair_of(below(x[i], first_of(hi)), below(x[i + 1], second_of(hi)));
            }
        }
    }
};

// Thread blocks below each other come first: they want the same exponents of positions.
template <class Step, class Where, int LANES, bool LINES, class Params>
__device__ __forceinline__ void sum_to_planes(const Params& p, const Planes& to) {
    using Inside = PlaneIo<Step, Where, LANES, false, LINES, Params>;
    using Edge = PlaneIo<Step, Where, LANES, true, LINES, Params>;
    static_assert(!Step::TURNED, "lines of a sum lie as those of its blocks");
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
