// PTX of Hopper's copy engine (TMA) and of its barriers (mbarrier). Tests on the host replace the whole file.
//
// A phase of a barrier completes when all expected threads have arrived and all expected bytes have been copied. Then
// the next phase starts. Waiting threads distinguish consecutive phases by their parity.
//
// The file includes no header, so NVRTC needs no include path.
#pragma once

namespace fmm {

struct alignas(64) Map {  // CUtensorMap: address, sizes and strides of a matrix, and the size of a copied tile
    unsigned long long word[16];
};

using Barrier = unsigned long long;

__device__ __forceinline__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void init_barrier(Barrier* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Make the initialized barriers visible to the copy engine.
__device__ __forceinline__ void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Arrive at a barrier, and add `bytes` to the bytes that its phase expects.
__device__ __forceinline__ void expect_bytes(Barrier* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void arrive(Barrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Wait until the phase of this parity has completed.
__device__ __forceinline__ void wait_barrier(Barrier* barrier, unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred open;\n"
        "AGAIN:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 open, [%0], %1;\n"
        "@open bra.uni DONE;\n"
        "bra.uni AGAIN;\n"
        "DONE:\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

// Load the tile that begins at number x of line y of layer z. Numbers outside of the matrix are zero. The barrier
// counts the copied bytes.
__device__ __forceinline__ void load_tile(void* to, const Map* map, int x, int y, int z, Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
        ::"r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
        : "memory");
}

// Synchronize the first THREADS threads of the thread block.
template <int THREADS>
__device__ __forceinline__ void meet() {
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

// ---- ordered writes of a tile of C by several thread blocks

__device__ __forceinline__ void wait_for_turn(const unsigned* count, unsigned turn) {
    unsigned seen;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
    while (seen != turn);
}

__device__ __forceinline__ void pass_turn(unsigned* count, unsigned turn) {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(count), "r"(turn) : "memory");
}

// Add numbers to memory in the L2 cache. The instruction returns no value, so no thread waits.
__device__ __forceinline__ void reduce_add(float* q, const float (&x)[1]) {
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(q), "f"(x[0]) : "memory");
}
#if __CUDACC_VER_MAJOR__ > 12 || __CUDACC_VER_MINOR__ > 0
__device__ __forceinline__ void reduce_add(float* q, const float (&x)[2]) {
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(q), "f"(x[0]), "f"(x[1]) : "memory");
}
__device__ __forceinline__ void reduce_add(float* q, const float (&x)[4]) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(q), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
}
#else  // CUDA 12.0 lacks the vector instructions.
template <int COUNT>
__device__ __forceinline__ void reduce_add(float* q, const float (&x)[COUNT]) {
    for (int i = 0; i < COUNT; ++i) reduce_add(q + i, reinterpret_cast<const float (&)[1]>(x[i]));
}
#endif

}  // namespace fmm
