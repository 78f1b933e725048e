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

__device__ __forceinline__ void put_pair(half* to, float x, float y) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
    *reinterpret_cast<unsigned*>(to) = both;
}
__device__ __forceinline__ void put_pair(bfloat16* to, float x, float y) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
    *reinterpret_cast<unsigned*>(to) = both;
}
__device__ __forceinline__ void put_pair(tf32* to, float x, float y) { *reinterpret_cast<float2*>(to) = {x, y}; }

// ---- what a launch is told

struct Product {
    Map left, right, dest;
    int steps;         // tiles of the inner dimension
    int down, across;  // clusters' tiles below each other and side by side
    int group;         // so many rows of them are done together
    int units;         // clusters' tiles of all products of a batch
    int adds;          // to what stands in C?
    float factor;      // of the product
    int layers;        // products of the batch
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
};

template <class Element, int M_S, int N_S, int CLUSTER_, int STAGES_>
struct Sizes {  // a thread block's tile; so many thread blocks below each other are a cluster
    static constexpr int HEIGHT = M_S, WIDTH = N_S, CLUSTER = CLUSTER_, STAGES = STAGES_;
    static constexpr int LINE = 128 / static_cast<int>(sizeof(Element)), DEPTH = LINE;
    static constexpr int GROUPS = M_S / 64, THREADS = 128 * (GROUPS + 1);
    static constexpr int STAGE = DEPTH * (HEIGHT + WIDTH);
    static constexpr int PASSES = sizeof(Element) > 2 ? 2 : 1, PART = WIDTH / PASSES;  // columns that are staged at a time
    static constexpr int STAGED = 64 * PART, NUMBERS = STAGES * STAGE + GROUPS * STAGED;
    static_assert(PART % LINE == 0 && (sizeof(Element) == 1 || WIDTH / CLUSTER % LINE == 0), "whole lines");
};

// The same, of a C that is symmetric: only tiles that reach the diagonal or lie below it are multiplied.
template <class Element, int M_S, int N_S, int CLUSTER_, int STAGES_>
struct LowerSizes : Sizes<Element, M_S, N_S, CLUSTER_, STAGES_> {};
template <class S>
constexpr bool LOWER_ONLY = false;
template <class Element, int M_S, int N_S, int CLUSTER_, int STAGES_>
constexpr bool LOWER_ONLY<LowerSizes<Element, M_S, N_S, CLUSTER_, STAGES_>> = true;

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

// The so many-th tile of the lower half, numbered as by tile_of, but of each group of rows only the columns that its last
// row needs. A few of them lie above the diagonal of the rows before; `per_layer` counts them too.
template <class S, class Params>
__device__ __forceinline__ Tile lower_tile_of(const Params& p, int number) {
    constexpr int WIDE = S::CLUSTER * S::HEIGHT / S::WIDTH;  // tiles side by side that are as wide as a cluster's are high
    const int per_layer = p.units / p.layers, each = p.group * p.group * WIDE;
    int within = number % per_layer, band = 0;
    while ((band + 1) * p.group < p.down && each * (band + 1) * (band + 2) / 2 <= within) ++band;
    within -= each * band * (band + 1) / 2;
    const int first = band * p.group, height = min(p.down - first, p.group);
    return {number / per_layer, first + within % height, within / height};
}

template <class S, class Params, class Work>
__device__ __forceinline__ void every_tile(const Params& p, const Work& work) {
    const int rank = cluster_rank();
#pragma unroll 1
    for (int unit = blockIdx.x / S::CLUSTER; unit < p.units; unit += gridDim.x / S::CLUSTER) {
        Tile tile;
        if constexpr (LOWER_ONLY<S>) {
            tile = lower_tile_of<S>(p, unit);
            if (tile.col * S::WIDTH >= (tile.row + 1) * S::CLUSTER * S::HEIGHT) continue;
        } else {
            tile = tile_of(p, unit);
        }
        work(Place{tile.layer, (tile.row * S::CLUSTER + rank) * S::HEIGHT, tile.col * S::WIDTH});
    }
}

