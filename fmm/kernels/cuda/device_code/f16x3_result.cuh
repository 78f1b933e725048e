// The last stage of float32 products as three float16 products: undo the scaling, and write registers to C. Of a
// symmetric C only the lower triangle is written, or both triangles. All kernels of f16x3 products use this file.
#pragma once

#include "f16_spread.cuh"
#include "gemm_common.cuh"

namespace fmm {

// Store a thread's numbers in the rows `first` and `first` + 8 of C. Return true if all numbers are finite and,
// with CHECKED, satisfy the componentwise bound (f16_spread.cuh).
//
// The loop over parts of 16 columns is not unrolled, because NVRTC needs twice the time for the unrolled code. The
// exponents of a part's columns are loaded during the previous part, so that no part waits for memory.
template <class S, bool CHECKED, class Params, int COUNT>
__device__ __forceinline__ bool store_result(const Params& p, const TileStart& place, int first, float (&sum)[COUNT]) {
    constexpr int PART = 16, NUMBERS = PART / 2, WORDS = PART / 4;
    float* const dest = p.dest + place.layer * p.layer;
    const float* const old = p.old + place.layer * p.layer;
    const bool wide = p.leading % 2 == 0 && reinterpret_cast<unsigned long long>(dest) % 8 == 0;
    const int left = place.col + threadIdx.x % 4 * 2;
    int rows[2], columns[WORDS], next[WORDS];
#pragma unroll
    for (int r = 0; r < 2; ++r) rows[r] = first + r * 8 < p.m ? p.rows[place.layer * p.m + first + r * 8] : 0;
    const auto load_words = [&](int from) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
            const int col = from + i / 2 * 8 + i % 2;
            next[i] = col < p.n ? p.columns[place.layer * p.n + col] : 0;
        }
    };
    load_words(left);
    bool right = true;
#pragma unroll 1
    for (int part = 0; part < S::WIDTH / PART; ++part) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) columns[i] = next[i];
        load_words(left + (part + 1) * PART);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            // number of columns that are written in this row
            const int line = first + r * 8, end = LOWER_ONLY<S> ? min(p.n, line + 1) : p.n;
            if (line >= p.m) continue;
            float* const to = dest + line * p.leading;
            const int e = CHECKED ? planes::exponent_of(rows[r]) : rows[r];
#pragma unroll
            for (int j = 0; j < PART; j += 8) {
                const int col = left + part * PART + j, i = j / 2 + r * 2;
                float x[2];
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    const bool wanted = col + c < end;
                    int f = columns[j / 4 + c];
                    if (CHECKED) {
                        right = right && (!wanted || planes::is_accurate(rows[r], f));
                        f = planes::exponent_of(f);
                    }
                    x[c] = p.factor * planes::scaled_by(sum[i + c], -e - f);
                    if (p.keep != 0 && wanted) x[c] += p.keep * old[line * p.old_leading + col + c];
                    right = right && (!wanted || fabsf(x[c]) < __int_as_float(0x7f800000));
                    if (MIRRORED<S> && wanted && col + c < line) dest[(col + c) * p.leading + line] = x[c];
                }
                if (wide && col + 1 < end)
                    *reinterpret_cast<float2*>(to + col) = {x[0], x[1]};
                else {
                    if (col < end) to[col] = x[0];
                    if (col + 1 < end) to[col + 1] = x[1];
                }
            }
        }
        next_part<NUMBERS>(sum, part);
    }
    return right;
}

}  // namespace fmm
