// GEMM on the tensor cores of Hopper's warpgroups (wgmma, sm_90a): float16, bfloat16, float32 as TF32, and bytes. C =
// factor (A B + keep C).
//
// Index map: a thread block computes M_S x N_S tiles of C. The CLUSTER thread blocks of a cluster compute tiles below
// each other; together these tiles are a cluster tile. Clusters are persistent: cluster number c computes the cluster
// tiles c, c + (number of clusters), ... in the order of tile_of. Warpgroup 0 copies; each of the other M_S / 64
// warpgroups multiplies 64 rows.
//
//   Product       tensor maps of A, B and C, sizes and scalars
//   load_tiles    one thread loads tiles of A and B to shared memory; a tile of B is multicast to both thread blocks of
//                 a cluster
//   multiply_all  warpgroups 1 and 2 multiply from shared memory to accumulators, and write C to shared memory
//   store_tiles   one thread for each warpgroup stores tiles from shared memory to C with the copy engine
//
// While one tile of C is stored, the next tile's operands are loaded and multiplied. Each stage has two barriers:
// `full` (its tiles have arrived) and `empty` (its tiles have been used). Each multiplying warpgroup has two barriers:
// `staged` (its part of C is in shared memory) and `sent` (its part of C has been read from shared memory).
//
// The kernel has no fused sums: wgmma reads its operands from shared memory, and uses almost the whole bandwidth of
// shared memory. Forming sums there would take longer than the product.
#pragma once

#include "cluster.cuh"
#include "gemm_common.cuh"
#include "ptx_tma.cuh"

namespace fmm {

// ---- types of numbers in memory

struct half {
    unsigned short bits;
};
struct bfloat16 {
    unsigned short bits;
};
struct tf32 {
    float value;
};

__device__ __forceinline__ unsigned rounded_pair(const half*, float x, float y) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
    return both;
}
__device__ __forceinline__ unsigned rounded_pair(const bfloat16*, float x, float y) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
    return both;
}
template <class Element>
__device__ __forceinline__ void store_pair(Element* to, float x, float y) {
    *reinterpret_cast<unsigned*>(to) = rounded_pair(to, x, y);
}
__device__ __forceinline__ void store_pair(tf32* to, float x, float y) { *reinterpret_cast<float2*>(to) = {x, y}; }

// ---- parameters of a launch

struct Product {
    Map left, right, dest;
    const void* old;           // C or the addend; read only if `keep` is not zero
    // strides of `old` from row to row, and from product to product of a batch
    long long leading, layer;
    int m, n;                  // rows and columns of C
    float keep;                // coefficient of `old`, which is added to A B before the sum is multiplied by `factor`
    int steps;         // number of tiles along the inner dimension
    int down, across;  // rows and columns of cluster tiles
    int group;         // rows of cluster tiles in a group (tile_of); the tiles of a group share data in the L2 cache
    int units;         // number of cluster tiles of all products of a batch
    int adds;          // 1 if the copy engine adds to C, 0 if it overwrites C
    float factor;      // coefficient of the sum A B + keep C
    float shift;       // number that is added to the sum on C's diagonal; only for MIRRORED sizes
};

// ---- PTX of clusters, the copy engine and warpgroups

// Arrive at a barrier of the cluster's thread block `rank`, after reading a stage. The thread has only read, so no
// writes must become visible, and a small memory scope suffices. A wider scope would invalidate the L1 cache each time.
__device__ __forceinline__ void arrive_remote(Barrier* barrier, int rank) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(rank)
        : "memory");
}

// Load a tile as `load_tile` does, but into the shared memory of the cluster's first COUNT thread blocks. In each of
// them, the tile has the same address, and the barrier at the same address counts the bytes.
template <int COUNT>
__device__ __forceinline__ void load_tile_multicast(void* to, const Map* map, int x, int y, int z, Barrier* barrier) {
    constexpr unsigned short ALL = (1 << COUNT) - 1;
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "h"(ALL)
        : "memory");
}

