#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__
template <class T> const T& min(const T& x, const T& y) { return y < x ? y : x; }
template <class T> const T& max(const T& x, const T& y) { return x < y ? y : x; }
struct alignas(16) float4 { float x, y, z, w; };
float4 memory[16384];
struct Dim { unsigned x, y, z; };
extern Dim blockIdx, gridDim, threadIdx;
extern "C" void meet();
extern "C" void meet_warp();
extern "C" void run(void (*entry)(const void*), const void* parameters, int blocks, int products, unsigned count);
static void __syncthreads() { meet(); }
template <class T> T atomicAdd(T* q, T x) {
    const T before = *q;
    *q += x;
    return before;
}
static void __threadfence() {}
static void __threadfence_system() {}

// The float64 mma instruction: lanes exchange their numbers as the PTX manual assigns them.
struct Warp { double a[32][4][2], b[32][4]; };
static Warp warps[32];
namespace fmm {
template <int STEPS>
void mma(double (&c)[4], const double (&a)[STEPS][2], const double (&b)[STEPS]) {
    Warp& warp = warps[threadIdx.x / 32];
    const int lane = threadIdx.x % 32;
    for (int k = 0; k < STEPS; ++k) {
        warp.b[lane][k] = b[k];
        for (int i = 0; i < 2; ++i) warp.a[lane][k][i] = a[k][i];
    }
    meet_warp();
    for (int e = 0; e < 4; ++e) {
        const int row = lane / 4 + e / 2 * 8, col = lane % 4 * 2 + e % 2;
        for (int k = 0; k < 4 * STEPS; ++k)
            c[e] += warp.a[row % 8 * 4 + k % 4][k / 4][row / 8] * warp.b[col * 4 + k % 4][k / 4];
    }
    meet_warp();
}
}  // namespace fmm
