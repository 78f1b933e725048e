// The sums of a fast algorithm of two by two blocks whose coefficients are 0, 1 and -1, as constants that loops unroll to
// nothing: two bits each, 1 for 1 and 2 for -1, those of the first product lowest.
//
// No header is needed, so that NVRTC alone compiles this.
#pragma once

namespace fmm {

template <int PRODUCTS_, unsigned long long A, unsigned long long B, unsigned long long C>
struct FastSums {
    static constexpr int PRODUCTS = PRODUCTS_;
    __device__ static constexpr int sign(unsigned long long table, int product, int block) {
        const int code = static_cast<int>(table >> (8 * product + 2 * block)) & 3;
        return (code & 1) - (code >> 1);
    }
    // With which sign a block is in the operand of a product: of A, or of B.
    __device__ static constexpr int of(bool right, int product, int block) { return sign(right ? B : A, product, block); }
    // With which sign a product is in a block of C.
    __device__ static constexpr int in(int product, int block) { return sign(C, product, block); }
};

}  // namespace fmm