// Store a tile from shared memory to C, clipped at C's edges.
__device__ __forceinline__ void store_tile(const Map* map, const void* from, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(shared_address(from)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
__device__ __forceinline__ void reduce_tile(const Map* map, const void* from, int x, int y, int z) {
    asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(shared_address(from)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Wait until all but the last PENDING groups of stores have read shared memory.
template <int PENDING = 0>
__device__ __forceinline__ void wait_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Make this thread's writes to shared memory visible to the copy engine.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// stmatrix: write four matrices of 8 x 8 16-bit numbers to shared memory. A lane has a pair of numbers of each matrix, and
// the address of line lane % 8 of matrix lane / 8. With TRANSPOSED, columns become lines.
template <bool TRANSPOSED>
__device__ __forceinline__ void store_matrices(void* line, const unsigned (&pairs)[4]) {
    if constexpr (TRANSPOSED)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(line)),
                     "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(line)),
                     "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                     : "memory");
}

template <int REGISTERS>
__device__ __forceinline__ void increase_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ __forceinline__ void decrease_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// ---- shared memory

// The layout of a tile that the copy engine writes: lines of 128 bytes along the contiguous dimension. The 16-byte
// chunks of lines are swizzled in groups of 8 lines. In a K-major tile, a line is a row of A's tile or a column of B's
// tile. In an MN-major tile, a line has LINE adjacent rows of A (columns of B) at one position of the inner dimension.
// First come the lines of the first LINE rows for all positions, then the lines of the next LINE rows, and so on.
template <class Element, Along ALONG, int OUT>
struct SwizzledTile {
    static constexpr bool INNER = ALONG == Along::INNER;
    static constexpr int ITEM = static_cast<int>(sizeof(Element)), LINE = 128 / ITEM, SIZE = OUT * LINE;
    static constexpr int DEEP = 32 / ITEM;  // positions of the inner dimension in one instruction
    // distance between the operands of consecutive instructions, in units of 16 bytes
    static constexpr int NEXT = INNER ? DEEP * ITEM / 16 : DEEP * 128 / 16;
    static_assert(INNER || ITEM == 2, "wgmma reads MN-major operands of 16-bit types only");

    // Return the matrix descriptor of an operand. It contains three numbers in units of 16 bytes: the address, the
    // distance to the next LINE numbers, and the distance to the next 8 lines. Bit 62 selects the 128-byte swizzle.
    __device__ static __forceinline__ unsigned long long descriptor(const void* at) {
        const unsigned long long next = INNER ? 1 : LINE * 128 / 16, eight = 8 * 128 / 16;
        return (shared_address(at) & 0x3ffff) >> 4 | next << 16 | eight << 32 | 1ull << 62;
    }
    // Copy PART rows of A (or columns of B). The first one is row (column) `from` of the tile, and row (column) `first`
    // of the matrix.
    template <int PART, class Copy>
    __device__ static __forceinline__ void copy_part(Element* tile, int from, int first, int k, const Copy& copy) {
        constexpr int BOX = INNER ? PART : LINE;
#pragma unroll
        for (int i = 0; i < PART; i += BOX)
            copy(tile + (from + i) * LINE, INNER ? k : first + i, INNER ? first + i : k);
    }
    // Copy the part of a tile that thread block `rank` of SHARERS thread blocks loads for all of them.
    template <int SHARERS, class Copy>
    __device__ static __forceinline__ void copy_share(Element* tile, int rank, int first, int k, const Copy& copy) {
        constexpr int PART = INNER ? OUT / SHARERS : LINE;
#pragma unroll
        for (int i = 0; i < OUT; i += PART)
            if (i / PART % SHARERS == rank) copy_part<PART>(tile, i, first + i, k, copy);
    }
};

template <class Element, int M_S, int N_S, int CLUSTER_, int STAGES_>
struct Sizes {  // sizes of a thread block's tile; the CLUSTER thread blocks of a cluster compute tiles below each other
    static constexpr int HEIGHT = M_S, WIDTH = N_S, CLUSTER = CLUSTER_, STAGES = STAGES_;
    static constexpr int LINE = 128 / static_cast<int>(sizeof(Element)), DEPTH = LINE;
    static constexpr int GROUPS = M_S / 64, THREADS = 128 * (GROUPS + 1);
    static constexpr int STAGE = DEPTH * (HEIGHT + WIDTH);
    // PART: number of columns of C's tile that are in shared memory at a time
    static constexpr int PASSES = sizeof(Element) > 2 ? 2 : 1, PART = WIDTH / PASSES;
    static constexpr int STAGED = 64 * PART, NUMBERS = STAGES * STAGE + GROUPS * STAGED;
    static constexpr int SLOTS = 1;  // parts of a warpgroup's staged numbers that have barriers of their own
    static_assert(PART % LINE == 0 && WIDTH / CLUSTER % 8 == 0, "whole lines, which are swizzled within 8");
};

// Sizes for a symmetric C. Only tiles that touch the lower triangle are computed. With MIRROR, their transposes are
// stored too, and each submatrix of 64 x 64 numbers in shared memory has barriers of its own.
template <class Element, int M_S, int N_S, int CLUSTER_, int STAGES_, bool MIRROR = false>
struct LowerSizes : Sizes<Element, M_S, N_S, CLUSTER_, STAGES_> {
    static constexpr int SLOTS = MIRROR ? N_S / 64 : 1;
    static_assert(!MIRROR || sizeof(Element) == 2, "transposed by an instruction for 16-bit numbers");
};
template <class Element, int M_S, int N_S, int CLUSTER_, int STAGES_, bool MIRROR>
constexpr bool LOWER_ONLY<LowerSizes<Element, M_S, N_S, CLUSTER_, STAGES_, MIRROR>> = true;
template <class Element, int M_S, int N_S, int CLUSTER_, int STAGES_, bool MIRROR>
constexpr bool MIRRORED<LowerSizes<Element, M_S, N_S, CLUSTER_, STAGES_, MIRROR>> = MIRROR;

// The current stage, and the parity of the phase of its barriers.
template <int STAGES>
struct StageCursor {
    int stage = 0;
    unsigned parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

struct Barriers {
    Barrier *full, *empty, *staged, *sent;
};

// ---- roles of the warps, tile after tile

template <class S, class Params, class Work>
__device__ __forceinline__ void for_each_tile(const Params& p, const Work& work) {
    const int rank = cluster_rank();
#pragma unroll 1
    for (int unit = blockIdx.x / S::CLUSTER; unit < p.units; unit += gridDim.x / S::CLUSTER) {
        Tile tile;
        if constexpr (LOWER_ONLY<S>)
            tile = LowerTiles<S::CLUSTER * S::HEIGHT, S::WIDTH>(p).at(unit);
        else
            tile = tile_of(p, unit);
        work(TileStart{tile.layer, (tile.row * S::CLUSTER + rank) * S::HEIGHT, tile.col * S::WIDTH});
    }
}

template <class S, class Left, class Right, class Element>
__device__ __forceinline__ void load_tiles(const Product& p, Element* memory, const Barriers& barriers) {
    const int rank = cluster_rank();
    StageCursor<S::STAGES> round;
    for_each_tile<S>(p, [&](const TileStart& place) {
#pragma unroll 1
        for (int t = 0; t < p.steps; ++t, round.advance()) {
            wait_barrier(barriers.empty + round.stage, round.parity ^ 1);
            Barrier* const full = barriers.full + round.stage;
            Element* const to = memory + round.stage * S::STAGE;
            expect_bytes(full, S::STAGE * static_cast<int>(sizeof(Element)));
            Left::template copy_part<S::HEIGHT>(to, 0, place.row, t * S::DEPTH, [&](Element* there, int x, int y) {
                load_tile(there, &p.left, x, y, place.layer, full);
            });
            Right::template copy_share<S::CLUSTER>(
                to + Left::SIZE, rank, place.col, t * S::DEPTH,
                [&](Element* there, int x, int y) { load_tile_multicast<S::CLUSTER>(there, &p.right, x, y, place.layer, full); });
        }
    });
}

// Epilogue: multiply a sum by a factor, which is the same for all products of a batch.
struct ByFactor {
    static constexpr int MAX_STEPS = 0;  // 0: any number of steps can be accumulated
    static constexpr bool ADDS = true;    // true if the epilogue can add the old C to the product
    static constexpr int COLUMNS = 0;     // columns in an iteration of the loop over C's columns; 0: an unrolled loop
    float factor;
    __device__ __forceinline__ const ByFactor& of(int) const { return *this; }
    __device__ __forceinline__ float operator()(float x) const { return factor * x; }
};

// Compiler barrier after a wait for wgmma instructions: the compiler must not move reads of x before the wait.
__device__ __forceinline__ void read_after_wait(float& x) { asm volatile("" : "+f"(x)::"memory"); }
__device__ __forceinline__ void read_after_wait(int& x) { asm volatile("" : "+r"(x)::"memory"); }

// Make the 64 x 64 submatrix on the diagonal symmetric in shared memory: copy the numbers below the diagonal to their
// mirror positions.
template <class S, class Element>
__device__ __forceinline__ void make_symmetric(Element* block, int group) {
    constexpr int WIDE = 16 / static_cast<int>(sizeof(Element));
    const auto at = [&](int line, int col) -> Element& {
        return block[line * S::LINE + (col / WIDE ^ line % 8) * WIDE + col % WIDE];
    };
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");  // wait until the warpgroup's threads have written
    for (int i = threadIdx.x % 128; i < 64 * 64; i += 128)
        if (i % 64 > i / 64) at(i / 64, i % 64) = at(i % 64, i / 64);
}

// Write 64 x 64 of a warpgroup's numbers to shared memory. With TRANSPOSED, each column becomes a line, for the mirrored
// tile of C. One call of store_matrices writes 16 rows and 16 columns.
template <class S, bool TRANSPOSED, class Element>
__device__ __forceinline__ void stage_block(Element* block, const float* sum, float factor) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    // The lane has the address of line lane % 8 of the 8 x 8 matrix with number lane / 8. Matrix 1 is below matrix 0.
    // Matrices 2 and 3 are to the right of matrices 0 and 1.
    const int lower = lane / 8 % 2, right = lane / 16;
#pragma unroll
    for (int j = 0; j < 64; j += 16) {
        const float* const x = sum + j / 2;
        unsigned pairs[4];
#pragma unroll
        for (int b = 0; b < 4; ++b) pairs[b] = rounded_pair(block, factor * x[2 * b], factor * x[2 * b + 1]);
        const int line = lane % 8 + (TRANSPOSED ? j + right * 8 : warp * 16 + lower * 8);
        const int chunk = TRANSPOSED ? warp * 2 + lower : j / 8 + right;
        store_matrices<TRANSPOSED>(block + line * S::LINE + (chunk ^ line % 8) * 8, pairs);
    }
}

__device__ __forceinline__ float2 widened_pair(const half* q) {
    float2 both;
    asm("{.reg .b16 x, y;\nmov.b32 {x, y}, %2;\ncvt.f32.f16 %0, x;\ncvt.f32.f16 %1, y;}"
        : "=f"(both.x), "=f"(both.y)
        : "r"(*reinterpret_cast<const unsigned*>(q)));
    return both;
}
__device__ __forceinline__ float2 widened_pair(const bfloat16* q) {
    const unsigned both = *reinterpret_cast<const unsigned*>(q);
    return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
}
__device__ __forceinline__ float2 widened_pair(const tf32* q) { return *reinterpret_cast<const float2*>(q); }

// Return the number of pairs that a thread loads before it adds them: the largest divisor of `pairs` that needs at most
// 16 registers.
template <class Pair>
__device__ constexpr int pairs_at_once(int pairs) {
    int found = 64 / static_cast<int>(sizeof(Pair));
    while (pairs % found) --found;
    return found;
}

// Add keep times the old C to x, for all pairs of numbers of the thread; the first pair is at `row` and `col`. n is
// even.
template <class Element, int COUNT>
__device__ __forceinline__ void add_old(const Product& p, float (&x)[COUNT], int layer, int row, int col) {
    struct alignas(2 * sizeof(Element)) Pair {
        Element number[2];
    };
    constexpr int AT_ONCE = pairs_at_once<Pair>(COUNT / 4);
    const Element* const old = static_cast<const Element*>(p.old) + layer * p.layer + col;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int line = row + r * 8, there = line < p.m ? p.n - col : 0;
        const Element* const first = old + line * p.leading;
#pragma unroll
        for (int begin = 0; begin < COUNT / 4; begin += AT_ONCE) {
            Pair old_pair[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                old_pair[j] = {};
                if ((begin + j) * 8 < there) old_pair[j] = *reinterpret_cast<const Pair*>(first + (begin + j) * 8);
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                float* const pair = x + (begin + j) * 4 + r * 2;
                const float2 wide = widened_pair(old_pair[j].number);
                pair[0] += p.keep * wide.x;
                pair[1] += p.keep * wide.y;
            }
            asm volatile("" ::: "memory");  // compiler barrier: later loads stay behind this point
        }
    }
}

// Add `shift` to the thread's numbers that are on C's diagonal. The warpgroup's 64 x 64 submatrix on the diagonal
// begins at column `diagonal` of the tile.
template <class S, int COUNT>
__device__ __forceinline__ void add_to_diagonal(float (&x)[COUNT], float shift, int diagonal) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, row = lane / 4, col = lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < S::WIDTH / 8; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r)
            if (i * 8 == diagonal + warp * 16 + r * 8) {
                if (row == col) x[i * 4 + r * 2] += shift;
                if (row == col + 1) x[i * 4 + r * 2 + 1] += shift;
            }
}

