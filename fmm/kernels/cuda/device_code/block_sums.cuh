// Sums of submatrices ("blocks"): every thread runs the same straight-line program at one position of all blocks.
//
// Index map: blockIdx.y and z give the row, blockIdx.x and threadIdx.x the column. A thread has one position (a row and
// a first column), which is the same in every block, and computes LANES elements of this row. The thread reads these
// elements of each input block once, runs the program in registers, and writes the elements of each output block once.
// Elements beyond the edge of an array count as zero and are never accessed.
//
// Compile-time parameters: the generated `Step` (the program, and the array and block of each value), the element type,
// LANES, and the access width. Addresses and sizes of the arrays are launch parameters.
//
// The file includes no CUDA header, so NVRTC needs no include path. A few lines of PTX convert the 16-bit types.
#pragma once

#include "complex.cuh"
#include "ieee_arith.cuh"

namespace fmm {

// ---- element types: the type in memory, and the type of sums

struct half {};
struct bfloat16 {};

template <class Element>
struct Traits {  // float and double: one type in memory and in sums
    using Stored = Element;
    using Sum = Element;
};
template <>
struct Traits<half> {
    using Stored = unsigned short;
    using Sum = float;
};
template <>
struct Traits<bfloat16> {
    using Stored = unsigned short;
    using Sum = float;
};

template <class Element>
struct Convert {
    __device__ static __forceinline__ Element widen(Element x) { return x; }
    __device__ static __forceinline__ Element narrow(Element x) { return x; }
};

template <>
struct Convert<half> {
    __device__ static __forceinline__ float widen(unsigned short x) {
        float y;
        asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
        return y;
    }
    __device__ static __forceinline__ unsigned short narrow(float x) {
        unsigned short y;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
        return y;
    }
};

template <>
struct Convert<bfloat16> {
    __device__ static __forceinline__ float widen(unsigned short x) {
        return __uint_as_float(static_cast<unsigned>(x) << 16);
    }
    __device__ static __forceinline__ unsigned short narrow(float x) {
#if __CUDA_ARCH__ >= 800
        unsigned y;  // before sm_90, only the instruction for two numbers exists
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(0.0f), "f"(x));
        return static_cast<unsigned short>(y);
#else
        const unsigned bits = __float_as_uint(x);
        if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;  // rounding could turn a NaN into inf
        return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
    }
};

// ---- arithmetic

template <class Real>
__device__ __forceinline__ Complex<Real> add(Complex<Real> x, Complex<Real> y) {
    return {add(x.re, y.re), add(x.im, y.im)};
}
template <class Real>
__device__ __forceinline__ Complex<Real> sub(Complex<Real> x, Complex<Real> y) {
    return {sub(x.re, y.re), sub(x.im, y.im)};
}
template <class Real>
__device__ __forceinline__ Complex<Real> mul(Complex<Real> x, Complex<Real> y) {
    return {sub(mul(x.re, y.re), mul(x.im, y.im)), add(mul(x.re, y.im), mul(x.im, y.re))};
}

template <class Number>
struct NumberFrom {  // conversion of a coefficient to the type of sums
    __device__ static __forceinline__ Number coefficient(double re, double) { return static_cast<Number>(re); }
};
template <class Real>
struct NumberFrom<Complex<Real>> {
    __device__ static __forceinline__ Complex<Real> coefficient(double re, double im) {
        return {static_cast<Real>(re), static_cast<Real>(im)};
    }
};

// ---- values: LANES numbers in registers

template <class Number, int LANES>
struct Value {
    Number lane[LANES];
};

template <class Number, int LANES>
__device__ __forceinline__ Value<Number, LANES> operator+(const Value<Number, LANES>& x, const Value<Number, LANES>& y) {
    Value<Number, LANES> z;
#pragma unroll
    for (int e = 0; e < LANES; ++e) z.lane[e] = add(x.lane[e], y.lane[e]);
    return z;
}
template <class Number, int LANES>
__device__ __forceinline__ Value<Number, LANES> operator-(const Value<Number, LANES>& x, const Value<Number, LANES>& y) {
    Value<Number, LANES> z;
#pragma unroll
    for (int e = 0; e < LANES; ++e) z.lane[e] = sub(x.lane[e], y.lane[e]);
    return z;
}
template <class Number, int LANES>
__device__ __forceinline__ Value<Number, LANES> operator*(Number c, const Value<Number, LANES>& x) {
    Value<Number, LANES> z;
#pragma unroll
    for (int e = 0; e < LANES; ++e) z.lane[e] = mul(c, x.lane[e]);
    return z;
}

