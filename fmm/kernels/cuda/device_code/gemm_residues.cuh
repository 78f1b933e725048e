// GEMM of byte planes, one product for each modulus, on the tensor cores of Hopper's warpgroups (sm_90a):
// gemm_wgmma.cuh with 32-bit sums, which are reduced modulo p before they are stored as bytes.
#pragma once

#include "gemm_wgmma.cuh"
#include "modulus.cuh"

namespace fmm {

constexpr int MAX_MODULI = 20;

struct ResidueProduct {
    Product product;
    Modulus moduli[MAX_MODULI];  // of the planes, in their order
    int each;                     // products of planes for each modulus
};

struct byte {
    signed char bits;
};

__device__ __forceinline__ void store_pair(byte* to, int x, int y) {
    *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(low_bytes(x, y));
}

// Epilogue: the sum modulo p. Residues are between -128 and 127, so the products of 2^16 steps sum to 2^30 at most.
// Only an inner dimension that LONG needs code that reduces sums on the way, for which NVRTC takes long.
template <bool LONG>
struct ByModulus {
    static constexpr int MAX_STEPS = LONG ? 512 : 0;  // tiles of 128 steps; sums are reduced after that many
    static constexpr bool ADDS = false;
    static constexpr int COLUMNS = 64;  // the loop is short, so that NVRTC takes less time
    const Modulus* moduli;
    int each;
    __device__ __forceinline__ Modulus of(int layer) const { return moduli[layer / each]; }
};

}  // namespace fmm