// Write a thread's numbers of COLUMNS columns to shared memory; the first one is column `from` of the staged part.
template <class S, int COLUMNS, class Element, class Sum, class Finished>
__device__ __forceinline__ void stage_part(Element* staging, const Sum* sum, const Finished& finished, int from) {
    constexpr int WIDE = 16 / static_cast<int>(sizeof(Element));
    const int thread = threadIdx.x % 128, lane = thread % 32, row = thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < COLUMNS; i += 8)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const Sum* const x = sum + i / 2 + r * 2;
            const int j = from + i, line = row + r * 8, col = j % S::LINE + lane % 4 * 2, chunk = col / WIDE ^ line % 8;
            store_pair(staging + j / S::LINE * 64 * S::LINE + line * S::LINE + chunk * WIDE + col % WIDE,
                       finished(x[0]), finished(x[1]));
        }
}

// Write a warpgroup's 64 rows of a tile of a symmetric C to shared memory: first all submatrices of 64 x 64 numbers on
// and below the diagonal, then the transposes of the submatrices below. A submatrix and its transpose use the same
// slot. While one slot is stored to C, the next slot is written.
template <class S, class Element, int COUNT>
__device__ __forceinline__ void stage_mirrored(Element* staging, const float (&sum)[COUNT], float factor, int row, int col,
                                               const Barriers& barriers, unsigned& parities, int group) {
#pragma unroll
    for (int pass = 0; pass < 2; ++pass)
#pragma unroll
        for (int slot = 0; slot < S::SLOTS; ++slot) {
            const int below = row - (col + slot * 64);  // rows below the diagonal; 0: on the diagonal
            if (below < pass) continue;
            Element* const block = staging + slot * 64 * S::LINE;
            wait_barrier(barriers.sent + group * S::SLOTS + slot, (parities >> slot & 1) ^ 1);
            if (pass == 0)
                stage_block<S, false>(block, sum + slot * 32, factor);
            else
                stage_block<S, true>(block, sum + slot * 32, factor);
            if (below == 0) make_symmetric<S>(block, group);
            fence_async_proxy();
            arrive(barriers.staged + group * S::SLOTS + slot);
            parities ^= 1 << slot;
        }
}

