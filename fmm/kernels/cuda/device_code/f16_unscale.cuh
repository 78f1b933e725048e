// The end of a product of float16 planes by the vendor (f16_planes.cuh): C = factor T / 2^(row + column), with the
// scaling exponents of A's rows and B's columns. Thread blocks take rows in turn.
#pragma once

#include "f16_planes.cuh"
#include "nonfinite_flag.cuh"

namespace fmm {
namespace planes {

struct Unscaled {
    const float* source;         // T; may be C itself
    float* dest;
    const int *rows, *columns;   // scaling exponents of A's rows and B's columns
    int* flag;                   // raised where C gets an inf or NaN
    long long leading, layer;    // of T and C: numbers from one row to the next, and from one product to the next
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
