// Tiles of products by matrix instructions of a warp (mma.sync, compute capability 8.0 and newer): copies from global
// to shared memory, reads of operands from shared memory to registers, and the pipeline of stages.
//
// A tile in shared memory has lines of 128 bytes. The 16-byte chunks of a line are permuted (chunk c of line l is at
// c ^ l % 8), so that neither copies nor reads of eight lines meet in a bank. A matrix instruction needs 32 bytes of the
// inner dimension, so a line has the operands of 4 instructions ("steps"):
//   bytes     128 positions of the inner dimension, 32 in each step
//   float16   32 positions of plane hi (steps 0 and 1), then the same positions of plane lo (steps 2 and 3)
// float16 planes may also be MN-major. A line then has 64 numbers of one plane at one position of the inner dimension.
// For each group of 64 numbers the tile has 16 lines for each of the same four steps.
#pragma once

#include "gemm_common.cuh"
#include "ptx_mma.cuh"

namespace fmm {

constexpr int LINE_BYTES = 128, CHUNK_BYTES = 16, CHUNKS = LINE_BYTES / CHUNK_BYTES, LINE_STEPS = 4;
constexpr int PLANE_DEPTH = 32;  // positions of the inner dimension of both planes in a tile

struct Lines {  // the lines of an operand in global memory; sizes and distances in bytes
    const char* data;
    long long pitch;    // from one line to the next
    long long layer;    // from one product of a batch to the next
    int lines, length;
};

// Sizes of a thread block's tile and of the tile of each warp.
template <int M_S, int N_S, int M_W, int N_W, int STAGES_>
struct MmaSizes {
    static constexpr int HEIGHT = M_S, WIDTH = N_S, WARP_HEIGHT = M_W, WARP_WIDTH = N_W, STAGES = STAGES_;
    static constexpr int DOWN = M_S / M_W, THREADS = 32 * DOWN * (N_S / N_W), STAGE = (M_S + N_S) * LINE_BYTES;
    static_assert(M_S % M_W == 0 && N_S % N_W == 0 && M_W % 16 == 0 && N_W % 16 == 0, "whole warps and instructions");
};

// Sizes for a symmetric C. Only tiles that touch the lower triangle are computed. With MIRROR, their transposes are
// stored too.
template <int M_S, int N_S, int M_W, int N_W, int STAGES_, bool MIRROR>
struct LowerMmaSizes : MmaSizes<M_S, N_S, M_W, N_W, STAGES_> {};
template <int M_S, int N_S, int M_W, int N_W, int STAGES_, bool MIRROR>
constexpr bool LOWER_ONLY<LowerMmaSizes<M_S, N_S, M_W, N_W, STAGES_, MIRROR>> = true;
template <int M_S, int N_S, int M_W, int N_W, int STAGES_, bool MIRROR>
constexpr bool MIRRORED<LowerMmaSizes<M_S, N_S, M_W, N_W, STAGES_, MIRROR>> = MIRROR;

// ---- from global to shared memory

// The place of a chunk of bytes in its matrix: line, and distance in bytes from the line's begin.
struct ChunkPlace {
    int line, at;
};

// The layouts of operands. `place` returns the place of a chunk of a tile. The tile begins at number `first` of the
// outer dimension, and has the number `step` along the inner dimension.
struct ByteLines {
    static constexpr bool TRANSPOSED = false;
};
// In memory, 64 numbers of hi and 64 numbers of lo alternate along a line: 256 bytes together (f16_planes.cuh).
template <Along ALONG>
struct PlaneLines {
    static constexpr bool TRANSPOSED = ALONG == Along::OUTER;
    __device__ static __forceinline__ ChunkPlace place(int first, int step, int line, int chunk) {
        if constexpr (TRANSPOSED)
            return {step * PLANE_DEPTH + line % PLANE_DEPTH,
                    (first + line / 64 * 64) * 4 + line / PLANE_DEPTH % 2 * 128 + chunk * CHUNK_BYTES};
        else
            return {first + line, step / 2 * 256 + step % 2 * 64 + chunk / 4 * 128 + chunk % 4 * CHUNK_BYTES};
    }
};

// Copy a tile with OUT numbers of the outer dimension. Bytes outside of the matrix are zero.
template <class Layout, int OUT, int THREADS>
__device__ __forceinline__ void copy_tile(unsigned to, const Lines& from, int layer, int first, int step) {
    constexpr int AT_ONCE = THREADS / CHUNKS;
    const int begin = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const char* const data = from.data + layer * from.layer;
    to += begin * LINE_BYTES + (chunk ^ begin % CHUNKS) * CHUNK_BYTES;
#pragma unroll
    for (int i = 0; i < OUT; i += AT_ONCE) {
        const ChunkPlace x = Layout::place(first, step, begin + i, chunk);
        const int valid = x.line < from.lines ? min(max(from.length - x.at, 0), CHUNK_BYTES) : 0;
        copy_chunk(to + i * LINE_BYTES, data + (valid ? x.line * from.pitch + x.at : 0), valid);
    }
}

// ---- from shared memory to registers

// Reads 16 rows of A or 16 columns of B for one step. The matrices that an instruction reads are ordered by the outer
// and then by the inner dimension for A (LEFT), and the other way for B.
template <class Layout, bool LEFT>
struct OperandReader {
    unsigned start;  // the lane's address for the first rows or columns and step 0 of the first stage

