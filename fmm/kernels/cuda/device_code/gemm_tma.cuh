// Tiled float32 GEMM with fused sums for chips with a copy engine (TMA, sm_90 and newer). The algorithm is that of
// gemm_simt.cuh. But the main loop contains almost only multiply-adds, and one launch can compute several products.
//
// Index map: a thread block computes one M_S x N_S tile of one task. blockIdx.x numbers the tiles task by task; then
// the next product of a batch follows. Threads and warps have the same numbers of a tile as in gemm_simt.cuh.
//
//   Launch      the blocks (submatrices) of A, B and C, and the tasks: the blocks that a product adds and writes
//   SharedTile  the layout of a tile in shared memory
//   TermAdder   copies the blocks of one operand to shared memory, adds them, and reads the sums
//   Reader      reads a tile from shared memory to a thread's registers, as Fragment of gemm_common.cuh does
//   StagedTile  writes a tile of C from registers to shared memory, row by row
//   store_...   writes a tile from shared memory to C; tasks that write the same block of C take turns
//
// Each stage has two barriers. `full` completes when the copies have arrived. `summed` completes when all warps have
// formed their sums; without sums, `summed` keeps the warps close together. Warps arrive at a barrier without waiting. A
// warp waits for `summed` of tile t before it uses tile t. Each warp has formed the sums of tile t near the end of
// tile t - AHEAD. So all warps have finished the tiles before tile t - AHEAD, and their memory can be filled again.
#pragma once

#include "gemm_common.cuh"
#include "ieee_arith.cuh"
#include "ptx_tma.cuh"

namespace fmm {

// ---- parameters of a launch

// A task computes `tiles` tiles of one product; the first tile has the number `first`. Along the inner dimension, the
// task begins at position `from` and has `steps` tiles. `left`, `right` and `dest` are the indices of the task's
// blocks. The factor of a sum's first block is 1. For each block of C, `turn` is the number of earlier tasks of the
// launch that write the same tiles, and `last` is 1 if no later task writes them.
template <class Element, int LEFT, int RIGHT, int DEST>
struct Task {
    int lefts, rights, dests, first, tiles, from, steps;
    int left[LEFT], right[RIGHT], dest[DEST], turn[DEST], last[DEST];
    Element left_factor[LEFT], right_factor[RIGHT], dest_factor[DEST];
};

enum class Order {
    FREE,   // one task writes each block
    TURNS,  // several tasks can write one block, in the order of the tasks
};

template <class Element, class Task_, int LEFTS, int RIGHTS, int DESTS, int TASKS>
struct Launch {
    Map left[LEFTS], right[RIGHTS];
    Block<Element> dest[DESTS];  // the first task that writes a block multiplies the block's old value by `keep`
    unsigned* turns;  // for each product, a counter for each tile of each block of C; zero before and after the launch
    int* flag;                   // set to 1 if a number is inf or NaN, or may overflow or underflow; null: no check
    long long leading;           // stride of C from row to row, in elements
    long long layer;             // stride of C from product to product of a batch, in elements
    int down, across;  // rows and columns of tiles
    int group;         // rows of tiles in a group (tile_of); the tiles of a group share data in the L2 cache
    int wide;          // 1 if C can be accessed 16 bytes at a time
    int blocks;        // number of thread blocks of all tasks, for one product of the batch
    Task_ task[TASKS];
};

// ---- shared memory

// The layout of a tile that the copy engine writes: lines along the contiguous dimension. The copy engine permutes the
// 16-byte chunks of K-major lines (swizzle), so that neighbouring lines use different banks.
template <class Element, Along ALONG, int OUT, int K_S>
struct SharedTile {
    static constexpr bool INNER = ALONG == Along::INNER;
    static constexpr int WIDE = 16 / static_cast<int>(sizeof(Element));
    static constexpr int PITCH = INNER ? K_S : OUT, SIZE = OUT * K_S;
    static constexpr int BYTES = K_S * static_cast<int>(sizeof(Element)), CHUNKS = BYTES / 16;  // of INNER lines
    static_assert(!INNER || BYTES == 32 || BYTES == 64 || BYTES == 128, "the copy engine has these swizzles");
    static_assert(SIZE * sizeof(Element) % 1024 == 0, "tiles begin at multiples of the swizzle pattern");
    // Return the swizzle of a line. Chunk number c of the line is stored at position c XOR swizzle.
    __device__ static __forceinline__ constexpr int swizzle_of(int line) { return line * BYTES / 128 & (CHUNKS - 1); }
};

// One operand: the tiles of TERMS blocks side by side, and separate memory for their sum. The copy engine never writes
// to the memory of the sum, so its copies and the threads' stores need not be synchronized.
template <class Element, class SharedTile_, int TERMS, int THREADS>
struct TermAdder {
    static constexpr bool SUMMED = TERMS > 1;
    static constexpr int WIDE = SharedTile_::WIDE, CELLS = SharedTile_::SIZE / WIDE, EACH = (CELLS + THREADS - 1) / THREADS;
    static constexpr int SUMS = SUMMED ? EACH : 0;             // number of vectors that a thread adds up for a tile
    static constexpr int SIZE = SUMMED ? SharedTile_::SIZE : 0;      // numbers of a tile of sums
    using Piece = Pack<Element, WIDE>;
    __device__ static __forceinline__ bool has_access(int i) {
        return CELLS % THREADS == 0 || i + 1 < EACH || static_cast<int>(threadIdx.x) + i * THREADS < CELLS;
    }
    __device__ static __forceinline__ void read_terms(int i, const Element* tile, Piece* held) {
#pragma unroll
        for (int b = 0; b < TERMS; ++b)
            if (has_access(i)) held[b] = pack<Element, WIDE>(tile + b * SharedTile_::SIZE + (threadIdx.x + i * THREADS) * WIDE);
    }
    __device__ static __forceinline__ void write_sum(int i, Element* sum, const Piece* held, const Element* factor) {
        if (!has_access(i)) return;
        Piece v = held[0];
#pragma unroll
        for (int b = 1; b < TERMS; ++b)
#pragma unroll
            for (int e = 0; e < WIDE; ++e) v.lane[e] = multiply_add(factor[b], held[b].lane[e], v.lane[e]);
        pack<Element, WIDE>(sum + (threadIdx.x + i * THREADS) * WIDE) = v;
    }
};

// ---- from shared memory to registers

// A thread's registers for a tile, as Fragment of gemm_common.cuh; K-major lines are swizzled.
template <class Element, class SharedTile_, int REGS, int LANES>
struct Reader : Fragment<Element, SharedTile_, REGS, LANES> {
    using Numbers = Fragment<Element, SharedTile_, REGS, LANES>;
    using Numbers::INNER, Numbers::PACK, Numbers::place, Numbers::x;
    const int swizzle;  // swizzle of this thread's first line

