// Code that all tiled products use: submatrices, tile sizes, vector accesses, the order of the tiles in a launch, and
// reads of a tile from shared memory to registers.
//
// The file includes no CUDA header, so NVRTC needs no include path.
#pragma once

namespace fmm {

// ---- parameters of a launch

template <class Element>
struct Block {  // a submatrix of `rows` x `cols` numbers
    Element* data;
    int rows, cols;
    Element factor;  // block of A or B: its coefficient in a sum (1 for the first); block of C: the product's coefficient
    Element keep;    // block of C: coefficient of the block's old value; with 0 the old value is not read
};

enum class Along {  // the dimension along which an operand is contiguous
    INNER,          // the inner dimension (K-major): rows of A, columns of B
    OUTER,          // the other dimension: columns of A, rows of B
};

// Tile sizes of one kernel (Huang, Yu, van de Geijn, Figure 3). A thread block computes M_S x N_S numbers of C, in
// steps of K_S positions of the inner dimension. A thread computes M_R x N_R numbers. A warp has WARP_M x WARP_N
// threads. Shared memory holds STAGES tiles of A and STAGES tiles of B. If TRANSPOSED, sums of K-major blocks are
// stored transposed in shared memory.
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

// ---- overlapping launches

// Let the next launch start when all thread blocks of this launch have started (programmatic dependent launch).
__device__ __forceinline__ void allow_next_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// Wait until the previous launch has ended: both may write the same memory. If launches do not overlap, do nothing.
__device__ __forceinline__ void wait_for_previous_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- the tiles of a launch

struct Tile {  // position of a thread block's tile
    int layer, row, col;
};

// The tiles of C that are computed. LOWER and FULL are for a symmetric C.
enum class Triangle {
    NONE,   // all of C
    LOWER,  // the tiles on and below the diagonal; numbers above the diagonal are not written
    FULL,   // the tiles on and below the diagonal; their mirror is written above the diagonal
};

// Return the tile with this number. A group has `group` rows of tiles. Within a group, tiles are numbered column by
// column. The groups follow each other, and then the products of a batch. So tiles with close numbers read the same
// data from the L2 cache.
template <class Params>
__device__ __forceinline__ Tile tile_of(const Params& p, int number) {
    const int tiles = p.down * p.across, layer = number / tiles, within = number % tiles;
    const int size = p.group * p.across, first = within / size * p.group, height = min(p.down - first, p.group);
    return {layer, first + within % size % height, within % size / height};
}

// The tiles of TILE_HEIGHT x TILE_WIDTH numbers that touch the lower triangle of C, numbered in the order of tile_of.
// Rows and columns are rows and columns of tiles. The height of a group of rows is a multiple of TILE_WIDTH numbers. The
// diagonal columns of a group cross C's diagonal within the group. Columns left of them have tiles in all rows of the
// group. The c-th diagonal column, counted from 0, has no tiles in the first c TILE_WIDTH / TILE_HEIGHT rows of the group.
template <int TILE_HEIGHT, int TILE_WIDTH>
struct LowerTiles {
    // wide: number of diagonal columns of a group; last: index of the last group; whole: number of tiles in the
    // diagonal columns of a complete group; tiles: number of all tiles
    const int group, down, across, wide, last, whole, tiles;

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
    // Return the number of tiles in the diagonal columns of group g, which has this number of rows.
    __device__ __forceinline__ int on_diagonal(int g, int rows) const {
        int found = 0;
        for (int c = 0; c < wide && g * wide + c < across; ++c) found += max(rows - c * TILE_WIDTH / TILE_HEIGHT, 0);
        return found;
    }
};

// ---- tiles of products on tensor cores

struct TileStart {
    int layer, row, col;  // a thread block's tile: its product of the batch, its first row and its first column
};

// True for sizes S of a symmetric C: only tiles that touch the lower triangle are computed (LOWER_ONLY), and their
// transposes are stored too (MIRRORED).
template <class S>
constexpr bool LOWER_ONLY = false;
template <class S>
constexpr bool MIRRORED = false;

// Move the next PART numbers of x to the first registers. A loop over parts that is not unrolled needs this, because
// registers have no index at run time. Let 2^z be the largest power of two that divides i + 1. After part i, the 2^z
// parts from index PART 2^z on move to index 0. So a number moves at most log2(number of parts) times.
template <int PART, int STEP = PART, class Number, int COUNT>
__device__ __forceinline__ void next_part(Number (&x)[COUNT], int part) {
    if constexpr (STEP < COUNT) {
        if (((part + 1) * PART & (2 * STEP - 1)) == STEP) {
#pragma unroll
            for (int i = 0; i < STEP && i + STEP < COUNT; ++i) x[i] = x[i + STEP];
        }
        next_part<PART, 2 * STEP>(x, part);
    }
}

// ---- from shared memory to registers

// A thread's registers for one operand at one position ("step") of the inner dimension: REGS numbers. LANES is the
// number of a warp's threads along the operand's outer dimension. In a K-major tile (INNER), 16 bytes hold several
// steps of one line. In an MN-major tile, 16 bytes hold adjacent numbers of one step, and are read one step before
// their use.
template <class Element, class Lines, int REGS, int LANES>
struct Fragment {
    static constexpr bool INNER = Lines::INNER;
    static constexpr int PACK = INNER                      ? Lines::WIDE
                                : REGS % Lines::WIDE == 0  ? Lines::WIDE
                                : REGS % 2 == 0            ? 2
                                                           : 1;
    Element x[INNER ? REGS : 2][INNER ? PACK : REGS];

    // Return the distance of the thread's i-th number from its first number, in lines or positions.
    __device__ static __forceinline__ constexpr int place(int i) {
        return INNER ? i * LANES : i / PACK * PACK * LANES + i % PACK;
    }
    // Return the line or position of the first number of the thread with this lane number.
    __device__ static __forceinline__ int first(int lane) { return INNER ? lane : lane * PACK; }
    __device__ static __forceinline__ int offset(int place) { return INNER ? place * Lines::PITCH : place; }

    __device__ __forceinline__ Element get(int i, int k) const { return INNER ? x[i][k % PACK] : x[k % 2][i]; }

    // MN-major: read the numbers of step k, one step before their use. K-major: do nothing.
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

    // K-major: if k begins a vector, read the thread's i-th line for step k and the next steps. MN-major: do nothing.
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