    // `tile` is the tile of the first stage; `outer` is the warp's first row or column, a multiple of 32.
    __device__ __forceinline__ OperandReader(unsigned tile, int outer) {
        const int lane = threadIdx.x % 32, odd = lane / 8 % 2, upper = lane / 16;
        const int along_outer = LEFT ? odd : upper, along_inner = LEFT ? upper : odd;
        const int line = Layout::TRANSPOSED ? outer / 64 * 64 + along_inner * 8 : outer + along_outer * 8;
        const int chunk = Layout::TRANSPOSED ? outer % 64 / 8 ^ along_outer : along_inner;
        start = tile + (line + lane % 8) * LINE_BYTES + (chunk ^ lane % 8) * CHUNK_BYTES;
    }
    // Read the i-th 16 rows or columns of the warp in the stage that is `stage` bytes from the first stage. Two chunks
    // have 16 numbers of the outer dimension, or one step. Tiles begin at multiples of LINE_BYTES.
    __device__ __forceinline__ void read(unsigned (&x)[4], unsigned stage, int i, int step) const {
        const int lines = Layout::TRANSPOSED ? step : i, chunks = Layout::TRANSPOSED ? i : step;
        read_matrices<Layout::TRANSPOSED>(x, (start + stage ^ chunks * 2 * CHUNK_BYTES) + lines * 16 * LINE_BYTES);
    }
};

// ---- the pipeline

template <class S, class Params>
__device__ __forceinline__ TileStart start_of_tile(const Params& p) {
    Tile tile;
    if constexpr (LOWER_ONLY<S>)
        tile = LowerTiles<S::HEIGHT, S::WIDTH>(p).at(blockIdx.x);
    else
        tile = tile_of(p, blockIdx.x);
    return {tile.layer, tile.row * S::HEIGHT, tile.col * S::WIDTH};
}

// The stages of shared memory, as distances in bytes from the first stage. Copies are STAGES tiles ahead. Each thread
// reads a tile's last operands before it computes with them, so the next tile can replace the tile at this time.
template <class S, class Left, class Right, class Params>
struct StagePipeline {
    const Params& p;
    const TileStart& place;
    const unsigned memory;
    unsigned now = 0;  // the stage of the present tile

    __device__ __forceinline__ StagePipeline(const Params& p, const TileStart& place, unsigned memory)
        : p(p), place(place), memory(memory) {
#pragma unroll
        for (int t = 0; t < S::STAGES; ++t) {
            copy_left(t, t * S::STAGE);
            copy_right(t, t * S::STAGE);
        }
        wait_copies<S::STAGES - 1>();
        __syncthreads();
    }
    // Copy tile t of A.
    __device__ __forceinline__ void copy_left(int t, unsigned stage) const {
        if (t < p.steps) copy_tile<Left, S::HEIGHT, S::THREADS>(memory + stage, p.left, place.layer, place.row, t);
    }
    // Copy tile t of B, and close the group of copies. The copies of A and B are one group, which may be empty.
    __device__ __forceinline__ void copy_right(int t, unsigned stage) const {
        if (t < p.steps)
            copy_tile<Right, S::WIDTH, S::THREADS>(memory + stage + S::HEIGHT * LINE_BYTES, p.right, place.layer, place.col, t);
        commit_copies();
    }
    // Wait until the next tile has been copied, and until all threads have read the present tile.
    __device__ __forceinline__ void wait_for_next() const {
        wait_copies<S::STAGES - 2>();
        __syncthreads();
    }
    // Return the stage of the next tile.
    __device__ __forceinline__ unsigned next() const {
        return now + S::STAGE == S::STAGES * S::STAGE ? 0 : now + S::STAGE;
    }
};

// Copies the tiles of an operand of bytes. Values that do not depend on the tile are computed once, because copies that
// take many instructions stop the tensor cores.
template <int OUT, int THREADS>
struct ByteTileCopy {
    static constexpr int AT_ONCE = THREADS / CHUNKS, COUNT = OUT / AT_ONCE;
    const char* from;    // the thread's chunk of the first line that the thread copies
    long long next;      // bytes to the next line that the thread copies
    int lines, length;   // the number of the thread's lines in the matrix, and the bytes from its chunk to a line's end
    unsigned to;

