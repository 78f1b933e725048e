// Split float32 operands into float16 planes hi and lo: x 2^e = hi + lo / 2048. Each row of A and each column of B has
// an exponent e. The exponent scales the largest number of the row or column to between 2^14 and 2^15.
//
// A line is a contiguous row or column of the operand in memory. Lines of a K-major operand run along the inner
// dimension k; so each line has an exponent. Lines of an MN-major operand run along m or n; so each position in a line
// has an exponent.
//
//   Operand             one operand: addresses, strides, sizes
//   LineScaling         the default scaling rule; the rules of f16_spread.cuh also count large and small numbers
//   split_by_line       splits a K-major operand, with an exponent for each line
//   split_by_position   splits an MN-major operand, with an exponent for each position in a line
//
// Index map: in split_by_line, GROUP threads process a line, and a thread block processes 256 / GROUP lines. In
// split_by_position, a cluster of 8 thread blocks processes a strip of 64 positions; each thread block has an eighth of
// the lines.
//
// Both planes are in one buffer: 64 numbers hi of a line alternate with their 64 numbers lo, 256 bytes together. Lines
// are padded with zeros to a multiple of 64 numbers.
#pragma once

#include "cluster.cuh"
#include "f16_numbers.cuh"

namespace fmm {
namespace planes {

constexpr int THREADS = 256;

struct Operand {
    const float* source;
    unsigned short* planes;
    int* exponents;        // an exponent for each line (or each position) of all products of a batch
    long long leading;     // numbers from one line of the source to the next
    long long layer;       // numbers from one product of a batch to the next
    long long pitch;       // numbers of a padded line in one plane; the memory of a line holds hi and lo
    int lines, length;     // number of lines, and numbers in a line
    int layers;            // number of products of a batch
    int blocks;            // thread blocks of this operand
};

// Load four adjacent numbers of a line; numbers beyond the line's end are zero.
template <bool WIDE>
__device__ __forceinline__ Four load_four(const float* line, int at, int length) {
    Four v;
    if (WIDE && at + 4 <= length) {
        const float4 x = *reinterpret_cast<const float4*>(line + at);
        v = {x.x, x.y, x.z, x.w};
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) v.x[i] = at + i < length ? line[at + i] : 0.0f;
    }
    return v;
}

// ---- the scaling rule

// The default scaling rule: the exponent of a line or position scales all its numbers. BLOCKS is the number of thread
// blocks that share the lines of a strip of positions.
template <class Arrangement, int BLOCKS>
struct LineScaling {
    using Layout = Arrangement;
    static constexpr int SHARING = BLOCKS;
    using Most = float;
    using Factor = Scale;
    static constexpr bool RECORDS = false;
    __device__ __forceinline__ LineScaling(const Operand&, int) {}
    static __device__ __forceinline__ float larger_of(float x, float y) { return larger(x, y); }
    __device__ __forceinline__ float updated_largest(float most, float x, int) const { return larger(most, x); }
    static __device__ __forceinline__ int exponent(float most) { return scaling(most); }
    __device__ __forceinline__ float scaled(float x, const Factor& by, int) const { return by(x); }
};

// The counts that record the spread of a line or position (f16_spread.cuh).
struct SpreadCounts {
    int large = 0;  // number of large numbers
    int small = 0;  // 1 if at least one number is small, else 0
};

// ---- reductions over a warp and a thread block

template <class Rule, int LANES, class Most>
__device__ __forceinline__ Most largest_of(Most x) {
#pragma unroll
    for (int step = LANES / 2; step; step /= 2) x = Rule::larger_of(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

template <int LANES>
__device__ __forceinline__ SpreadCounts sum_counts(SpreadCounts x) {
#pragma unroll
    for (int step = LANES / 2; step; step /= 2) {
        x.large += __shfl_xor_sync(~0u, x.large, step);
        x.small |= __shfl_xor_sync(~0u, x.small, step);
    }
    return x;
}

// ---- lines along the inner dimension

// Split lines with GROUP threads for each line: a warp or a thread block. The first pass finds the largest number, the
// second writes hi and lo. A thread holds its first LOADS loads in registers, and loads its other numbers again in the
// second pass.
template <class Rule, int GROUP, int LOADS, bool WIDE, class Params>
__device__ __forceinline__ void split_by_line(const Params& p, int block) {
    constexpr int GROUPS = THREADS / GROUP, STEP = GROUP * 4, WARPS = THREADS / 32;
    using Most = typename Rule::Most;
    __shared__ Most shared[WARPS];
    __shared__ SpreadCounts noted[Rule::RECORDS ? WARPS : 1];
    const int group = threadIdx.x / GROUP, mine = threadIdx.x % GROUP * 4, number = block * GROUPS + group;
    const int layer = number / p.lines, line = number % p.lines;
    if (layer >= p.layers) return;
    const Rule rule(p, layer);
    const float* const from = p.source + layer * p.layer + line * p.leading;
    unsigned short* const to = p.planes + Rule::Layout::STEP * number * p.pitch;
    Four loaded[LOADS];
    Most most = 0;
    const auto update = [&](const Four& v, int at) {
#pragma unroll
        for (int i = 0; i < 4; ++i) most = rule.updated_largest(most, v.x[i], at + i);
    };
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
        loaded[i] = load_four<WIDE>(from, mine + i * STEP, p.length);
        update(loaded[i], mine + i * STEP);
    }
    for (int at = mine + LOADS * STEP; at < p.length; at += STEP) update(load_four<WIDE>(from, at, p.length), at);
    most = largest_of<Rule, 32>(most);
    if (GROUP > 32) {
        if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = most;
        __syncthreads();
        most = largest_of<Rule, WARPS>(shared[threadIdx.x % WARPS]);
    }
    const int e = Rule::exponent(most);
    if (!Rule::RECORDS && mine == 0) p.exponents[number] = e;
    const typename Rule::Factor scaled(e);
    SpreadCounts found;
    const auto store = [&](int at, Four v) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float x = rule.scaled(v.x[i], scaled, at + i);
            if constexpr (Rule::RECORDS) Rule::count(found, v.x[i], x);
            v.x[i] = x;
        }
        store_four(to + Rule::Layout::place(at), Rule::Layout::low(p), v);
    };
#pragma unroll
    for (int i = 0; i < LOADS; ++i)
        if (mine + i * STEP < p.pitch) store(mine + i * STEP, loaded[i]);
    for (int at = mine + LOADS * STEP; at < p.pitch; at += STEP) store(at, load_four<WIDE>(from, at, p.length));
    if constexpr (Rule::RECORDS) {
        found = sum_counts<32>(found);
        if (GROUP > 32) {
            if (threadIdx.x % 32 == 0) noted[threadIdx.x / 32] = found;
            __syncthreads();
            found = sum_counts<WARPS>(noted[threadIdx.x % WARPS]);
        }
        if (mine == 0) p.exponents[number] = Rule::packed(e, most, found, p.length);
    }
}

