extern "C" void* memcpy(void* to, const void* from, unsigned long size);
template <class T> const T& min(const T& x, const T& y) { return y < x ? y : x; }
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
struct Dim { unsigned x, y, z; };
static Dim blockIdx, threadIdx, gridDim;
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
template <class To, class From> static To bits(From x) { To y; memcpy(&y, &x, sizeof y); return y; }
static float __uint_as_float(unsigned x) { return bits<float>(x); }
static unsigned __float_as_uint(float x) { return bits<unsigned>(x); }
static int __double2hiint(double x) { return static_cast<int>(bits<long long>(x) >> 32); }
template <class T> static T __ldcs(const T* q) { return *q; }
template <class T> static void __stcs(T* q, T x) { *q = x; }
static unsigned __activemask() { return 1u << (threadIdx.x % 32); }
static int __ffs(unsigned x) { return __builtin_ffs(static_cast<int>(x)); }
static void atomicOr(int* p, int v) { *p |= v; }
#define FMM_IF_INSIDE(TYPE, SUFFIX, REGISTER)                                                            \
    inline TYPE load_if(const TYPE* q, bool inside) { return inside ? *q : static_cast<TYPE>(0); }       \
    inline void store_if(TYPE* q, TYPE x, bool inside) { if (inside) *q = x; }
