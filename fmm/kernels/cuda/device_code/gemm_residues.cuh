// GEMM of byte planes on the tensor cores of Hopper's warpgroups (sm_90a): one product for each modulus p, or several.
// The kernel of gemm_wgmma.cuh adds 32-bit integers; this file adds an epilogue that reduces the sums modulo p and
// stores them as bytes.
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
// at most 2^30. For longer inner dimensions (LONG), sums are also reduced in between. Other kernels omit this code,
// because NVRTC compiles it slowly.
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
