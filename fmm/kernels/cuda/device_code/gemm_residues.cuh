// Products of planes of residues, one for each modulus, by the tensor cores of Hopper's warpgroups (sm_90a): as
// gemm_wgmma.cuh does it, with sums of 32 bits that are reduced before they are stored, a byte each.
#pragma once

#include "gemm_wgmma.cuh"
#include "modulus.cuh"

namespace fmm {

constexpr int MOST_MODULI = 20;

struct ResidueProduct {
    Product product;
    Modulus moduli[MOST_MODULI];  // of the planes that are multiplied, in their order
    int each;                     // products with one modulus
};

struct byte {
    signed char bits;
};

__device__ __forceinline__ void put_pair(byte* to, int x, int y) {
    *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(low_bytes(x, y));
}

// Residues lie between -128 and 127: the products of 2^16 steps add up to 2^30 at most.
struct ByModulus {
    static constexpr int MOST_STEPS = 512;  // tiles of 128 steps
    static constexpr bool ADDS = false;
    const Modulus* moduli;
    int each;
    __device__ __forceinline__ Modulus of(int layer) const { return moduli[layer / each]; }
};

}  // namespace fmm
