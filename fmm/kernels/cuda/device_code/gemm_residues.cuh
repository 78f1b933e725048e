// GEMM of byte planes on the tensor cores of Hopper's warpgroups (sm_90a), with one product for each modulus p. The
// kernel is that of gemm_wgmma.cuh with 32-bit integer sums. Sums are reduced modulo p and stored as bytes.
#pragma once

#include "gemm_wgmma.cuh"
#include "modulus.cuh"

namespace fmm {

constexpr int MAX_MODULI = 20;

struct ResidueProduct {
    Product product;
    Modulus moduli[MAX_MODULI];  // the moduli of the planes, in order
    int each;                     // number of products of planes for each modulus
};

struct byte {
    signed char bits;
};

__device__ __forceinline__ void store_pair(byte* to, int x, int y) {
    *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(low_bytes(x, y));
}

// Epilogue: the sum modulo p. Residues are between -128 and 127, so sums over 2^16 positions of the inner dimension are
// at most 2^30. Longer inner dimensions (LONG) need code that reduces sums in between, and NVRTC compiles it slowly.
template <bool LONG>
struct ByModulus {
    static constexpr int MAX_STEPS = LONG ? 512 : 0;  // sums are reduced after this number of tiles of 128 numbers
    static constexpr bool ADDS = false;
    static constexpr int COLUMNS = 64;  // the loop over columns has a short body, so that NVRTC takes less time
    const Modulus* moduli;
    int each;
    __device__ __forceinline__ Modulus of(int layer) const { return moduli[layer / each]; }
};

}  // namespace fmm
