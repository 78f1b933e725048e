// Arithmetic that keeps subnormal numbers, for all kernels except those of gemm_simt.cuh.
//
// CuPy compiles with -ftz=true, so plain float operations flush subnormal numbers to zero. Sums of tiny numbers would
// then be less accurate than the vendor's, and inf times a subnormal number would be NaN. The instructions of this file
// keep subnormal numbers with any compiler option. On the host, where tests run, plain operations keep them.
//
// The file includes no header, so NVRTC needs no include path.
#pragma once

namespace fmm {

#ifdef __CUDA_ARCH__
#define FMM_FLOAT(NAME, SIGN)                                            \
    __device__ __forceinline__ float NAME(float x, float y) {            \
        float z;                                                         \
        asm(#NAME ".rn.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));     \
        return z;                                                        \
    }
__device__ __forceinline__ float multiply_add(float x, float y, float z) {
    asm("fma.rn.f32 %0, %1, %2, %0;" : "+f"(z) : "f"(x), "f"(y));
    return z;
}
__device__ __forceinline__ double multiply_add(double x, double y, double z) { return fma(x, y, z); }
#else
#define FMM_FLOAT(NAME, SIGN) \
    inline float NAME(float x, float y) { return x SIGN y; }
inline float multiply_add(float x, float y, float z) { return x * y + z; }
inline double multiply_add(double x, double y, double z) { return x * y + z; }
#endif

FMM_FLOAT(add, +)
FMM_FLOAT(sub, -)
FMM_FLOAT(mul, *)
__device__ __forceinline__ double add(double x, double y) { return x + y; }
__device__ __forceinline__ double sub(double x, double y) { return x - y; }
__device__ __forceinline__ double mul(double x, double y) { return x * y; }

}  // namespace fmm
