// The matrix of edges of a graph: entries that are no edges become `missing`, and the diagonal zero. On request also the
// first predecessors: the row of each edge.
//
// One kernel does the work of about ten of CuPy's element-wise kernels, each of which a first call would compile.
//
// The file includes no header, so that NVRTC alone compiles it.
#pragma once

namespace fmm::tropical {

template <class Number>
struct Lengths {
    const Number* source;
    Number* dest;          // n x n numbers, row-major without gaps
    int* predecessors;     // likewise, or null
    long long row, col;    // of the source: numbers from one row, and from one column, to the next
    double missing;        // the value for "no edge", exact in every type
    double smallest;       // of floating-point numbers: larger magnitudes are edges
    int n;
    int unweighted;        // 1 if every edge has length 1
    int none;              // the predecessor where there is no edge
    int unused;
};

// Floating-point entries are edges if they are finite and above `smallest` in magnitude; integers if they are neither zero
// nor `missing`. (NaN fails both comparisons.)
template <class Number>
__device__ __forceinline__ void write_edges(const Lengths<Number>& p) {
    constexpr bool FLOATING = static_cast<Number>(0.5) != 0;
    const Number missing = static_cast<Number>(p.missing), smallest = static_cast<Number>(p.smallest);
    for (int r = blockIdx.x; r < p.n; r += gridDim.x)
#pragma unroll 1
        for (int s = threadIdx.x; s < p.n; s += 256) {
            const Number x = p.source[r * p.row + s * p.col], size = x < 0 ? -x : x;
            const bool is_edge = FLOATING ? size > smallest && size < missing : x != 0 && x != missing;
            const Number length = p.unweighted ? static_cast<Number>(1) : x;
            const long long at = static_cast<long long>(r) * p.n + s;
            p.dest[at] = r == s ? static_cast<Number>(0) : is_edge ? length : missing;
            if (p.predecessors) p.predecessors[at] = r != s && is_edge ? r : p.none;
        }
}

}  // namespace fmm::tropical
