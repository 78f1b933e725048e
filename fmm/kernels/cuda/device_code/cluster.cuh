// The thread blocks of a cluster: which of them this is, how they meet, and what stands in each other's shared memory. Tests on
// the host put functions in their place.
#pragma once

namespace fmm {

__device__ __forceinline__ int cluster_rank() {
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ void cluster_meets() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// What stands in the same place of another thread block's shared memory.
__device__ __forceinline__ int there(const int* here, int rank) {
    int x;
    asm volatile(
        "{\n"
        ".reg .b32 at;\n"
        "mapa.shared::cluster.u32 at, %1, %2;\n"
        "ld.shared::cluster.b32 %0, [at];\n"
        "}"
        : "=r"(x)
        : "r"(static_cast<unsigned>(__cvta_generic_to_shared(here))), "r"(rank)
        : "memory");
    return x;
}
__device__ __forceinline__ float there(const float* here, int rank) {
    return __int_as_float(there(reinterpret_cast<const int*>(here), rank));
}
__device__ __forceinline__ double there(const double* here, int rank) {
    double x;
    asm volatile(
        "{\n"
        ".reg .b32 at;\n"
        "mapa.shared::cluster.u32 at, %1, %2;\n"
        "ld.shared::cluster.f64 %0, [at];\n"
        "}"
        : "=d"(x)
        : "r"(static_cast<unsigned>(__cvta_generic_to_shared(here))), "r"(rank)
        : "memory");
    return x;
}

}  // namespace fmm
