// Write the edge lengths of a graph from its matrix: entries that are no edges become `missing`, the diagonal becomes
// zero. If `predecessors` is not null, the kernel also writes the initial predecessors: the row number of each edge.
//
// CuPy's operations would need about ten element-wise kernels for the edge lengths, and a first call would compile all
// ten.
//
// The file includes no header, so NVRTC needs no include path.
#pragma once

namespace fmm::tropical {

template <class Number>
struct Lengths {
    const Number* source;
    Number* dest;          // n x n numbers, row-major and contiguous
    int* predecessors;     // n x n numbers, row-major and contiguous; or null
    long long row, col;    // strides of the source, in numbers
    double missing;        // the value for "no edge", exact in every type
    double smallest;       // threshold of floating-point types: numbers with a larger magnitude are edges
    int n;
    int unweighted;        // 1 if every edge has length 1
    int none;              // the predecessor of entries that are no edges
    int unused;
};

// Write edge lengths and predecessors. A floating-point entry is an edge if it is finite and its magnitude is above
// `smallest`; a NaN fails this comparison. An integer is an edge if it is neither zero nor `missing`.
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
