// The one kernel of every product: C_d += c_d (sum of a_i A_i) (sum of b_j B_j), by tiles.
//
// A thread block makes one tile of the product; what it needs of A and B comes through shared memory, some steps ahead
// of its use. Sums of blocks of A and B are formed on the way there, and the product is added to every destination on its
// way out: so the additions of a fast algorithm cost no memory of their own (Huang, Yu, van de Geijn 2020, Algorithm 1).
// What a block lacks at its edge counts as zero and is never touched. How many blocks are added, and what becomes of each
// number of the destinations, is known when the kernel is compiled (the generated `Product` says it); which blocks, with
// which coefficients, comes with the launch, so that all products of a variant are one kernel, and may be one launch: block
// index z is then the product's. Tiles are numbered through all layers of a batch, so that the last round of thread blocks
// is as full as can be.
//
// CuPy compiles with -ftz=true, so subnormal numbers count as zero here; cuBLAS keeps them, and so do our other kernels.
// (With ieee_arith.cuh's instructions the compiler makes the loops of kernels with sums longer, by up to a fiftieth.)
//
// No header of CUDA's is needed, so that NVRTC alone compiles this.
#pragma once

#include "gemm_common.cuh"

namespace fmm {

// ---- what a launch is told

template <class Element, int LEFT, int RIGHT, int DEST>
struct Sums {  // one product: what is added up, and where it goes
    Block<Element> left[LEFT], right[RIGHT], dest[DEST];
};

template <class Element, int LEFT, int RIGHT, int DEST, int PRODUCTS>
struct Parameters {
    Sums<Element, LEFT, RIGHT, DEST> products[PRODUCTS];
    // Of A, of B and of each destination:
    long long leading[2 + DEST];  // elements from one line to the next: from row to row, or from column to column
    long long layer[2 + DEST];    // elements from one product of a batch to the next
    int m, n, k;
    int down, across;  // tiles below each other and side by side
    int group;         // so many rows of tiles are done together: what they read stays in the second-level cache
    int* flag;         // raised where what is stored is not finite (only by kernels that watch)
};

enum class Access {
    VECTOR,  // 16 bytes at a time: lines begin at multiples of 16 bytes
    SCALAR,  // one number at a time: any alignment
};

enum class Path {  // how a lone block's tiles come from global to shared memory
    ASYNC,         // past the registers, some tiles ahead
    PLAIN,         // through registers: loaded before a tile's multiply-adds, stored after them
    TEXTURE,       // the same, by loads of what no kernel writes meanwhile, once a texture's (Li, Ranka, Sahni 2011)
};

// ---- memory access

// COUNT numbers from global to shared memory, in flight while the thread goes on; behind the first `valid` come zeros.
template <class Element, int COUNT>
__device__ __forceinline__ void copy_some(Element* cell, const Element* q, int valid) {
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
__device__ __forceinline__ void copy_all(Element* cell, const Element* q) {
#if __CUDA_ARCH__ >= 800
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(cell));
    constexpr int BYTES = COUNT * static_cast<int>(sizeof(Element));
    if constexpr (BYTES == 16)  // past the first-level cache: nobody else on this multiprocessor reads it
        asm volatile("cp.async.cg.shared.global [%0], [%1], %2;" ::"r"(to), "l"(q), "n"(BYTES) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(q), "n"(BYTES) : "memory");
#else
    pack<Element, COUNT>(cell) = pack<Element, COUNT>(q);
#endif
}

// One load of COUNT neighbours.
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

// COUNT neighbours for registers; behind the first `valid` come zeros.
template <Path PATH, class Element, int COUNT>
__device__ __forceinline__ Pack<Element, COUNT> load_some(const Element* q, int valid) {
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

// Until all copies but those of the last so many `commit`s have come; the thread's own copies only.
template <int PENDING>
__device__ __forceinline__ void wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// Launches that follow each other may overlap: the next one may start once all blocks of this one have, ...
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// ... but what both write waits until the one before has ended. (Launched without leave to overlap, nothing waits.)
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- from global to shared memory

// One operand's way into shared memory. A tile is kept as it lies in global memory: line by line, where a line runs along
// what is contiguous there. Lines along the inner dimension are spaced, so that neighbouring lines lie in other banks;
// SPACED: all lines, by 32 bytes (as gemm_mma_f64.cuh reads them).
template <class Element, Along ALONG, Access ACCESS, int OUT, int K_S, int THREADS, bool SPACED = false>
struct Lines {
    static constexpr bool INNER = ALONG == Along::INNER;
    static constexpr int WIDE = 16 / static_cast<int>(sizeof(Element));
    static constexpr int OUTER = OUT, DEPTH = K_S;
    static constexpr int COUNT = INNER ? OUT : K_S, LENGTH = INNER ? K_S : OUT;
    static constexpr int PITCH = LENGTH + (SPACED ? 2 * WIDE : INNER ? WIDE : 0), SIZE = COUNT * PITCH;
    static constexpr int COPY = ACCESS == Access::VECTOR ? WIDE : 1;  // numbers moved in one access
    static constexpr int ACROSS = LENGTH / COPY, COPIES = COUNT * ACROSS, EACH = (COPIES + THREADS - 1) / THREADS;
    static constexpr bool EVEN = COPIES % THREADS == 0;
    static constexpr bool STRAIGHT = THREADS % ACROSS == 0;  // are a thread's accesses below each other?
    static_assert(LENGTH % WIDE == 0 && SIZE % WIDE == 0, "lines of whole accesses");

    // Where this thread's i-th access stands in the tile, and how far that is from its first one.
    __device__ static __forceinline__ int line(int i) {
        return STRAIGHT ? threadIdx.x / ACROSS + i * (THREADS / ACROSS) : (threadIdx.x + i * THREADS) / ACROSS;
    }
    __device__ static __forceinline__ int along(int i) {
        return (threadIdx.x + (STRAIGHT ? 0 : i * THREADS)) % ACROSS * COPY;
    }
    __device__ static __forceinline__ int down(int i) { return STRAIGHT ? i * (THREADS / ACROSS) : line(i) - line(0); }
    __device__ static __forceinline__ int across(int i) { return STRAIGHT ? 0 : along(i) - along(0); }
    __device__ static __forceinline__ int cell(int i) {
        return line(0) * PITCH + along(0) + down(i) * PITCH + across(i);
    }
    __device__ static __forceinline__ bool has(int i) {
        return EVEN || i + 1 < EACH || static_cast<int>(threadIdx.x) + i * THREADS < COPIES;
    }
};

// Copies the tiles of BLOCKS blocks, one after the other along the inner dimension. Little is kept in registers: what a
// launch was told is read again where an edge wants it.
template <class Element, class Lines, int BLOCKS, bool LEFT>
struct Source {
    const Block<Element> (&blocks)[BLOCKS];
    const long long leading;
    const int first;   // where the tile begins along the blocks' outer dimension
    int position;      // and the next one along the inner
    int inner_whole;   // up to there tiles are whole, of all blocks
    long long offset;  // from a block's begin to this thread's first number in the next tile

    __device__ __forceinline__ Source(const Block<Element> (&blocks)[BLOCKS], long long leading, long long layer, int first)
        : blocks(blocks), leading(leading), first(first), position(0) {
        offset = layer + (Lines::INNER ? first * leading : first) + Lines::line(0) * leading + Lines::along(0);
        inner_whole = inner(0);
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b) inner_whole = outer(b) < Lines::OUTER ? 0 : min(inner_whole, inner(b));
    }

    // Start all copies of the next tile; block b's goes to `tiles` + b * Lines::SIZE.
    __device__ __forceinline__ void next(Element* tiles) {
        if (whole()) {
#pragma unroll
            for (int i = 0; i < Lines::EACH; ++i) copy_whole(i, tiles);
        } else {
#pragma unroll
            for (int i = 0; i < Lines::EACH; ++i) copy_edge(i, tiles);
        }
        advance();
    }

    // Load the next tile of a lone block.
    template <Path PATH>
    __device__ __forceinline__ void load(Pack<Element, Lines::COPY> (&held)[Lines::EACH]) {
        const bool all = whole();
#pragma unroll
        for (int i = 0; i < Lines::EACH; ++i)
            if (Lines::has(i)) held[i] = load_some<PATH, Element, Lines::COPY>(at(0, i), all ? Lines::COPY : valid(0, i));
        advance();
    }

private:
    __device__ __forceinline__ int outer(int b) const { return (LEFT ? blocks[b].rows : blocks[b].cols) - first; }
    __device__ __forceinline__ int inner(int b) const { return LEFT ? blocks[b].cols : blocks[b].rows; }
    __device__ __forceinline__ bool whole() const { return position + Lines::DEPTH <= inner_whole; }
    __device__ __forceinline__ const Element* at(int b, int i) const {
        return blocks[b].data + (offset + Lines::down(i) * leading + Lines::across(i));
    }

    __device__ __forceinline__ void advance() {
        position += Lines::DEPTH;
        offset += Lines::INNER ? Lines::LENGTH : Lines::COUNT * leading;
    }
    // How many numbers of this thread's i-th access are there.
    __device__ __forceinline__ int valid(int b, int i) const {
        const int left = inner(b) - position, lines = Lines::INNER ? outer(b) : left;
        const int room = Lines::line(i) < lines ? (Lines::INNER ? left : outer(b)) - Lines::along(i) : 0;
        return min(max(room, 0), Lines::COPY);
    }

    __device__ __forceinline__ void copy_whole(int i, Element* tiles) const {
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b)
            if (Lines::has(i)) copy_all<Element, Lines::COPY>(tiles + b * Lines::SIZE + Lines::cell(i), at(b, i));
    }
    __device__ __forceinline__ void copy_edge(int i, Element* tiles) const {
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b) {
            const int there = valid(b, i);
            const Element* const q = there ? at(b, i) : blocks[b].data;
            if (Lines::has(i)) copy_some<Element, Lines::COPY>(tiles + b * Lines::SIZE + Lines::cell(i), q, there);
        }
    }
};

