// LU factorization with partial pivoting of a panel: a tall matrix with few columns. For every block of WIDTH columns,
// three kernels run one after the other:
//
// factor_block: factor the block itself. One cluster holds all rows of the block in registers; a thread has ROWS rows.
//     Rows never move: each row has a position, and an exchange of two rows exchanges their positions. For each column,
//     all thread blocks of the cluster exchange messages once. Entries of L stay in shared memory until the last
//     column, because the final position of each row is known only then.
// swap_and_solve: exchange the rows of the panel's other columns, and solve L11 X = A12 for the columns right of the
//     block. A thread block has 32 columns.
// subtract_product: A22 -= L21 U12 right of the block.
//
// If several rows have the greatest magnitude, the first of them becomes the pivot, as in LAPACK. NaN counts as the
// greatest magnitude.
#pragma once

#include "cluster_mail.cuh"

namespace fmm::lu {

constexpr int NO_POSITION = 0x7fffffff;  // the position of a thread's rows beyond the panel's last row
constexpr int TILE = 64, TILE_THREADS = 256;
constexpr int SWAP_COLUMNS = 32, SWAP_THREADS = 256;

template <class Number>
struct Panel {
    Number* data;
    int* pivots;  // pivots[j]: the row that was exchanged with row j
    long long row_step, column_step;
    int rows, columns;  // of the whole panel
    int first, width;   // the block's first column, and its number of columns

    __device__ __forceinline__ Number& at(int row, int column) const {
        return data[row * row_step + column * column_step];
    }
};

// ---- the greatest magnitude

struct Candidate {  // a magnitude, as two integers that compare like the magnitudes, and the row's position
    int high, low, position;
};

__device__ __forceinline__ Candidate candidate_of(float x, int position) {
    return {static_cast<int>(__float_as_uint(x) & 0x7fffffff), 0, position};
}
__device__ __forceinline__ Candidate candidate_of(double x, int position) {
    const unsigned long long bits = static_cast<unsigned long long>(__double_as_longlong(x));
    return {static_cast<int>(bits >> 32 & 0x7fffffff), static_cast<int>(static_cast<unsigned>(bits) ^ 0x80000000u), position};
}

__device__ __forceinline__ bool is_better(const Candidate& x, const Candidate& y) {
    if (x.high != y.high) return x.high > y.high;
    if (x.low != y.low) return x.low > y.low;
    return x.position < y.position;
}

template <bool HAS_LOW>
__device__ __forceinline__ Candidate best_of_warp(const Candidate& x) {
    Candidate best;
    best.high = __reduce_max_sync(~0u, x.high);
    bool is_best = x.high == best.high;
    best.low = x.low;
    if constexpr (HAS_LOW) {
        best.low = __reduce_max_sync(~0u, is_best ? x.low : static_cast<int>(0x80000000));
        is_best = is_best && x.low == best.low;
    }
    best.position = __reduce_min_sync(~0u, is_best ? x.position : NO_POSITION);
    return best;
}

// ---- a block of columns in one cluster

template <class Number, int WIDTH>
struct alignas(16) BestRow {  // a thread block's candidate as a message, and its row; row[0] is in the pivot's column
    Message candidate;
    Number row[WIDTH];

    static constexpr int MESSAGES = 1 + WIDTH * sizeof(Number) / sizeof(Message);
    __device__ __forceinline__ Message* messages() { return reinterpret_cast<Message*>(this); }
};

template <class Number, int WIDTH, int ROWS, int THREADS>
struct BlockMemory {
    BestRow<Number, WIDTH> inbox[2][16];  // received from the cluster's thread blocks; two buffers are used alternately
    BestRow<Number, WIDTH> outbox;
    MailBarrier barriers[2];
    Candidate of_warps[THREADS / 32];
    int pivots[WIDTH];
    Number upper[WIDTH][WIDTH];          // row j of U from column j on
    Number lower[ROWS][THREADS][WIDTH + 1];  // the entries of L in each thread's rows; one more avoids bank conflicts
};

// The loop over the columns is not unrolled. Instead, registers are shifted in each step, so that x[i][0] is always the
// entry in the pivot's column. In each step a thread block sends its best row to all thread blocks of the cluster. Two
// buffers of the inbox suffice. A thread block sends messages of step j + 2 only when it has received the messages of
// step j + 1 from all thread blocks. Each thread block sends these only after it has read the messages of step j.
template <class Number, int WIDTH, int ROWS, int THREADS, int CLUSTER>
struct BlockFactorizer {
    static constexpr int WARPS = THREADS / 32;
    static constexpr bool HAS_LOW = sizeof(Number) == 8;
    using Memory = BlockMemory<Number, WIDTH, ROWS, THREADS>;
    using Best = BestRow<Number, WIDTH>;
    static_assert(CLUSTER * Best::MESSAGES <= THREADS, "a thread sends one message");
    static_assert(sizeof(Best) == Best::MESSAGES * sizeof(Message), "a row is whole messages");

