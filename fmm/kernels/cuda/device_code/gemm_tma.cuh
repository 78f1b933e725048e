// Tiled float32 GEMM with fused sums for chips with a copy engine (TMA, sm_90 and up): the algorithm of gemm_simt.cuh
// with almost only multiply-adds in its loop, and several products in one launch.
//
// Index map: a thread block computes one M_S x N_S tile of one task. blockIdx.x numbers the tiles task by task, and
// then product by product of a batch. Threads and warps have the numbers that they have in gemm_simt.cuh.
//
//   Launch      blocks of A, B and C, and the tasks: the blocks that a product adds up, and those that it writes
//   SharedTile  layout of a tile in shared memory
//   Summer      one operand's sums in shared memory: copied, added up, read
//   Reader      Fragment of gemm_common.cuh: from shared memory to a thread's registers
//   StagedTile  a tile of C: from registers to shared memory, row by row
//   store_...   from there to C, in order where several tasks write one block
//
// Barriers of each stage: `full` (the copies have arrived) and `summed` (all warps have formed their part of the sums;
// without sums it keeps the warps together). Arriving does not wait; only a later use waits for the barrier. A warp
// that passes `summed` of a tile knows that all warps have finished the tile AHEAD tiles earlier, and have therefore
// read all tiles before that one.
#pragma once

#include "gemm_common.cuh"
#include "ieee_arith.cuh"
#include "ptx_tma.cuh"

