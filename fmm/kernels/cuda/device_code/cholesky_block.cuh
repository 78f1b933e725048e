// The Cholesky factor of a block on the diagonal of a matrix, by tiles of 64 rows and columns, and the inverses of the
// factor's tiles on its diagonal. For each column of tiles, one kernel multiplies the tiles below the diagonal by the inverse
// of the diagonal tile. The next kernel subtracts the products of these tiles from the remaining matrix, and its first
// thread block factors the next tile on the diagonal.
#pragma once

namespace fmm::cholesky {

constexpr int TILE = 64, HALF = TILE / 2, THREADS = 256;

template <class Number>
struct PositiveBlock {
    Number* data;     // the block; its lower triangle is replaced
    Number* inverse;  // a row-major matrix of `stacked_side` rows; the inverses of diagonal tiles are written
    int* failure;     // the number of the first pivot that is not positive, from 1 on; 0: no pivot failed
    long long row_step, column_step;
    int side, stacked_side;
    int first;   // first row of the tiles that this launch factors, or multiplies by an inverse
    int offset;  // the block's first row in the matrix, for `failure`
};

template <class Number>
using Tile = Number[TILE][TILE + 1];

template <class Number>
struct TileMemory {
    Tile<Number> left, right;
    Number reciprocals[TILE];  // of the factor's diagonal
};

template <class Number>
__device__ __forceinline__ Number* at(const PositiveBlock<Number>& p, int row, int column) {
    return p.data + row * p.row_step + column * p.column_step;
}

template <class Number>
__device__ __forceinline__ void read(const PositiveBlock<Number>& p, int row, int column, Tile<Number>& tile) {
    const bool by_rows = p.column_step == 1;  // neighbouring threads read neighbouring addresses
#pragma unroll 4
    for (int t = threadIdx.x; t < TILE * TILE; t += THREADS) {
        const int i = by_rows ? t / TILE : t % TILE, k = by_rows ? t % TILE : t / TILE;
        tile[i][k] = *at(p, row + i, column + k);
    }
}

// Call `use` with the row, the column and the entry of left right^T, for 16 entries in each thread.
template <class Number, class Use>
__device__ __forceinline__ void multiply(const Tile<Number>& left, const Tile<Number>& right, Use use) {
    const int down = threadIdx.x / 16, across = threadIdx.x % 16;
    Number sum[4][4] = {};
#pragma unroll 8
    for (int k = 0; k < TILE; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) sum[i][j] += left[down + 16 * i][k] * right[across + 16 * j][k];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) use(down + 16 * i, across + 16 * j, sum[i][j]);
}

// One step of Newton's method corrects the last bits of the hardware's float32 result.
__device__ __forceinline__ float reciprocal_root(float x) {
    const float root = rsqrtf(x);
    return root + root * (0.5f - 0.5f * x * root * root);
}
__device__ __forceinline__ double reciprocal_root(double x) { return rsqrt(x); }

// Factor 32 columns of a tile in the registers of one warp. A lane has the row `first` + lane, and with IS_TALL also the row
// HALF below. Return the number of the first pivot that is not positive, from 1 on, or 0.
template <bool IS_TALL, class Number>
__device__ __forceinline__ int factor_columns(TileMemory<Number>& memory, int first) {
    const int lane = threadIdx.x % 32;
    Number upper[HALF], lower[HALF];
    int failure = 0;
#pragma unroll
    for (int k = 0; k < HALF; ++k) {
        upper[k] = memory.left[first + lane][first + k];
        lower[k] = IS_TALL ? memory.left[HALF + lane][k] : Number(0);
    }
#pragma unroll
    for (int k = 0; k < HALF; ++k) {
        const Number pivot = __shfl_sync(0xffffffff, upper[k], k);
        if (failure == 0 && !(pivot > Number(0))) failure = k + 1;
        const Number reciprocal = reciprocal_root(pivot);
        if (lane == 0) memory.reciprocals[first + k] = reciprocal;
        upper[k] *= reciprocal;
        if (IS_TALL) lower[k] *= reciprocal;
#pragma unroll
        for (int j = k + 1; j < HALF; ++j) {
            const Number factor = __shfl_sync(0xffffffff, upper[k], j);
            upper[j] -= upper[k] * factor;
            if (IS_TALL) lower[j] -= lower[k] * factor;
        }
    }
#pragma unroll
    for (int k = 0; k < HALF; ++k) {
        if (k <= lane) memory.left[first + lane][first + k] = upper[k];
        if (IS_TALL) memory.left[HALF + lane][k] = lower[k];
    }
    return failure;
}

// Write the inverse of a half of the tile on the diagonal; a lane has one column.
template <class Number>
__device__ __forceinline__ void invert_half(TileMemory<Number>& memory, int first) {
    const int lane = threadIdx.x % 32;
    Number x[HALF];
#pragma unroll
    for (int i = 0; i < HALF; ++i) x[i] = Number(i == lane);
#pragma unroll
    for (int k = 0; k < HALF; ++k) {
        x[k] *= memory.reciprocals[first + k];
#pragma unroll
        for (int i = k + 1; i < HALF; ++i) x[i] -= memory.left[first + i][first + k] * x[k];
    }
#pragma unroll
    for (int i = 0; i < HALF; ++i) memory.right[first + i][first + lane] = x[i];
}

