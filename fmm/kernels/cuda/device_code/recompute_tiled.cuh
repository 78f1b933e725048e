// Recompute a product with the tiled kernel of gemm_simt.cuh, if the flag is up.
//
// All thread blocks are resident at the same time. Thread block b computes the tiles b, b + gridDim.x, ... If the flag
// is down, as after most products, all thread blocks return at once.
#pragma once

#include "gemm_simt.cuh"
#include "ieee_arith.cuh"
#include "nonfinite_flag.cuh"

namespace fmm {

// A float32 number with operators that keep subnormal numbers, although CuPy compiles with -ftz=true. So inf times a
// subnormal number is inf and not NaN. `Times` is a product that is not computed yet: product and addition then become
// one fused multiply-add.
struct SubnormalFloat {
    float x;

    struct Times {
        float x, y;
        __device__ __forceinline__ operator SubnormalFloat() const {
            SubnormalFloat z;
            z.x = mul(x, y);
            return z;
        }
    };

    SubnormalFloat() = default;
    __device__ __forceinline__ explicit SubnormalFloat(double value) : x(static_cast<float>(value)) {}

    __device__ __forceinline__ SubnormalFloat& operator+=(Times t) {
        x = multiply_add(t.x, t.y, x);
        return *this;
    }
};
__device__ __forceinline__ SubnormalFloat::Times operator*(SubnormalFloat x, SubnormalFloat y) { return {x.x, y.x}; }
__device__ __forceinline__ SubnormalFloat operator+(SubnormalFloat::Times x, SubnormalFloat::Times y) {
    SubnormalFloat sum = x;
    return sum += y;
}
__device__ __forceinline__ bool operator!=(SubnormalFloat x, SubnormalFloat y) { return x.x != y.x; }

template <class Element>
struct RecomputeElement {
    using Type = Element;
};
template <>
struct RecomputeElement<float> {
    using Type = SubnormalFloat;
};

template <class Params>
struct RecomputeParams {
    Params product;   // its flag is the flag of a Slot; a null pointer: always recompute
    unsigned* count;  // the number of recomputed products in host memory
    long long layers;  // number of products of a batch
};

template <class Product, class Element, class S, Along LEFT, Along RIGHT, Access ACCESS, class Params>
__device__ __forceinline__ void recompute_tiles(const RecomputeParams<Params>& again, Element* memory) {
    const Params& p = again.product;
    if (p.flag && !is_flag_up(p.flag)) return;
    int tiles = p.down * p.across;
    if constexpr (Product::TRIANGLE != Triangle::NONE) tiles = LowerTiles<S::HEIGHT, S::WIDTH>(p).tiles;
    tiles *= static_cast<int>(again.layers);
    for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
        multiply<Product, Element, S, LEFT, RIGHT, ACCESS>(p, memory, number);
        __syncthreads();  // the next tile's copies overwrite the shared memory that this tile's multiply-adds read
    }
    if (p.flag) finish_recompute(reinterpret_cast<Slot*>(p.flag), again.count);
}

}  // namespace fmm