template <class S, class Left, class Right, class Element>
__device__ __forceinline__ void bring_all(const Product& p, Element* memory, const Gates& gates) {
    constexpr int PART = S::WIDTH / S::CLUSTER;  // of B, that this thread block brings for all
    const int mine = cluster_rank() * PART;
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
            Right::template copied<PART>(to + Left::SIZE, mine, place.col + mine, t * S::DEPTH,
                                         [&](Element* there, int x, int y) {
                                             bring_to_all<S::CLUSTER>(there, &p.right, x, y, place.layer, full);
                                         });
        }
    });
}

// What becomes of a sum before it is stored: it is multiplied by a factor, the same in all layers.
struct ByFactor {
    static constexpr int MOST_STEPS = 0;  // as many steps as there are may be added up
    float factor;
    __device__ __forceinline__ const ByFactor& of(int) const { return *this; }
    __device__ __forceinline__ float operator()(float x) const { return factor * x; }
};

// Is not read before the instructions that wrote it have ended.
__device__ __forceinline__ void settled(float& x) { asm volatile("" : "+f"(x)::"memory"); }
__device__ __forceinline__ void settled(int& x) { asm volatile("" : "+r"(x)::"memory"); }

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
            engine_sees();
            arrive(gates.staged + group);
        }
    });
}

template <class S, class Element>
__device__ __forceinline__ void send_all(const Product& p, Element* memory, const Gates& gates, int group) {
    const Element* const staging = memory + S::STAGES * S::STAGE + group * S::STAGED;
    Round<1> staged;
    every_tile<S>(p, [&](const Place& place) {
#pragma unroll 1
        for (int from = 0; from < S::WIDTH; from += S::PART, staged.next()) {
            pass(gates.staged + group, staged.parity);
#pragma unroll
            for (int i = 0; i < S::PART; i += S::LINE) {
                const int x = place.col + from + i, y = place.row + group * 64;
                if (p.adds)
                    send_added(&p.dest, staging + i * 64, x, y, place.layer);
                else
                    send(&p.dest, staging + i * 64, x, y, place.layer);
            }
            end_of_sending();
            until_read();
            arrive(gates.sent + group);
        }
    });
    until_sent();
}

// ---- the kernel

// `memory`: for every stage a tile of A and one of B; for every warpgroup what it stages; gates. `Step::multiply` is the one
// instruction, which the generated source brings: it names all the registers of a tile.
template <class Step, class Element, class S, Along LEFT, Along RIGHT, class Finish>
__device__ __forceinline__ void multiply_by_groups(const Product& p, const Finish& finish, Element* memory) {
    using Left = Panel<Element, LEFT, S::HEIGHT>;
    using Right = Panel<Element, RIGHT, S::WIDTH>;
    Gate* const full = reinterpret_cast<Gate*>(memory + S::NUMBERS);
    Gate* const staged = full + 2 * S::STAGES;
    const Gates gates{full, full + S::STAGES, staged, staged + S::GROUPS};
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; ++i) {
            make_gate(gates.full + i, 1);
            make_gate(gates.empty + i, S::GROUPS * S::CLUSTER);
        }
        for (int i = 0; i < S::GROUPS; ++i) {
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
        const bool first = threadIdx.x % 32 == 0;
        if (warp == 0 && first) bring_all<S, Left, Right>(p, memory, gates);
        if (warp > 0 && warp <= S::GROUPS && first) send_all<S>(p, memory, gates, warp - 1);
    } else {
        want_registers<232>();
        multiply_all<Step, S, Left, Right>(p, finish, memory, gates, warp / 4 - 1);
    }
    cluster_meets();  // nobody leaves while others may arrive at its gates
}

}  // namespace fmm
