// Tiled GEMM on CUDA cores with fused sums. The product is P = (sum of a_i A_i) (sum of b_j B_j), and the kernel
// computes C_d = keep_d C_d + c_d P for each of DEST destinations. A_i, B_j and C_d are submatrices ("blocks") of A, B
// and C.
//
// Index map: a thread block computes one M_S x N_S tile of the product. blockIdx.x numbers the tiles of all products of
// a batch (tile_of), so the last wave of thread blocks is as full as possible. In launches with several products,
// blockIdx.z is the index of the product. Warps are numbered column by column of the tile. A thread has M_R x N_R
// numbers, interleaved with the numbers of the other threads of its warp.
//
// Memory: tiles of A and B are loaded to shared memory STAGES - 1 tiles before their use. Sums of blocks are formed in
// shared memory, and the epilogue adds the product to every destination. So the additions of a fast algorithm need no
// temporaries (Huang, Yu, van de Geijn 2020, Algorithm 1). Numbers beyond the edge of a block count as zero and are
// never accessed.
//
// Compile-time parameters: the generated `Product` (number of blocks, epilogue), `Strategy` (tile sizes), the layouts
// of A and B, and the access width. Blocks and coefficients are launch parameters, so one compiled kernel serves all
// products with the same compile-time parameters.
//
// CuPy compiles with -ftz=true, so this file's arithmetic flushes subnormal numbers to zero. cuBLAS and fmm's other
// kernels keep subnormal numbers. Here, the instructions of ieee_arith.cuh would make kernels with sums up to 2 %
// slower.
//
// The file includes no CUDA header, so NVRTC needs no include path.
#pragma once

#include "gemm_common.cuh"

namespace fmm {

// ---- parameters of a launch

template <class Element, int LEFT, int RIGHT, int DEST>
struct Sums {  // blocks and coefficients of one product
    Block<Element> left[LEFT], right[RIGHT], dest[DEST];
};

template <class Element, int LEFT, int RIGHT, int DEST, int PRODUCTS>
struct Parameters {
    Sums<Element, LEFT, RIGHT, DEST> products[PRODUCTS];
    // For A, for B and for each destination:
    long long leading[2 + DEST];  // elements from one line (row or column) to the next
    long long layer[2 + DEST];    // elements from one product of a batch to the next
    int m, n, k;
    int down, across;  // rows and columns of tiles
    int group;         // rows of tiles in a group (tile_of); the tiles of a group share data in the L2 cache
    int* flag;         // set to 1 if a stored number is inf or NaN (only by kernels with RAISES)
};

enum class Access {
    VECTOR,  // an access moves 16 bytes; lines begin at multiples of 16 bytes
    SCALAR,  // an access moves one number; any alignment
};

enum class Path {  // the path of tiles from global to shared memory; sums of blocks always use ASYNC
    ASYNC,         // asynchronous copies (cp.async), some tiles ahead
    PLAIN,         // through registers: loaded before the multiply-adds of a tile, stored after them
    TEXTURE,       // as PLAIN, but through the read-only data cache, once the texture cache (Li, Ranka, Sahni 2011)
};

// ---- memory access

// Start an asynchronous copy from global to shared memory: `valid` numbers, then zeros up to COUNT numbers.
template <class Element, int COUNT>
__device__ __forceinline__ void copy_partial_vector(Element* cell, const Element* q, int valid) {
#if __CUDA_ARCH__ >= 800
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(cell));
    constexpr int BYTES = COUNT * static_cast<int>(sizeof(Element)), ITEM = static_cast<int>(sizeof(Element));
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(q), "n"(BYTES), "r"(valid * ITEM)
                 : "memory");
#else
#pragma unroll
    for (int e = 0; e < COUNT; ++e) cell[e] = e < valid ? q[e] : Element(0);
#endif
}

template <class Element, int COUNT>
__device__ __forceinline__ void copy_vector(Element* cell, const Element* q) {
#if __CUDA_ARCH__ >= 800
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(cell));
    constexpr int BYTES = COUNT * static_cast<int>(sizeof(Element));
    if constexpr (BYTES == 16)  // bypass the L1 cache: other thread blocks of the multiprocessor do not read the tile
        asm volatile("cp.async.cg.shared.global [%0], [%1], %2;" ::"r"(to), "l"(q), "n"(BYTES) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(q), "n"(BYTES) : "memory");
