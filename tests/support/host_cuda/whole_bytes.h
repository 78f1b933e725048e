// The functions of whole_bytes.cuh, for the host.
namespace fmm {
static int dot_bytes(unsigned a, int b, int c) {
    for (int i = 0; i < 4; ++i) c += static_cast<int>(a >> 8 * i & 255) * static_cast<signed char>(b >> 8 * i);
    return c;
}
static unsigned low_bytes(unsigned a, unsigned b) { return (a & 255) | (b & 255) << 8; }
static unsigned low_bytes(unsigned a, unsigned b, unsigned c, unsigned d) {
    return low_bytes(a, b) | low_bytes(c, d) << 16;
}
}