    __device__ __forceinline__ explicit Reader(int lane) : swizzle(INNER ? SharedTile_::swizzle_of(lane) : 0) {}
    __device__ __forceinline__ void read_ahead(const Element* tile, int i, int k) {
        if constexpr (INNER) {
            if (k % PACK == 0) {
                const int chunk = (k / PACK ^ SharedTile_::swizzle_of(i * LANES)) ^ swizzle;
                const auto v = pack<Element, PACK>(tile + place(i) * SharedTile_::PITCH + chunk * PACK);
#pragma unroll
                for (int e = 0; e < PACK; ++e) x[i][e] = v.lane[e];
            }
        }
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (auto& line : x)
#pragma unroll
            for (Element& e : line) e = Element(0);
    }
};

// ---- from registers to C

enum class OldValue { NONE, SCALED, ADDED };  // the old value of a block is ignored, multiplied by `keep`, or added

// A tile of C in shared memory; it overwrites the tiles of A and B. The 16-byte chunks of its rows are swizzled, so
// that the stores of a warp use different banks. A short loop then stores complete rows to C. An unrolled loop would be
// slower: each thread block executes its instructions only once, and loading them takes time.
template <class Element, class S, class Left, class Right>
struct StagedTile {
    static constexpr int WIDE = 16 / static_cast<int>(sizeof(Element)), CHUNKS = S::WIDTH / WIDE;
    static constexpr int EACH = S::HEIGHT * CHUNKS / S::THREADS;  // chunks of a thread
    static_assert(S::HEIGHT * CHUNKS % S::THREADS == 0, "every thread has the same number of chunks");