// How the tiles lie that are used. Sums of lines along the inner dimension may be TURNED on their way: read along the
// outer one, they take fewer registers, but addresses and stores more.
template <class Lines, bool TURNED_>
struct Used {
    static constexpr bool TURNED = TURNED_, INNER = Lines::INNER && !TURNED;
    static constexpr int WIDE = Lines::WIDE, PITCH = TURNED ? Lines::OUTER + WIDE : Lines::PITCH;
    static constexpr int SIZE = TURNED ? Lines::DEPTH * PITCH : Lines::SIZE;
};

// One operand's tiles in shared memory. A single block's are copied to where they are used, STAGES - 1 tiles ahead. Of
// several blocks, the tiles are copied beside each other two tiles ahead, and one tile ahead each thread adds up what
// it copied itself: for that, no barrier is needed.
template <class Element, class Lines, int BLOCKS, int STAGES, bool TURNED, Path PATH, bool LEFT>
struct Operand {
    static constexpr bool SUMMED = BLOCKS > 1, HELD = PATH != Path::ASYNC;
    static_assert(!(SUMMED && HELD), "what is summed is copied past the registers");
    using Kept = Used<Lines, TURNED && SUMMED && Lines::INNER>;
    static constexpr int SIZE = STAGES * Kept::SIZE + (SUMMED ? BLOCKS * Lines::SIZE : 0);
    static constexpr int SUMS = SUMMED ? Lines::EACH : 0;  // of a thread, for a tile
    using Piece = Pack<Element, Lines::COPY>;

