// Compute C from T, the vendor's product of float16 planes (f16_planes.cuh): Cij = factor Tij / 2^(ei + fj). Row i of A
// is scaled by 2^ei, and column j of B by 2^fj. Thread block b processes the rows b, b + gridDim.x, ...
#pragma once

#include "f16_planes.cuh"
#include "nonfinite_flag.cuh"

namespace fmm {
namespace planes {

struct Unscaled {
    const float* source;         // T; may be C itself
    float* dest;
    const int *rows, *columns;   // scaling exponents of A's rows and B's columns
    int* flag;                   // set to 1 if C gets an inf or NaN; null: not checked
    long long leading, layer;    // strides of T and C from row to row, and from product to product
    int m, n, layers;
    float factor;
};

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