    const Panel<Number>& p;
    Memory& memory;
    const int thread, lane, rank;
    Number x[ROWS][WIDTH];
    int position[ROWS];  // positions of the thread's rows, counted from the block's first row

    __device__ __forceinline__ BlockFactorizer(const Panel<Number>& p, Memory& memory)
        : p(p), memory(memory), thread(threadIdx.x), lane(threadIdx.x % 32), rank(cluster_rank()) {}

    // In a row-major matrix a warp reads and writes the rows of its threads one after another, because neighbours in a row
    // are neighbours in memory.
    __device__ __forceinline__ void read() {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const int row = (i * CLUSTER + rank) * THREADS + thread, count = p.rows - p.first;
            position[i] = row < count ? row : NO_POSITION;
            if (p.column_step == 1) {
#pragma unroll 16
                for (int t = lane; t < 32 * WIDTH; t += 32) {
                    const int r = row - lane + t / WIDTH, k = t % WIDTH;
                    const bool inside = r < count && k < p.width;
                    memory.lower[i][thread - lane + t / WIDTH][k] = inside ? p.at(p.first + r, p.first + k) : Number(0);
                }
                __syncwarp();
#pragma unroll
                for (int k = 0; k < WIDTH; ++k) x[i][k] = memory.lower[i][thread][k];
            } else {
#pragma unroll
                for (int k = 0; k < WIDTH; ++k)
                    x[i][k] = row < count && k < p.width ? p.at(p.first + row, p.first + k) : Number(0);
            }
        }
    }
    __device__ __forceinline__ void write_entry(int i, int its_thread, int its_position, int k) const {
        if (its_position != NO_POSITION && k < min(its_position, p.width))
            p.at(p.first + its_position, p.first + k) = memory.lower[i][its_thread][k];
    }
    __device__ __forceinline__ void write() const {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            if (p.column_step == 1) {
#pragma unroll 8
                for (int t = lane; t < 32 * WIDTH; t += 32)
                    write_entry(i, thread - lane + t / WIDTH, __shfl_sync(~0u, position[i], t / WIDTH), t % WIDTH);
            } else {
#pragma unroll 4
                for (int k = 0; k < WIDTH; ++k) write_entry(i, thread, position[i], k);
            }
        }
        if (rank) return;
        for (int t = thread; t < WIDTH * WIDTH; t += THREADS) {
            const int j = t / WIDTH, k = j + t % WIDTH;
            if (k < p.width) p.at(p.first + j, p.first + k) = memory.upper[j][t % WIDTH];
        }
        if (thread < p.width) p.pivots[p.first + thread] = p.first + memory.pivots[thread];
    }

    __device__ __forceinline__ Candidate best_of_block(int j) {
        Candidate best{0, static_cast<int>(0x80000000), NO_POSITION};
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const Candidate mine = candidate_of(x[i][0], position[i]);
            if (position[i] >= j && position[i] != NO_POSITION && is_better(mine, best)) best = mine;
        }
        best = best_of_warp<HAS_LOW>(best);
        if (lane == 0) memory.of_warps[thread / 32] = best;
        __syncthreads();
        return best_of_warp<HAS_LOW>(memory.of_warps[lane % WARPS]);
    }

    // Send the best row of this thread block to all thread blocks.
    __device__ __forceinline__ void send_best(int j, const Candidate& best) {
        const int buffer = j % 2;
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            if (position[i] != best.position || best.position == NO_POSITION) continue;
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) memory.outbox.row[k] = x[i][k];
        }
        if (thread == 0) {
            memory.outbox.candidate = {best.high, best.low, best.position, 0};
            expect_mail(&memory.barriers[buffer], CLUSTER * sizeof(Best));
        }
        __syncthreads();
        if (thread < CLUSTER * Best::MESSAGES) {
            const int part = thread % Best::MESSAGES, to = thread / Best::MESSAGES;
            Message* const place = memory.inbox[buffer][rank].messages() + part;
            send_mail(place, memory.outbox.messages()[part], &memory.barriers[buffer], to);
        }
    }

    __device__ __forceinline__ void eliminate(int j) {
        const int buffer = j % 2;
        send_best(j, best_of_block(j));
        wait_mail(&memory.barriers[buffer], j / 2 % 2);
        const Message& mail = memory.inbox[buffer][lane % CLUSTER].candidate;
        const Candidate sent{mail.words[0], mail.words[1], mail.words[2]};
        const int found = best_of_warp<HAS_LOW>(sent).position;
        const int winner = __reduce_min_sync(~0u, sent.position == found ? lane % CLUSTER : CLUSTER);
        const Number* const row = memory.inbox[buffer][winner].row;
        const Number pivot = row[0];
        if (thread < WIDTH) memory.upper[j][thread] = row[thread];
        if (thread == 0) memory.pivots[j] = found;
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            if (position[i] == found) position[i] = j;
            else if (position[i] == j) position[i] = found;
            const Number factor = pivot == Number(0) ? x[i][0] : x[i][0] / pivot;
            if (position[i] > j) memory.lower[i][thread][j] = factor;
#pragma unroll
            for (int k = 0; k < WIDTH - 1; ++k) x[i][k] = x[i][k + 1] - factor * row[k + 1];
            x[i][WIDTH - 1] = Number(0);
        }
    }
};

