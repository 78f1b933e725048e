// Products with sums in them, for chips whose copy engine brings whole tiles to shared memory (sm_90 and up): the same
// algorithm as gemm_simt.cuh, with next to no instructions but multiply-adds in its loop, and several products in one launch.
//
//   Launch    blocks of A, B, C, and tasks: which blocks a product adds up, which it writes
//   Slab      how a tile lies in shared memory
//   Stage     the tiles of one step of the inner dimension: copied, added up in place, read
//   Reader    gemm_simt.cuh's Fragment: from shared memory to a thread's registers
//   Stand     from registers to shared memory, row by row
//   write     from there to C, in turns where several products write one block
//
// Gates of each stage: `full` (its copies have come) and `summed` (all have formed their part of its sums; without sums it
// keeps the warps together all the same). Who arrives does not wait: only a later use asks whether a gate is open. Whoever
// passes `summed` of a tile knows that all have come to the end of the tile AHEAD before it, so have read those before.
#pragma once

#include "gemm_common.cuh"
#include "ieee_arith.cuh"
#include "ptx_tma.cuh"

namespace fmm {

// ---- what a launch is told

// `tiles` tiles of one product, from the tile with number `first` on, or the part of these that `steps` tiles of the inner
// dimension make, from number `from` on: numbers of the blocks, factors (a sum's relative to its first block's), and for each block of C how many tasks of this launch write it
// before this one and whether this one is the last.
template <class Element, int LEFT, int RIGHT, int DEST>
struct Task {
    int lefts, rights, dests, first, tiles, from, steps;
    int left[LEFT], right[RIGHT], dest[DEST], turn[DEST], last[DEST];
    Element left_factor[LEFT], right_factor[RIGHT], dest_factor[DEST];
};

enum class Order {
    FREE,   // no two tasks write the same block
    TURNS,  // they do so one after the other, in the tasks' order
};

template <class Element, class Task_, int LEFTS, int RIGHTS, int DESTS, int TASKS>
struct Launch {
    Map left[LEFTS], right[RIGHTS];
    Block<Element> dest[DESTS];  // `keep`: of the old value, by the first task that writes the block
    unsigned* turns;             // a count for each tile of each block of C of each layer, zero before and after
    int* flag;                   // becomes 1 where a number may be too large or too small, or none; null: nobody asks
    long long leading;           // of C: elements from row to row
    long long layer;             // and from one product of a batch to the next
    int down, across;  // tiles below each other and side by side
    int group;         // so many rows of tiles are done together
    int wide;          // may C be accessed 16 bytes at a time?
    int blocks;        // thread blocks of all tasks, of one layer
    Task_ task[TASKS];
};

// ---- shared memory

// A tile as the copy engine leaves it: lines along what is contiguous in global memory. Of lines along the inner
// dimension, 16-byte chunks are exchanged by the engine so that neighbouring lines have theirs in different banks.
template <class Element, Along ALONG, int OUT, int K_S>
struct Slab {
    static constexpr bool INNER = ALONG == Along::INNER;
    static constexpr int WIDE = 16 / static_cast<int>(sizeof(Element));
    static constexpr int PITCH = INNER ? K_S : OUT, SIZE = OUT * K_S;
    static constexpr int BYTES = K_S * static_cast<int>(sizeof(Element)), CHUNKS = BYTES / 16;  // of a line, if INNER
    static_assert(!INNER || BYTES == 32 || BYTES == 64 || BYTES == 128, "the engine knows these exchanges");
    static_assert(SIZE * sizeof(Element) % 1024 == 0, "tiles begin where the pattern of exchanges does");
    // By what the chunk numbers of a line are changed.
    __device__ static __forceinline__ constexpr int exchange(int line) { return line * BYTES / 128 & (CHUNKS - 1); }
};

// Of one operand: TERMS tiles beside each other, and where their sum goes. The copy engine never writes there, so that
// its copies and the threads' stores need no order between them.
template <class Element, class Slab_, int TERMS, int THREADS>
struct Summer {
    static constexpr bool SUMMED = TERMS > 1;
    static constexpr int WIDE = Slab_::WIDE, CELLS = Slab_::SIZE / WIDE, EACH = (CELLS + THREADS - 1) / THREADS;
    static constexpr int SUMS = SUMMED ? EACH : 0;             // of a thread, for a tile
    static constexpr int SIZE = SUMMED ? Slab_::SIZE : 0;      // of a sum
    using Piece = Pack<Element, WIDE>;
    __device__ static __forceinline__ bool has(int i) {
        return CELLS % THREADS == 0 || i + 1 < EACH || static_cast<int>(threadIdx.x) + i * THREADS < CELLS;
    }
    __device__ static __forceinline__ void take(int i, const Element* tile, Piece* held) {
#pragma unroll
        for (int b = 0; b < TERMS; ++b)
            if (has(i)) held[b] = pack<Element, WIDE>(tile + b * Slab_::SIZE + (threadIdx.x + i * THREADS) * WIDE);
    }
    __device__ static __forceinline__ void give(int i, Element* sum, const Piece* held, const Element* factor) {
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

// A thread's numbers of a slab, whose lines along the inner dimension have their chunks exchanged.
template <class Element, class Slab_, int REGS, int LANES>
struct Reader : Fragment<Element, Slab_, REGS, LANES> {
    using Numbers = Fragment<Element, Slab_, REGS, LANES>;
    using Numbers::INNER, Numbers::PACK, Numbers::place, Numbers::x;
    const int exchanged;  // of this thread's first line

    __device__ __forceinline__ explicit Reader(int lane) : exchanged(INNER ? Slab_::exchange(lane) : 0) {}
    __device__ __forceinline__ void read_ahead(const Element* tile, int i, int k) {
        if constexpr (INNER) {
            if (k % PACK == 0) {
                const int chunk = (k / PACK ^ Slab_::exchange(i * LANES)) ^ exchanged;
                const auto v = pack<Element, PACK>(tile + place(i) * Slab_::PITCH + chunk * PACK);
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

enum class Old { NONE, SCALED, ADDED };  // what becomes of a block's old value

// A tile of C in shared memory, where those of A and B were: its rows, whose 16-byte chunks are exchanged so that threads
// that put their numbers there at a time do so in different banks. From there rows go to C whole, in a short loop: a long
// one that every thread block runs once would cost the time in which its instructions come.
template <class Element, class S, class Left, class Right>
struct Stand {
    static constexpr int WIDE = 16 / static_cast<int>(sizeof(Element)), CHUNKS = S::WIDTH / WIDE;
    static constexpr int EACH = S::HEIGHT * CHUNKS / S::THREADS;  // chunks of a thread
    static_assert(S::HEIGHT * CHUNKS % S::THREADS == 0, "as many for all");

    __device__ static __forceinline__ int chunk(int row, int number) {
        return row * CHUNKS + (number ^ (Left::INNER ? row : row / WIDE) % (CHUNKS < 8 ? CHUNKS : 8));
    }
    // This thread's numbers, the first of which belongs to this row and column. They are multiplied by one, which the
    // compiler does not know: else they would have to be in neighbouring registers, and the loop's reads of registers wait.
    template <int ROWS, int COLS>
    __device__ static __forceinline__ void put(const Element (&x)[ROWS][COLS], Element one, Element* stand, int row,
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
                pack<Element, PACK>(stand + chunk(row + Left::place(i), at / WIDE) * WIDE + at % WIDE) = v;
            }
    }
    // Each of this thread's chunks: where it stands, its row, its first column.
    template <class Work>
    __device__ static __forceinline__ void every_chunk(Element* stand, const Work& work) {
#pragma unroll 4
        for (int i = 0; i < EACH; ++i) {
            const int n = threadIdx.x + i * S::THREADS, row = n / CHUNKS, number = n % CHUNKS;
            work(stand + chunk(row, number) * WIDE, row, number * WIDE);
        }
    }
};

// PACK numbers next to each other, in one access.
template <Old OLD, class Element, int PACK>
__device__ __forceinline__ void write_pack(const Element* x, Element* to, Element factor, Element keep) {
    Pack<Element, PACK> v = pack<Element, PACK>(x), old;
    if constexpr (OLD == Old::SCALED) old = pack<Element, PACK>(to);
#pragma unroll
    for (int e = 0; e < PACK; ++e) {
        const Element term = mul(factor, v.lane[e]);
        v.lane[e] = OLD == Old::SCALED ? multiply_add(keep, old.lane[e], term) : term;
    }
    if constexpr (OLD == Old::ADDED)
        add_there(to, v.lane);
    else
        pack<Element, PACK>(to) = v;
}

// What stands there to `q`, which has so many rows and columns left; `wide`: may it be accessed 16 bytes at a time?
template <class Stand, Old OLD, class Element>
__device__ __forceinline__ void write(Element* stand, Element* q, long long leading, int rows, int cols, Element factor,
                                      Element keep, bool wide) {
    Stand::every_chunk(stand, [&](const Element* x, int row, int col) {
        Element* const to = q + row * leading + col;
        if (row >= rows) return;
        if (wide && col + Stand::WIDE <= cols)
            write_pack<OLD, Element, Stand::WIDE>(x, to, factor, keep);
        else
            for (int e = 0; e < Stand::WIDE && col + e < cols; ++e) write_pack<OLD, Element, 1>(x + e, to + e, factor, keep);
    });
}

// The cache adds what several tasks write, unseen: some numbers of the size of LARGE might overflow, and those below SMALL
// it may take for zero. (Bits of positive floats are in their order; inf and NaN come last.)
constexpr float LARGE = 0x1p122f, SMALL = 0x1p-100f;

template <class Stand, class Task>
__device__ __forceinline__ void watch(int* flag, const Task& task, float* stand) {
    float factor = 0;
    for (int d = 0; d < task.dests; ++d) factor = max(factor, abs(task.dest_factor[d]));
    unsigned most = 0, least = ~0u;  // of the bits, and of those of all but zero less one
    Stand::every_chunk(stand, [&](const float* x, int, int) {
        const auto v = pack<float, Stand::WIDE>(x);
#pragma unroll
        for (int e = 0; e < Stand::WIDE; ++e) {
            const unsigned size = __float_as_uint(v.lane[e]) & 0x7fffffff;
            most = max(most, size);
            least = min(least, size - 1);
        }
    });
    if (most >= __float_as_uint(LARGE / factor) || least < __float_as_uint(SMALL / factor) - 1) *flag = 1;
}

// The tile that stands there to every block that the task writes.
template <class Stand, class S, Order ORDER, class Params, class Task, class Element>
__device__ __forceinline__ void write_all(const Params& p, const Task& task, const Tile& tile, int number, Element* stand) {
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
            write<Stand, Old::ADDED>(stand, q, p.leading, rows, cols, factor, keep, p.wide);
        else if (keep != Element(0))
            write<Stand, Old::SCALED>(stand, q, p.leading, rows, cols, factor, keep, p.wide);
        else
            write<Stand, Old::NONE>(stand, q, p.leading, rows, cols, factor, keep, p.wide);
        if (ORDER == Order::TURNS && !(task.last[d] && !task.turn[d])) {
            meet<S::THREADS>();
            if (threadIdx.x == 0) pass_turn(count, task.last[d] ? 0 : task.turn[d] + 1);
        }
    }
}

// Of the tile that stands there, what is on and below C's diagonal to the one block that the task writes, and, if all of C is
// wanted, to its mirror.
template <class Stand, class S, Half HALF, class Params, class Task, class Element>
__device__ __forceinline__ void write_half(const Params& p, const Task& task, const Tile& tile, Element* stand) {
    const Block<Element>& block = p.dest[task.dest[0]];
    const int top = tile.row * S::HEIGHT, left = tile.col * S::WIDTH, n = block.rows;
    const Element factor = task.dest_factor[0], keep = block.keep;
    Element* const c = block.data + tile.layer * p.layer;
    Stand::every_chunk(stand, [&](Element* x, int row, int col) {
        const int r = top + row, s = left + col, valid = r < n ? r - s + 1 : 0;
        Element* const to = c + r * p.leading + s;
        for (int e = 0; e < Stand::WIDE && e < valid; ++e) {
            const Element term = mul(factor, x[e]);
            x[e] = keep != Element(0) ? multiply_add(keep, to[e], term) : term;
        }
        if (p.wide && valid >= Stand::WIDE)
            pack<Element, Stand::WIDE>(to) = pack<Element, Stand::WIDE>(x);
        else
            for (int e = 0; e < Stand::WIDE && e < valid; ++e) to[e] = x[e];
    });
    if constexpr (HALF == Half::FULL) {
        meet<S::THREADS>();
#pragma unroll 4
        for (int i = threadIdx.x; i < S::HEIGHT * S::WIDTH; i += S::THREADS) {
            const int row = i % S::HEIGHT, col = i / S::HEIGHT, r = top + row, s = left + col;
            if (r < n && s < r)
                c[s * p.leading + r] = stand[Stand::chunk(row, col / Stand::WIDE) * Stand::WIDE + col % Stand::WIDE];
        }
    }
}

// ---- one product's tile

template <class Element, class S, Along LEFT, Along RIGHT, int LEFTS, int RIGHTS, Order ORDER, Half HALF, class Params,
          class Task>
__device__ __forceinline__ void multiply_bulk(const Params& p, const Task& task, const Tile& tile, int number,
                                              Element* memory, Gate* gates) {
    using LeftSlab = Slab<Element, LEFT, S::HEIGHT, S::DEPTH>;
    using RightSlab = Slab<Element, RIGHT, S::WIDTH, S::DEPTH>;
    using LeftSums = Summer<Element, LeftSlab, LEFTS, S::THREADS>;
    using RightSums = Summer<Element, RightSlab, RIGHTS, S::THREADS>;
    using Left = Reader<Element, LeftSlab, S::ROWS, S::WARP_HEIGHT>;
    using Right = Reader<Element, RightSlab, S::COLS, S::WARP_WIDTH>;
    using Piece = Pack<Element, LeftSlab::WIDE>;
    constexpr int LEFT_SIZE = LEFTS * LeftSlab::SIZE, STAGE = LEFT_SIZE + RIGHTS * RightSlab::SIZE;
    constexpr int SUM = LeftSums::SIZE + RightSums::SIZE;  // what of a tile is used after its sums have been formed
    constexpr int SUMS = LeftSums::SUMS + RightSums::SUMS, TERMS = max_of(LEFTS, RIGHTS), ENTIRE = S::DEPTH - 1;
    // Sums are formed so many tiles before they are used, in the last steps of a tile, since copies may be late.
    constexpr int AHEAD = 2, LAST = ENTIRE - 1, AT_ONCE = (SUMS + LAST - 2) / (LAST - 1);
    constexpr int FIRST = SUMS ? LAST - (SUMS - 1) / max_of(AT_ONCE, 1) : ENTIRE;
    constexpr int COME = FIRST - 1;  // the step in which copies are asked for
    static_assert(S::STAGES >= 3 + (SUMS ? AHEAD : 1), "a stage is filled three tiles after its last use");
    Gate* const full = gates;
    Gate* const summed = full + S::STAGES;

    const int row = tile.row * S::HEIGHT, col = tile.col * S::WIDTH;
    const int steps = task.steps;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int down = warp % S::WARPS_DOWN * (S::ROWS * S::WARP_HEIGHT) + Left::first(lane % S::WARP_HEIGHT);
    const int across = warp / S::WARPS_DOWN * (S::COLS * S::WARP_WIDTH) + Right::first(lane / S::WARP_HEIGHT);
    Element* const sums = memory + S::STAGES * STAGE;

    auto fill = [&](int t, int stage) {
        Element* const to = memory + stage * STAGE;
        const int k = task.from + t * S::DEPTH;
        if (t >= steps) {  // behind the last tile too next ones are asked for
            arrive(full + stage);
            return;
        }
        expect(full + stage, STAGE * static_cast<int>(sizeof(Element)));
#pragma unroll
        for (int b = 0; b < LEFTS; ++b)
            bring(to + b * LeftSlab::SIZE, &p.left[task.left[b]], LeftSlab::INNER ? k : row, LeftSlab::INNER ? row : k,
                  tile.layer, full + stage);
#pragma unroll
        for (int b = 0; b < RIGHTS; ++b)
            bring(to + LEFT_SIZE + b * RightSlab::SIZE, &p.right[task.right[b]], RightSlab::INNER ? k : col,
                  RightSlab::INNER ? col : k, tile.layer, full + stage);
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
    // The i-th of the thread's sums, of A and then of B, in two halves between which there is time.
    auto take = [&](int i, const Element* copies, Piece* held) {
        if (i < LeftSums::SUMS)
            LeftSums::take(i, copies, held);
        else if (i < SUMS)
            RightSums::take(i - LeftSums::SUMS, copies + LEFT_SIZE, held);
    };
    auto give = [&](int i, Element* sum, const Piece* held) {
        if (i < LeftSums::SUMS)
            LeftSums::give(i, sum, held, left_factor);
        else if (i < SUMS)
            RightSums::give(i - LeftSums::SUMS, sum + LeftSums::SIZE, held, right_factor);
    };
    auto all_arrive = [&](Gate* gate) {
        __syncwarp();
        if (lane == 0) arrive(gate);
    };
    // Where this thread's numbers of a stage's tile begin.
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

    // Half of a step's multiply-adds, and reading what their rows want next. Back and forth, so that one of the three
    // numbers of every multiply-add was in the one before.
    auto half = [&](int k, bool second, bool only_reads, const Element* left, const Element* right) {
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
        pass(full + t, 0);
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            Piece held[TERMS];
            take(i, memory + t * STAGE, held);
            give(i, sums + t * SUM, held);
        }
        all_arrive(summed + t);
    }
    pass(summed, 0);
    half(ENTIRE, false, true, left_of(0), right_of(0));
    int stage = 0, late = AHEAD % S::STAGES, free = S::STAGES - 3;
    unsigned parity = 0, late_parity = AHEAD / S::STAGES;  // of the phases of this tile and of the one AHEAD
    // The loop begins in the middle of a step, and what may wait stands there too: the compiler moves reads to where a
    // piece of straight code ends, and there is then half a step before they are used.
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
        half(ENTIRE, true, false, left, right);
#pragma unroll
        for (int k = 0; k < ENTIRE; ++k) {
            Piece held[AT_ONCE + !SUMS][TERMS];
            const bool adds = SUMS && k >= FIRST && k <= LAST;
            if (adds) {
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) take((k - FIRST) * AT_ONCE + i, copies, held[i]);
            }
            half(k, false, false, left, right);
            // All have formed this tile's sums two tiles ago, so have read the one before that: its stage is filled again,
            // by the warps in turn.
            if (k == 0 && __builtin_expect(threadIdx.x == t % (S::THREADS / 32) * 32, 0)) {
                if (t > 2 && t - 3 + S::STAGES < steps + AHEAD) fill(t - 3 + S::STAGES, free);
            }
            if (k == COME) pass(full + (SUMS ? late : next_stage), SUMS ? late_parity : next_parity);
            if (k == ENTIRE - 1) pass(summed + next_stage, next_parity);
            half(k, true, false, left, right);
            if (adds) {
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) give((k - FIRST) * AT_ONCE + i, late_sums, held[i]);
            }
            if (k == LAST) all_arrive(summed + late);
        }
        half(ENTIRE, false, false, next_left, next_right);
        free = free + 1 == S::STAGES ? 0 : free + 1;
        late = late + 1 == S::STAGES ? 0 : late + 1;
        late_parity ^= late == 0;
        stage = next_stage;
        parity = next_parity;
    }
    half(ENTIRE, true, false, left_of(stage), right_of(stage));
    using Stand = fmm::Stand<Element, S, Left, Right>;
    meet<S::THREADS>();  // all have read the last tile
    Stand::put(sum, p.blocks > 0 ? Element(1) : Element(0), memory, down, across);
    meet<S::THREADS>();
    if constexpr (HALF != Half::NONE) {
        if (p.flag) watch<Stand>(p.flag, task, memory);  // first: what stands there becomes what is written
        write_half<Stand, S, HALF>(p, task, tile, memory);
    } else {
        write_all<Stand, S, ORDER>(p, task, tile, number, memory);
        if (p.flag) watch<Stand>(p.flag, task, memory);  // last: others may be waiting for their turn
    }
}

// ---- the kernel

// The shapes of sums that tasks of a launch have: bit 2 * (A's is a sum) + (B's is a sum).
// `memory`: for every stage the copies of all blocks and the sums of an operand, or a tile of C; then two gates a stage.
template <class Element, class S, Along LEFT, Along RIGHT, int LEFTS, int RIGHTS, int SHAPES, Order ORDER, Half HALF,
          class Params>
__device__ __forceinline__ void multiply_all(const Params& p, Element* memory) {
    constexpr int LEFT_COPIES = LEFTS + (LEFTS > 1), RIGHT_COPIES = RIGHTS + (RIGHTS > 1);
    constexpr int STAGES = S::STAGES * S::DEPTH * (S::HEIGHT * LEFT_COPIES + S::WIDTH * RIGHT_COPIES);
    constexpr int NUMBERS = max_of(STAGES, S::HEIGHT * S::WIDTH);
    Gate* const gates = reinterpret_cast<Gate*>(memory + NUMBERS);
    if (threadIdx.x == 0) {
#pragma unroll
        for (int i = 0; i < S::STAGES; ++i) {
            make_gate(gates + i, 1);
            make_gate(gates + S::STAGES + i, S::THREADS / 32);
        }
        show_gates();
    }
    __syncthreads();
    int which = 0, rest = blockIdx.x % p.blocks;
    for (; rest >= p.task[which].tiles; ++which) rest -= p.task[which].tiles;
    const auto& task = p.task[which];
    Tile tile;
    if constexpr (HALF == Half::NONE)
        tile = tile_of(p, task.first + rest);
    else
        tile = LowerTiles<S::HEIGHT, S::WIDTH>(p).at(task.first + rest);
    tile.layer = blockIdx.x / p.blocks;
    const int number = tile.row * p.across + tile.col;
    const bool sums_left = task.lefts > 1, sums_right = task.rights > 1;
    if constexpr (SHAPES & 1) {
        if (!sums_left && !sums_right)
            multiply_bulk<Element, S, LEFT, RIGHT, 1, 1, ORDER, HALF>(p, task, tile, number, memory, gates);
    }
    if constexpr (SHAPES & 2) {
        if (!sums_left && sums_right)
            multiply_bulk<Element, S, LEFT, RIGHT, 1, RIGHTS, ORDER, HALF>(p, task, tile, number, memory, gates);
    }
    if constexpr (SHAPES & 4) {
        if (sums_left && !sums_right)
            multiply_bulk<Element, S, LEFT, RIGHT, LEFTS, 1, ORDER, HALF>(p, task, tile, number, memory, gates);
    }
    if constexpr (SHAPES & 8) {
        if (sums_left && sums_right)
            multiply_bulk<Element, S, LEFT, RIGHT, LEFTS, RIGHTS, ORDER, HALF>(p, task, tile, number, memory, gates);
    }
}

}  // namespace fmm