__device__ __forceinline__ bool finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }
__device__ __forceinline__ bool finite(double x) { return (__double2hiint(x) & 0x7ff00000) != 0x7ff00000; }
template <class Real>
__device__ __forceinline__ bool finite(Complex<Real> x) {
    return finite(x.re) && finite(x.im);
}

// ---- arrays: a grid of blocks of one matrix, or equal blocks at a constant distance

struct Array {
    void* data;
    long long row, col;     // elements from one row to the next, and from one column to the next
    long long down, right;  // elements from one block to the block below, and to the block on the right
    int rows, cols;         // size of the array
    int height, width;      // size of a block
};

template <int ARRAYS, int SCALARS>
struct Parameters {
    Array arrays[ARRAYS];
    double scalars[2 * SCALARS + 1];  // real and imaginary parts of the coefficients that are launch parameters
    int* flag;                        // set to 1 if an output is inf or NaN (only in kernels with FLAG)
    int rows, cols;                   // size of the largest output block
    int inner_rows, inner_cols;  // size of the smallest block: positions inside this size need no bounds checks
};

// ---- memory access

enum class Access {
    VECTOR,  // one access moves a thread's LANES adjacent elements; the blocks are row-major and aligned
    SCALAR,  // one access moves one element; a thread's elements are THREADS columns apart; any strides and alignment
};

// All threads of a thread block are in one row, so a thread block writes a long part of a row to each output. With 128
// threads, a multiprocessor holds two thread blocks whose threads have 255 registers.
constexpr int THREADS = 128;

// Arrangement of a thread block's threads for column-major inputs and row-major outputs. A warp reads complete 32-byte
// sectors of every column, and writes a few adjacent vectors of LANES elements in every row.
template <int ITEM, int WARP_ROWS>
struct Tile {
    static constexpr int DOWN = 32 / ITEM, ACROSS = 32 / DOWN;  // rows and columns of threads in a warp
    static constexpr int HEIGHT = WARP_ROWS * DOWN;  // rows of a thread block, which has WARP_ROWS rows of warps
};

template <int BYTES>
struct Word;
template <>
struct Word<2> {
    using Type = unsigned short;
};
template <>
struct Word<4> {
    using Type = unsigned;
};
template <>
struct Word<8> {
    using Type = uint2;
};
template <>
struct Word<16> {
    using Type = uint4;
};

// Start an asynchronous copy of `valid` bytes from global to shared memory. Zeros fill the rest of the BYTES bytes.
template <int BYTES>
__device__ __forceinline__ void start_copy(void* cell, const void* q, int valid) {
#if __CUDA_ARCH__ >= 800
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(cell));
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(q), "n"(BYTES), "r"(valid) : "memory");
#endif
}

// Loads and stores that access memory only if `inside` is true, as predicated instructions. From an `if` of C++, the
// compiler would make a branch for each access, and only one load would be in flight at a time.
#define FMM_IF_INSIDE(TYPE, SUFFIX, REGISTER)                                                                     \
    __device__ __forceinline__ TYPE load_if(const TYPE* q, bool inside) {                                         \
        TYPE x = 0;                                                                                               \
        asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global." SUFFIX " %0, [%1];}"                    \
                     : "+" REGISTER(x)                                                                            \
                     : "l"(q), "r"(static_cast<int>(inside)));                                                    \
        return x;                                                                                                 \
    }                                                                                                             \
    __device__ __forceinline__ void store_if(TYPE* q, TYPE x, bool inside) {                                      \
        asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0; @p st.global." SUFFIX " [%0], %1;}" ::"l"(q),          \
                     REGISTER(x), "r"(static_cast<int>(inside)));                                                 \
    }

FMM_IF_INSIDE(unsigned short, "u16", "h")
FMM_IF_INSIDE(float, "f32", "f")
FMM_IF_INSIDE(double, "f64", "d")

// Streaming accesses: the caches replace these numbers first, because each is read or written once.
template <class Stored>
__device__ __forceinline__ Stored load_streaming(const Stored* q) {
    return __ldcs(q);
}
template <class Stored>
__device__ __forceinline__ void store_streaming(Stored* q, Stored x) {
    __stcs(q, x);
}
template <class Real>
__device__ __forceinline__ Complex<Real> load_streaming(const Complex<Real>* q) {
    return {__ldcs(&q->re), __ldcs(&q->im)};
}
template <class Real>
__device__ __forceinline__ void store_streaming(Complex<Real>* q, Complex<Real> x) {
    __stcs(&q->re, x.re);
    __stcs(&q->im, x.im);
}