template <class Step, class S, class Left, class Right, class Element, class Finish>
__device__ __forceinline__ void multiply_all(const Product& p, const Finish& finish, Element* memory, const Barriers& barriers,
                                             int group) {
    constexpr int WORDS = S::STAGE * static_cast<int>(sizeof(Element)) / 16;
    const auto a = Left::descriptor(memory + group * 64 * S::LINE), b = Right::descriptor(memory + Left::SIZE);
    const int thread = threadIdx.x % 128, lane = thread % 32, row = thread / 32 * 16 + lane / 4;
    Element* const staging = memory + S::STAGES * S::STAGE + group * S::STAGED;
    StageCursor<S::STAGES> round;
    StageCursor<1> staged;
    unsigned parities = 0;  // with MIRROR: one bit for each slot
    typename Step::Sum sum[S::WIDTH / 2];  // pairs of numbers in rows `row` and `row` + 8, for every 8 columns
    for_each_tile<S>(p, [&](const TileStart& place) {
        const auto finished = finish.of(place.layer);
        int before = 0;
#pragma unroll 1
        for (int t = 0; t < p.steps; ++t, round.advance()) {
            wait_barrier(barriers.full + round.stage, round.parity);
            wgmma_fence();
            Step::template multiply<!Left::INNER, !Right::INNER, Left::NEXT, Right::NEXT>(sum, a + round.stage * WORDS,
                                                                                          b + round.stage * WORDS, t);
            wgmma_commit();
            wgmma_wait<1>();  // for the products of the previous stage, which becomes empty
            if (t && thread < S::CLUSTER) arrive_remote(barriers.empty + before, thread);
            before = round.stage;
            if constexpr (Finish::MAX_STEPS > 0) {
                if ((t + 1) % Finish::MAX_STEPS == 0) {
                    wgmma_wait<0>();
#pragma unroll
                    for (auto& x : sum) {
                        read_after_wait(x);
                        x = finished.reduced(x);
                    }
                }
            }
        }
        wgmma_wait<0>();
#pragma unroll
        for (auto& x : sum) read_after_wait(x);
        if (thread < S::CLUSTER) arrive_remote(barriers.empty + before, thread);
        if constexpr (Finish::ADDS) {
            if (p.keep != 0)
                add_old<Element>(p, sum, place.layer, place.row + group * 64 + row, place.col + lane % 4 * 2);
        }
        if constexpr (MIRRORED<S>) {
            if (p.shift != 0) add_to_diagonal<S>(sum, p.shift, place.row + group * 64 - place.col);
            stage_mirrored<S>(staging, sum, p.factor, place.row + group * 64, place.col, barriers, parities, group);
        } else {
#pragma unroll
            for (int from = 0; from < S::WIDTH; from += S::PART, staged.advance()) {
                wait_barrier(barriers.sent + group, staged.parity ^ 1);
                if constexpr (Finish::COLUMNS == 0) {
                    stage_part<S, S::PART>(staging, sum + from / 2, finished, 0);
                } else {
                    static_assert(S::PASSES == 1, "parts of all columns");
#pragma unroll 1
                    for (int part = 0; part < S::WIDTH / Finish::COLUMNS; ++part) {
                        stage_part<S, Finish::COLUMNS>(staging, sum, finished, part * Finish::COLUMNS);
                        next_part<Finish::COLUMNS / 2>(sum, part);
                    }
                }
                fence_async_proxy();
                arrive(barriers.staged + group);
            }
        }
    });
}