#else
    pack<Element, COUNT>(cell) = pack<Element, COUNT>(q);
#endif
}

// Load COUNT adjacent numbers with one instruction.
template <Path PATH, class Element, int COUNT>
__device__ __forceinline__ Pack<Element, COUNT> load(const Element* q) {
#ifdef __CUDA_ARCH__
    if constexpr (PATH == Path::TEXTURE && COUNT == 1) return {__ldg(q)};
    if constexpr (PATH == Path::TEXTURE && COUNT > 1) {
        static_assert(COUNT * sizeof(Element) == sizeof(float4), "16 bytes");
        const float4 wide = __ldg(reinterpret_cast<const float4*>(q));
        return reinterpret_cast<const Pack<Element, COUNT>&>(wide);
    }
#endif
    return pack<Element, COUNT>(q);
}

// Load the first `valid` of COUNT adjacent numbers; the others are zero.
template <Path PATH, class Element, int COUNT>
__device__ __forceinline__ Pack<Element, COUNT> load_partial_vector(const Element* q, int valid) {
    if (valid == COUNT) return load<PATH, Element, COUNT>(q);
    Pack<Element, COUNT> run;
#pragma unroll
    for (int e = 0; e < COUNT; ++e) run.lane[e] = e < valid ? load<PATH, Element, 1>(q + e).lane[0] : Element(0);
    return run;
}

__device__ __forceinline__ void commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait for this thread's copies, except those that belong to its last PENDING calls of `commit`.
template <int PENDING>
__device__ __forceinline__ void wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// ---- from global to shared memory

// The layout of one operand's tile in shared memory, and the accesses of each thread to the tile. A tile has the layout
// of global memory: lines along the contiguous dimension. K-major lines are padded, so that neighbouring lines are in
// different banks. With SPACED (for gemm_mma_f64.cuh), all lines are padded by 32 bytes.
template <class Element, Along ALONG, Access ACCESS, int OUT, int K_S, int THREADS, bool SPACED = false>
struct Lines {
    static constexpr bool INNER = ALONG == Along::INNER;
    static constexpr int WIDE = 16 / static_cast<int>(sizeof(Element));
    static constexpr int OUTER = OUT, DEPTH = K_S;
    static constexpr int COUNT = INNER ? OUT : K_S, LENGTH = INNER ? K_S : OUT;
    static constexpr int PITCH = LENGTH + (SPACED ? 2 * WIDE : INNER ? WIDE : 0), SIZE = COUNT * PITCH;
    static constexpr int COPY = ACCESS == Access::VECTOR ? WIDE : 1;  // numbers in one access
    static constexpr int ACROSS = LENGTH / COPY, COPIES = COUNT * ACROSS, EACH = (COPIES + THREADS - 1) / THREADS;
    static constexpr bool EVEN = COPIES % THREADS == 0;
    static constexpr bool STRAIGHT = THREADS % ACROSS == 0;  // true if all accesses of a thread are in one column
    static_assert(LENGTH % WIDE == 0 && SIZE % WIDE == 0, "lines of whole accesses");

    // For this thread's i-th access, return: its line (`line`), its position in the line (`along`), and its distance
    // from the thread's first access in lines (`down`) and in positions (`across`).
    __device__ static __forceinline__ int line(int i) {
        return STRAIGHT ? threadIdx.x / ACROSS + i * (THREADS / ACROSS) : (threadIdx.x + i * THREADS) / ACROSS;
    }
    __device__ static __forceinline__ int along(int i) {
        return (threadIdx.x + (STRAIGHT ? 0 : i * THREADS)) % ACROSS * COPY;
    }
    __device__ static __forceinline__ int down(int i) { return STRAIGHT ? i * (THREADS / ACROSS) : line(i) - line(0); }
    __device__ static __forceinline__ int across(int i) { return STRAIGHT ? 0 : along(i) - along(0); }
    __device__ static __forceinline__ int cell_offset(int i) {
        return line(0) * PITCH + along(0) + down(i) * PITCH + across(i);
    }
    __device__ static __forceinline__ bool has_access(int i) {
        return EVEN || i + 1 < EACH || static_cast<int>(threadIdx.x) + i * THREADS < COPIES;
    }
};