namespace fmm {

// ---- parameters of a launch

// A task: `tiles` tiles of one product from tile `first` on, over `steps` tiles of the inner dimension from position
// `from` on. It holds the numbers of its blocks and their factors (in a sum, relative to the first block's). For each
// block of C it holds how many tasks of this launch write the block before this one, and whether this one is the last.
template <class Element, int LEFT, int RIGHT, int DEST>
struct Task {
    int lefts, rights, dests, first, tiles, from, steps;
    int left[LEFT], right[RIGHT], dest[DEST], turn[DEST], last[DEST];
    Element left_factor[LEFT], right_factor[RIGHT], dest_factor[DEST];
};

enum class Order {
    FREE,   // each block is written by one task
    TURNS,  // tasks that write one block do so in the tasks' order
};

template <class Element, class Task_, int LEFTS, int RIGHTS, int DESTS, int TASKS>
struct Launch {
    Map left[LEFTS], right[RIGHTS];
    Block<Element> dest[DESTS];  // `keep` applies to the old value, in the first task that writes the block
    unsigned* turns;  // a counter for each tile of each block of C of each product; zero before and after the launch
    int* flag;                   // set to 1 if a number may overflow or underflow, or is not finite; null: no check
    long long leading;           // of C: elements from one row to the next
    long long layer;             // of C: elements from one product of a batch to the next
    int down, across;  // rows and columns of tiles
    int group;         // rows of tiles in a group, which share what they read in the L2 cache
    int wide;          // 1 if C can be accessed 16 bytes at a time
    int blocks;        // thread blocks of all tasks, for one product of the batch
    Task_ task[TASKS];
};

// ---- shared memory

// A tile as the copy engine leaves it: lines along the contiguous dimension. The engine swizzles K-major lines: it
// permutes their 16-byte chunks, so that neighbouring lines use different banks.
template <class Element, Along ALONG, int OUT, int K_S>
struct SharedTile {
    static constexpr bool INNER = ALONG == Along::INNER;
    static constexpr int WIDE = 16 / static_cast<int>(sizeof(Element));
    static constexpr int PITCH = INNER ? K_S : OUT, SIZE = OUT * K_S;
    static constexpr int BYTES = K_S * static_cast<int>(sizeof(Element)), CHUNKS = BYTES / 16;  // of a line, if INNER
    static_assert(!INNER || BYTES == 32 || BYTES == 64 || BYTES == 128, "the copy engine has these swizzles");
    static_assert(SIZE * sizeof(Element) % 1024 == 0, "tiles begin at multiples of the swizzle pattern");
    // The swizzle of a line: its chunk numbers are combined with this by exclusive or.
    __device__ static __forceinline__ constexpr int swizzle_of(int line) { return line * BYTES / 128 & (CHUNKS - 1); }
};

// One operand: TERMS tiles beside each other, and a separate place for their sum. The copy engine never writes to the
// sums, so that its copies and the threads' stores need no order between them.
template <class Element, class SharedTile_, int TERMS, int THREADS>
struct Summer {
    static constexpr bool SUMMED = TERMS > 1;
    static constexpr int WIDE = SharedTile_::WIDE, CELLS = SharedTile_::SIZE / WIDE, EACH = (CELLS + THREADS - 1) / THREADS;
    static constexpr int SUMS = SUMMED ? EACH : 0;             // accesses of a thread for the sums of a tile
    static constexpr int SIZE = SUMMED ? SharedTile_::SIZE : 0;      // numbers of a sum
    using Piece = Pack<Element, WIDE>;
    __device__ static __forceinline__ bool has(int i) {
        return CELLS % THREADS == 0 || i + 1 < EACH || static_cast<int>(threadIdx.x) + i * THREADS < CELLS;
    }
    __device__ static __forceinline__ void read_terms(int i, const Element* tile, Piece* held) {
#pragma unroll
        for (int b = 0; b < TERMS; ++b)
            if (has(i)) held[b] = pack<Element, WIDE>(tile + b * SharedTile_::SIZE + (threadIdx.x + i * THREADS) * WIDE);
    }
    __device__ static __forceinline__ void write_sum(int i, Element* sum, const Piece* held, const Element* factor) {
        if (!has(i)) return;
        Piece v = held[0];
#pragma unroll
        for (int b = 1; b < TERMS; ++b)
#pragma unroll
            for (int e = 0; e < WIDE; ++e) v.lane[e] = multiply_add(factor[b], held[b].lane[e], v.lane[e]);
        pack<Element, WIDE>(sum + (threadIdx.x + i * THREADS) * WIDE) = v;
    }
};

// ---- from shared memory to registers

// A thread's numbers of a tile; the engine swizzles K-major lines.
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

enum class OldValue { NONE, SCALED, ADDED };  // use of a block's old value

// A tile of C in shared memory, in the memory of the tiles of A and B. The 16-byte chunks of its rows are swizzled, so
// that simultaneous stores of threads use different banks. A short loop then stores whole rows to C. (A long unrolled
// loop that each thread block runs once would cost the time to load its instructions.)
template <class Element, class S, class Left, class Right>
struct StagedTile {
    static constexpr int WIDE = 16 / static_cast<int>(sizeof(Element)), CHUNKS = S::WIDTH / WIDE;
    static constexpr int EACH = S::HEIGHT * CHUNKS / S::THREADS;  // chunks of a thread
    static_assert(S::HEIGHT * CHUNKS % S::THREADS == 0, "every thread has the same number of chunks");