template <class Real>
__device__ __forceinline__ Complex<Real> load_if(const Complex<Real>* q, bool inside) {
    return {load_if(&q->re, inside), load_if(&q->im, inside)};
}
template <class Real>
__device__ __forceinline__ void store_if(Complex<Real>* q, Complex<Real> x, bool inside) {
    store_if(&q->re, x.re, inside);
    store_if(&q->im, x.im, inside);
}

// Shared memory of one thread for one prefetched value.
template <class Stored, int LANES>
struct alignas(LANES * sizeof(Stored)) Cell {
    Stored s[LANES];
};

// The functions that a generated program calls: loads, stores and coefficients at the thread's position (r, c).
template <class Step, class Element, int LANES, Access ACCESS, bool EDGE, bool FLAG, class Params>
struct Io {
    using Stored = typename Traits<Element>::Stored;
    using Number = typename Traits<Element>::Sum;
    using Values = Value<Number, LANES>;

    static constexpr bool VECTOR = ACCESS == Access::VECTOR;
    static constexpr int STEP = VECTOR || Step::TRANSPOSES ? 1 : THREADS;  // columns between a thread's elements
    static constexpr int ITEM = static_cast<int>(sizeof(Stored));
    static constexpr int PIECE = VECTOR ? LANES * ITEM : ITEM;  // bytes of one access
    using Packed = typename Word<VECTOR ? PIECE : 2>::Type;
    using Cell = fmm::Cell<Stored, LANES>;

    // True if loads are prefetched to shared memory. Such loads occupy no registers while they are in flight.
#if __CUDA_ARCH__ >= 800
    static constexpr bool AHEAD = PIECE >= 4;
#else
    static constexpr bool AHEAD = false;
#endif

    const Params& p;
    const int r, c;
    Cell* const cells;  // this thread's first cell; its next cell is THREADS cells later
    const int none;
    bool finite_so_far = true;

    __device__ __forceinline__ Io(const Params& p, int r, int c, Cell* cells)
        : p(p), r(r), c(c), cells(cells), none(hidden_zero()) {}

    // Return a zero that the compiler does not know to be zero. With a known zero, the compiler would compute the
    // addresses of dozens of blocks before the loop over a thread's elements, and hold them in registers.
    __device__ static __forceinline__ int hidden_zero() {
        int x = 0;
        if constexpr (Step::ONE_BY_ONE && !VECTOR) asm volatile("" : "+r"(x));
        return x;
    }

    __device__ static __forceinline__ Number constant(double x) { return NumberFrom<Number>::coefficient(x, 0.0); }

    __device__ __forceinline__ Number scalar(int i) const {
        return NumberFrom<Number>::coefficient(p.scalars[2 * i], p.scalars[2 * i + 1]);
    }

    __device__ static __forceinline__ Values zero() {
        Values v;
#pragma unroll
        for (int e = 0; e < LANES; ++e) v.lane[e] = constant(0.0);
        return v;
    }

    // Compiler barrier before a store that overwrites an input: the compiler must not move loads behind this store.
    __device__ static __forceinline__ void fence() { asm volatile("" ::: "memory"); }

    template <int A, int I, int J, int PART = 0>
    __device__ __forceinline__ Values load() const {
        const Stored* q = element_address<A, I, J>() + PART;
        Stored s[LANES];
        if constexpr (!needs_bounds_check<A>() && is_adjacent<A>()) {
            const Packed w = __ldcs(reinterpret_cast<const Packed*>(q));
            memcpy(s, &w, sizeof w);
        } else {
#pragma unroll
            for (int e = 0; e < LANES; ++e) {
                if constexpr (needs_bounds_check<A>())
                    s[e] = load_if(q + e * lane_stride<A>(), e * STEP < columns_left<A, I, J>());
                else if constexpr (Step::LONG && sizeof(Number) == 8)
                    s[e] = load_if(q + e * lane_stride<A>(), p.inner_rows >= 0);
                else
                    s[e] = load_streaming(q + e * lane_stride<A>());
            }
        }
        return widened(s);
    }

