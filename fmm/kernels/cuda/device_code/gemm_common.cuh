// What all tiled products share: the description of a block of a matrix, tile sizes, vector accesses, the order of
// tiles in a launch, and a thread's reads of a tile in shared memory.
//
// The file includes no CUDA header, so that NVRTC alone compiles it.
#pragma once

namespace fmm {

// ---- parameters of a launch

template <class Element>
struct Block {  // a matrix of `rows` x `cols` numbers
    Element* data;
    int rows, cols;
    Element factor;  // coefficient of the block in a sum (1 for the first block), or of the product in a destination
    Element keep;    // coefficient of a destination's old value; with 0 the old value is not read
};

enum class Along {  // the dimension along which an operand is contiguous
    INNER,          // the inner dimension (K-major): rows of A, columns of B
    OUTER,          // the other dimension: columns of A, rows of B
};

// Tile sizes of one kernel (Huang, Yu, van de Geijn, Figure 3): a thread block computes M_S x N_S numbers of C in steps
// of K_S along the inner dimension. A thread computes M_R x N_R numbers; a warp is WARP_M x WARP_N threads. Shared
// memory holds STAGES tiles of A and of B. TRANSPOSED: sums of K-major blocks are stored transposed in shared memory.
template <int M_S, int N_S, int K_S, int M_R, int N_R, int WARP_M, int WARP_N, int STAGES_, bool TRANSPOSED_>
struct Strategy {
    static constexpr int HEIGHT = M_S, WIDTH = N_S, DEPTH = K_S, ROWS = M_R, COLS = N_R, STAGES = STAGES_;
    static constexpr bool TRANSPOSED = TRANSPOSED_;
    static constexpr int WARP_HEIGHT = WARP_M, WARP_WIDTH = WARP_N;
    static constexpr int THREADS = (M_S / M_R) * (N_S / N_R), WARPS_DOWN = M_S / (M_R * WARP_M);
    static_assert(WARP_M * WARP_N == 32, "a warp has 32 threads");
    static_assert(M_S % (M_R * WARP_M) == 0 && N_S % (N_R * WARP_N) == 0, "whole warps");
};

// ---- vector accesses

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

struct Tile {  // position of a thread block's tile
    int layer, row, col;
};

// The tiles of a C that is its own adjoint.
enum class Triangle {
    NONE,   // all of C
    LOWER,  // on and below the diagonal; nothing above is written
    FULL,   // the same tiles, and their mirror above the diagonal
};

// The tile with this number. Tiles are numbered down the `group` rows of a group, then across the columns, group by
// group, product by product of a batch. Tiles with neighbouring numbers share what they read in the L2 cache.
template <class Params>
__device__ __forceinline__ Tile tile_of(const Params& p, int number) {
    const int tiles = p.down * p.across, layer = number / tiles, within = number % tiles;
    const int size = p.group * p.across, first = within / size * p.group, height = min(p.down - first, p.group);
    return {layer, first + within % size % height, within % size / height};
}

// The tiles of TILE_HEIGHT x TILE_WIDTH numbers that touch the lower triangle of C, numbered in the order of tile_of. A
// group of rows is as high as a whole number of tiles is wide. Left of the group's diagonal columns, all its rows have
// tiles. Of the diagonal columns, column c lacks the first c TILE_WIDTH / TILE_HEIGHT rows.
template <int TILE_HEIGHT, int TILE_WIDTH>
struct LowerTiles {
    const int group, down, across, wide, last, whole, tiles;  // last group; diagonal tiles of a whole group; all tiles

    template <class Params>
    __device__ __forceinline__ explicit LowerTiles(const Params& p)
        : group(p.group), down(p.down), across(p.across), wide(p.group * TILE_HEIGHT / TILE_WIDTH),
          last((p.down - 1) / p.group),
          whole(on_diagonal(0, group)), tiles(before(last) + height(last) * last * wide + on_diagonal(last, height(last))) {}

    __device__ __forceinline__ Tile at(int number) const {
        int within = number % tiles, g = 0, c = 0;
        while (g < last && before(g + 1) <= within) ++g;
        within -= before(g);
        const int first = g * group, left = g * wide, rows = height(g);
        if (within < left * rows) return {number / tiles, first + within % rows, within / rows};
        for (within -= left * rows; within >= rows - c * TILE_WIDTH / TILE_HEIGHT; ++c)
            within -= rows - c * TILE_WIDTH / TILE_HEIGHT;
        return {number / tiles, first + c * TILE_WIDTH / TILE_HEIGHT + within, left + c};
    }

private:
    __device__ __forceinline__ int height(int g) const { return min(down - g * group, group); }
    __device__ __forceinline__ int before(int g) const { return group * wide * (g * (g - 1) / 2) + g * whole; }
    __device__ __forceinline__ int on_diagonal(int g, int rows) const {  // number of tiles in the diagonal columns
        int found = 0;
        for (int c = 0; c < wide && g * wide + c < across; ++c) found += max(rows - c * TILE_WIDTH / TILE_HEIGHT, 0);
        return found;
    }
};

// ---- from shared memory to registers

// A thread's registers for one operand at a step of the inner dimension: REGS numbers, for LANES threads side by side.
// K-major (INNER): 16 bytes are several steps of one line. Otherwise 16 bytes are neighbours of one step, read one step
// ahead.
template <class Element, class Lines, int REGS, int LANES>
struct Fragment {
    static constexpr bool INNER = Lines::INNER;
    static constexpr int PACK = INNER                      ? Lines::WIDE
                                : REGS % Lines::WIDE == 0  ? Lines::WIDE
                                : REGS % 2 == 0            ? 2
                                                           : 1;
    Element x[INNER ? REGS : 2][INNER ? PACK : REGS];

    // Line or position of the thread's i-th number, relative to its first one.
    __device__ static __forceinline__ constexpr int place(int i) {
        return INNER ? i * LANES : i / PACK * PACK * LANES + i % PACK;
    }
    // First place of the thread with this lane number.
    __device__ static __forceinline__ int first(int lane) { return INNER ? lane : lane * PACK; }
    __device__ static __forceinline__ int offset(int place) { return INNER ? place * Lines::PITCH : place; }

    __device__ __forceinline__ Element get(int i, int k) const { return INNER ? x[i][k % PACK] : x[k % 2][i]; }

    // MN-major: read step k, one step before its use.
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

    // K-major: read number i for step k and the steps behind it, when the previous vector is used up.
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
