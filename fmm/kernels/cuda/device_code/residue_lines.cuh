// Find the norms of lines of float64, float32 or complex operands, and split the lines into residues, in one kernel.
// The kernel reads each line from global memory once. residue_planes.cuh does the same in two kernels, for lines that do
// not fit in shared memory, and for levels of a fast scheme.
//
// Index map: in split_lines, GROUP threads process a line along the inner dimension. In split_strip, a cluster of 8
// thread blocks processes the lines of an MN-major operand that are adjacent in 128 bytes of memory. Each thread block
// of the cluster has the same part of the length of these lines.
#pragma once

#include "residue_planes.cuh"

namespace fmm {
namespace residues {

template <class Element>
constexpr int STRIP_LINES = 128 / sizeof(Element);  // lines that a cluster processes
constexpr int STRIP_BLOCKS = 8;                      // thread blocks of a cluster

// The shared memory of a thread block, in front of its numbers.
struct LineMemory {
    Squares sums[THREADS];  // of each thread, or of each warp
    int exponents[STRIP_LINES<float>];
};

template <class Element>
__device__ __forceinline__ Element* numbers_in(LineMemory* memory) {
    return reinterpret_cast<Element*>(memory + 1);
}

// Scale and round four adjacent numbers; store their residues modulo each modulus. `next` is the distance of planes.
template <class Element>
__device__ __forceinline__ void split_four(const Four<Element>& v, int e, const Split<Element>& split, bool conjugated,
                                           signed char* to, long long next) {
    constexpr int PLANES = COMPONENTS<Element>;
    const Scale scale(e);
    unsigned long long x[PLANES][4];
#pragma unroll
    for (int c = 0; c < PLANES; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i) x[c][i] = (1ull << 63) + __double2ll_rn(scale(component(v.x[i], c)));
#pragma unroll 1
    for (int i = 0; i < split.count; ++i, to += PLANES * next) store_residues(split.moduli[i], x, to, next, conjugated);
}

// Split lines along the inner dimension: THREADS / GROUP lines for each thread block. Each thread reads its own numbers
// again from shared memory.
template <int GROUP, bool WIDE, class Element>
__device__ __forceinline__ void split_lines(const Operand<Element>& p, const Split<Element>& split, bool conjugated,
                                            int block, LineMemory* memory) {
    const int group = threadIdx.x / GROUP, mine = threadIdx.x % GROUP, number = block * (THREADS / GROUP) + group;
    const int line = number % p.block_lines, layer = number / p.block_lines;
    if (layer >= p.layers) return;
    const int length = line < p.lines ? p.length : 0;
    const Element* const from = p.source + layer * p.layer + line * p.leading;
    Element* const kept = numbers_in<Element>(memory) + group * p.block_length;
    Squares sum{};
#pragma unroll 2
    for (int at = 4 * mine; at < p.block_length; at += 4 * GROUP) {
        const auto v = load_four<WIDE>(from, at, length);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            kept[at + i] = v.x[i];
            sum.add(v.x[i]);
        }
    }
    const int e = line_exponent(sum_of_group<GROUP>(sum, memory->sums), p, from, 1);
    if (mine == 0 && line < p.lines) p.exponents[layer * p.lines + line] = e;
    const long long plane = static_cast<long long>(p.block_lines) * p.block_length;
    signed char* const to = p.planes + layer * plane + static_cast<long long>(line) * p.block_length;
#pragma unroll 1
    for (int at = 4 * mine; at < p.block_length; at += 4 * GROUP)
        split_four(load_four<true>(kept, at, p.block_length), e, split, conjugated, to + at, plane * p.layers);
}

// Split a strip of lines along the outer dimension. The cluster adds the sums of squares of its parts of the lines.
template <class Element>
__device__ __forceinline__ void split_strip(const Operand<Element>& p, const Split<Element>& split, bool conjugated,
                                            int block, LineMemory* memory) {
    constexpr int LINES = STRIP_LINES<Element>, DOWN = THREADS / LINES;
    const int rank = cluster_rank(), strips = (p.block_lines + LINES - 1) / LINES, strip = block / STRIP_BLOCKS;
    const int layer = strip / strips, first = strip % strips * LINES;
    const int part = (p.block_length + 32 * STRIP_BLOCKS - 1) / (32 * STRIP_BLOCKS) * 32;
    const int begin = min(rank * part, p.block_length), end = min(begin + part, p.block_length);
    // Lines in shared memory begin 16 bytes apart modulo 32 bytes, so that a warp writes them to different banks.
    const int pitch = part + 16 / sizeof(Element);
    const int across = threadIdx.x % LINES, down = threadIdx.x / LINES;
    const bool inside = first + across < p.lines;
    const Element* const from = p.source + layer * p.layer + first + across;
    Element* const kept = numbers_in<Element>(memory);
    Squares sum{};
#pragma unroll 8
    for (int k = begin + down; k < end; k += DOWN) {
        const Element x = inside && k < p.length ? from[k * p.leading] : Element();
        kept[across * pitch + k - begin] = x;
        sum.add(x);
    }
    memory->sums[threadIdx.x] = sum;
    __syncthreads();
    if (down == 0) {
        for (int i = 1; i < DOWN; ++i) sum.add(memory->sums[i * LINES + across]);
        memory->sums[across] = sum;
    }
    cluster_sync();
    if (down == 0) {
        const Squares* const own = memory->sums + across;
        Squares all{};
        for (int i = 0; i < STRIP_BLOCKS; ++i)
            all.add({load_remote(&own->large, i), load_remote(&own->usual, i), load_remote(&own->small, i)});
        const int e = line_exponent(all, p, from, p.leading);
        memory->exponents[across] = e;
        if (rank == 0 && inside) p.exponents[layer * p.lines + first + across] = e;
    }
    cluster_sync();  // no thread block exits while others read its shared memory
    const long long plane = static_cast<long long>(p.block_lines) * p.block_length;
    const int words = (end - begin) / 4;
#pragma unroll 1
    for (int i = threadIdx.x; i < LINES * words; i += THREADS) {
        const int line = i / words, at = i % words * 4;
        if (first + line >= p.block_lines) return;
        signed char* const to = p.planes + layer * plane + static_cast<long long>(first + line) * p.block_length;
        const auto v = load_four<true>(kept + line * pitch, at, part);
        split_four(v, memory->exponents[line], split, conjugated, to + begin + at, plane * p.layers);
    }
}

}  // namespace residues
}  // namespace fmm
