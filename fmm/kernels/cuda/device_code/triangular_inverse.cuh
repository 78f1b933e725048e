// Invert the blocks on the diagonal of a triangular matrix. A thread block has one block in shared memory, and inverts
// it in place. First each warp inverts one small block on its diagonal. Then the inverses of two neighbours give the
// inverse of a block of twice the side, until the whole block is inverted:
//
//     inverse of [[A, 0], [C, B]] = [[A^-1, 0], [-B^-1 C A^-1, B^-1]]
#pragma once

namespace fmm::triangular {

constexpr int SMALL = 32, TILE = 4;  // rows of a warp's block; rows and columns of a product that a thread computes

template <class Number>
struct DiagonalBlocks {
    const Number* data;  // the triangular matrix
    Number* inverses;    // stacked row-major matrices of `stacked_side` rows, with the inverses on their diagonals
    long long row_step, column_step;
    int stacked_side, is_lower, is_unit, unused;
};

template <class Number, int SIDE, int THREADS>
struct BlockInverter {
    using Rows = Number (*)[SIDE + 1];
    using Products = Number (*)[SIDE / 2 + 1];

    const DiagonalBlocks<Number>& p;
    const Rows block;        // SIDE rows; zero above the diagonal
    const Products product;  // SIDE / 2 rows
    const int thread;

    __device__ __forceinline__ BlockInverter(const DiagonalBlocks<Number>& p, Number* memory)
        : p(p), block(reinterpret_cast<Rows>(memory)), product(reinterpret_cast<Products>(memory + SIDE * (SIDE + 1))),
          thread(threadIdx.x) {}

    // An upper block is transposed when it is read, and again when its inverse is written. So only lower triangles are
    // inverted.
    __device__ __forceinline__ void read(long long start) {
        for (int t = thread; t < SIDE * SIDE; t += THREADS) {
            const int row = t / SIDE, column = t % SIDE, i = p.is_lower ? row : column, k = p.is_lower ? column : row;
            const bool is_read = k < i || (k == i && !p.is_unit);
            block[i][k] = is_read ? p.data[(start + row) * p.row_step + (start + column) * p.column_step] : Number(k == i);
        }
    }
    __device__ __forceinline__ void write(long long start) const {
        const int first = static_cast<int>(start % p.stacked_side);
        Number* const inverse = p.inverses + start * p.stacked_side + first;
        for (int t = thread; t < SIDE * SIDE; t += THREADS) {
            const int row = t / SIDE, column = t % SIDE;
            inverse[static_cast<long long>(row) * p.stacked_side + column] = p.is_lower ? block[row][column] : block[column][row];
        }
    }

    // Invert a warp's block; a lane has one column.
    __device__ __forceinline__ void invert_small(int first) {
        const int lane = thread % SMALL;
        Number x[SMALL];
#pragma unroll
        for (int i = 0; i < SMALL; ++i) x[i] = Number(i == lane);
#pragma unroll
        for (int k = 0; k < SMALL; ++k) {
            x[k] /= block[first + k][first + k];
#pragma unroll
            for (int i = k + 1; i < SMALL; ++i) x[i] -= block[first + i][first + k] * x[k];
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < SMALL; ++i) block[first + i][first + lane] = x[i];
    }

