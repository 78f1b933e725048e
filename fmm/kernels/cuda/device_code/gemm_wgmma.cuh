// Products by the tensor cores of Hopper's warpgroups (sm_90a), of 16-bit numbers, of float32 as TF32, and of bytes.
//
//   Product  where A, B and C lie, and what is to be done with them
//   bring    one thread: tiles of A and B to shared memory; what both thread blocks of a cluster want comes once for both
//   multiply two warpgroups, 64 rows each: from shared memory to the accumulators
//   stage    these: from the accumulators to shared memory, as numbers are stored
//   send     a thread for each of them: from there to C
//
// Thread blocks stay: while one tile of C is sent, the next one's operands come and are multiplied. Gates: `full` and
// `empty` of each stage, `staged` and `sent` of each warpgroup.
//
// There are no sums inside: the instructions take B from shared memory, and four of a warpgroup read it about as fast as
// it can be read; forming sums there would take longer than the product does.
#pragma once

#include "cluster.cuh"
#include "gemm_common.cuh"
#include "ptx_tma.cuh"

namespace fmm {

// ---- numbers, as they are stored

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
__device__ __forceinline__ void put_pair(Element* to, float x, float y) {
    *reinterpret_cast<unsigned*>(to) = rounded_pair(to, x, y);
}
__device__ __forceinline__ void put_pair(tf32* to, float x, float y) { *reinterpret_cast<float2*>(to) = {x, y}; }

// ---- what a launch is told

struct Product {
    Map left, right, dest;
    const void* old;           // C, where a multiple of it is kept
    long long leading, layer;  // numbers from one row of it to the next, and from one product of a batch to the next
    int m, n;                  // its sides
    float keep;                // so many times what stands in C is added to the product, before the factor
    int steps;         // tiles of the inner dimension
    int down, across;  // clusters' tiles below each other and side by side
    int group;         // so many rows of them are done together
    int units;         // clusters' tiles of all products of a batch
    int adds;          // to what stands in C?
    float factor;      // of the product
};

// ---- what clusters, the copy engine and warpgroups are asked

// At the gate of a thread block of the cluster: what was there has been read. (Nothing that was written is to be seen, so
// no wider scope: with that, the first-level cache is emptied each time.)
__device__ __forceinline__ void arrive_at(Gate* gate, int rank) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}" ::"r"(shared_address(gate)),
        "r"(rank)
        : "memory");
}

// As `bring`, to the same place in each of a cluster's first COUNT thread blocks, whose gates there count the bytes.
template <int COUNT>
__device__ __forceinline__ void bring_to_all(void* to, const Map* map, int x, int y, int z, Gate* gate) {
    constexpr unsigned short ALL = (1 << COUNT) - 1;
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(gate)), "r"(x), "r"(y), "r"(z), "h"(ALL)
        : "memory");
}