// ---- lines along the outer dimension

// Synchronize the SHARING thread blocks that split one strip.
template <int SHARING>
__device__ __forceinline__ void sync_sharing() {
    if constexpr (SHARING > 1)
        cluster_sync();
    else
        __syncthreads();
}

// Return the value at the same address in the shared memory of thread block `rank` of SHARING thread blocks.
template <int SHARING, class Number>
__device__ __forceinline__ Number load_shared(const Number* here, int rank) {
    if constexpr (SHARING > 1)
        return load_remote(here, rank);
    else
        return *here;
}

// Add up the counts of each position over the threads and over the cluster. Store the counts with the exponent.
template <class Rule, int STRIP, class Params>
__device__ __forceinline__ void record_positions(const Params& p, const SpreadCounts (&found)[4], int down, int column, int rank, int* e,
                                               const typename Rule::Most* most, int layer, int first) {
    constexpr int DOWN = THREADS / (STRIP / 4), SHARING = Rule::SHARING;
    __shared__ int large[DOWN][STRIP], small[DOWN][STRIP];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        large[down][column + i] = found[i].large;
        small[down][column + i] = found[i].small;
    }
    __syncthreads();
    const int at = threadIdx.x;
    if (at < STRIP)
        for (int i = 1; i < DOWN; ++i) {
            large[0][at] += large[i][at];
            small[0][at] |= small[i][at];
        }
    sync_sharing<SHARING>();
    if (rank == 0 && at < STRIP && first + at < p.length) {
        SpreadCounts all;
        for (int i = 0; i < SHARING; ++i) {
            all.large += load_shared<SHARING>(large[0] + at, i);
            all.small |= load_shared<SHARING>(small[0] + at, i);
        }
        p.exponents[layer * p.length + first + at] = Rule::packed(e[at], most[at], all, p.lines);
    }
    sync_sharing<SHARING>();
}