    // Compute the inverses of blocks of 2 `side` rows from the inverses of blocks of `side` rows.
    __device__ __forceinline__ void double_side(int side) {
        const int tiles = side / TILE, pair = thread / (tiles * tiles), tile = thread % (tiles * tiles);
        const int down = tile / tiles * TILE, across = tile % tiles * TILE, first = 2 * pair * side, second = first + side;
        const bool has_tile = pair < SIDE / (2 * side);
        Number sum[TILE][TILE] = {};
        if (has_tile)
            for (int k = across; k < side; ++k)
                add(sum, [&](int i) { return block[second + down + i][first + k]; },
                    [&](int j) { return block[first + k][first + across + j]; });
        if (has_tile) each(sum, [&](int i, int j, Number x) { product[pair * side + down + i][across + j] = x; });
        __syncthreads();
        Number rest[TILE][TILE] = {};
        if (has_tile)
            for (int k = 0; k < down + TILE; ++k)
                add(rest, [&](int i) { return block[second + down + i][second + k]; },
                    [&](int j) { return product[pair * side + k][across + j]; });
        if (has_tile) each(rest, [&](int i, int j, Number x) { block[second + down + i][first + across + j] = -x; });
        __syncthreads();
    }
    template <class Left, class Right>
    __device__ static __forceinline__ void add(Number (&sum)[TILE][TILE], Left left, Right right) {
#pragma unroll
        for (int i = 0; i < TILE; ++i)
#pragma unroll
            for (int j = 0; j < TILE; ++j) sum[i][j] += left(i) * right(j);
    }
    template <class Store>
    __device__ static __forceinline__ void each(const Number (&x)[TILE][TILE], Store store) {
#pragma unroll
        for (int i = 0; i < TILE; ++i)
#pragma unroll
            for (int j = 0; j < TILE; ++j) store(i, j, x[i][j]);
    }
};

template <class Number, int SIDE, int THREADS>
__device__ __forceinline__ void invert_blocks(const DiagonalBlocks<Number>& p, Number* memory) {
    static_assert(THREADS >= SIDE * SIDE / (4 * TILE * TILE) && THREADS >= SIDE, "each tile has a thread");
    BlockInverter<Number, SIDE, THREADS> inverter(p, memory);
    const long long start = static_cast<long long>(blockIdx.x) * SIDE;
    inverter.read(start);
    __syncthreads();
    if (inverter.thread < SIDE) inverter.invert_small(inverter.thread / SMALL * SMALL);
    __syncthreads();
#pragma unroll 1
    for (int side = SMALL; side < SIDE; side *= 2) inverter.double_side(side);
    inverter.write(start);
}

// ---- larger blocks: products of pairs of neighbouring blocks

struct BlockSteps {
    long long row, column, pair, block;  // elements to the next row, column, pair of blocks of `side` rows, and block
};

template <class Number>
struct BlockProducts {  // dest = sign left right, for each pair; one factor is lower triangular
    const Number *left, *right;
    Number* dest;
    BlockSteps left_steps, right_steps, dest_steps;
    int side, pairs, left_is_lower, sign;
};

constexpr int PRODUCT_TILE = 64, PRODUCT_DEPTH = 16, PRODUCT_THREADS = 256;

template <class Number>
struct ProductMemory {
    Number left[PRODUCT_DEPTH][PRODUCT_TILE + 1], right[PRODUCT_DEPTH][PRODUCT_TILE];
};

template <class Number>
__device__ __forceinline__ Number* at_pair(Number* x, const BlockSteps& steps, int pair, int block) {
    return x + pair * steps.pair + block * steps.block;
}

template <class Number>
__device__ __forceinline__ void multiply_blocks(const BlockProducts<Number>& p, ProductMemory<Number>& memory) {
    const int thread = threadIdx.x, down = thread / 16, across = thread % 16, tiles = p.side / PRODUCT_TILE;
    const int tile = static_cast<int>(blockIdx.x) % (tiles * tiles), number = static_cast<int>(blockIdx.x) / (tiles * tiles);
    const int pair = number % p.pairs, block = number / p.pairs;
    const int row = tile / tiles * PRODUCT_TILE, column = tile % tiles * PRODUCT_TILE;
    const Number* const left = at_pair(p.left, p.left_steps, pair, block);
    const Number* const right = at_pair(p.right, p.right_steps, pair, block);
    Number* const dest = at_pair(p.dest, p.dest_steps, pair, block);
    // The loop skips zeros of the triangular factor: in the tile's rows, a lower triangular left factor is zero from
    // column `end` on; in the tile's columns, a lower triangular right factor is zero above row `first`.
    const int first = p.left_is_lower ? 0 : column, end = p.left_is_lower ? row + PRODUCT_TILE : p.side;
    Number sum[4][4] = {};
    for (int start = first; start < end; start += PRODUCT_DEPTH) {
        for (int t = thread; t < PRODUCT_TILE * PRODUCT_DEPTH; t += PRODUCT_THREADS) {
            const int i = t / PRODUCT_DEPTH, k = t % PRODUCT_DEPTH, j = t % PRODUCT_TILE, deep = t / PRODUCT_TILE;
            memory.left[k][i] = left[(row + i) * p.left_steps.row + (start + k) * p.left_steps.column];
            memory.right[deep][j] = right[(start + deep) * p.right_steps.row + (column + j) * p.right_steps.column];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < PRODUCT_DEPTH; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[i][j] += memory.left[k][down + 16 * i] * memory.right[k][across + 16 * j];
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            dest[(row + down + 16 * i) * p.dest_steps.row + (column + across + 16 * j) * p.dest_steps.column] =
                p.sign < 0 ? -sum[i][j] : sum[i][j];
}

}  // namespace fmm::triangular