// Copies the tiles of BLOCKS blocks, one after the other along the inner dimension. At an edge, the sizes of the blocks
// are read from the launch's parameters again, which saves registers.
template <class Element, class Lines, int BLOCKS, bool LEFT>
struct Source {
    const Block<Element> (&blocks)[BLOCKS];
    const long long leading;
    const int first;   // first row (of A) or column (of B) of the tile
    int position;      // position of the next tile along the inner dimension
    int inner_whole;   // tiles that end at or before this position are complete in all blocks
    long long offset;  // distance from a block's start to this thread's first number in the next tile

    __device__ __forceinline__ Source(const Block<Element> (&blocks)[BLOCKS], long long leading, long long layer, int first)
        : blocks(blocks), leading(leading), first(first), position(0) {
        offset = layer + (Lines::INNER ? first * leading : first) + Lines::line(0) * leading + Lines::along(0);
        inner_whole = inner_size(0);
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b) inner_whole = outer_size(b) < Lines::OUTER ? 0 : min(inner_whole, inner_size(b));
    }

    // Start all copies of the next tile. The tile of block b is copied to `tiles` + b * Lines::SIZE.
    __device__ __forceinline__ void copy_next_tile(Element* tiles) {
        if (is_whole_tile()) {
#pragma unroll
            for (int i = 0; i < Lines::EACH; ++i) copy_whole(i, tiles);
        } else {
#pragma unroll
            for (int i = 0; i < Lines::EACH; ++i) copy_edge(i, tiles);
        }
        advance_one_tile();
    }

    // Load the next tile of a single block into registers.
    template <Path PATH>
    __device__ __forceinline__ void load(Pack<Element, Lines::COPY> (&held)[Lines::EACH]) {
        const bool all = is_whole_tile();
#pragma unroll
        for (int i = 0; i < Lines::EACH; ++i)
            if (Lines::has_access(i)) held[i] = load_partial_vector<PATH, Element, Lines::COPY>(at(0, i), all ? Lines::COPY : valid_count(0, i));
        advance_one_tile();
    }

private:
    __device__ __forceinline__ int outer_size(int b) const { return (LEFT ? blocks[b].rows : blocks[b].cols) - first; }
    __device__ __forceinline__ int inner_size(int b) const { return LEFT ? blocks[b].cols : blocks[b].rows; }
    __device__ __forceinline__ bool is_whole_tile() const { return position + Lines::DEPTH <= inner_whole; }
    __device__ __forceinline__ const Element* at(int b, int i) const {
        return blocks[b].data + (offset + Lines::down(i) * leading + Lines::across(i));
    }

    __device__ __forceinline__ void advance_one_tile() {
        position += Lines::DEPTH;
        offset += Lines::INNER ? Lines::LENGTH : Lines::COUNT * leading;
    }
    // Return the number of elements of this thread's i-th access that are inside block b.
    __device__ __forceinline__ int valid_count(int b, int i) const {
        const int left = inner_size(b) - position, lines = Lines::INNER ? outer_size(b) : left;
        const int room = Lines::line(i) < lines ? (Lines::INNER ? left : outer_size(b)) - Lines::along(i) : 0;
        return min(max(room, 0), Lines::COPY);
    }

    __device__ __forceinline__ void copy_whole(int i, Element* tiles) const {
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b)
            if (Lines::has_access(i)) copy_vector<Element, Lines::COPY>(tiles + b * Lines::SIZE + Lines::cell_offset(i), at(b, i));
    }
    __device__ __forceinline__ void copy_edge(int i, Element* tiles) const {
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b) {
            const int there = valid_count(b, i);
            const Element* const q = there ? at(b, i) : blocks[b].data;
            if (Lines::has_access(i)) copy_partial_vector<Element, Lines::COPY>(tiles + b * Lines::SIZE + Lines::cell_offset(i), q, there);
        }
    }
};