template <class Number, int WIDTH, int ROWS, int THREADS, int CLUSTER>
__device__ __forceinline__ void factor_block(const Panel<Number>& p, void* memory) {
    using Factorizer = BlockFactorizer<Number, WIDTH, ROWS, THREADS, CLUSTER>;
    Factorizer factorizer(p, *static_cast<typename Factorizer::Memory*>(memory));
    if (factorizer.thread < 2) init_mail(&factorizer.memory.barriers[factorizer.thread]);
    factorizer.read();
    cluster_sync();  // all barriers of the cluster are initialized
#pragma unroll 1
    for (int j = 0; j < p.width; ++j) factorizer.eliminate(j);
    cluster_sync();  // no thread block ends before all messages to it have arrived
    factorizer.write();
}

// ---- the other columns

template <class Number, int WIDTH>
struct SolveMemory {
    int pivots[WIDTH], target[2 * WIDTH], source[2 * WIDTH];  // the exchanges together move row `source` to `target`
    Number lower[WIDTH][WIDTH];  // the transpose of L11
    Number rows[2 * WIDTH][SWAP_COLUMNS];
};

template <class Number, int WIDTH>
__device__ __forceinline__ void trace_sources(const Panel<Number>& p, SolveMemory<Number, WIDTH>& memory) {
    const int thread = threadIdx.x;
    if (thread < p.width) memory.pivots[thread] = p.pivots[p.first + thread];
    __syncthreads();
    if (thread < 2 * p.width) {
        int row = thread < p.width ? p.first + thread : memory.pivots[thread - p.width];
        memory.target[thread] = row;
#pragma unroll 8
        for (int i = p.width - 1; i >= 0; --i) {  // from the last exchange back to the first
            const int pivot = memory.pivots[i], exchanged = p.first + i;
            row = row == exchanged ? pivot : row == pivot ? exchanged : row;
        }
        memory.source[thread] = row;
    }
}