    // A prefetched load: `fetch` starts the load and `commit` ends a batch of loads. `wait` waits for all batches
    // except the last PENDING ones. Then `take` returns the values.
    template <int A, int I, int J>
    __device__ __forceinline__ void fetch(int slot) const {
        if constexpr (AHEAD) {
            const Stored* q = element_address<A, I, J>();
            Stored* s = cells[slot * THREADS].s;
#pragma unroll
            for (int e = 0; e < (VECTOR ? 1 : LANES); ++e) {
                int valid = PIECE;
                if constexpr (needs_bounds_check<A>()) valid = min(max(columns_left<A, I, J>() - e * STEP, 0) * ITEM, PIECE);
                start_copy<PIECE>(s + e, q + e * lane_stride<A>(), valid);
            }
        }
    }

    __device__ static __forceinline__ void commit() {
        if constexpr (AHEAD) asm volatile("cp.async.commit_group;" ::: "memory");
    }

    template <int PENDING>
    __device__ static __forceinline__ void wait() {
        if constexpr (AHEAD) asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    }

    template <int A, int I, int J>
    __device__ __forceinline__ Values take(int slot) const {
        if constexpr (AHEAD) {
            const Cell cell = cells[slot * THREADS];
            return widened(cell.s);
        } else {
            return load<A, I, J>();
        }
    }

    template <int A, int I, int J, int PART = 0>
    __device__ __forceinline__ void store(const Values& v) {
        Stored* q = element_address<A, I, J>() + PART;
        Stored s[LANES];
#pragma unroll
        for (int e = 0; e < LANES; ++e) s[e] = Convert<Element>::narrow(v.lane[e]);
        if constexpr (!needs_bounds_check<A>() && is_adjacent<A>()) {
            Packed w;
            memcpy(&w, s, sizeof w);
            __stcs(reinterpret_cast<Packed*>(q), w);
        } else {
#pragma unroll
            for (int e = 0; e < LANES; ++e) {
                if constexpr (needs_bounds_check<A>())
                    store_if(q + e * lane_stride<A>(), s[e], e * STEP < columns_left<A, I, J>());
                else
                    store_streaming(q + e * lane_stride<A>(), s[e]);
            }
        }
        if constexpr (FLAG) check_finite<A, I, J>(s);
    }

    // Load the real and imaginary parts of LANES adjacent complex numbers.
    template <int A, int I, int J>
    __device__ __forceinline__ void load_parts(Values& re, Values& im) const {
        if constexpr (VECTOR && !needs_bounds_check<A>()) {
            const Packed* q = reinterpret_cast<const Packed*>(element_address<A, I, J>());
            Stored s[2 * LANES];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const Packed w = __ldcs(q + half);
                memcpy(s + half * LANES, &w, sizeof w);
            }
#pragma unroll
            for (int e = 0; e < LANES; ++e) {
                re.lane[e] = Convert<Element>::widen(s[2 * e]);
                im.lane[e] = Convert<Element>::widen(s[2 * e + 1]);
            }
        } else {
            re = load<A, I, J, 0>();
            im = load<A, I, J, 1>();
        }
    }

    template <int A, int I, int J>
    __device__ __forceinline__ void store_parts(const Values& re, const Values& im) {
        if constexpr (VECTOR && !needs_bounds_check<A>()) {
            Packed* q = reinterpret_cast<Packed*>(element_address<A, I, J>());
            Stored s[2 * LANES];
#pragma unroll
            for (int e = 0; e < LANES; ++e) {
                s[2 * e] = Convert<Element>::narrow(re.lane[e]);
                s[2 * e + 1] = Convert<Element>::narrow(im.lane[e]);
                if constexpr (FLAG) finite_so_far &= finite(re.lane[e]) && finite(im.lane[e]);
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                Packed w;
                memcpy(&w, s + half * LANES, sizeof w);
                __stcs(q + half, w);
            }
        } else {
            store<A, I, J, 0>(re);
            store<A, I, J, 1>(im);
        }
    }

    // Raise the flag if an output was inf or NaN. At most one thread of a warp writes, and only if the flag is down.
    __device__ __forceinline__ void raise_flag() const {
        if (finite_so_far) return;
        const unsigned active = __activemask();
        if (threadIdx.x % 32 == __ffs(active) - 1 && *static_cast<volatile int*>(p.flag) == 0) atomicOr(p.flag, 1);
    }

