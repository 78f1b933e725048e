// float16 conversions that f16_numbers.cuh defines on a device only: round to nearest, ties to even.
struct alignas(16) float4 { float x, y, z, w; };
static float __int_as_float(int x) { return bits<float>(x); }
static int __float_as_int(float x) { return bits<int>(x); }
static int max(int x, int y) { return x > y ? x : y; }
static int min(int x, int y) { return x < y ? x : y; }
namespace fmm {
namespace planes {
static float widened(unsigned half) {
    const int e = half >> 10 & 31, m = half & 1023;
    float x = e == 31 ? bits<float>(0x7f800000 | m << 13) : static_cast<float>(e ? 1024 + m : m);
    for (int i = e ? e : 1; e != 31 && i < 25; ++i) x /= 2;
    for (int i = 25; e != 31 && i < e; ++i) x *= 2;
    return half >> 15 ? -x : x;
}
static unsigned narrowed(float x) {
    const unsigned sign = bits<unsigned>(x) >> 16 & 0x8000;
    const float most = x < 0 ? -x : x;
    if (x != x) return 0x7fff;
    unsigned low = 0, high = 0x7c00;  // of float16 numbers, which are in the order of their bits
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        (widened(middle) <= most ? low : high) = middle;
    }
    const double below = widened(low), above = high == 0x7c00 ? 65536.0 : widened(high);
    const double rest = most - below, room = above - most;
    return sign | (rest < room || (rest == room && low % 2 == 0) ? low : high);
}
static unsigned pair_of(float x, float y) { return narrowed(x) | narrowed(y) << 16; }
static float first_of(unsigned both) { return widened(both & 0xffff); }
static float second_of(unsigned both) { return widened(both >> 16); }
}
}