    __device__ static __forceinline__ int chunk(int row, int number) {
        return row * CHUNKS + (number ^ (Left::INNER ? row : row / WIDE) % (CHUNKS < 8 ? CHUNKS : 8));
    }
    // Store this thread's numbers; the first one is at `row` and `col`. The numbers are multiplied by `one`, because
    // the compiler does not know that `one` is 1. Without this product, the compiler would hold the numbers in adjacent
    // registers for the vector stores, and the main loop would have register bank conflicts.
    template <int ROWS, int COLS>
    __device__ static __forceinline__ void store(const Element (&x)[ROWS][COLS], Element one, Element* staged, int row,
                                               int col) {
        constexpr int PACK = Right::INNER ? 1 : Right::PACK;
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int j = 0; j < COLS; j += PACK) {
                const int at = col + Right::place(j);
                Pack<Element, PACK> v;
#pragma unroll
                for (int e = 0; e < PACK; ++e) v.lane[e] = mul(one, x[i][j + e]);
                pack<Element, PACK>(staged + chunk(row + Left::place(i), at / WIDE) * WIDE + at % WIDE) = v;
            }
    }
    // Call `work` for each of this thread's chunks with its address, row and first column.
    template <class Work>
    __device__ static __forceinline__ void for_each_chunk(Element* staged, const Work& work) {
#pragma unroll 4
        for (int i = 0; i < EACH; ++i) {
            const int n = threadIdx.x + i * S::THREADS, row = n / CHUNKS, number = n % CHUNKS;
            work(staged + chunk(row, number) * WIDE, row, number * WIDE);
        }
    }
};

// Store PACK adjacent numbers with one access.
template <OldValue OLD, class Element, int PACK>
__device__ __forceinline__ void store_pack(const Element* x, Element* to, Element factor, Element keep) {
    Pack<Element, PACK> v = pack<Element, PACK>(x), old;
    if constexpr (OLD == OldValue::SCALED) old = pack<Element, PACK>(to);
#pragma unroll
    for (int e = 0; e < PACK; ++e) {
        const Element term = mul(factor, v.lane[e]);
        v.lane[e] = OLD == OldValue::SCALED ? multiply_add(keep, old.lane[e], term) : term;
    }
    if constexpr (OLD == OldValue::ADDED)
        reduce_add(to, v.lane);
    else
        pack<Element, PACK>(to) = v;
}

// Store the staged tile to `q`. From `q` on, the block of C has `rows` rows and `cols` columns. With `wide`, an access
// moves 16 bytes.
template <class StagedTile, OldValue OLD, class Element>
__device__ __forceinline__ void store_block(Element* staged, Element* q, long long leading, int rows, int cols, Element factor,
                                      Element keep, bool wide) {
    StagedTile::for_each_chunk(staged, [&](const Element* x, int row, int col) {
        Element* const to = q + row * leading + col;
        if (row >= rows) return;
        if (wide && col + StagedTile::WIDE <= cols)
            store_pack<OLD, Element, StagedTile::WIDE>(x, to, factor, keep);
        else
            for (int e = 0; e < StagedTile::WIDE && col + e < cols; ++e) store_pack<OLD, Element, 1>(x + e, to + e, factor, keep);
    });
}

// Limits for `check_range`. The L2 cache adds the numbers of several tasks, so no thread sees the sums. A sum of
// numbers above LARGE could overflow, and a sum of numbers below SMALL could be flushed to zero. `check_range` compares
// bits: the bits of positive floats have the same order as the floats, and inf and NaN have the largest bits.
constexpr float LARGE = 0x1p122f, SMALL = 0x1p-100f;

template <class StagedTile, class Task>
__device__ __forceinline__ void check_range(int* flag, const Task& task, float* staged) {
    float factor = 0;
    for (int d = 0; d < task.dests; ++d) factor = max(factor, abs(task.dest_factor[d]));
    unsigned most = 0, least = ~0u;  // the bits of the largest number; the bits of the smallest nonzero number, minus 1
    StagedTile::for_each_chunk(staged, [&](const float* x, int, int) {
        const auto v = pack<float, StagedTile::WIDE>(x);
#pragma unroll
        for (int e = 0; e < StagedTile::WIDE; ++e) {
            const unsigned size = __float_as_uint(v.lane[e]) & 0x7fffffff;
            most = max(most, size);
            least = min(least, size - 1);
        }
    });
    if (most >= __float_as_uint(LARGE / factor) || least < __float_as_uint(SMALL / factor) - 1) *flag = 1;
}