template <class S, class Element>
__device__ __forceinline__ void store_tiles(const Product& p, Element* memory, const Barriers& barriers, int group) {
    const Element* const staging = memory + S::STAGES * S::STAGE + group * S::STAGED;
    StageCursor<1> staged;
    for_each_tile<S>(p, [&](const TileStart& place) {
#pragma unroll 1
        for (int from = 0; from < S::WIDTH; from += S::PART, staged.advance()) {
            wait_barrier(barriers.staged + group, staged.parity);
#pragma unroll
            for (int i = 0; i < S::PART; i += S::LINE) {
                const int row = place.row + group * 64, col = place.col + from + i;
                if (p.adds)
                    reduce_tile(&p.dest, staging + i * 64, col, row, place.layer);
                else
                    store_tile(&p.dest, staging + i * 64, col, row, place.layer);
            }
            commit_stores();
            wait_stores_read();
            arrive(barriers.sent + group);
        }
    });
    wait_stores();
}

// Store the submatrices that `stage_mirrored` wrote, in the same order.
template <class S, class Element>
__device__ __forceinline__ void store_mirrored_tiles(const Product& p, Element* memory, const Barriers& barriers, int group) {
    const Element* const staging = memory + S::STAGES * S::STAGE + group * S::STAGED;
    unsigned parities = 0;
    for_each_tile<S>(p, [&](const TileStart& place) {
        const int row = place.row + group * 64;
        Barrier* storing = nullptr;  // barrier of the slot whose store was started last
#pragma unroll 1
        for (int i = 0; i < 2 * S::SLOTS; ++i) {
            const int pass = i / S::SLOTS, slot = i % S::SLOTS, col = place.col + slot * 64;
            if (row - col < pass) continue;
            wait_barrier(barriers.staged + group * S::SLOTS + slot, parities >> slot & 1);
            store_tile(&p.dest, staging + slot * 64 * S::LINE, pass ? row : col, pass ? col : row, place.layer);
            commit_stores();
            parities ^= 1 << slot;
            if (storing) {
                wait_stores_read<1>();  // all stores but the last one have read their slots
                arrive(storing);
            }
            storing = barriers.sent + group * S::SLOTS + slot;
            if (S::SLOTS == 1) {  // the next submatrix needs this slot
                wait_stores_read<0>();
                arrive(storing);
                storing = nullptr;
            }
        }
        if (storing) {
            wait_stores_read<0>();
            arrive(storing);
        }
    });
    wait_stores();
}

