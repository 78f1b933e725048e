// GEMM of byte planes on tensor cores by matrix instructions of a warp (mma.sync), for compute capability 8.0 and newer:
// one product for each modulus p. Sums are reduced modulo p and stored as bytes, as in gemm_residues.cuh.
//
// Index map: thread block b computes tile b in the order of tile_of. Each warp computes WARP_HEIGHT x WARP_WIDTH numbers.
#pragma once

#include "mma_tiles.cuh"
#include "modulus.cuh"

namespace fmm {

constexpr int MAX_MODULI = 20;

struct MmaResidueProduct {
    Lines left, right;
    char* dest;
    long long leading, layer;  // of C: bytes from one row to the next, and from one product to the next
    int m, n;                  // rows and columns of C; the number of columns is a multiple of 8
    int steps;         // number of tiles along the inner dimension
    int down, across;  // rows and columns of tiles
    int group;         // rows of tiles in a group (tile_of); the tiles of a group share data in the L2 cache
    int each;          // number of products of planes for each modulus
    int unused;
    Modulus moduli[MAX_MODULI];  // the moduli of the planes, in order
};

// Return 8 adjacent bytes of a row of C in each lane. Four lanes share 32 bytes of a row: four words of 8 bytes. Before
// the exchange, lane l has two bytes of each word: `first` has the bytes of words 0 and 1, and `second` the bytes of
// words 2 and 3. After two exchanges, lane l has word l % 4.
__device__ __forceinline__ uint2 exchange_bytes(unsigned first, unsigned second) {
    const bool upper = threadIdx.x % 4 >= 2, odd = threadIdx.x % 2;
    const unsigned other = __shfl_xor_sync(~0u, upper ? first : second, 2), own = upper ? second : first;
    const unsigned begin = upper ? other : own, end = upper ? own : other;  // the bytes of lanes l % 2 and l % 2 + 2
    const unsigned low = __byte_perm(begin, end, 0x5410), high = __byte_perm(begin, end, 0x7632);
    const unsigned got = __shfl_xor_sync(~0u, odd ? low : high, 1), kept = odd ? high : low;
    const unsigned even = odd ? got : kept, uneven = odd ? kept : got;
    return {__byte_perm(even, uneven, 0x5410), __byte_perm(even, uneven, 0x7632)};
}

// Sums over 2^16 positions of the inner dimension are at most 2^30. LONG: sums are reduced in between.
template <class S, bool LONG>
__device__ __forceinline__ void multiply_residues_by_warps(const MmaResidueProduct& p, char* memory) {
    constexpr int ROWS = S::WARP_HEIGHT / 16, COLS = S::WARP_WIDTH / 16, COUNT = 8 * COLS, MAX_STEPS = 512;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int down = warp % S::DOWN * S::WARP_HEIGHT, across = warp / S::DOWN * S::WARP_WIDTH;
    const TileStart place = start_of_tile<S>(p);
    const unsigned shared = shared_offset(memory);
    const OperandReader<ByteLines, true> left(shared, down);
    const OperandReader<ByteLines, false> right(shared + S::HEIGHT * LINE_BYTES, across);
    const Modulus modulus = p.moduli[place.layer / p.each];
    int sum[ROWS][COUNT];
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int j = 0; j < COUNT; ++j) sum[i][j] = 0;
    // Operands are read one part (16 rows) before their use, and each operand of B after its last use in a step.
    BytePipeline<S, ROWS> stages(p, place, shared);
    unsigned a[2][4], b[COLS][4];
#pragma unroll
    for (int j = 0; j < COLS; ++j) right.read(b[j], 0, j, 0);
    left.read(a[0], 0, 0, 0);
#pragma unroll 1
    for (int t = 0; t < p.steps; ++t) {
#pragma unroll
        for (int part = 0; part < LINE_STEPS * ROWS; ++part) {
            const int i = part % ROWS, after = (part + 1) % (LINE_STEPS * ROWS);
            const bool last = after == 0;
            if (last) stages.wait_for_next();
            const unsigned stage = last ? stages.next() : stages.now;
            left.read(a[1 - part % 2], stage, after % ROWS, after / ROWS);
#pragma unroll
            for (int j = 0; j < COLS; ++j) {
                mma(sum[i] + 8 * j, a[part % 2], b[j]);
                mma(sum[i] + 8 * j + 4, a[part % 2], b[j] + 2);
                if (i == ROWS - 1) right.read(b[j], stage, j, after / ROWS);
            }
            if (part < ROWS) stages.copy_ahead(t, part);
        }
        stages.now = stages.next();
        if (LONG && (t + 1) % MAX_STEPS == 0)
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
#pragma unroll
                for (int j = 0; j < COUNT; ++j) sum[i][j] = modulus.reduced(sum[i][j]);
    }
    wait_copies<0>();
    char* const dest = p.dest + place.layer * p.layer;
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int j = 0; j < COUNT; j += 16) {
                unsigned word[2];
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int* const x = sum[i] + j + e * 8 + r * 2;
                    word[e] = low_bytes(modulus(x[0]), modulus(x[1]), modulus(x[4]), modulus(x[5]));
                }
                const uint2 bytes = exchange_bytes(word[0], word[1]);
                const int row = place.row + down + i * 16 + r * 8 + lane / 4, col = place.col + across + j * 2 + lane % 4 * 8;
                if (row < p.m && col < p.n) *reinterpret_cast<uint2*>(dest + row * p.leading + col) = bytes;
            }
}

}  // namespace fmm