    __device__ static __forceinline__ int chunk(int row, int number) {
        return row * CHUNKS + (number ^ (Left::INNER ? row : row / WIDE) % (CHUNKS < 8 ? CHUNKS : 8));
    }
    // Store this thread's numbers from this row and column on. They are multiplied by a one that the
    // compiler does not know: otherwise they would have to be in adjacent registers, and the main loop's register reads
    // would wait.
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

// Store PACK adjacent numbers in one access.
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

// Store the staged tile to `q`, a block of C with this many rows and columns left; `wide`: 16 bytes at a time.
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

// The L2 cache adds the numbers of several tasks unseen. Numbers above LARGE might overflow, and sums below SMALL may
// be flushed to zero. The bits of positive floats are in their order, and inf and NaN come last.
constexpr float LARGE = 0x1p122f, SMALL = 0x1p-100f;

template <class StagedTile, class Task>
__device__ __forceinline__ void check_range(int* flag, const Task& task, float* staged) {
    float factor = 0;
    for (int d = 0; d < task.dests; ++d) factor = max(factor, abs(task.dest_factor[d]));
    unsigned most = 0, least = ~0u;  // largest bits; smallest bits of nonzero numbers, less one
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

// Store the staged tile's numbers on and below C's diagonal to the task's one block, and their mirror if all of C is
// wanted.
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
__device__ __forceinline__ void multiply_bulk(const Params& p, const Task& task, const Tile& tile, int number,
                                              Element* memory, Barrier* barriers) {
    using LeftTile = SharedTile<Element, LEFT, S::HEIGHT, S::DEPTH>;
    using RightTile = SharedTile<Element, RIGHT, S::WIDTH, S::DEPTH>;
    using LeftSums = Summer<Element, LeftTile, LEFTS, S::THREADS>;
    using RightSums = Summer<Element, RightTile, RIGHTS, S::THREADS>;
    using Left = Reader<Element, LeftTile, S::ROWS, S::WARP_HEIGHT>;
    using Right = Reader<Element, RightTile, S::COLS, S::WARP_WIDTH>;
    using Piece = Pack<Element, LeftTile::WIDE>;
    constexpr int LEFT_SIZE = LEFTS * LeftTile::SIZE, STAGE = LEFT_SIZE + RIGHTS * RightTile::SIZE;
    constexpr int SUM = LeftSums::SIZE + RightSums::SIZE;  // numbers of a stage's sums
    constexpr int SUMS = LeftSums::SUMS + RightSums::SUMS, TERMS = max_of(LEFTS, RIGHTS), ENTIRE = S::DEPTH - 1;
    // Sums are formed AHEAD tiles before they are used, in the last steps of a tile, since copies may arrive late.
    constexpr int AHEAD = 2, LAST = ENTIRE - 1, AT_ONCE = (SUMS + LAST - 2) / (LAST - 1);
    constexpr int FIRST = SUMS ? LAST - (SUMS - 1) / max_of(AT_ONCE, 1) : ENTIRE;
    constexpr int COME = FIRST - 1;  // the step that waits for the copies
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
        if (t >= steps) {  // past the last tile nothing is copied, but the barrier still completes
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
    // The thread's i-th sum, of A's first and then of B's, in two halves so that loads have time to arrive.
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
    // This thread's first number in a stage's tile.
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

    // Half of a step's multiply-adds, and the reads of the next step for their rows. Back and forth over the columns,
    // so that each multiply-add shares a register with the previous one.
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
    unsigned parity = 0, late_parity = AHEAD / S::STAGES;  // phase parities of this tile and of the tile AHEAD
    // The loop starts in the middle of a step, and has its waits there too. The compiler moves reads to the end of a
    // basic block; half a step then remains before the values are used.
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
            // All warps formed this tile's sums two tiles ago, so they have read the tile before that. Its stage is
            // filled again, by a thread of one warp after the other.
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
        // before the store, which overwrites the staged tile
        if (p.flag) check_range<StagedTile>(p.flag, task, memory);
        store_triangle_block<StagedTile, S, TRIANGLE>(p, task, tile, memory);
    } else {
        store_blocks<StagedTile, S, ORDER>(p, task, tile, number, memory);
        // after the store, because other tasks may wait for this one
        if (p.flag) check_range<StagedTile>(p.flag, task, memory);
    }
}

// ---- the kernel

// SHAPES: the kinds of tasks in a launch, as a bit mask; bit number 2 (A is a sum) + (B is a sum). `memory`: for every
// stage the copies of all blocks and each operand's sum, or a tile of C; then two barriers for each stage.
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
            multiply_bulk<Element, S, LEFT, RIGHT, 1, 1, ORDER, TRIANGLE>(p, task, tile, number, memory, barriers);
    }
    if constexpr (SHAPES & 2) {
        if (!sums_left && sums_right)
            multiply_bulk<Element, S, LEFT, RIGHT, 1, RIGHTS, ORDER, TRIANGLE>(p, task, tile, number, memory, barriers);
    }
    if constexpr (SHAPES & 4) {
        if (sums_left && !sums_right)
            multiply_bulk<Element, S, LEFT, RIGHT, LEFTS, 1, ORDER, TRIANGLE>(p, task, tile, number, memory, barriers);
    }
    if constexpr (SHAPES & 8) {
        if (sums_left && sums_right)
            multiply_bulk<Element, S, LEFT, RIGHT, LEFTS, RIGHTS, ORDER, TRIANGLE>(p, task, tile, number, memory, barriers);
    }
}

}  // namespace fmm
