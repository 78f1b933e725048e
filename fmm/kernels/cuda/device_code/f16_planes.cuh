// float32 as two float16 numbers: x 2^e = hi + lo / 2048, e chosen so that the largest number of a row of A, of a column
// of B comes to lie between 2^14 and 2^15.
//
//   Operand     where one operand lies, where its planes and exponents go
//   Usual       how numbers are scaled (f16_spread.cuh has another rule, which also notes how they are spread)
//   by_line     lines that run along the inner dimension: an exponent for each line
//   by_position lines that run along the outer one: an exponent for each position in a line
//
// Planes stand in one buffer: of every 64 numbers of a line first their hi, then their lo, 256 bytes in all. Lines along
// the inner dimension end with zeros, whole 64 numbers.
#pragma once

#include "cluster.cuh"
#include "f16_numbers.cuh"

namespace fmm {
namespace planes {

constexpr int THREADS = 256;
constexpr int CLUSTER = 8;      // thread blocks that share the lines of a strip of positions

struct Operand {
    const float* source;
    unsigned short* planes;
    int* exponents;        // one for each line, or each position, of all layers
    long long leading;     // numbers from one line of the source to the next
    long long layer;       // and from one product of a batch to the next
    long long room;        // numbers from one line of the planes to the next, hi and lo as one
    int lines, length;
    int layers;
    int blocks;            // thread blocks that do this operand
};

// Four neighbours of a line, zeros behind its end.
template <bool WIDE>
__device__ __forceinline__ Four four_of(const float* line, int at, int length) {
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

// ---- how numbers are scaled

// Each by the exponent of its line or position. (`inner`: the number's place along the inner dimension.) So many thread
// blocks of a cluster share the lines of a strip of positions.
template <class Where, int BLOCKS>
struct Usual {
    using Layout = Where;
    static constexpr int SHARING = BLOCKS;
    using Most = float;
    using Factor = Scale;
    static constexpr bool NOTES = false;
    __device__ __forceinline__ Usual(const Operand&, int) {}
    static __device__ __forceinline__ float most_of(float x, float y) { return larger(x, y); }
    __device__ __forceinline__ float seen(float most, float x, int) const { return larger(most, x); }
    static __device__ __forceinline__ int exponent(float most) { return scaling(most); }
    __device__ __forceinline__ float scaled(float x, const Factor& by, int) const { return by(x); }
};

// What is noted of numbers besides, of a thread, of a line or of a position.
struct Noted {
    int large = 0;  // how many
    int small = 0;  // are there any?
};

// ---- over a warp, over a thread block

template <class Rule, int LANES, class Most>
__device__ __forceinline__ Most largest_of(Most x) {
#pragma unroll
    for (int step = LANES / 2; step; step /= 2) x = Rule::most_of(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

template <int LANES>
__device__ __forceinline__ Noted all_noted(Noted x) {
#pragma unroll
    for (int step = LANES / 2; step; step /= 2) {
        x.large += __shfl_xor_sync(~0u, x.large, step);
        x.small |= __shfl_xor_sync(~0u, x.small, step);
    }
    return x;
}

// ---- lines along the inner dimension

// A group of threads for each line, of a warp or of all. What a thread has of the line stays in registers, if its first
// KEPT loads are all.
template <class Rule, int GROUP, int KEPT, bool WIDE, class Told>
__device__ __forceinline__ void by_line(const Told& p, int block) {
    constexpr int GROUPS = THREADS / GROUP, STEP = GROUP * 4, WARPS = THREADS / 32;
    using Most = typename Rule::Most;
    __shared__ Most shared[WARPS];
    __shared__ Noted noted[Rule::NOTES ? WARPS : 1];
    const int group = threadIdx.x / GROUP, mine = threadIdx.x % GROUP * 4, number = block * GROUPS + group;
    const int layer = number / p.lines, line = number % p.lines;
    if (layer >= p.layers) return;
    const Rule rule(p, layer);
    const float* const from = p.source + layer * p.layer + line * p.leading;
    unsigned short* const to = p.planes + Rule::Layout::STEP * number * p.room;
    Four kept[KEPT];
    Most most = 0;
    const auto see = [&](const Four& v, int at) {
#pragma unroll
        for (int i = 0; i < 4; ++i) most = rule.seen(most, v.x[i], at + i);
    };
#pragma unroll
    for (int i = 0; i < KEPT; ++i) {
        kept[i] = four_of<WIDE>(from, mine + i * STEP, p.length);
        see(kept[i], mine + i * STEP);
    }
    for (int at = mine + KEPT * STEP; at < p.length; at += STEP) see(four_of<WIDE>(from, at, p.length), at);
    most = largest_of<Rule, 32>(most);
    if (GROUP > 32) {
        if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = most;
        __syncthreads();
        most = largest_of<Rule, WARPS>(shared[threadIdx.x % WARPS]);
    }
    const int e = Rule::exponent(most);
    if (!Rule::NOTES && mine == 0) p.exponents[number] = e;
    const typename Rule::Factor scaled(e);
    Noted found;
    const auto put = [&](int at, Four v) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float x = rule.scaled(v.x[i], scaled, at + i);
            if constexpr (Rule::NOTES) Rule::note(found, v.x[i], x);
            v.x[i] = x;
        }
        put_four(to + Rule::Layout::place(at), Rule::Layout::low(p), v);
    };
#pragma unroll
    for (int i = 0; i < KEPT; ++i)
        if (mine + i * STEP < p.room) put(mine + i * STEP, kept[i]);
    for (int at = mine + KEPT * STEP; at < p.room; at += STEP) put(at, four_of<WIDE>(from, at, p.length));
    if constexpr (Rule::NOTES) {
        found = all_noted<32>(found);
        if (GROUP > 32) {
            if (threadIdx.x % 32 == 0) noted[threadIdx.x / 32] = found;
            __syncthreads();
            found = all_noted<WARPS>(noted[threadIdx.x % WARPS]);
        }
        if (mine == 0) p.exponents[number] = Rule::packed(e, most, found, p.length);
    }
}

// ---- lines along the outer dimension

// What one position's threads have noted, and then all of a cluster's thread blocks: beside the exponent.
template <class Rule, class Told>
__device__ __forceinline__ void note_positions(const Told& p, const Noted (&found)[4], int down, int column, int rank, int* e,
                                               const typename Rule::Most* most, int layer, int first) {
    constexpr int DOWN = THREADS / (CHUNK / 4);
    __shared__ int large[DOWN][CHUNK], small[DOWN][CHUNK];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        large[down][column + i] = found[i].large;
        small[down][column + i] = found[i].small;
    }
    __syncthreads();
    const int at = threadIdx.x;
    if (at < CHUNK)
        for (int i = 1; i < DOWN; ++i) {
            large[0][at] += large[i][at];
            small[0][at] |= small[i][at];
        }
    cluster_meets();
    if (rank == 0 && at < CHUNK && first + at < p.length) {
        Noted all;
        for (int i = 0; i < CLUSTER; ++i) {
            all.large += there(large[0] + at, i);
            all.small |= there(small[0] + at, i);
        }
        p.exponents[layer * p.length + first + at] = Rule::packed(e[at], most[at], all, p.lines);
    }
    cluster_meets();
}

// A cluster of so many thread blocks.
template <int SHARING>
__device__ __forceinline__ void all_meet() {
    if constexpr (SHARING > 1)
        cluster_meets();
    else
        __syncthreads();
}

// A cluster (or one thread block) for 64 positions of all lines, each of its thread blocks for a part of these: first the largest of every
// position, then, from the last line back, because that is still in the cache, hi and lo.
template <class Rule, bool WIDE, class Told>
__device__ __forceinline__ void by_position(const Told& p, int block) {
    constexpr int ACROSS = CHUNK / 4, DOWN = THREADS / ACROSS;
    using Most = typename Rule::Most;
    __shared__ Most shared[DOWN][CHUNK], largest[CHUNK], all_largest[Rule::NOTES ? CHUNK : 1];
    constexpr int SHARING = Rule::SHARING;
    const int strip = block / SHARING, strips = p.room / CHUNK, rank = SHARING > 1 ? cluster_rank() : 0;
    const int layer = strip / strips, first = strip % strips * CHUNK;
    const int part = (p.lines + SHARING - 1) / SHARING, begin = min(rank * part, p.lines), end = min(begin + part, p.lines);
    const int down = threadIdx.x / ACROSS, at = first + threadIdx.x % ACROSS * 4;
    const Rule rule(p, layer);
    const float* const from = p.source + layer * p.layer;
    Most most[4] = {};
#pragma unroll 4
    for (int line = begin + down; line < end; line += DOWN) {
        const Four v = four_of<WIDE>(from + line * p.leading, at, p.length);
#pragma unroll
        for (int i = 0; i < 4; ++i) most[i] = rule.seen(most[i], v.x[i], line);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) shared[down][at - first + i] = most[i];
    __syncthreads();
    if (threadIdx.x < CHUNK) {
        Most x = 0;
        for (int i = 0; i < DOWN; ++i) x = Rule::most_of(x, shared[i][threadIdx.x]);
        largest[threadIdx.x] = x;
    }
    all_meet<SHARING>();
    if (threadIdx.x < CHUNK) {
        Most x = 0;
        for (int i = 0; i < SHARING; ++i) x = Rule::most_of(x, SHARING > 1 ? there(largest + threadIdx.x, i) : largest[threadIdx.x]);
        const int e = Rule::exponent(x);
        reinterpret_cast<int*>(shared[0])[threadIdx.x] = e;
        if constexpr (Rule::NOTES)
            all_largest[threadIdx.x] = x;
        else if (rank == 0 && first + static_cast<int>(threadIdx.x) < p.length)
            p.exponents[layer * p.length + first + threadIdx.x] = e;
    }
    all_meet<SHARING>();  // and nobody leaves while others read what it has
    const int* const e = reinterpret_cast<const int*>(shared[0]) + (at - first);
    using Factor = typename Rule::Factor;
    const Factor by[4] = {Factor(e[0]), Factor(e[1]), Factor(e[2]), Factor(e[3])};
    unsigned short* const to = p.planes + Rule::Layout::STEP * layer * static_cast<long long>(p.lines) * p.room;
    const int count = end - begin - down, last = begin + down + (count > 0 ? (count - 1) / DOWN * DOWN : 0);
    Noted found[4];
#pragma unroll 4
    for (int line = last; line >= begin + down && line < end; line -= DOWN) {
        const Four v = four_of<WIDE>(from + line * p.leading, at, p.length);
        Four x;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x.x[i] = rule.scaled(v.x[i], by[i], line);
            if constexpr (Rule::NOTES) Rule::note(found[i], v.x[i], x.x[i]);
        }
        put_four(to + Rule::Layout::STEP * line * p.room + Rule::Layout::place(at), Rule::Layout::low(p), x);
    }
    if constexpr (Rule::NOTES)
        note_positions<Rule>(p, found, down, at - first, rank, reinterpret_cast<int*>(shared[0]), all_largest, layer, first);
}

}  // namespace planes
}  // namespace fmm
