// The coefficients of a fast <2,2,2> scheme as compile-time constants, so that the compiler turns unrolled loops over
// coefficients into additions. A coefficient has 2 bits: 0 stands for 0, 1 for 1, and 2 for -1. The lowest bits belong
// to the first product.
//
// The file includes no header, so NVRTC needs no include path.
#pragma once

namespace fmm {

template <int PRODUCTS_, unsigned long long A, unsigned long long B, unsigned long long C>
struct FastSums {
    static constexpr int PRODUCTS = PRODUCTS_;
    __device__ static constexpr int sign(unsigned long long table, int product, int block) {
        const int code = static_cast<int>(table >> (8 * product + 2 * block)) & 3;
        return (code & 1) - (code >> 1);
    }
    // Return the coefficient of a block of A or B in a product's operand.
    __device__ static constexpr int operand_sign(bool right, int product, int block) { return sign(right ? B : A, product, block); }
    // Return the coefficient of a product in a block of C.
    __device__ static constexpr int result_sign(int product, int block) { return sign(C, product, block); }
};

}  // namespace fmm
