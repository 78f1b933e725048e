// Thread block clusters: the rank of a thread block, a barrier, and loads from another thread block's shared memory.
// Tests on the host replace these functions.
#pragma once

namespace fmm {

__device__ __forceinline__ int cluster_rank() {
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Load the value at the same address in the shared memory of the cluster's thread block `rank`.
__device__ __forceinline__ int load_remote(const int* here, int rank) {
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
__device__ __forceinline__ float load_remote(const float* here, int rank) {
    return __int_as_float(load_remote(reinterpret_cast<const int*>(here), rank));
}
__device__ __forceinline__ double load_remote(const double* here, int rank) {
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