private:
    __device__ static __forceinline__ Values widened(const Stored (&s)[LANES]) {
        Values v;
#pragma unroll
        for (int e = 0; e < LANES; ++e) v.lane[e] = Convert<Element>::widen(s[e]);
        return v;
    }

    // True if accesses to this array need bounds checks. Without EDGE, the position is inside every block and needs no
    // check. If all blocks of the array are as large as the launch (`unchecked`), no check is needed either, unless a
    // thread's elements are THREADS columns apart.
    template <int A>
    __device__ static constexpr bool needs_bounds_check() {
        return EDGE && !(Step::unchecked(A) && (STEP == 1 || LANES == 1));
    }

    // True if a thread's elements are adjacent in this array.
    template <int A>
    __device__ static constexpr bool is_adjacent() {
        return VECTOR && !Step::column_major(A) && !Step::parts(A);
    }

    template <int A>
    __device__ __forceinline__ long long lane_stride() const {
        return is_adjacent<A>() ? 1 : STEP * p.arrays[A].col;
    }

    template <int A, int I, int J>
    __device__ __forceinline__ Stored* element_address() const {
        const Array& x = p.arrays[A];
        const long long column = is_adjacent<A>() ? c : c * x.col;
        const long long down = x.down + none, right = x.right + none;
        return static_cast<Stored*>(x.data) + (r * x.row + column) + (I * down + J * right);
    }

    // Return the number of the block's columns from this thread's first element on.
    template <int A, int I, int J>
    __device__ __forceinline__ int columns_left() const {
        const Array& x = p.arrays[A];
        const int rows = min(x.height, x.rows - I * x.height), cols = min(x.width, x.cols - J * x.width);
        return r < rows ? cols - c : 0;
    }

    // Check the stored numbers instead of the sums, because rounding a finite sum to float16 can give inf.
    template <int A, int I, int J>
    __device__ __forceinline__ void check_finite(const Stored (&s)[LANES]) {
#pragma unroll
        for (int e = 0; e < LANES; ++e)
            finite_so_far &= finite(Convert<Element>::widen(s[e])) || (needs_bounds_check<A>() && e * STEP >= columns_left<A, I, J>());
    }
};

// ---- the kernel

template <class Step, class Element, int LANES, Access ACCESS, bool EDGE, bool FLAG, class Params, class Cell>
__device__ __forceinline__ void run(const Params& p, int r, int c, Cell* cells) {
    Io<Step, Element, LANES, ACCESS, EDGE, FLAG, Params> io(p, r, c, cells);
    Step::run(io);
    if constexpr (FLAG) io.raise_flag();
}

template <class Step, class Element, int LANES, Access ACCESS, bool FLAG, class Params>
__device__ __forceinline__ void sum(const Params& p) {
    using Stored = typename Traits<Element>::Stored;
    using Tile = fmm::Tile<static_cast<int>(sizeof(Stored)), Step::WARP_ROWS>;
    constexpr bool VECTOR = ACCESS == Access::VECTOR;
    constexpr int STEP = VECTOR || Step::TRANSPOSES ? 1 : THREADS;
    // If registers cannot hold the addresses of all elements of a thread, each pass processes one element.
    constexpr int PASSES = Step::ONE_BY_ONE && !VECTOR ? LANES : 1, WIDTH = LANES / PASSES;
    __shared__ Cell<Stored, WIDTH> cells[(Step::SLOTS > 0 ? Step::SLOTS : 1) * THREADS];
    int r = blockIdx.z * gridDim.y + blockIdx.y, first;
    if constexpr (Step::TRANSPOSES) {
        const int warp = threadIdx.x / 32, across = blockIdx.x * (THREADS / 32 / Step::WARP_ROWS) + warp / Step::WARP_ROWS;
        r = r * Tile::HEIGHT + warp % Step::WARP_ROWS * Tile::DOWN + threadIdx.x % Tile::DOWN;
        first = (across * Tile::ACROSS + threadIdx.x % 32 / Tile::DOWN) * LANES;
    } else {
        first = blockIdx.x * THREADS * LANES + threadIdx.x * (VECTOR ? LANES : 1);
    }
    if (r >= p.rows) return;
#pragma unroll 1
    for (int pass = 0; pass < PASSES; ++pass) {
        const int c = first + pass * STEP, last = c + (WIDTH - 1) * STEP;
        if (c >= p.cols) return;
        // A program of hundreds of lines is compiled only with bounds checks, because a second version without them
        // would double the compile time.
        if (!Step::LONG && r < p.inner_rows && last < p.inner_cols)
            run<Step, Element, WIDTH, ACCESS, false, FLAG>(p, r, c, cells + threadIdx.x);
        else
            run<Step, Element, WIDTH, ACCESS, true, FLAG>(p, r, c, cells + threadIdx.x);
    }
}

}  // namespace fmm