// The layout of the tiles that the multiply-adds read. Sums of K-major blocks can be stored transposed (TRANSPOSED).
// Multiply-adds then need fewer registers, but computing addresses and storing take more time.
template <class Lines, bool TRANSPOSED_>
struct UsedTile {
    static constexpr bool TRANSPOSED = TRANSPOSED_, INNER = Lines::INNER && !TRANSPOSED;
    static constexpr int WIDE = Lines::WIDE, PITCH = TRANSPOSED ? Lines::OUTER + WIDE : Lines::PITCH;
    static constexpr int SIZE = TRANSPOSED ? Lines::DEPTH * PITCH : Lines::SIZE;
};

// One operand's tiles in shared memory. If the operand is one block, its tiles are copied STAGES - 1 tiles before their
// use. If the operand is a sum, the tiles of all blocks are copied two tiles before their use, and added one tile
// before it. Each thread adds the numbers that it has copied itself, so no barrier is needed in between.
template <class Element, class Lines, int BLOCKS, int STAGES, bool TRANSPOSED, Path PATH, bool LEFT>
struct Operand {
    static constexpr bool SUMMED = BLOCKS > 1, HELD = PATH != Path::ASYNC;
    static_assert(!(SUMMED && HELD), "blocks of a sum are copied asynchronously");
    using TileLayout = UsedTile<Lines, TRANSPOSED && SUMMED && Lines::INNER>;
    static constexpr int SIZE = STAGES * TileLayout::SIZE + (SUMMED ? BLOCKS * Lines::SIZE : 0);
    static constexpr int SUMS = SUMMED ? Lines::EACH : 0;  // number of vectors that a thread adds up for a tile
    using Piece = Pack<Element, Lines::COPY>;

    Element* const tiles;
    Source<Element, Lines, BLOCKS, LEFT> source;
    Piece held[HELD ? Lines::EACH : 1];

    __device__ __forceinline__ Element* tile(int stage) const { return tiles + stage * TileLayout::SIZE; }
    __device__ __forceinline__ Element* term_tiles() const { return tile(STAGES); }

    // Start the copies of the next tile. Tiles that go through registers are in shared memory after `store`.
    __device__ __forceinline__ void copy(int stage) {
        if constexpr (HELD)
            source.template load<PATH>(held);
        else
            source.copy_next_tile(SUMMED ? term_tiles() : tile(stage));
    }
    __device__ __forceinline__ void store(int stage) const {
        if constexpr (HELD) {
#pragma unroll
            for (int i = 0; i < Lines::EACH; ++i)
                if (Lines::has_access(i)) pack<Element, Lines::COPY>(tile(stage) + Lines::cell_offset(i)) = held[i];
        }
    }

    // Read this thread's i-th vector of every block. A sum takes two calls, read_terms and write_sum, so that the reads
    // have time to arrive.
    __device__ __forceinline__ void read_terms(int i, Piece* held) const {
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b)
            if (Lines::has_access(i)) held[b] = pack<Element, Lines::COPY>(term_tiles() + b * Lines::SIZE + Lines::cell_offset(i));
    }
    // Add up the vectors of all blocks and write the sum.
    __device__ __forceinline__ void write_sum(int i, int stage, const Piece* held) const {
        if (!Lines::has_access(i)) return;
        Piece sum;
#pragma unroll
        for (int e = 0; e < Lines::COPY; ++e) {
            sum.lane[e] = held[0].lane[e];
#pragma unroll
            for (int b = 1; b < BLOCKS; ++b) sum.lane[e] += source.blocks[b].factor * held[b].lane[e];
        }
        if constexpr (TileLayout::TRANSPOSED) {
#pragma unroll
            for (int e = 0; e < Lines::COPY; ++e)
                tile(stage)[(Lines::along(i) + e) * TileLayout::PITCH + Lines::line(i)] = sum.lane[e];
        } else {
            pack<Element, Lines::COPY>(tile(stage) + Lines::cell_offset(i)) = sum;
        }
    }
};

// ---- from registers to C

// Detects an inf or NaN among all numbers that a thread stores: inf and NaN times zero are NaN, other numbers times
// zero are zero. Numbers that are added atomically are not checked, because no thread sees the sum.
template <class Element, bool RAISES>
struct FiniteCheck {
    Element nothing = Element(0);
    __device__ __forceinline__ void check(Element x) { nothing += x * Element(0); }
    __device__ __forceinline__ void raise(int* flag) const {
        if (nothing != Element(0)) *static_cast<volatile int*>(flag) = 1;
    }
};
template <class Element>
struct FiniteCheck<Element, false> {
    __device__ __forceinline__ void check(Element) {}
    __device__ __forceinline__ void raise(int*) const {}
};