    Element* const tiles;
    Source<Element, Lines, BLOCKS, LEFT> source;
    Piece held[HELD ? Lines::EACH : 1];

    __device__ __forceinline__ Element* tile(int stage) const { return tiles + stage * Kept::SIZE; }
    __device__ __forceinline__ Element* copies() const { return tile(STAGES); }

    // Start the copies of the next tile; what goes through registers is there after `store`.
    __device__ __forceinline__ void copy(int stage) {
        if constexpr (HELD)
            source.template load<PATH>(held);
        else
            source.next(SUMMED ? copies() : tile(stage));
    }
    __device__ __forceinline__ void store(int stage) const {
        if constexpr (HELD) {
#pragma unroll
            for (int i = 0; i < Lines::EACH; ++i)
                if (Lines::has(i)) pack<Element, Lines::COPY>(tile(stage) + Lines::cell(i)) = held[i];
        }
    }

    // A sum in two halves, between which there is time: read this thread's i-th piece of every block, ...
    __device__ __forceinline__ void take(int i, Piece* held) const {
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b)
            if (Lines::has(i)) held[b] = pack<Element, Lines::COPY>(copies() + b * Lines::SIZE + Lines::cell(i));
    }
    // ... add up and write.
    __device__ __forceinline__ void give(int i, int stage, const Piece* held) const {
        if (!Lines::has(i)) return;
        Piece sum;
#pragma unroll
        for (int e = 0; e < Lines::COPY; ++e) {
            sum.lane[e] = held[0].lane[e];
#pragma unroll
            for (int b = 1; b < BLOCKS; ++b) sum.lane[e] += source.blocks[b].factor * held[b].lane[e];
        }
        if constexpr (Kept::TURNED) {
#pragma unroll
            for (int e = 0; e < Lines::COPY; ++e)
                tile(stage)[(Lines::along(i) + e) * Kept::PITCH + Lines::line(i)] = sum.lane[e];
        } else {
            pack<Element, Lines::COPY>(tile(stage) + Lines::cell(i)) = sum;
        }
    }
};

