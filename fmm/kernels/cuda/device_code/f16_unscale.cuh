// The end of a product of planes that the vendor has multiplied (f16_planes.cuh): C = factor T / 2^(row + column).
#pragma once

#include "f16_planes.cuh"
#include "nonfinite_flag.cuh"

namespace fmm {
namespace planes {

struct Unscaled {
    const float* source;         // T, which may be C itself
    float* dest;
    const int *rows, *columns;   // exponents by which rows of A and columns of B were scaled
    int* flag;                   // raised where C is given an inf or NaN
    long long leading, layer;    // numbers from one row of T, and of C, to the next, and from one product to the next
    int m, n, layers;
    float factor;
};

// Rows in turns, a thread block each.
__device__ __forceinline__ void unscale(const Unscaled& p) {
    bool finite = true;
    for (long long row = blockIdx.x; row < static_cast<long long>(p.m) * p.layers; row += gridDim.x) {
        const int layer = static_cast<int>(row / p.m), line = static_cast<int>(row % p.m), e = p.rows[row];
        const long long start = layer * p.layer + line * p.leading;
        for (int col = threadIdx.x; col < p.n; col += THREADS) {
            const float x = mul(p.factor, scaled_by(p.source[start + col], -e - p.columns[layer * p.n + col]));
            finite = finite && (__float_as_int(x) & 0x7f800000) != 0x7f800000;
            p.dest[start + col] = x;
        }
    }
    if (p.flag && !finite) *static_cast<volatile int*>(p.flag) = 1;
}

}  // namespace planes
}  // namespace fmm