template <class Element, int COUNT>
__device__ __forceinline__ void add_atomically(Element* q, const Pack<Element, COUNT>& v) {
#pragma unroll
    for (int e = 0; e < COUNT; ++e) atomicAdd(q + e, v.lane[e]);
}
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void add_atomically(float* q, const Pack<float, 4>& v) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(q)),
                 "f"(v.lane[0]), "f"(v.lane[1]), "f"(v.lane[2]), "f"(v.lane[3])
                 : "memory");
}
#endif

// Load or store COUNT adjacent numbers in a row of a destination. Only the first `valid` numbers are inside the block:
// the others are loaded as zeros and not stored.
template <class Element, int COUNT, Access ACCESS>
__device__ __forceinline__ Pack<Element, COUNT> load_run(const Element* q, int valid) {
    if (ACCESS == Access::VECTOR && valid >= COUNT) return pack<Element, COUNT>(q);
    Pack<Element, COUNT> run;
#pragma unroll
    for (int e = 0; e < COUNT; ++e) run.lane[e] = e < valid ? q[e] : Element(0);
    return run;
}
template <bool ATOMIC, Access ACCESS, class Element, int COUNT, class FiniteCheck>
__device__ __forceinline__ void store_run(Element* q, int valid, const Pack<Element, COUNT>& run, FiniteCheck& finite) {
#pragma unroll
    for (int e = 0; e < COUNT; ++e)
        if (!ATOMIC && e < valid) finite.check(run.lane[e]);
    if (ACCESS == Access::VECTOR && valid >= COUNT) {
        if constexpr (ATOMIC)
            add_atomically(q, run);
        else
            pack<Element, COUNT>(q) = run;
        return;
    }
#pragma unroll
    for (int e = 0; e < COUNT; ++e)
        if (e < valid) {
            if constexpr (ATOMIC)
                atomicAdd(q + e, run.lane[e]);
            else
                q[e] = run.lane[e];
        }
}

// Adjacent numbers of one thread in a row of the product, and their addresses in every destination.
template <class Element, int DEST, int PACK>
struct Run {
    Element* at[DEST];
    int valid[DEST];  // how many of the numbers are inside the destination
    Pack<Element, PACK> value[DEST];
};

// The epilogue: update all destinations with this thread's numbers `x` of the product. `Product::update` computes the
// new values. Each destination is read at most once and written at most once. Several runs of adjacent numbers are
// loaded before the first run is stored. The compiler cannot reorder loads and stores itself, because it must assume
// that runs overlap.
template <class Product, class Left, class Right, Access ACCESS, class Params, class Element, int ROWS, int COLS,
          class FiniteCheck>
__device__ __forceinline__ void store_product(const Params& p, const Block<Element> (&dest)[Product::DEST], const Tile& tile,
                                        int row, int col, const Element (&x)[ROWS][COLS], FiniteCheck& finite) {
    constexpr int DEST = Product::DEST, PACK = Right::INNER ? 1 : Right::PACK, ACROSS = COLS / PACK, RUNS = ROWS * ACROSS;
    constexpr int HELD = 128 / sizeof(Element), AT_ONCE = max_of(HELD / (PACK * DEST), 1);
    Element* first[DEST];
#pragma unroll
    for (int d = 0; d < DEST; ++d) first[d] = dest[d].data + tile.layer * p.layer[2 + d] + row * p.leading[2 + d] + col;
#pragma unroll
    for (int begin = 0; begin < RUNS; begin += AT_ONCE) {
        Run<Element, DEST, PACK> runs[AT_ONCE];
#pragma unroll
        for (int r = 0; r < AT_ONCE && begin + r < RUNS; ++r) {
            const int down = Left::place((begin + r) / ACROSS), across = Right::place((begin + r) % ACROSS * PACK);
#pragma unroll
            for (int d = 0; d < DEST; ++d) {
                runs[r].at[d] = first[d] + down * p.leading[2 + d] + across;
                runs[r].valid[d] = row + down < dest[d].rows ? dest[d].cols - col - across : 0;
#pragma unroll
                for (int e = 0; e < PACK; ++e) runs[r].value[d].lane[e] = Element(0);
                if (Product::reads(d, dest))
                    runs[r].value[d] = load_run<Element, PACK, ACCESS>(runs[r].at[d], runs[r].valid[d]);
            }
        }
#pragma unroll
        for (int r = 0; r < AT_ONCE && begin + r < RUNS; ++r) {
            const int i = (begin + r) / ACROSS, j = (begin + r) % ACROSS * PACK;
#pragma unroll
            for (int e = 0; e < PACK; ++e) {
                Element value[DEST];
#pragma unroll
                for (int d = 0; d < DEST; ++d) value[d] = runs[r].value[d].lane[e];
                Product::update(x[i][j + e], dest, value);
#pragma unroll
                for (int d = 0; d < DEST; ++d) runs[r].value[d].lane[e] = value[d];
            }
#pragma unroll
            for (int d = 0; d < DEST; ++d)
                if (Product::writes(d))
                    store_run<Product::ATOMIC, ACCESS>(runs[r].at[d], runs[r].valid[d], runs[r].value[d], finite);
        }
    }
}