// From shared memory to C, cut off at its edges.
__device__ __forceinline__ void send(const Map* map, const void* from, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(shared_address(from)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
__device__ __forceinline__ void send_added(const Map* map, const void* from, int x, int y, int z) {
    asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(shared_address(from)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
__device__ __forceinline__ void end_of_sending() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void until_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void until_sent() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// What this thread wrote to shared memory.
__device__ __forceinline__ void engine_sees() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int REGISTERS>
__device__ __forceinline__ void want_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ __forceinline__ void leave_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

__device__ __forceinline__ void begin_multiplying() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_of_multiplying() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void until_multiplied() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// ---- shared memory

// A tile as the copy engine leaves it: lines of 128 bytes along what is contiguous in global memory, whose 16-byte chunks
// are exchanged within 8 lines. Along the inner dimension a line is a row of A's tile, or a column of B's; along the outer
// one it is LINE numbers of a step, and all steps of these come before the next LINE.
template <class Element, Along ALONG, int OUT>
struct Panel {
    static constexpr bool INNER = ALONG == Along::INNER;
    static constexpr int ITEM = static_cast<int>(sizeof(Element)), LINE = 128 / ITEM, SIZE = OUT * LINE;
    static constexpr int DEEP = 32 / ITEM;                                 // steps in an instruction
    static constexpr int NEXT = INNER ? DEEP * ITEM / 16 : DEEP * 128 / 16;  // from one to the next, in 16 bytes
    static_assert(INNER || ITEM == 2, "instructions read only 16-bit numbers along the outer dimension");

    // What tells an instruction where its operand lies: in units of 16 bytes the address, how far away the next LINE
    // numbers and the next 8 lines are; and that chunks are exchanged.
    __device__ static __forceinline__ unsigned long long described(const void* at) {
        const unsigned long long next = INNER ? 1 : LINE * 128 / 16, eight = 8 * 128 / 16;
        return (shared_address(at) & 0x3ffff) >> 4 | next << 16 | eight << 32 | 1ull << 62;
    }
    // Copy the part of the tile that begins at number `from` of the outer dimension; `first` is that number in the block.
    template <int PART, class Copy>
    __device__ static __forceinline__ void copied(Element* tile, int from, int first, int k, const Copy& copy) {
        constexpr int BOX = INNER ? PART : LINE;
#pragma unroll
        for (int i = 0; i < PART; i += BOX)
            copy(tile + (from + i) * LINE, INNER ? k : first + i, INNER ? first + i : k);
    }
    // What the `rank`-th of so many brings of a tile that they copy together.
    template <int SHARERS, class Copy>
    __device__ static __forceinline__ void copied_together(Element* tile, int rank, int first, int k, const Copy& copy) {
        constexpr int PART = INNER ? OUT / SHARERS : LINE;
#pragma unroll
        for (int i = 0; i < OUT; i += PART)
            if (i / PART % SHARERS == rank) copied<PART>(tile, i, first + i, k, copy);
    }
};

template <class Element, int M_S, int N_S, int CLUSTER_, int STAGES_>
struct Sizes {  // a thread block's tile; so many thread blocks below each other are a cluster
    static constexpr int HEIGHT = M_S, WIDTH = N_S, CLUSTER = CLUSTER_, STAGES = STAGES_;
    static constexpr int LINE = 128 / static_cast<int>(sizeof(Element)), DEPTH = LINE;
    static constexpr int GROUPS = M_S / 64, THREADS = 128 * (GROUPS + 1);
    static constexpr int STAGE = DEPTH * (HEIGHT + WIDTH);
    static constexpr int PASSES = sizeof(Element) > 2 ? 2 : 1, PART = WIDTH / PASSES;  // columns that are staged at a time
    static constexpr int STAGED = 64 * PART, NUMBERS = STAGES * STAGE + GROUPS * STAGED;
    static_assert(PART % LINE == 0 && WIDTH / CLUSTER % 8 == 0, "whole lines, whose chunks are exchanged within 8");
};

// The same, of a C that is symmetric: only tiles that reach the diagonal or lie below it are multiplied. With a MIRROR they
// are also sent to where they stand transposed.
template <class Element, int M_S, int N_S, int CLUSTER_, int STAGES_, bool MIRROR = false>
struct LowerSizes : Sizes<Element, M_S, N_S, CLUSTER_, STAGES_> {
    static_assert(!MIRROR || sizeof(Element) == 2, "transposed by an instruction for 16-bit numbers");
};
template <class S>
constexpr bool LOWER_ONLY = false;
template <class S>
constexpr bool MIRRORED = false;
template <class Element, int M_S, int N_S, int CLUSTER_, int STAGES_, bool MIRROR>
constexpr bool LOWER_ONLY<LowerSizes<Element, M_S, N_S, CLUSTER_, STAGES_, MIRROR>> = true;
template <class Element, int M_S, int N_S, int CLUSTER_, int STAGES_, bool MIRROR>
constexpr bool MIRRORED<LowerSizes<Element, M_S, N_S, CLUSTER_, STAGES_, MIRROR>> = MIRROR;

// Which stage comes next, and the parity of its gates' phase.
template <int STAGES>
struct Round {
    int stage = 0;
    unsigned parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

struct Gates {
    Gate *full, *empty, *staged, *sent;
};

// ---- what the warps do, tile after tile

struct Place {
    int layer, row, col;  // where the thread block's tile begins
};

template <class S, class Params, class Work>
__device__ __forceinline__ void every_tile(const Params& p, const Work& work) {
    const int rank = cluster_rank();
#pragma unroll 1
    for (int unit = blockIdx.x / S::CLUSTER; unit < p.units; unit += gridDim.x / S::CLUSTER) {
        Tile tile;
        if constexpr (LOWER_ONLY<S>)
            tile = LowerTiles<S::CLUSTER * S::HEIGHT, S::WIDTH>(p).at(unit);
        else
            tile = tile_of(p, unit);
        work(Place{tile.layer, (tile.row * S::CLUSTER + rank) * S::HEIGHT, tile.col * S::WIDTH});
    }
}

template <class S, class Left, class Right, class Element>
__device__ __forceinline__ void bring_all(const Product& p, Element* memory, const Gates& gates) {
    const int rank = cluster_rank();
    Round<S::STAGES> round;
    every_tile<S>(p, [&](const Place& place) {
#pragma unroll 1
        for (int t = 0; t < p.steps; ++t, round.next()) {
            pass(gates.empty + round.stage, round.parity ^ 1);
            Gate* const full = gates.full + round.stage;
            Element* const to = memory + round.stage * S::STAGE;
            expect(full, S::STAGE * static_cast<int>(sizeof(Element)));
            Left::template copied<S::HEIGHT>(to, 0, place.row, t * S::DEPTH, [&](Element* there, int x, int y) {
                bring(there, &p.left, x, y, place.layer, full);
            });
            Right::template copied_together<S::CLUSTER>(
                to + Left::SIZE, rank, place.col, t * S::DEPTH,
                [&](Element* there, int x, int y) { bring_to_all<S::CLUSTER>(there, &p.right, x, y, place.layer, full); });
        }
    });
}

// What becomes of a sum before it is stored: it is multiplied by a factor, the same in all layers.
struct ByFactor {
    static constexpr int MOST_STEPS = 0;  // as many steps as there are may be added up
    static constexpr bool ADDS = true;    // what stands in C, if that is asked for
    float factor;
    __device__ __forceinline__ const ByFactor& of(int) const { return *this; }
    __device__ __forceinline__ float operator()(float x) const { return factor * x; }
};

// Is not read before the instructions that wrote it have ended.
__device__ __forceinline__ void settled(float& x) { asm volatile("" : "+f"(x)::"memory"); }
__device__ __forceinline__ void settled(int& x) { asm volatile("" : "+r"(x)::"memory"); }

// Of a warpgroup's 64 rows, the 64 columns on the diagonal: what stands above it in shared memory becomes what is below.
template <class S, class Element>
__device__ __forceinline__ void make_symmetric(Element* block, int group) {
    constexpr int WIDE = 16 / static_cast<int>(sizeof(Element));
    const auto at = [&](int line, int col) -> Element& {
        return block[line * S::LINE + (col / WIDE ^ line % 8) * WIDE + col % WIDE];
    };
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");  // all of the group have staged
    for (int i = threadIdx.x % 128; i < 64 * 64; i += 128)
        if (i % 64 > i / 64) at(i / 64, i % 64) = at(i % 64, i / 64);
}

// A warpgroup's numbers as lines of 64 for each of its columns, as they stand in C's other half. An instruction turns four
// blocks of 8 x 8: of 16 rows and 16 columns.
template <class S, class Element, int COUNT>
__device__ __forceinline__ void stage_transposed(Element* staging, const float (&sum)[COUNT], float factor) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const int line = lane / 16 * 8 + lane % 8, chunk = warp * 2 + lane / 8 % 2;
    Element* const first = staging + line * S::LINE + (chunk ^ line % 8) * 8;
#pragma unroll
    for (int j = 0; j < S::WIDTH; j += 16) {
        const float* const x = sum + j / 2;
        unsigned block[4];
#pragma unroll
        for (int b = 0; b < 4; ++b) block[b] = rounded_pair(staging, factor * x[2 * b], factor * x[2 * b + 1]);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         shared_address(first + j * S::LINE)),
                     "r"(block[0]), "r"(block[1]), "r"(block[2]), "r"(block[3])
                     : "memory");
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

// x += keep times what stands in C, of the pairs from this row and column on. (n is even.)
template <class Element, int COUNT>
__device__ __forceinline__ void add_old(const Product& p, float (&x)[COUNT], int layer, int row, int col) {
    constexpr int AT_ONCE = 8;  // pairs that are on their way: more would not leave registers enough
    const Element* const old = static_cast<const Element*>(p.old) + layer * p.layer + col;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int line = row + r * 8, there = line < p.m ? p.n - col : 0;
        const Element* const first = old + line * p.leading;
#pragma unroll
        for (int begin = 0; begin < COUNT / 4; begin += AT_ONCE) {
            float2 kept[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                kept[j] = {0, 0};
                if ((begin + j) * 8 < there) kept[j] = widened_pair(first + (begin + j) * 8);
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                float* const pair = x + (begin + j) * 4 + r * 2;
                pair[0] += p.keep * kept[j].x;
                pair[1] += p.keep * kept[j].y;
            }
            asm volatile("" ::: "memory");  // no later reads are begun here
        }
    }
}

template <class Step, class S, class Left, class Right, class Element, class Finish>
__device__ __forceinline__ void multiply_all(const Product& p, const Finish& finish, Element* memory, const Gates& gates,
                                             int group) {
    constexpr int WORDS = S::STAGE * static_cast<int>(sizeof(Element)) / 16, WIDE = 16 / static_cast<int>(sizeof(Element));
    const auto a = Left::described(memory + group * 64 * S::LINE), b = Right::described(memory + Left::SIZE);
    const int thread = threadIdx.x % 128, lane = thread % 32, row = thread / 32 * 16 + lane / 4;
    Element* const staging = memory + S::STAGES * S::STAGE + group * S::STAGED;
    Round<S::STAGES> round;
    Round<1> staged;
    typename Step::Sum sum[S::WIDTH / 2];  // pairs: of line `row` and of the eighth line behind it, in every 8 columns
    every_tile<S>(p, [&](const Place& place) {
        const auto finished = finish.of(place.layer);
        int before = 0;
#pragma unroll 1
        for (int t = 0; t < p.steps; ++t, round.next()) {
            pass(gates.full + round.stage, round.parity);
            begin_multiplying();
#pragma unroll
            for (int k = 0; k < S::DEPTH / Left::DEEP; ++k)
                Step::template multiply<!Left::INNER, !Right::INNER>(sum, a + round.stage * WORDS + k * Left::NEXT,
                                                                     b + round.stage * WORDS + k * Right::NEXT, t || k);
            end_of_multiplying();
            until_multiplied<1>();  // so that the stage before is free
            if (t && thread < S::CLUSTER) arrive_at(gates.empty + before, thread);
            before = round.stage;
            if constexpr (Finish::MOST_STEPS > 0) {
                if ((t + 1) % Finish::MOST_STEPS == 0) {
                    until_multiplied<0>();
#pragma unroll
                    for (auto& x : sum) {
                        settled(x);
                        x = finished.still(x);
                    }
                }
            }
        }
        until_multiplied<0>();
#pragma unroll
        for (auto& x : sum) settled(x);
        if (thread < S::CLUSTER) arrive_at(gates.empty + before, thread);
        if constexpr (Finish::ADDS) {
            if (p.keep != 0)
                add_old<Element>(p, sum, place.layer, place.row + group * 64 + row, place.col + lane % 4 * 2);
        }
#pragma unroll
        for (int from = 0; from < S::WIDTH; from += S::PART, staged.next()) {
            pass(gates.sent + group, staged.parity ^ 1);
#pragma unroll
            for (int j = 0; j < S::PART; j += 8)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const auto* const x = sum + (from + j) / 2 + r * 2;
                    const int line = row + r * 8, col = j % S::LINE + lane % 4 * 2, chunk = col / WIDE ^ line % 8;
                    put_pair(staging + j / S::LINE * 64 * S::LINE + line * S::LINE + chunk * WIDE + col % WIDE,
                             finished(x[0]), finished(x[1]));
                }
            if constexpr (MIRRORED<S>) {
                const int diagonal = place.row + group * 64 - place.col;
                if (diagonal >= 0 && diagonal < S::WIDTH) make_symmetric<S>(staging + diagonal * 64, group);
            }
            engine_sees();
            arrive(gates.staged + group);
        }
        if constexpr (MIRRORED<S>) {
            if (place.col < place.row + group * 64) {
                pass(gates.sent + group, staged.parity ^ 1);
                stage_transposed<S>(staging, sum, p.factor);
                engine_sees();
                arrive(gates.staged + group);
                staged.next();
            }
        }
    });
}

template <class S, class Element>
__device__ __forceinline__ void send_all(const Product& p, Element* memory, const Gates& gates, int group) {
    const Element* const staging = memory + S::STAGES * S::STAGE + group * S::STAGED;
    Round<1> staged;
    every_tile<S>(p, [&](const Place& place) {
        const int row = place.row + group * 64;
#pragma unroll 1
        for (int from = 0; from < S::WIDTH; from += S::PART, staged.next()) {
            pass(gates.staged + group, staged.parity);
#pragma unroll
            for (int i = 0; i < S::PART; i += S::LINE) {
                const int col = place.col + from + i;
                if (MIRRORED<S> && col > row) continue;
                if (p.adds)
                    send_added(&p.dest, staging + i * 64, col, row, place.layer);
                else
                    send(&p.dest, staging + i * 64, col, row, place.layer);
            }
            end_of_sending();
            until_read();
            arrive(gates.sent + group);
        }
        if constexpr (MIRRORED<S>) {
            if (place.col >= row) return;
            pass(gates.staged + group, staged.parity);
            for (int col = place.col; col < row && col < place.col + S::WIDTH; col += 64)
                send(&p.dest, staging + (col - place.col) * 64, row, col, place.layer);
            end_of_sending();
            until_read();
            arrive(gates.sent + group);
            staged.next();
        }
    });
    until_sent();
}

// ---- the kernel

// How all these kernels begin and end: one thread makes the gates, which stand behind the numbers in `memory`; the first
// warpgroup copies, for which it needs few registers, and the others multiply.
template <class S, bool STAGES_RESULT, class Element, class Copy, class Multiply>
__device__ __forceinline__ void in_warpgroups(Element* memory, const Copy& copy, const Multiply& multiply) {
    Gate* const full = reinterpret_cast<Gate*>(memory + S::NUMBERS);
    Gate* const staged = full + 2 * S::STAGES;
    const Gates gates{full, full + S::STAGES, staged, staged + S::GROUPS};
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; ++i) {
            make_gate(gates.full + i, 1);
            make_gate(gates.empty + i, S::GROUPS * S::CLUSTER);
        }
        for (int i = 0; STAGES_RESULT && i < S::GROUPS; ++i) {
            make_gate(gates.staged + i, 128);
            make_gate(gates.sent + i, 1);
        }
        show_gates();
    }
    cluster_meets();
    // Known to be the same in all of a warp, so that what depends on it is not kept by every thread.
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp < 4) {
        leave_registers<40>();
        copy(gates, warp);
    } else {
        want_registers<232>();
        multiply(gates, warp / 4 - 1);
    }
    cluster_meets();  // nobody leaves while others may arrive at its gates
}

// `memory`: for every stage a tile of A and one of B; for every warpgroup what it stages; gates. `Step::multiply` is the one
// instruction, which the generated source brings: it names all the registers of a tile.
template <class Step, class Element, class S, Along LEFT, Along RIGHT, class Finish>
__device__ __forceinline__ void multiply_by_groups(const Product& p, const Finish& finish, Element* memory) {
    using Left = Panel<Element, LEFT, S::HEIGHT>;
    using Right = Panel<Element, RIGHT, S::WIDTH>;
    const auto copy = [&](const Gates& gates, int warp) {
        const bool first = threadIdx.x % 32 == 0;
        if (warp == 0 && first) bring_all<S, Left, Right>(p, memory, gates);
        if (warp > 0 && warp <= S::GROUPS && first) send_all<S>(p, memory, gates, warp - 1);
    };
    in_warpgroups<S, true>(memory, copy, [&](const Gates& gates, int group) {
        multiply_all<Step, S, Left, Right>(p, finish, memory, gates, group);
    });
}

}  // namespace fmm