// Split a strip of positions: 64 positions with a cluster, or 16 positions with one thread block, because more thread
// blocks then have work. Each thread block of a cluster processes a part of the lines.
// The first pass finds the largest number of every position. The second pass writes hi and lo, and begins with the last
// line, because the cache still holds the last lines.
template <class Rule, bool WIDE, class Params>
__device__ __forceinline__ void split_by_position(const Params& p, int block) {
    constexpr int SHARING = Rule::SHARING, STRIP = SHARING > 1 ? CHUNK : CHUNK / 4;
    constexpr int ACROSS = STRIP / 4, DOWN = THREADS / ACROSS;
    using Most = typename Rule::Most;
    __shared__ Most shared[DOWN][STRIP], largest[STRIP], all_largest[Rule::RECORDS ? STRIP : 1];
    const int strip = block / SHARING, strips = p.pitch / STRIP, rank = SHARING > 1 ? cluster_rank() : 0;
    const int layer = strip / strips, first = strip % strips * STRIP;
    const int part = (p.lines + SHARING - 1) / SHARING, begin = min(rank * part, p.lines), end = min(begin + part, p.lines);
    const int down = threadIdx.x / ACROSS, at = first + threadIdx.x % ACROSS * 4;
    const Rule rule(p, layer);
    const float* const from = p.source + layer * p.layer;
    Most most[4] = {};
#pragma unroll 4
    for (int line = begin + down; line < end; line += DOWN) {
        const Four v = load_four<WIDE>(from + line * p.leading, at, p.length);
#pragma unroll
        for (int i = 0; i < 4; ++i) most[i] = rule.updated_largest(most[i], v.x[i], line);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) shared[down][at - first + i] = most[i];
    __syncthreads();
    if (threadIdx.x < STRIP) {
        Most x = 0;
        for (int i = 0; i < DOWN; ++i) x = Rule::larger_of(x, shared[i][threadIdx.x]);
        largest[threadIdx.x] = x;
    }
    sync_sharing<SHARING>();
    if (threadIdx.x < STRIP) {
        Most x = 0;
        for (int i = 0; i < SHARING; ++i) x = Rule::larger_of(x, load_shared<SHARING>(largest + threadIdx.x, i));
        const int e = Rule::exponent(x);
        reinterpret_cast<int*>(shared[0])[threadIdx.x] = e;
        if constexpr (Rule::RECORDS)
            all_largest[threadIdx.x] = x;
        else if (rank == 0 && first + static_cast<int>(threadIdx.x) < p.length)
            p.exponents[layer * p.length + first + threadIdx.x] = e;
    }
    sync_sharing<SHARING>();  // until all thread blocks have read the shared memory of the others
    const int* const e = reinterpret_cast<const int*>(shared[0]) + (at - first);
    using Factor = typename Rule::Factor;
    const Factor by[4] = {Factor(e[0]), Factor(e[1]), Factor(e[2]), Factor(e[3])};
    unsigned short* const to = p.planes + Rule::Layout::STEP * layer * static_cast<long long>(p.lines) * p.pitch;
    const int count = end - begin - down, last = begin + down + (count > 0 ? (count - 1) / DOWN * DOWN : 0);
    SpreadCounts found[4];
#pragma unroll 4
    for (int line = last; line >= begin + down && line < end; line -= DOWN) {
        const Four v = load_four<WIDE>(from + line * p.leading, at, p.length);
        Four x;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x.x[i] = rule.scaled(v.x[i], by[i], line);
            if constexpr (Rule::RECORDS) Rule::count(found[i], v.x[i], x.x[i]);
        }
        store_four(to + Rule::Layout::STEP * line * p.pitch + Rule::Layout::place(at), Rule::Layout::low(p), x);
    }
    if constexpr (Rule::RECORDS)
        record_positions<Rule, STRIP>(p, found, down, at - first, rank, reinterpret_cast<int*>(shared[0]), all_largest, layer, first);
}

}  // namespace planes
}  // namespace fmm