// `store_product` for products with SHORT, as a loop over rows that is not unrolled: NVRTC compiles it in two thirds of
// the time. After each row, the next row is moved to the first registers, because registers have no index at run time.
template <class Product, class Left, class Right, Access ACCESS, class Params, class Element, int ROWS, int COLS,
          class FiniteCheck>
__device__ __forceinline__ void store_rows(const Params& p, const Block<Element> (&dest)[Product::DEST], const Tile& tile,
                                     int row, int col, Element (&x)[ROWS][COLS], FiniteCheck& finite) {
#pragma unroll 1
    for (int i = 0; i < ROWS; ++i) {
        Element first[1][COLS];
#pragma unroll
        for (int j = 0; j < COLS; ++j) first[0][j] = x[0][j];
        store_product<Product, Left, Right, ACCESS>(p, dest, tile, row + Left::place(i), col, first, finite);
#pragma unroll
        for (int r = 0; r + 1 < ROWS; ++r)
#pragma unroll
            for (int j = 0; j < COLS; ++j) x[r][j] = x[r + 1][j];
    }
}

// ---- a triangle of a C that is its own adjoint

// Return the thread block's tile.
template <class Product, class S, class Params>
__device__ __forceinline__ Tile tile_for_block(const Params& p, int number) {
    if constexpr (Product::TRIANGLE == Triangle::NONE)
        return tile_of(p, number);
    else
        return LowerTiles<S::HEIGHT, S::WIDTH>(p).at(number);
}

// The epilogue for a triangle: write this thread's numbers on and below the diagonal, and with Triangle::FULL also
// their mirror. Every number is rounded once, so both triangles are equal bit for bit.
template <class Product, class Left, class Right, Access ACCESS, class Params, class Element, int ROWS, int COLS,
          class FiniteCheck>
__device__ __forceinline__ void store_triangle(const Params& p, const Block<Element> (&dest)[1], const Tile& tile, int row, int col,
                                         Element (&x)[ROWS][COLS], FiniteCheck& finite) {
    const int n = dest[0].rows;
    Element* const c = dest[0].data + tile.layer * p.layer[2];
    const auto place = [&](int r, int s) { return c + r * p.leading[2] + s; };
    constexpr int BESIDE = Right::INNER ? 1 : Right::PACK, BELOW = Left::INNER ? 1 : Left::PACK;
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int j = 0; j < COLS; j += BESIDE) {
            const int r = row + Left::place(i), s = col + Right::place(j), valid = r < n ? r - s + 1 : 0;
            Pack<Element, BESIDE> run;
#pragma unroll
            for (int e = 0; e < BESIDE; ++e) {
                Element value[1] = {Element(0)};
                if (Product::reads(0, dest) && e < valid) value[0] = *place(r, s + e);
                Product::update(x[i][j + e], dest, value);
                run.lane[e] = x[i][j + e] = value[0];
            }
            store_run<false, ACCESS>(place(r, s), valid, run, finite);
        }
    if constexpr (Product::TRIANGLE == Triangle::FULL) {
        fmm::FiniteCheck<Element, false> unchecked;
#pragma unroll
        for (int j = 0; j < COLS; ++j)
#pragma unroll
            for (int i = 0; i < ROWS; i += BELOW) {
                const int r = row + Left::place(i), s = col + Right::place(j);
                Pack<Element, BELOW> run;
#pragma unroll
                for (int e = 0; e < BELOW; ++e) run.lane[e] = x[i + e][j];
                if (r > s)
                    store_run<false, ACCESS>(place(s, r), n - r, run, unchecked);
                else
#pragma unroll
                    for (int e = 1; e < BELOW; ++e)
                        if (r + e > s && r + e < n) *place(s, r + e) = run.lane[e];
            }
    }
}