// ---- from registers to C

// Sees all that a thread stores, if the kernel is to tell of inf and NaN: times zero they are NaN, all else is zero. What
// is added atomically nobody sees.
template <class Element, bool WATCHES>
struct Watch {
    Element nothing = Element(0);
    __device__ __forceinline__ void see(Element x) { nothing += x * Element(0); }
    __device__ __forceinline__ void tell(int* flag) const {
        if (nothing != Element(0)) *static_cast<volatile int*>(flag) = 1;
    }
};
template <class Element>
struct Watch<Element, false> {
    __device__ __forceinline__ void see(Element) {}
    __device__ __forceinline__ void tell(int*) const {}
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

// Neighbours in a row of a destination; from the first `valid` on there are none: what is read there is zero.
template <class Element, int COUNT, Access ACCESS>
__device__ __forceinline__ Pack<Element, COUNT> get(const Element* q, int valid) {
    if (ACCESS == Access::VECTOR && valid >= COUNT) return pack<Element, COUNT>(q);
    Pack<Element, COUNT> run;
#pragma unroll
    for (int e = 0; e < COUNT; ++e) run.lane[e] = e < valid ? q[e] : Element(0);
    return run;
}
template <bool ATOMIC, Access ACCESS, class Element, int COUNT, class Watch>
__device__ __forceinline__ void put(Element* q, int valid, const Pack<Element, COUNT>& run, Watch& watch) {
#pragma unroll
    for (int e = 0; e < COUNT; ++e)
        if (!ATOMIC && e < valid) watch.see(run.lane[e]);
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

// A run of a thread's neighbours in a row of the product, and where it belongs in every destination.
template <class Element, int DEST, int PACK>
struct Run {
    Element* at[DEST];
    int valid[DEST];  // how many of them a destination has
    Pack<Element, PACK> value[DEST];
};

// This thread's part of the product, `x`, to the destinations, each of which is read once at most and written once at
// most: `Product::update` makes an element's new values of the product's and the old ones. Some runs are read before the
// first of them is written: memory takes long to answer, and the compiler cannot know that they are different ones.
template <class Product, class Left, class Right, Access ACCESS, class Params, class Element, int ROWS, int COLS,
          class Watch>
__device__ __forceinline__ void put_all(const Params& p, const Block<Element> (&dest)[Product::DEST], const Tile& tile,
                                        int row, int col, const Element (&x)[ROWS][COLS], Watch& watch) {
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
                    runs[r].value[d] = get<Element, PACK, ACCESS>(runs[r].at[d], runs[r].valid[d]);
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
                    put<Product::ATOMIC, ACCESS>(runs[r].at[d], runs[r].valid[d], runs[r].value[d], watch);
        }
    }
}

// ---- half of a C that is its own adjoint

// The tile of this number.
template <class Product, class S, class Params>
__device__ __forceinline__ Tile wanted_tile(const Params& p, int number) {
    if constexpr (Product::HALF == Half::NONE)
        return tile_of(p, number);
    else
        return LowerTiles<S::HEIGHT, S::WIDTH>(p).at(number);
}

// This thread's part of the product to what is on and below the diagonal, and, if all of C is wanted, to its mirror. Every
// number is rounded once, so that the halves are alike bit for bit.
template <class Product, class Left, class Right, Access ACCESS, class Params, class Element, int ROWS, int COLS,
          class Watch>
__device__ __forceinline__ void put_half(const Params& p, const Block<Element> (&dest)[1], const Tile& tile, int row, int col,
                                         Element (&x)[ROWS][COLS], Watch& watch) {
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
            put<false, ACCESS>(place(r, s), valid, run, watch);
        }
    if constexpr (Product::HALF == Half::FULL) {
        fmm::Watch<Element, false> nobody;
#pragma unroll
        for (int j = 0; j < COLS; ++j)
#pragma unroll
            for (int i = 0; i < ROWS; i += BELOW) {
                const int r = row + Left::place(i), s = col + Right::place(j);
                Pack<Element, BELOW> run;
#pragma unroll
                for (int e = 0; e < BELOW; ++e) run.lane[e] = x[i + e][j];
                if (r > s)
                    put<false, ACCESS>(place(s, r), n - r, run, nobody);
                else
#pragma unroll
                    for (int e = 1; e < BELOW; ++e)
                        if (r + e > s && r + e < n) *place(s, r + e) = run.lane[e];
            }
    }
}

// ---- the kernel