// Store the staged tile to every block that the task writes.
template <class StagedTile, class S, Order ORDER, class Params, class Task, class Element>
__device__ __forceinline__ void store_blocks(const Params& p, const Task& task, const Tile& tile, int number, Element* staged) {
    const int row = tile.row * S::HEIGHT, col = tile.col * S::WIDTH;
#pragma unroll 1
    for (int d = 0; d < task.dests; ++d) {
        const Block<Element>& c = p.dest[task.dest[d]];
        constexpr int DESTS = sizeof(p.dest) / sizeof(p.dest[0]);
        unsigned* const count = p.turns + (static_cast<long long>(tile.layer) * DESTS + task.dest[d]) * p.down * p.across + number;
        Element* const q = c.data + tile.layer * p.layer + row * p.leading + col;
        const Element factor = task.dest_factor[d], keep = c.keep;
        const int rows = c.rows - row, cols = c.cols - col;
        if (ORDER == Order::TURNS && task.turn[d]) {
            if (threadIdx.x == 0) wait_for_turn(count, task.turn[d]);
            meet<S::THREADS>();
        }
        if (task.turn[d])
            store_block<StagedTile, OldValue::ADDED>(staged, q, p.leading, rows, cols, factor, keep, p.wide);
        else if (keep != Element(0))
            store_block<StagedTile, OldValue::SCALED>(staged, q, p.leading, rows, cols, factor, keep, p.wide);
        else
            store_block<StagedTile, OldValue::NONE>(staged, q, p.leading, rows, cols, factor, keep, p.wide);
        if (ORDER == Order::TURNS && !(task.last[d] && !task.turn[d])) {
            meet<S::THREADS>();
            if (threadIdx.x == 0) pass_turn(count, task.last[d] ? 0 : task.turn[d] + 1);
        }
    }
}

// Store the staged tile's numbers on and below C's diagonal, and with Triangle::FULL also their mirror. The task has a
// single destination block.
template <class StagedTile, class S, Triangle TRIANGLE, class Params, class Task, class Element>
__device__ __forceinline__ void store_triangle_block(const Params& p, const Task& task, const Tile& tile, Element* staged) {
    const Block<Element>& block = p.dest[task.dest[0]];
    const int top = tile.row * S::HEIGHT, left = tile.col * S::WIDTH, n = block.rows;
    const Element factor = task.dest_factor[0], keep = block.keep;
    Element* const c = block.data + tile.layer * p.layer;
    StagedTile::for_each_chunk(staged, [&](Element* x, int row, int col) {
        const int r = top + row, s = left + col, valid = r < n ? r - s + 1 : 0;
        Element* const to = c + r * p.leading + s;
        for (int e = 0; e < StagedTile::WIDE && e < valid; ++e) {
            const Element term = mul(factor, x[e]);
            x[e] = keep != Element(0) ? multiply_add(keep, to[e], term) : term;
        }
        if (p.wide && valid >= StagedTile::WIDE)
            pack<Element, StagedTile::WIDE>(to) = pack<Element, StagedTile::WIDE>(x);
        else
            for (int e = 0; e < StagedTile::WIDE && e < valid; ++e) to[e] = x[e];
    });
    if constexpr (TRIANGLE == Triangle::FULL) {
        meet<S::THREADS>();
#pragma unroll 4
        for (int i = threadIdx.x; i < S::HEIGHT * S::WIDTH; i += S::THREADS) {
            const int row = i % S::HEIGHT, col = i / S::HEIGHT, r = top + row, s = left + col;
            if (r < n && s < r)
                c[s * p.leading + r] = staged[StagedTile::chunk(row, col / StagedTile::WIDE) * StagedTile::WIDE + col % StagedTile::WIDE];
        }
    }
}

// ---- one product's tile

template <class Element, class S, Along LEFT, Along RIGHT, int LEFTS, int RIGHTS, Order ORDER, Triangle TRIANGLE, class Params,
          class Task>
