// Coefficients 0, 1 and -1 of a fast <2,2,2> scheme as compile-time constants: 2 bits each (1 for 1, 2 for -1), first
// product lowest. Loops over them unroll to additions.
//
// The file includes no header, so that NVRTC alone compiles it.
#pragma once

namespace fmm {

template <int PRODUCTS_, unsigned long long A, unsigned long long B, unsigned long long C>
struct FastSums {
    static constexpr int PRODUCTS = PRODUCTS_;
    __device__ static constexpr int sign(unsigned long long table, int product, int block) {
        const int code = static_cast<int>(table >> (8 * product + 2 * block)) & 3;
        return (code & 1) - (code >> 1);
    }
    // Sign of a block in an operand (A or B) of a product.
    __device__ static constexpr int of(bool right, int product, int block) { return sign(right ? B : A, product, block); }
    // Sign of a product in a block of C.
    __device__ static constexpr int in(int product, int block) { return sign(C, product, block); }
};

}  // namespace fmm