    __device__ __forceinline__ ByteTileCopy(unsigned tile, const Lines& x, int layer, int first) {
        static_assert(OUT % AT_ONCE == 0 && AT_ONCE % CHUNKS == 0, "whole copies, and the same permutation for each");
        const int begin = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
        from = x.data + layer * x.layer + (first + begin) * x.pitch + chunk * CHUNK_BYTES;
        next = AT_ONCE * x.pitch;
        lines = (x.lines - first - begin + AT_ONCE - 1) / AT_ONCE;
        length = x.length - chunk * CHUNK_BYTES;
        to = tile + begin * LINE_BYTES + (chunk ^ begin % CHUNKS) * CHUNK_BYTES;
    }
    // Copy the thread's i-th chunk of tile t. Bytes outside of the matrix are zero.
    __device__ __forceinline__ void copy(int t, unsigned stage, int i) const {
        const int valid = i < lines ? min(max(length - t * LINE_BYTES, 0), CHUNK_BYTES) : 0;
        copy_chunk(to + stage + i * AT_ONCE * LINE_BYTES, from + t * LINE_BYTES + i * next, valid);
    }
};

// The stages of a product of bytes. While tile t is computed, tile t + STAGES - 1 is copied to the stage of tile t - 1.
// PARTS groups of instructions each issue a part of the copies, so that the tensor cores always have work.
template <class S, int PARTS>
struct BytePipeline {
    using Left = ByteTileCopy<S::HEIGHT, S::THREADS>;
    using Right = ByteTileCopy<S::WIDTH, S::THREADS>;
    static constexpr int COUNT = Left::COUNT + Right::COUNT, EACH = (COUNT + PARTS - 1) / PARTS;
    const Left left;
    const Right right;
    const int steps;
    unsigned now = 0;  // the stage of the present tile

    template <class Params>
    __device__ __forceinline__ BytePipeline(const Params& p, const TileStart& place, unsigned memory)
        : left(memory, p.left, place.layer, place.row),
          right(memory + S::HEIGHT * LINE_BYTES, p.right, place.layer, place.col), steps(p.steps) {
#pragma unroll
        for (int t = 0; t < S::STAGES - 1; ++t)
#pragma unroll
            for (int part = 0; part < PARTS; ++part) copy(t, t * S::STAGE, part);
        wait_for_next();
    }
    // Issue one of PARTS parts of the copies of tile t; all parts are one group, which may be empty.
    __device__ __forceinline__ void copy(int t, unsigned stage, int part) const {
        if (t < steps)
#pragma unroll
            for (int i = part * EACH; i < (part + 1) * EACH && i < COUNT; ++i)
                if (i < Left::COUNT)
                    left.copy(t, stage, i);
                else
                    right.copy(t, stage, i - Left::COUNT);
        if (part == PARTS - 1) commit_copies();
    }
    // Issue a part of the copies while tile t is computed.
    __device__ __forceinline__ void copy_ahead(int t, int part) const {
        copy(t + S::STAGES - 1, now ? now - S::STAGE : (S::STAGES - 1) * S::STAGE, part);
    }
    // Wait until the next tile has been copied, and until all threads have read the present tile.
    __device__ __forceinline__ void wait_for_next() const {
        wait_copies<S::STAGES - 2>();
        __syncthreads();
    }
    // Return the stage of the next tile.
    __device__ __forceinline__ unsigned next() const {
        return now + S::STAGE == S::STAGES * S::STAGE ? 0 : now + S::STAGE;
    }
};

}  // namespace fmm