__device__ __forceinline__ void multiply_task_tile(const Params& p, const Task& task, const Tile& tile, int number,
                                              Element* memory, Barrier* barriers) {
    using LeftTile = SharedTile<Element, LEFT, S::HEIGHT, S::DEPTH>;
    using RightTile = SharedTile<Element, RIGHT, S::WIDTH, S::DEPTH>;
    using LeftSums = TermAdder<Element, LeftTile, LEFTS, S::THREADS>;
    using RightSums = TermAdder<Element, RightTile, RIGHTS, S::THREADS>;
    using Left = Reader<Element, LeftTile, S::ROWS, S::WARP_HEIGHT>;
    using Right = Reader<Element, RightTile, S::COLS, S::WARP_WIDTH>;
    using Piece = Pack<Element, LeftTile::WIDE>;
    constexpr int LEFT_SIZE = LEFTS * LeftTile::SIZE, STAGE = LEFT_SIZE + RIGHTS * RightTile::SIZE;
    constexpr int SUM = LeftSums::SIZE + RightSums::SIZE;  // numbers of a stage's sums
    constexpr int SUMS = LeftSums::SUMS + RightSums::SUMS, TERMS = max_of(LEFTS, RIGHTS), ENTIRE = S::DEPTH - 1;
    // Sums for a tile are formed AHEAD tiles earlier, in the last steps: so late copies have time to arrive.
    constexpr int AHEAD = 2, LAST = ENTIRE - 1, AT_ONCE = (SUMS + LAST - 2) / (LAST - 1);
    constexpr int FIRST = SUMS ? LAST - (SUMS - 1) / max_of(AT_ONCE, 1) : ENTIRE;
    constexpr int COME = FIRST - 1;  // the step in which the threads wait for the copies
    static_assert(S::STAGES >= 3 + (SUMS ? AHEAD : 1), "a stage is filled three tiles after its last use");
    Barrier* const full = barriers;
    Barrier* const summed = full + S::STAGES;

    const int row = tile.row * S::HEIGHT, col = tile.col * S::WIDTH;
    const int steps = task.steps;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int down = warp % S::WARPS_DOWN * (S::ROWS * S::WARP_HEIGHT) + Left::first(lane % S::WARP_HEIGHT);
    const int across = warp / S::WARPS_DOWN * (S::COLS * S::WARP_WIDTH) + Right::first(lane / S::WARP_HEIGHT);
    Element* const sums = memory + S::STAGES * STAGE;

    auto fill = [&](int t, int stage) {
        Element* const to = memory + stage * STAGE;
        const int k = task.from + t * S::DEPTH;
        if (t >= steps) {  // beyond the last tile there are no copies, but the barrier must complete
            arrive(full + stage);
            return;
        }
        expect_bytes(full + stage, STAGE * static_cast<int>(sizeof(Element)));
#pragma unroll
        for (int b = 0; b < LEFTS; ++b)
            load_tile(to + b * LeftTile::SIZE, &p.left[task.left[b]], LeftTile::INNER ? k : row, LeftTile::INNER ? row : k,
                  tile.layer, full + stage);
#pragma unroll
        for (int b = 0; b < RIGHTS; ++b)
            load_tile(to + LEFT_SIZE + b * RightTile::SIZE, &p.right[task.right[b]], RightTile::INNER ? k : col,
                  RightTile::INNER ? col : k, tile.layer, full + stage);
    };
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (int t = 0; t < S::STAGES && t < steps + AHEAD; ++t) fill(t, t);
    }

    Element left_factor[LEFTS], right_factor[RIGHTS];
#pragma unroll
    for (int b = 0; b < LEFTS; ++b) left_factor[b] = task.left_factor[b];
#pragma unroll
    for (int b = 0; b < RIGHTS; ++b) right_factor[b] = task.right_factor[b];
    // Read the terms of the thread's i-th sum, or write this sum. The main loop writes later than it reads, so that the
    // reads have time to arrive. Sums of A come before sums of B.
    auto read_terms = [&](int i, const Element* copies, Piece* held) {
        if (i < LeftSums::SUMS)
            LeftSums::read_terms(i, copies, held);
        else if (i < SUMS)
            RightSums::read_terms(i - LeftSums::SUMS, copies + LEFT_SIZE, held);
    };
    auto write_sum = [&](int i, Element* sum, const Piece* held) {
        if (i < LeftSums::SUMS)
            LeftSums::write_sum(i, sum, held, left_factor);
        else if (i < SUMS)
            RightSums::write_sum(i - LeftSums::SUMS, sum + LeftSums::SIZE, held, right_factor);
    };
    auto all_arrive = [&](Barrier* barrier) {
        __syncwarp();
        if (lane == 0) arrive(barrier);
    };
    // Return the address of this thread's first number in the tile of a stage.
    auto left_of = [&](int stage) {
        return (LeftSums::SUMMED ? sums + stage * SUM : memory + stage * STAGE) + Left::offset(down);
    };
    auto right_of = [&](int stage) {
        return (RightSums::SUMMED ? sums + stage * SUM + LeftSums::SIZE : memory + stage * STAGE + LEFT_SIZE) +
               Right::offset(across);
    };

    Element sum[S::ROWS][S::COLS];