// ---- the kernel

// Run the roles of a warpgroup kernel. One thread initializes the barriers, which follow the numbers in `memory`. The
// first warpgroup releases registers and calls `copy`. The other warpgroups get these registers and call `multiply`.
template <class S, bool STAGES_RESULT, class Element, class Copy, class Multiply>
__device__ __forceinline__ void run_warpgroups(Element* memory, const Copy& copy, const Multiply& multiply) {
    Barrier* const full = reinterpret_cast<Barrier*>(memory + S::NUMBERS);
    Barrier* const staged = full + 2 * S::STAGES;
    constexpr int STAGINGS = STAGES_RESULT ? S::GROUPS * S::SLOTS : 0;
    const Barriers barriers{full, full + S::STAGES, staged, staged + STAGINGS};
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; ++i) {
            init_barrier(barriers.full + i, 1);
            init_barrier(barriers.empty + i, S::GROUPS * S::CLUSTER);
        }
        for (int i = 0; i < STAGINGS; ++i) {
            init_barrier(barriers.staged + i, 128);
            init_barrier(barriers.sent + i, 1);
        }
        fence_barrier_init();
    }
    cluster_sync();
    // The shuffle tells the compiler that all threads of a warp have the same value. So values that depend on it need
    // one register for the warp, and not one for each thread.
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp < 4) {
        decrease_registers<40>();
        copy(barriers, warp);
    } else {
        increase_registers<232>();
        multiply(barriers, warp / 4 - 1);
    }
    cluster_sync();  // no thread block exits while another thread block can arrive at its barriers
}