// The tile of this number; `memory`: shared memory, Operand::SIZE numbers for each operand.
template <class Product, class Element, class S, Along LEFT, Along RIGHT, Access ACCESS, class Params>
__device__ __forceinline__ void multiply(const Params& p, Element* memory, int number) {
    using LeftLines = Lines<Element, LEFT, ACCESS, S::HEIGHT, S::DEPTH, S::THREADS>;
    using RightLines = Lines<Element, RIGHT, ACCESS, S::WIDTH, S::DEPTH, S::THREADS>;
    using LeftTiles = Operand<Element, LeftLines, Product::LEFT, S::STAGES, S::TURNED, Product::LEFT_PATH, true>;
    using RightTiles = Operand<Element, RightLines, Product::RIGHT, S::STAGES, S::TURNED, Product::RIGHT_PATH, false>;
    using Left = Fragment<Element, typename LeftTiles::Kept, S::ROWS, S::WARP_HEIGHT>;
    using Right = Fragment<Element, typename RightTiles::Kept, S::COLS, S::WARP_WIDTH>;
    using Piece = typename LeftTiles::Piece;
    constexpr int SUMS = LeftTiles::SUMS + RightTiles::SUMS, BLOCKS = max_of(Product::LEFT, Product::RIGHT);
    // Sums are spread over some steps of a tile; then the copies for the next sums begin, which so have most of a tile's
    // time. In the last step all threads meet.
    constexpr int LAST = S::DEPTH - 3, AT_ONCE = (SUMS + 3) / 4, FIRST = SUMS ? LAST - (SUMS - 1) / max_of(AT_ONCE, 1) : 0;
    constexpr int PENDING = SUMS ? 1 : S::STAGES - 2;
    static_assert(!SUMS || S::STAGES == 2, "sums are formed one tile ahead");

    let_next_start();
    const Tile tile = wanted_tile<Product, S>(p, number);
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

    // The i-th of the thread's sums, of A and then of B, for the tile at `stage`.
    auto take = [&](int i, Piece* held) {
        if (i < LeftTiles::SUMS)
            left.take(i, held);
        else if (i < SUMS)
            right.take(i - LeftTiles::SUMS, held);
    };
    auto give = [&](int i, int stage, const Piece* held) {
        if (i < LeftTiles::SUMS)
            left.give(i, stage, held);
        else if (i < SUMS)
            right.give(i - LeftTiles::SUMS, stage, held);
    };
    if constexpr (SUMS) {  // the first tile's sums, then the copies for the second's
        if constexpr (LeftTiles::SUMMED) left.copy(0);
        if constexpr (RightTiles::SUMMED) right.copy(0);
        commit();
        wait<0>();
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            Piece held[BLOCKS];
            take(i, held);
            give(i, 0, held);
        }
    }
    // Past the last tile too there is something to copy: zeros.
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
        const Element* left_now = left_mine + stage * LeftTiles::Kept::SIZE;
        const Element* right_now = right_mine + stage * RightTiles::Kept::SIZE;
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
            if (next == 0) {  // all have read this tile, and the next one has come
                left.store(here);
                right.store(here);
                wait<PENDING>();
                __syncthreads();
                left_now = left_mine + stage * LeftTiles::Kept::SIZE;
                right_now = right_mine + stage * RightTiles::Kept::SIZE;
            }
            Piece held[AT_ONCE + !SUMS][BLOCKS];
            const bool adds = SUMS && k >= FIRST && k <= LAST;
            if (adds) {
                if (k == FIRST) wait<PENDING>();
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) take((k - FIRST) * AT_ONCE + i, held[i]);
            }
            a.read_step(left_now, next);
            b.read_step(right_now, next);
            // Back and forth, so that one of the three numbers of every multiply-add was in the one before: a multiprocessor
            // reads two registers a cycle, an even and an odd one.
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
                for (int i = 0; i < AT_ONCE; ++i) give((k - FIRST) * AT_ONCE + i, here, held[i]);
            }
            if (SUMS && k == LAST) {
                if constexpr (LeftTiles::SUMMED) left.copy(0);
                if constexpr (RightTiles::SUMMED) right.copy(0);
                commit();
            }
        }
    }

    wait_for_previous();
    Watch<Element, Product::WATCHES> watch;
    if constexpr (Product::HALF == Half::NONE)
        put_all<Product, Left, Right, ACCESS>(p, product.dest, tile, row + down, col + across, sum, watch);
    else
        put_half<Product, Left, Right, ACCESS>(p, product.dest, tile, row + down, col + across, sum, watch);
    watch.tell(p.flag);
}

}  // namespace fmm