#pragma unroll
    for (int i = 0; i < S::ROWS; ++i)
#pragma unroll
        for (int j = 0; j < S::COLS; ++j) sum[i][j] = Element(0);
    Left a(lane % S::WARP_HEIGHT);
    Right b(lane / S::WARP_HEIGHT);
    a.clear();
    b.clear();

    // Do half of a step's multiply-adds, and read the numbers of the same rows for the next step. The order of columns
    // alternates from row to row, so that each multiply-add shares a register with the previous multiply-add.
    auto half_step = [&](int k, bool second, bool only_reads, const Element* left, const Element* right) {
        const int next = (k + 1) % S::DEPTH;
        if (!second) {
            a.read_step(left, next);
            b.read_step(right, next);
        }
#pragma unroll
        for (int i = second ? S::ROWS / 2 : 0; i < (second ? S::ROWS : S::ROWS / 2); ++i) {
            if (!only_reads) {
#pragma unroll
                for (int z = 0; z < S::COLS; ++z) {
                    const int j = i % 2 ? S::COLS - 1 - z : z;
                    sum[i][j] = multiply_add(a.get(i, k), b.get(j, k), sum[i][j]);
                }
            }
            a.read_ahead(left, i, next);
        }
        if (second) {
#pragma unroll
            for (int j = 0; j < S::COLS; ++j) b.read_ahead(right, j, next);
        }
    };

#pragma unroll 1
    for (int t = 0; t < AHEAD; ++t) {
        wait_barrier(full + t, 0);
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            Piece held[TERMS];
            read_terms(i, memory + t * STAGE, held);
            write_sum(i, sums + t * SUM, held);
        }
        all_arrive(summed + t);
    }
    wait_barrier(summed, 0);
    half_step(ENTIRE, false, true, left_of(0), right_of(0));
    int stage = 0, late = AHEAD % S::STAGES, free = S::STAGES - 3;
    unsigned parity = 0, late_parity = AHEAD / S::STAGES;  // phase parity of this tile, and of tile t + AHEAD
    // An iteration starts in the middle of a step, and waits for barriers in the middle of steps: so a basic block ends
    // in the middle of a step. The compiler moves reads to the end of a basic block. The second half of the step's
    // multiply-adds then runs before the values are used.
#pragma unroll 1
    for (int t = 0; t < steps; ++t) {
        const int next_stage = stage + 1 == S::STAGES ? 0 : stage + 1;
        const unsigned next_parity = parity ^ (next_stage == 0);
        const Element* const left = left_of(stage);
        const Element* const right = right_of(stage);
        const Element* const next_left = left_of(next_stage);
        const Element* const next_right = right_of(next_stage);
        const Element* const copies = memory + late * STAGE;
        Element* const late_sums = sums + late * SUM;
        half_step(ENTIRE, true, false, left, right);
#pragma unroll
        for (int k = 0; k < ENTIRE; ++k) {
            Piece held[AT_ONCE + !SUMS][TERMS];
            const bool adds = SUMS && k >= FIRST && k <= LAST;
            if (adds) {
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) read_terms((k - FIRST) * AT_ONCE + i, copies, held[i]);
            }
            half_step(k, false, false, left, right);
            // All warps formed this tile's sums during tile t - 2, so all have finished tile t - 3. Fill its stage
            // again. The warps take turns in starting the copies.
            if (k == 0 && __builtin_expect(threadIdx.x == t % (S::THREADS / 32) * 32, 0)) {
                if (t > 2 && t - 3 + S::STAGES < steps + AHEAD) fill(t - 3 + S::STAGES, free);
            }
            if (k == COME) wait_barrier(full + (SUMS ? late : next_stage), SUMS ? late_parity : next_parity);
            if (k == ENTIRE - 1) wait_barrier(summed + next_stage, next_parity);
            half_step(k, true, false, left, right);
            if (adds) {
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) write_sum((k - FIRST) * AT_ONCE + i, late_sums, held[i]);
            }
            if (k == LAST) all_arrive(summed + late);
        }
        half_step(ENTIRE, false, false, next_left, next_right);
        free = free + 1 == S::STAGES ? 0 : free + 1;
        late = late + 1 == S::STAGES ? 0 : late + 1;
        late_parity ^= late == 0;
        stage = next_stage;
        parity = next_parity;
    }
    half_step(ENTIRE, true, false, left_of(stage), right_of(stage));
    using StagedTile = fmm::StagedTile<Element, S, Left, Right>;
    meet<S::THREADS>();  // all threads have read the last tile
    StagedTile::store(sum, p.blocks > 0 ? Element(1) : Element(0), memory, down, across);
    meet<S::THREADS>();
    if constexpr (TRIANGLE != Triangle::NONE) {
        // The check precedes the store, because the store overwrites the staged tile.
        if (p.flag) check_range<StagedTile>(p.flag, task, memory);
        store_triangle_block<StagedTile, S, TRIANGLE>(p, task, tile, memory);
    } else {
        store_blocks<StagedTile, S, ORDER>(p, task, tile, number, memory);
        // The check follows the store, because other tasks can wait for this task.
        if (p.flag) check_range<StagedTile>(p.flag, task, memory);
    }
}

