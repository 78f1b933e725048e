// Warp shuffles and reductions by the emulated threads of emulated_threads.cpp.
template <class T> static T from_lane(T x, unsigned thread) {
    static T given[2048];
    given[thread_number()] = x;
    meet_warp();
    const T found = given[thread];
    meet_warp();
    return found;
}
template <class T> static T __shfl_xor_sync(unsigned, T x, int step) { return from_lane(x, thread_number() ^ step); }
template <class T> static T __shfl_sync(unsigned, T x, int lane) { return from_lane(x, thread_number() / 32 * 32 + lane); }
#define REDUCED(NAME, BOTH)                                                 \
    static int NAME(unsigned mask, int x) {                                 \
        for (int step = 16; step; step /= 2) {                              \
            const int y = __shfl_xor_sync(mask, x, step);                   \
            x = BOTH;                                                       \
        }                                                                   \
        return x;                                                           \
    }
REDUCED(__reduce_max_sync, x > y ? x : y)
REDUCED(__reduce_min_sync, x < y ? x : y)
REDUCED(__reduce_and_sync, x & y)
static int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static void atomicMax(int* p, int x) { *p = x > *p ? x : *p; }
static float fabsf(float x) { return __builtin_fabsf(x); }
struct alignas(8) float2 { float x, y; };
namespace fmm {
namespace planes {
static float larger(float x, float y) {
    const float z = fabsf(y);
    return x != x || z != z ? __builtin_nanf("") : x > z ? x : z;
}
}
}
