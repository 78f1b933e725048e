// What Hopper's copy engine and its gates are asked, and nothing else: tests on the host put functions in their place.
//
// A gate (an mbarrier) opens when all who were to arrive have arrived and all bytes that it expects have come; then its
// next phase begins. Phases are told apart by their parity.
//
// No header is needed, so that NVRTC alone compiles this.
#pragma once

namespace fmm {

struct alignas(64) Map {  // CUtensorMap: where a block lies, its sizes, the tile that one copy brings
    unsigned long long word[16];
};

using Gate = unsigned long long;

__device__ __forceinline__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void make_gate(Gate* gate, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(gate)), "r"(arrivals) : "memory");
}

// Gates made by one thread are seen by the copy engine.
__device__ __forceinline__ void show_gates() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Arrive, and let the gate expect so many bytes.
__device__ __forceinline__ void expect(Gate* gate, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(gate)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void arrive(Gate* gate) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(gate)) : "memory");
}

// Until the phase of this parity has ended.
__device__ __forceinline__ void pass(Gate* gate, unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred open;\n"
        "AGAIN:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 open, [%0], %1;\n"
        "@open bra.uni DONE;\n"
        "bra.uni AGAIN;\n"
        "DONE:\n"
        "}" ::"r"(shared_address(gate)),
        "r"(parity)
        : "memory");
}

// Bring the tile that begins at number x of line y of layer z, zeros where the block has none; the gate counts its bytes.
__device__ __forceinline__ void bring(void* to, const Map* map, int x, int y, int z, Gate* gate) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
        ::"r"(shared_address(to)), "l"(map), "r"(shared_address(gate)), "r"(x), "r"(y), "r"(z)
        : "memory");
}

// The first THREADS threads of the block meet; the rest goes on.
template <int THREADS>
__device__ __forceinline__ void meet() {
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

// ---- whose turn it is to write a tile of C

__device__ __forceinline__ void wait_for_turn(const unsigned* count, unsigned turn) {
    unsigned seen;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
    while (seen != turn);
}

__device__ __forceinline__ void pass_turn(unsigned* count, unsigned turn) {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(count), "r"(turn) : "memory");
}

// Add numbers in the second-level cache: nothing is read, so nothing is waited for.
__device__ __forceinline__ void add_there(float* q, const float (&x)[1]) {
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(q), "f"(x[0]) : "memory");
}
__device__ __forceinline__ void add_there(float* q, const float (&x)[2]) {
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(q), "f"(x[0]), "f"(x[1]) : "memory");
}
__device__ __forceinline__ void add_there(float* q, const float (&x)[4]) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(q), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
}

}  // namespace fmm