// Replace the tile in memory.left by its factor, and write the factor's inverse to memory.right. The warps work side by side:
// while one warp factors or inverts, others multiply.
template <class Number>
__device__ __forceinline__ void factor_tile(const PositiveBlock<Number>& p, TileMemory<Number>& memory) {
    const int thread = threadIdx.x, warp = thread / 32;
    Tile<Number>&left = memory.left, &right = memory.right;
    int failure = 0;
    if (warp == 0) failure = factor_columns<true>(memory, 0);
    __syncthreads();
    for (int t = thread; t < HALF * HALF; t += THREADS) {
        const int i = HALF + t / HALF, j = HALF + t % HALF;
        Number sum = 0;
#pragma unroll 8
        for (int k = 0; k < HALF; ++k) sum += left[i][k] * left[j][k];
        left[i][j] -= sum;
    }
    __syncthreads();
    if (warp == 0) {
        const int second = factor_columns<false>(memory, HALF);
        if (failure == 0 && second) failure = HALF + second;
        if (thread == 0 && failure && *p.failure == 0) *p.failure = p.offset + p.first + failure;
    } else if (warp == 1) {
        invert_half(memory, 0);
    }
    __syncthreads();
    if (warp == 1) {
        invert_half(memory, HALF);
    } else if (warp > 1) {  // the block below the diagonal times the first inverse, for now above the diagonal
        for (int t = thread - 64; t < HALF * HALF; t += THREADS - 64) {
            const int i = t / HALF, j = t % HALF;
            Number sum = 0;
#pragma unroll 8
            for (int k = 0; k < HALF; ++k) sum += left[HALF + i][k] * right[k][j];
            right[i][HALF + j] = sum;
        }
    }
    __syncthreads();
    for (int t = thread; t < HALF * HALF; t += THREADS) {
        const int i = t / HALF, j = t % HALF;
        Number sum = 0;
#pragma unroll 8
        for (int k = 0; k < HALF; ++k) sum += right[HALF + i][HALF + k] * right[k][HALF + j];
        right[HALF + i][j] = -sum;
    }
    __syncthreads();
    const bool by_rows = p.column_step == 1;
    for (int t = thread; t < TILE * TILE; t += THREADS) {
        const int i = by_rows ? t / TILE : t % TILE, k = by_rows ? t % TILE : t / TILE;
        if (k <= i) *at(p, p.first + i, p.first + k) = left[i][k];
    }
    for (int t = thread; t < TILE * TILE; t += THREADS) {
        const int i = t / TILE, k = t % TILE;
        if (k <= i) p.inverse[static_cast<long long>(p.first + i) * p.stacked_side + p.first + k] = right[i][k];
    }
}

// Subtract the products of the tiles left of column `first`, and factor the first tile on the diagonal. A thread block has one
// tile on or below the diagonal.
template <class Number>
__device__ __forceinline__ void update_and_factor(const PositiveBlock<Number>& p, TileMemory<Number>& memory) {
    const int tile = blockIdx.x;
    int down = 0;
    while ((down + 1) * (down + 2) / 2 <= tile) ++down;
    const int across = tile - down * (down + 1) / 2, row = p.first + down * TILE, column = p.first + across * TILE;
    if (p.first == 0) {
        read(p, 0, 0, memory.left);
    } else {
        read(p, row, p.first - TILE, memory.left);
        read(p, column, p.first - TILE, memory.right);
        __syncthreads();
        Number rest[16];
        int count = 0;
        multiply(memory.left, memory.right, [&](int i, int j, Number x) {
            const bool is_lower = row + i >= column + j;
            Number* const place = at(p, row + i, column + j);
            rest[count] = is_lower ? *place - x : Number(0);
            if (tile != 0 && is_lower) *place = rest[count];
            ++count;
        });
        if (tile != 0) return;
        __syncthreads();
#pragma unroll
        for (int t = 0; t < 16; ++t)
            memory.left[threadIdx.x / 16 + 16 * (t / 4)][threadIdx.x % 16 + 16 * (t % 4)] = rest[t];
    }
    __syncthreads();
    factor_tile(p, memory);
}

// Multiply the tiles below the diagonal tile at `first` by the transposed inverse of the diagonal tile.
template <class Number>
__device__ __forceinline__ void multiply_panel(const PositiveBlock<Number>& p, TileMemory<Number>& memory) {
    const int row = p.first + (blockIdx.x + 1) * TILE;
    read(p, row, p.first, memory.left);
    for (int t = threadIdx.x; t < TILE * TILE; t += THREADS) {
        const int i = t / TILE, k = t % TILE;
        const long long place = static_cast<long long>(p.first + i) * p.stacked_side + p.first + k;
        memory.right[i][k] = k <= i ? p.inverse[place] : Number(0);
    }
    __syncthreads();
    multiply(memory.left, memory.right, [&](int i, int j, Number x) { *at(p, row + i, p.first + j) = x; });
}

}  // namespace fmm::cholesky
