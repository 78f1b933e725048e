// Tiled float64 GEMM on the tensor cores (mma.sync), with the fused sums and the epilogue of gemm_simt.cuh.
//
// Index map: tiles, copies and sums of a thread block are the same as in gemm_simt.cuh. The numbers of a thread differ:
// the 32 lanes of a warp are arranged 8 x 4, with g = lane / 4 and t = lane % 4. An instruction multiplies 16 rows by 8
// columns. Of A, a lane has the rows g and g + 8, and of B the column g, at the positions t, t + 4, ... of the inner
// dimension. Of C, a lane has the columns 2 t and 2 t + 1 in the rows g and g + 8.
//
// DEEP is the number of positions of the inner dimension in one instruction: 4, 8 or 16.
#pragma once

#include "gemm_simt.cuh"

namespace fmm {

// ---- the mma instruction

#ifdef __CUDACC__
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000  // only sm_90 has float64 mma instructions of 16 rows
#define FMM_ROWS 16
#else
#define FMM_ROWS 8
#endif

// Compute c += a b. The operands are a[step][row] and b[step]; c has two numbers of the first row, then two of the
// second row.
template <int STEPS>
__device__ __forceinline__ void mma(double (&c)[4], const double (&a)[STEPS][2], const double (&b)[STEPS]) {
#if FMM_ROWS == 8 && __CUDA_ARCH__ >= 800
#pragma unroll
    for (int k = 0; k < STEPS; ++k)
#pragma unroll
        for (int i = 0; i < 2; ++i)
            asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                         : "+d"(c[2 * i]), "+d"(c[2 * i + 1])
                         : "d"(a[k][i]), "d"(b[k]));
#elif FMM_ROWS == 16
    static_assert(STEPS == 1 || STEPS == 2 || STEPS == 4, "4, 8 or 16 steps of the inner dimension");
    if constexpr (STEPS == 1)
        asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                     : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                     : "d"(a[0][0]), "d"(a[0][1]), "d"(b[0]));
    else if constexpr (STEPS == 2)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                     : "d"(a[0][0]), "d"(a[0][1]), "d"(a[1][0]), "d"(a[1][1]), "d"(b[0]), "d"(b[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
                     : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                     : "d"(a[0][0]), "d"(a[0][1]), "d"(a[1][0]), "d"(a[1][1]), "d"(a[2][0]), "d"(a[2][1]), "d"(a[3][0]),
                       "d"(a[3][1]), "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
#endif
}
#endif  // on the host, the tests provide this function

// ---- from shared memory to registers

// The positions in a tile that a lane reads. A half-warp reads four lines at four steps: 16 numbers of 8 bytes, which
// are in different banks.
template <class Lines>
struct Lanes {
    static constexpr int LINE = Lines::INNER ? Lines::PITCH : 1, STEP = Lines::INNER ? 1 : Lines::PITCH;
    __device__ static __forceinline__ int first(int line, int lane) {
        return (line + lane / 4) * LINE + lane % 4 * STEP;
    }
    // Return the offset of the lane's number in the i-th group of eight lines and the k-th group of four steps.
    __device__ static __forceinline__ constexpr int place(int i, int k) { return i * 8 * LINE + k * 4 * STEP; }
};

// The rows (Down) and columns (Across) of a lane's numbers of C, relative to its first number.
struct Down {
    static constexpr bool INNER = true;  // tells store_triangle that a lane's rows are not adjacent
    static constexpr int PACK = 1;
    __device__ static __forceinline__ constexpr int place(int i) { return i * 8; }
    __device__ static __forceinline__ int first(int lane) { return lane / 4; }
};
struct Across {
    static constexpr bool INNER = false;  // tells store_run that one access writes two adjacent columns
    static constexpr int PACK = 2;
    __device__ static __forceinline__ constexpr int place(int j) { return j / 2 * 8 + j % 2; }
    __device__ static __forceinline__ int first(int lane) { return lane % 4 * 2; }
};

// ---- the kernel

// Compute a tile of C as `multiply` of gemm_simt.cuh does. A stage holds DEPTH steps of the inner dimension, which are
// multiplied in passes of DEEP steps. At the start of a pass, registers hold its numbers. After the last use of a
// number, its register is filled with the number for the next pass. So at the start of a stage's last pass, all numbers
// of the stage are in registers: the threads synchronize, and the stage is filled again.
template <class Product, class Element, class S, int DEEP, Along LEFT, Along RIGHT, Access ACCESS, class Params>
__device__ __forceinline__ void multiply_by_warps(const Params& p, Element* memory, int number) {
    using LeftLines = Lines<Element, LEFT, ACCESS, S::HEIGHT, S::DEPTH, S::THREADS, true>;
    using RightLines = Lines<Element, RIGHT, ACCESS, S::WIDTH, S::DEPTH, S::THREADS, true>;
    using LeftTiles = Operand<Element, LeftLines, Product::LEFT, S::STAGES, false, Product::LEFT_PATH, true>;
    using RightTiles = Operand<Element, RightLines, Product::RIGHT, S::STAGES, false, Product::RIGHT_PATH, false>;
    using LeftLanes = Lanes<LeftLines>;
    using RightLanes = Lanes<RightLines>;
    using Piece = typename LeftTiles::Piece;
    constexpr int HIGH = S::ROWS * S::WARP_HEIGHT, WIDE = S::COLS * S::WARP_WIDTH;  // rows and columns of a warp
    // numbers of instructions for these rows, columns and depths, and number of passes
    constexpr int ROWS = HIGH / 16, COLS = WIDE / 8, STEPS = DEEP / 4, PASSES = S::DEPTH / DEEP;
    static_assert(HIGH % 16 == 0 && WIDE % 8 == 0 && S::DEPTH % DEEP == 0, "whole instructions");
    // The sums of the next tile are formed in the last pass before the threads synchronize, in its second half.
    constexpr int SUMS = LeftTiles::SUMS + RightTiles::SUMS, BLOCKS = max_of(Product::LEFT, Product::RIGHT);
    constexpr int AT_ONCE = max_of((SUMS + ROWS * COLS / 2 - 1) / max_of(ROWS * COLS / 2, 1), 1);
    constexpr int FIRST = ROWS * COLS - (SUMS + AT_ONCE - 1) / AT_ONCE;
    constexpr int PENDING = SUMS ? 1 : S::STAGES - 2;
    static_assert(!SUMS || (S::STAGES == 2 && PASSES > 1), "sums are formed one tile ahead");

    allow_next_launch();
    const Tile tile = tile_for_block<Product, S>(p, number);
    const int row = tile.row * S::HEIGHT, col = tile.col * S::WIDTH;
    const auto& product = p.products[Product::PRODUCTS > 1 ? blockIdx.z : 0];
    LeftTiles left{memory, {product.left, p.leading[0], tile.layer * p.layer[0], row}};
    RightTiles right{memory + LeftTiles::SIZE, {product.right, p.leading[1], tile.layer * p.layer[1], col}};
    const int steps = (p.k + S::DEPTH - 1) / S::DEPTH;

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int down = warp % (S::HEIGHT / HIGH) * HIGH, across = warp / (S::HEIGHT / HIGH) * WIDE;
    const Element* const left_mine = left.tiles + LeftLanes::first(down, lane);
    const Element* const right_mine = right.tiles + RightLanes::first(across, lane);

    // Form the thread's i-th sum and write it to the tile at `stage`. Sums of A come before sums of B.
    auto add = [&](int i, int stage) {
        Piece held[BLOCKS];
        if (i < LeftTiles::SUMS) {
            left.read_terms(i, held);
            left.write_sum(i, stage, held);
        } else if (i < SUMS) {
            right.read_terms(i - LeftTiles::SUMS, held);
            right.write_sum(i - LeftTiles::SUMS, stage, held);
        }
    };
    auto copy_terms = [&] {
        if constexpr (LeftTiles::SUMMED) left.copy(0);
        if constexpr (RightTiles::SUMMED) right.copy(0);
        commit();
    };
    if constexpr (SUMS) {  // sums of the first tile, then the copies for the second tile's sums
        copy_terms();
        wait<0>();
#pragma unroll
        for (int i = 0; i < SUMS; ++i) add(i, 0);
        copy_terms();
    }
    // Copies beyond the last tile fill shared memory with zeros.
#pragma unroll
    for (int t = 0; t < S::STAGES; ++t) {
        if constexpr (!LeftTiles::SUMMED) left.copy(t);
        if constexpr (!RightTiles::SUMMED) right.copy(t);
        left.store(t);
        right.store(t);
        commit();
    }
    wait<SUMS ? 0 : S::STAGES - 1>();
    __syncthreads();

    Element sum[ROWS][COLS][4], a[ROWS][STEPS][2], b[COLS][STEPS];
    auto read_row = [&](const Element* tile, int i, int pass) {
#pragma unroll
        for (int k = 0; k < STEPS; ++k)
#pragma unroll
            for (int e = 0; e < 2; ++e) a[i][k][e] = tile[LeftLanes::place(2 * i + e, pass * STEPS + k)];
    };
    auto read_col = [&](const Element* tile, int j, int pass) {
#pragma unroll
        for (int k = 0; k < STEPS; ++k) b[j][k] = tile[RightLanes::place(j, pass * STEPS + k)];
    };
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        read_row(left_mine, i, 0);
#pragma unroll
        for (int j = 0; j < COLS; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[i][j][e] = Element(0);
    }
#pragma unroll
    for (int j = 0; j < COLS; ++j) read_col(right_mine, j, 0);

    int stage = 0;
#pragma unroll 1
    for (int t = 0; t < steps; ++t) {
        const Element* left_now = left_mine + stage * LeftTiles::TileLayout::SIZE;
        const Element* right_now = right_mine + stage * RightTiles::TileLayout::SIZE;
        const int here = stage;
        stage = stage + 1 == S::STAGES ? 0 : stage + 1;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const int next = (pass + 1) % PASSES;
            const bool adds = SUMS && pass == PASSES - 2, copies = next == 0 && (SUMS || t + S::STAGES < steps);
            if (adds) wait<PENDING>();
            if (next == 0) {  // all threads have read this tile, and the next tile has arrived
                wait<PENDING>();
                __syncthreads();
                left_now = left_mine + stage * LeftTiles::TileLayout::SIZE;
                right_now = right_mine + stage * RightTiles::TileLayout::SIZE;
            }
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
#pragma unroll
                for (int j = 0; j < COLS; ++j) {
                    mma(sum[i][j], a[i], b[j]);
                    if (i == ROWS - 1) read_col(right_now, j, next);
                    const int done = i * COLS + j - FIRST;
                    if (adds && done >= 0) {
#pragma unroll
                        for (int z = 0; z < AT_ONCE; ++z) add(done * AT_ONCE + z, stage);
                    }
                }
                read_row(left_now, i, next);
                // The copies of A and of B start at different rows, so that multiplications continue in between.
                if constexpr (!LeftTiles::SUMMED)
                    if (copies && i == 0) left.copy(here);
                if constexpr (!RightTiles::SUMMED)
                    if (copies && i == (ROWS > 2)) right.copy(here);
            }
            if (adds) copy_terms();
            if (copies) {  // tiles that go through registers
                left.store(here);
                right.store(here);
            }
            if (next == 0) commit();
        }
    }

    wait_for_previous_launch();
    Element out[2 * ROWS][2 * COLS];
#pragma unroll
    for (int i = 0; i < 2 * ROWS; ++i)
#pragma unroll
        for (int j = 0; j < 2 * COLS; ++j) out[i][j] = sum[i / 2][j / 2][i % 2 * 2 + j % 2];
    FiniteCheck<Element, Product::RAISES> finite;
    const int first_row = row + down + Down::first(lane), first_col = col + across + Across::first(lane);
    if constexpr (Product::TRIANGLE == Triangle::NONE)
        store_product<Product, Down, Across, ACCESS>(p, product.dest, tile, first_row, first_col, out, finite);
    else
        store_triangle<Product, Down, Across, ACCESS>(p, product.dest, tile, first_row, first_col, out, finite);
    finite.raise(p.flag);
}

}  // namespace fmm
