// A product computed again by the tiled kernel, if a flag is up.
//
// Its thread blocks are as many as run at a time, and take tiles in turns: if the flag is down, and it mostly is, all of
// them look at it at once and leave, which takes no longer than any small launch.
#pragma once

#include "gemm_simt.cuh"
#include "ieee_arith.cuh"
#include "nonfinite_flag.cuh"

namespace fmm {

// A float whose subnormal numbers count as what they are, though CuPy compiles with -ftz=true: an inf times one of them
// is an inf, and no NaN. A product is kept in its two factors until it is known whether it is added to something.
struct Whole {
    float x;

    struct Times {
        float x, y;
        __device__ __forceinline__ operator Whole() const {
            Whole z;
            z.x = mul(x, y);
            return z;
        }
    };

    Whole() = default;
    __device__ __forceinline__ explicit Whole(double value) : x(static_cast<float>(value)) {}

    __device__ __forceinline__ Whole& operator+=(Times t) {
        x = multiply_add(t.x, t.y, x);
        return *this;
    }
};
__device__ __forceinline__ Whole::Times operator*(Whole x, Whole y) { return {x.x, y.x}; }
__device__ __forceinline__ Whole operator+(Whole::Times x, Whole::Times y) {
    Whole sum = x;
    return sum += y;
}
__device__ __forceinline__ bool operator!=(Whole x, Whole y) { return x.x != y.x; }

template <class Element>
struct Exactly {
    using Type = Element;
};
template <>
struct Exactly<float> {
    using Type = Whole;
};

template <class Params>
struct Again {
    Params product;   // its flag is a Slot's, or null: computed always
    unsigned* count;  // the slot's rescues once more, in the host's memory
};

template <class Product, class Element, class S, Along LEFT, Along RIGHT, Access ACCESS, class Params>
__device__ __forceinline__ void multiply_again(const Again<Params>& again, Element* memory) {
    const Params& p = again.product;
    if (p.flag && !is_up(p.flag)) return;
    int tiles = p.down * p.across;
    if constexpr (Product::HALF != Half::NONE) tiles = LowerTiles<S::HEIGHT, S::WIDTH>(p).tiles;
    for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
        multiply<Product, Element, S, LEFT, RIGHT, ACCESS>(p, memory, number);
        __syncthreads();  // the next tile's copies come to where this one's were read
    }
    if (p.flag) finish(reinterpret_cast<Slot*>(p.flag), again.count);
}

}  // namespace fmm