// Compute all tiles of a thread block. `memory` is shared memory: a tile of A and a tile of B for every stage, then a
// part of C for every multiplying warpgroup, then the barriers. `Step::multiply` is generated source, because a wgmma
// instruction must name all its registers.
template <class Step, class Element, class S, Along LEFT, Along RIGHT, class Finish>
__device__ __forceinline__ void multiply_by_groups(const Product& p, const Finish& finish, Element* memory) {
    using Left = SwizzledTile<Element, LEFT, S::HEIGHT>;
    using Right = SwizzledTile<Element, RIGHT, S::WIDTH>;
    allow_next_launch();
    wait_for_previous_launch();
    const auto copy = [&](const Barriers& barriers, int warp) {
        const bool first = threadIdx.x % 32 == 0;
        if (warp == 0 && first) load_tiles<S, Left, Right>(p, memory, barriers);
        if (warp > 0 && warp <= S::GROUPS && first) {
            if constexpr (MIRRORED<S>)
                store_mirrored_tiles<S>(p, memory, barriers, warp - 1);
            else
                store_tiles<S>(p, memory, barriers, warp - 1);
        }
    };
    run_warpgroups<S, true>(memory, copy, [&](const Barriers& barriers, int group) {
        multiply_all<Step, S, Left, Right>(p, finish, memory, barriers, group);
    });
}

}  // namespace fmm
