// What all tiled products share: how a launch describes a block of a matrix, the sizes of a kernel, wide accesses, which
// tile a thread block makes, and how a thread reads its part of a tile from shared memory.
//
// No header of CUDA's is needed, so that NVRTC alone compiles this.
#pragma once

namespace fmm {

// ---- what a launch is told

template <class Element>
struct Block {  // a matrix of `rows` x `cols` numbers
    Element* data;
    int rows, cols;
    Element factor;  // of the block in a sum, whose first has 1; of the product in a destination
    Element keep;    // what a destination keeps of its old value: nothing, which is then never read, or so many times it
};

enum class Along {  // which way an operand is contiguous
    INNER,          // along the product's inner dimension: rows of A, columns of B
    OUTER,          // along the other one
};

// Sizes of one kernel, Huang's Figure 3: a thread block makes M_S x N_S numbers, K_S steps of the inner dimension at a
// time, a thread M_R x N_R of them; a warp has WARP_M x WARP_N threads. STAGES tiles of A and B are in shared memory.
template <int M_S, int N_S, int K_S, int M_R, int N_R, int WARP_M, int WARP_N, int STAGES_, bool TURNED_>
struct Strategy {
    static constexpr int HEIGHT = M_S, WIDTH = N_S, DEPTH = K_S, ROWS = M_R, COLS = N_R, STAGES = STAGES_;
    static constexpr bool TURNED = TURNED_;
    static constexpr int WARP_HEIGHT = WARP_M, WARP_WIDTH = WARP_N;
    static constexpr int THREADS = (M_S / M_R) * (N_S / N_R), WARPS_DOWN = M_S / (M_R * WARP_M);
    static_assert(WARP_M * WARP_N == 32, "a warp has 32 threads");
    static_assert(M_S % (M_R * WARP_M) == 0 && N_S % (N_R * WARP_N) == 0, "whole warps");
};

// ---- wide accesses

template <class Element, int COUNT>
struct alignas(COUNT * sizeof(Element)) Pack {
    Element lane[COUNT];
};

template <class Element, int COUNT>
__device__ __forceinline__ Pack<Element, COUNT>& pack(Element* q) {
    return *reinterpret_cast<Pack<Element, COUNT>*>(q);
}
template <class Element, int COUNT>
__device__ __forceinline__ const Pack<Element, COUNT>& pack(const Element* q) {
    return *reinterpret_cast<const Pack<Element, COUNT>*>(q);
}

__device__ constexpr int max_of(int x, int y) { return x > y ? x : y; }

// ---- the tiles of a launch

struct Tile {  // which one a thread block makes
    int layer, row, col;
};

// How much is made of a C that is its own adjoint.
enum class Half {
    NONE,   // all of C
    LOWER,  // what is on and below the diagonal; nothing else is touched
    FULL,   // that, and as its mirror what is above
};

// Numbered down the rows of a group, then across; group by group, layer by layer.
template <class Params>
__device__ __forceinline__ Tile tile_of(const Params& p, int number) {
    const int tiles = p.down * p.across, layer = number / tiles, within = number % tiles;
    const int size = p.group * p.across, first = within / size * p.group, height = min(p.down - first, p.group);
    return {layer, first + within % size % height, within % size / height};
}

// Of a C that is its own adjoint, the tiles of HIGH x WIDE numbers that reach the diagonal or lie below it, numbered as by
// tile_of. A group of rows is as many whole tiles wide as high: to the left of the diagonal's columns all its rows have
// tiles, and of these columns the c-th lacks the first c WIDE / HIGH.
template <int HIGH, int WIDE>
struct LowerTiles {
    const int group, down, across, wide, last, whole, tiles;  // the last group; tiles of a whole one on the diagonal; of all

    template <class Params>
    __device__ __forceinline__ explicit LowerTiles(const Params& p)
        : group(p.group), down(p.down), across(p.across), wide(p.group * HIGH / WIDE), last((p.down - 1) / p.group),
          whole(on_diagonal(0, group)), tiles(before(last) + height(last) * last * wide + on_diagonal(last, height(last))) {}

    __device__ __forceinline__ Tile at(int number) const {
        int within = number % tiles, g = 0, c = 0;
        while (g < last && before(g + 1) <= within) ++g;
        within -= before(g);
        const int first = g * group, left = g * wide, rows = height(g);
        if (within < left * rows) return {number / tiles, first + within % rows, within / rows};
        for (within -= left * rows; within >= rows - c * WIDE / HIGH; ++c) within -= rows - c * WIDE / HIGH;
        return {number / tiles, first + c * WIDE / HIGH + within, left + c};
    }

private:
    __device__ __forceinline__ int height(int g) const { return min(down - g * group, group); }
    __device__ __forceinline__ int before(int g) const { return group * wide * (g * (g - 1) / 2) + g * whole; }
    __device__ __forceinline__ int on_diagonal(int g, int rows) const {  // tiles of these columns
        int found = 0;
        for (int c = 0; c < wide && g * wide + c < across; ++c) found += max(rows - c * WIDE / HIGH, 0);
        return found;
    }
};

// ---- from shared memory to registers

// What a thread has of one operand at a step of the inner dimension: REGS numbers, LANES threads side by side. Along the
// inner dimension 16 bytes are several steps of one line; along the outer one they are neighbours, read a step ahead.
template <class Element, class Lines, int REGS, int LANES>
struct Fragment {
    static constexpr bool INNER = Lines::INNER;
    static constexpr int PACK = INNER                      ? Lines::WIDE
                                : REGS % Lines::WIDE == 0  ? Lines::WIDE
                                : REGS % 2 == 0            ? 2
                                                           : 1;
    Element x[INNER ? REGS : 2][INNER ? PACK : REGS];

    // Which line or position the thread's i-th number has, relative to the thread's first.
    __device__ static __forceinline__ constexpr int place(int i) {
        return INNER ? i * LANES : i / PACK * PACK * LANES + i % PACK;
    }
    // The thread's first place, as the lane-th of its warp.
    __device__ static __forceinline__ int first(int lane) { return INNER ? lane : lane * PACK; }
    __device__ static __forceinline__ int offset(int place) { return INNER ? place * Lines::PITCH : place; }

    __device__ __forceinline__ Element get(int i, int k) const { return INNER ? x[i][k % PACK] : x[k % 2][i]; }

    // Read step k, along the outer dimension: before the step that precedes it.
    __device__ __forceinline__ void read_step(const Element* tile, int k) {
        if constexpr (!INNER) {
#pragma unroll
            for (int i = 0; i < REGS; i += PACK) {
                const auto v = pack<Element, PACK>(tile + k * Lines::PITCH + place(i));
#pragma unroll
                for (int e = 0; e < PACK; ++e) x[k % 2][i + e] = v.lane[e];
            }
        }
    }

    // Read number i of step k and those behind it, along the inner dimension: when its last step is done.
    __device__ __forceinline__ void read_ahead(const Element* tile, int i, int k) {
        if constexpr (INNER) {
            if (k % PACK == 0) {
                const auto v = pack<Element, PACK>(tile + place(i) * Lines::PITCH + k);
#pragma unroll
                for (int e = 0; e < PACK; ++e) x[i][e] = v.lane[e];
            }
        }
    }

    __device__ __forceinline__ void begin(const Element* tile) {
        read_step(tile, 0);
#pragma unroll
        for (int i = 0; i < REGS; ++i) read_ahead(tile, i, 0);
    }
};

}  // namespace fmm