// ---- the kernel

// Compute the tile with this number. `memory` is shared memory: Operand::SIZE numbers for each operand.
template <class Product, class Element, class S, Along LEFT, Along RIGHT, Access ACCESS, class Params>
__device__ __forceinline__ void multiply(const Params& p, Element* memory, int number) {
    using LeftLines = Lines<Element, LEFT, ACCESS, S::HEIGHT, S::DEPTH, S::THREADS>;
    using RightLines = Lines<Element, RIGHT, ACCESS, S::WIDTH, S::DEPTH, S::THREADS>;
    using LeftTiles = Operand<Element, LeftLines, Product::LEFT, S::STAGES, S::TRANSPOSED, Product::LEFT_PATH, true>;
    using RightTiles = Operand<Element, RightLines, Product::RIGHT, S::STAGES, S::TRANSPOSED, Product::RIGHT_PATH, false>;
    using Left = Fragment<Element, typename LeftTiles::TileLayout, S::ROWS, S::WARP_HEIGHT>;
    using Right = Fragment<Element, typename RightTiles::TileLayout, S::COLS, S::WARP_WIDTH>;
    using Piece = typename LeftTiles::Piece;
    constexpr int SUMS = LeftTiles::SUMS + RightTiles::SUMS, BLOCKS = max_of(Product::LEFT, Product::RIGHT);
    // The sums are formed in the last steps of a tile, some in each step. Then the copies for the next sums start,
    // which have most of the next tile's time to arrive. All threads synchronize in the last step.
    constexpr int LAST = S::DEPTH - 3, AT_ONCE = (SUMS + 3) / 4, FIRST = SUMS ? LAST - (SUMS - 1) / max_of(AT_ONCE, 1) : 0;
    constexpr int PENDING = SUMS ? 1 : S::STAGES - 2;
    static_assert(!SUMS || S::STAGES == 2, "sums are formed one tile ahead");

    allow_next_launch();
    const Tile tile = tile_for_block<Product, S>(p, number);
    const int row = tile.row * S::HEIGHT, col = tile.col * S::WIDTH;
    const auto& product = p.products[Product::PRODUCTS > 1 ? blockIdx.z : 0];
    LeftTiles left{memory, {product.left, p.leading[0], tile.layer * p.layer[0], row}};
    RightTiles right{memory + LeftTiles::SIZE, {product.right, p.leading[1], tile.layer * p.layer[1], col}};
    const int steps = (p.k + S::DEPTH - 1) / S::DEPTH;

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int down = warp % S::WARPS_DOWN * (S::ROWS * S::WARP_HEIGHT) + Left::first(lane % S::WARP_HEIGHT);
    const int across = warp / S::WARPS_DOWN * (S::COLS * S::WARP_WIDTH) + Right::first(lane / S::WARP_HEIGHT);
    const Element* const left_mine = left.tiles + Left::offset(down);
    const Element* const right_mine = right.tiles + Right::offset(across);

    // Read or write the thread's i-th sum for the tile at `stage`. Sums of A come before sums of B.
    auto read_terms = [&](int i, Piece* held) {
        if (i < LeftTiles::SUMS)
            left.read_terms(i, held);
        else if (i < SUMS)
            right.read_terms(i - LeftTiles::SUMS, held);
    };
    auto write_sum = [&](int i, int stage, const Piece* held) {
        if (i < LeftTiles::SUMS)
            left.write_sum(i, stage, held);
        else if (i < SUMS)
            right.write_sum(i - LeftTiles::SUMS, stage, held);
    };
    if constexpr (SUMS) {  // sums of the first tile, then the copies for the second tile's sums
        if constexpr (LeftTiles::SUMMED) left.copy(0);
        if constexpr (RightTiles::SUMMED) right.copy(0);
        commit();
        wait<0>();
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            Piece held[BLOCKS];
            read_terms(i, held);
            write_sum(i, 0, held);
        }
    }
    // Copies beyond the last tile fill shared memory with zeros.