template <class Number, int WIDTH>
__device__ __forceinline__ void swap_and_solve(const Panel<Number>& p, SolveMemory<Number, WIDTH>& memory) {
    constexpr int STEP = SWAP_THREADS / SWAP_COLUMNS;
    const int thread = threadIdx.x, first_row = thread / SWAP_COLUMNS, across = thread % SWAP_COLUMNS;
    const int column = static_cast<int>(blockIdx.x) * SWAP_COLUMNS + across, end = p.first + p.width;
    const bool is_swapped = column < p.columns && (column < p.first || column >= end);
    trace_sources(p, memory);
    for (int t = thread; t < WIDTH * WIDTH; t += SWAP_THREADS) {
        const int i = t / WIDTH, k = t % WIDTH;
        memory.lower[k][i] = k < i && i < p.width ? p.at(p.first + i, p.first + k) : Number(0);
    }
    __syncthreads();
#pragma unroll
    for (int t = first_row; t < 2 * WIDTH; t += STEP)
        if (is_swapped && t < 2 * p.width) memory.rows[t][across] = p.at(memory.source[t], column);
    __syncthreads();
    for (int t = p.width + first_row; t < 2 * p.width; t += STEP)
        if (is_swapped && memory.target[t] >= end) p.at(memory.target[t], column) = memory.rows[t][across];
    if (thread >= SWAP_COLUMNS || !is_swapped) return;
    Number top[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) top[i] = i < p.width ? memory.rows[i][across] : Number(0);
    if (column > p.first) {
#pragma unroll
        for (int k = 0; k < WIDTH; ++k)
#pragma unroll
            for (int i = k + 1; i < WIDTH; ++i) top[i] -= memory.lower[k][i] * top[k];
    }
#pragma unroll
    for (int i = 0; i < WIDTH; ++i)
        if (i < p.width) p.at(p.first + i, column) = top[i];
}

template <class Number, int WIDTH>
struct ProductMemory {
    Number left[WIDTH][TILE + 1], right[WIDTH][TILE];
};

template <class Number, int WIDTH>
__device__ __forceinline__ void subtract_product(const Panel<Number>& p, ProductMemory<Number, WIDTH>& memory) {
    const int thread = threadIdx.x, down = thread / 16, across = thread % 16, end = p.first + p.width;
    const int tile = blockIdx.x, tiles_down = (p.rows - end + TILE - 1) / TILE;
    const int row = end + tile % tiles_down * TILE, column = end + tile / tiles_down * TILE;
    for (int t = thread; t < TILE * WIDTH; t += TILE_THREADS) {
        const int i = t / WIDTH, k = t % WIDTH;
        memory.left[k][i] = row + i < p.rows && k < p.width ? p.at(row + i, p.first + k) : Number(0);
        const int j = t % TILE, deep = t / TILE;
        memory.right[deep][j] = column + j < p.columns && deep < p.width ? p.at(p.first + deep, column + j) : Number(0);
    }
    __syncthreads();
    Number sum[4][4] = {};
#pragma unroll 8
    for (int k = 0; k < WIDTH; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) sum[i][j] += memory.left[k][down + 16 * i] * memory.right[k][across + 16 * j];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int r = row + down + 16 * i, c = column + across + 16 * j;
            if (r < p.rows && c < p.columns) p.at(r, c) -= sum[i][j];
        }
}

// ---- exchanges of the rows of a whole matrix

struct Exchanges {
    const int* pivots;  // row i is exchanged with row pivots[i] - origin, for i from 0 to count - 1
    long long *target, *source;  // 2 count rows: all exchanges together move row `source` to row `target`
    int count, origin;
};

__device__ __forceinline__ void trace_rows(const Exchanges& p, int (&pivots)[TILE_THREADS]) {
    const int thread = threadIdx.x, t = static_cast<int>(blockIdx.x) * TILE_THREADS + thread;
    int row = t < p.count ? t : t < 2 * p.count ? p.pivots[t - p.count] - p.origin : -1;
    if (t < 2 * p.count) p.target[t] = row;
    for (int end = p.count; end > 0; end -= TILE_THREADS) {  // from the last exchange back to the first
        const int first = max(end - TILE_THREADS, 0);
        __syncthreads();
        if (first + thread < end) pivots[thread] = p.pivots[first + thread] - p.origin;
        __syncthreads();
#pragma unroll 8
        for (int i = end - 1; i >= first; --i) {
            const int pivot = pivots[i - first];
            row = row == i ? pivot : row == pivot ? i : row;
        }
    }
    if (t < 2 * p.count) p.source[t] = row;
}

}  // namespace fmm::lu