// ---- the kernel

// Compute the thread block's tile of its task. SHAPES is a bit mask of the kinds of tasks in a launch. A task has bit 2
// j + i, where j is 1 if A is a sum, and i is 1 if B is a sum. `memory` is shared memory: the copies and sums of every
// stage (at the end, the tile of C), then two barriers for each stage.
template <class Element, class S, Along LEFT, Along RIGHT, int LEFTS, int RIGHTS, int SHAPES, Order ORDER, Triangle TRIANGLE,
          class Params>
__device__ __forceinline__ void multiply_all(const Params& p, Element* memory) {
    constexpr int LEFT_COPIES = LEFTS + (LEFTS > 1), RIGHT_COPIES = RIGHTS + (RIGHTS > 1);
    constexpr int STAGES = S::STAGES * S::DEPTH * (S::HEIGHT * LEFT_COPIES + S::WIDTH * RIGHT_COPIES);
    constexpr int NUMBERS = max_of(STAGES, S::HEIGHT * S::WIDTH);
    Barrier* const barriers = reinterpret_cast<Barrier*>(memory + NUMBERS);
    if (threadIdx.x == 0) {
#pragma unroll
        for (int i = 0; i < S::STAGES; ++i) {
            init_barrier(barriers + i, 1);
            init_barrier(barriers + S::STAGES + i, S::THREADS / 32);
        }
        fence_barrier_init();
    }
    __syncthreads();
    int which = 0, rest = blockIdx.x % p.blocks;
    for (; rest >= p.task[which].tiles; ++which) rest -= p.task[which].tiles;
    const auto& task = p.task[which];
    Tile tile;
    if constexpr (TRIANGLE == Triangle::NONE)
        tile = tile_of(p, task.first + rest);
    else
        tile = LowerTiles<S::HEIGHT, S::WIDTH>(p).at(task.first + rest);
    tile.layer = blockIdx.x / p.blocks;
    const int number = tile.row * p.across + tile.col;
    const bool sums_left = task.lefts > 1, sums_right = task.rights > 1;
    if constexpr (SHAPES & 1) {
        if (!sums_left && !sums_right)
            multiply_task_tile<Element, S, LEFT, RIGHT, 1, 1, ORDER, TRIANGLE>(p, task, tile, number, memory, barriers);
    }
    if constexpr (SHAPES & 2) {
        if (!sums_left && sums_right)
            multiply_task_tile<Element, S, LEFT, RIGHT, 1, RIGHTS, ORDER, TRIANGLE>(p, task, tile, number, memory, barriers);
    }
    if constexpr (SHAPES & 4) {
        if (sums_left && !sums_right)
            multiply_task_tile<Element, S, LEFT, RIGHT, LEFTS, 1, ORDER, TRIANGLE>(p, task, tile, number, memory, barriers);
    }
    if constexpr (SHAPES & 8) {
        if (sums_left && sums_right)
            multiply_task_tile<Element, S, LEFT, RIGHT, LEFTS, RIGHTS, ORDER, TRIANGLE>(p, task, tile, number, memory, barriers);
    }
}

}  // namespace fmm