#pragma unroll
    for (int t = 0; t < S::STAGES - 1; ++t) {
        left.copy(t);
        right.copy(t);
        left.store(t);
        right.store(t);
        commit();
    }
    wait<S::STAGES - 2>();
    __syncthreads();

    Element sum[S::ROWS][S::COLS];
#pragma unroll
    for (int i = 0; i < S::ROWS; ++i)
#pragma unroll
        for (int j = 0; j < S::COLS; ++j) sum[i][j] = Element(0);

    Left a;
    Right b;
    a.begin(left_mine);
    b.begin(right_mine);
    int stage = 0, filled = S::STAGES - 1;
#pragma unroll 1
    for (int t = 0; t < steps; ++t) {
        const Element* left_now = left_mine + stage * LeftTiles::TileLayout::SIZE;
        const Element* right_now = right_mine + stage * RightTiles::TileLayout::SIZE;
        const int here = filled;
        if (SUMS || t + S::STAGES - 1 < steps) {
            if constexpr (!LeftTiles::SUMMED) left.copy(here);
            if constexpr (!RightTiles::SUMMED) right.copy(here);
        }
        commit();
        filled = filled + 1 == S::STAGES ? 0 : filled + 1;
        stage = stage + 1 == S::STAGES ? 0 : stage + 1;
#pragma unroll
        for (int k = 0; k < S::DEPTH; ++k) {
            const int next = (k + 1) % S::DEPTH;
            if (next == 0) {  // all threads have read this tile, and the next tile has arrived
                left.store(here);
                right.store(here);
                wait<PENDING>();
                __syncthreads();
                left_now = left_mine + stage * LeftTiles::TileLayout::SIZE;
                right_now = right_mine + stage * RightTiles::TileLayout::SIZE;
            }
            Piece held[AT_ONCE + !SUMS][BLOCKS];
            const bool adds = SUMS && k >= FIRST && k <= LAST;
            if (adds) {
                if (k == FIRST) wait<PENDING>();
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) read_terms((k - FIRST) * AT_ONCE + i, held[i]);
            }
            a.read_step(left_now, next);
            b.read_step(right_now, next);
            // A multiprocessor reads two registers per cycle, one from each of two banks (even and odd). Therefore each
            // multiply-add shares a register with the previous multiply-add: the order of columns alternates from row
            // to row.
#pragma unroll
            for (int i = 0; i < S::ROWS; ++i) {
#pragma unroll
                for (int z = 0; z < S::COLS; ++z) {
                    const int j = i % 2 ? S::COLS - 1 - z : z;
                    sum[i][j] += a.get(i, k) * b.get(j, k);
                }
                a.read_ahead(left_now, i, next);
            }
#pragma unroll
            for (int j = 0; j < S::COLS; ++j) b.read_ahead(right_now, j, next);
            if (adds) {
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) write_sum((k - FIRST) * AT_ONCE + i, here, held[i]);
            }
            if (SUMS && k == LAST) {
                if constexpr (LeftTiles::SUMMED) left.copy(0);
                if constexpr (RightTiles::SUMMED) right.copy(0);
                commit();
            }
        }
    }

    wait_for_previous_launch();
    FiniteCheck<Element, Product::RAISES> finite;
    if constexpr (Product::TRIANGLE == Triangle::NONE && Product::SHORT)
        store_rows<Product, Left, Right, ACCESS>(p, product.dest, tile, row + down, col + across, sum, finite);
    else if constexpr (Product::TRIANGLE == Triangle::NONE)
        store_product<Product, Left, Right, ACCESS>(p, product.dest, tile, row + down, col + across, sum, finite);
    else
        store_triangle<Product, Left, Right, ACCESS>(p, product.dest, tile, row + down, col + across, sum, finite);
    finite.raise(p.flag);
}

}  // namespace fmm
