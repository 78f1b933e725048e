// The functions of ptx_mma.cuh by the emulated threads of emulated_threads.cpp. A copy is made when its thread waits for
// it, so data that is read too early, or overwritten too early, is found.
constexpr unsigned ROOM = 1 << 18;  // bytes of a thread block's shared memory
alignas(1024) static char shared_memory[ROOM];
static unsigned __byte_perm(unsigned x, unsigned y, unsigned which) {
    unsigned found = 0;
    for (int i = 0; i < 4; ++i)
        found |= ((which >> 4 * i & 4 ? y : x) >> 8 * (which >> 4 * i & 3) & 255) << 8 * i;
    return found;
}
namespace fmm {
struct PendingCopy { unsigned to; const void* from; int valid; };
struct CopyQueue {
    PendingCopy copies[1024];
    unsigned begin, end;      // of the copies that are not made
    unsigned ends[64];        // of each group of copies
    unsigned first, groups;   // the first group that is not made, and the number of groups
};
static CopyQueue copy_queues[1024];

static char* shared_begin() { return shared_memory; }
static unsigned shared_offset(const void* p) { return static_cast<unsigned>(static_cast<const char*>(p) - shared_memory); }
static void copy_chunk(unsigned to, const void* from, int valid) {
    if (to % 16 || to + 16 > ROOM || valid < 0 || valid > 16) __builtin_trap();
    if (reinterpret_cast<unsigned long>(from) % 16) __builtin_trap();
    CopyQueue& q = copy_queues[threadIdx.x];
    q.copies[q.end++ % 1024] = {to, from, valid};
}
static void commit_copies() {
    CopyQueue& q = copy_queues[threadIdx.x];
    q.ends[q.groups++ % 64] = q.end;
}
template <int PENDING> void wait_copies() {
    CopyQueue& q = copy_queues[threadIdx.x];
    for (; q.first + PENDING < q.groups; ++q.first)
        for (; q.begin != q.ends[q.first % 64]; ++q.begin) {
            const PendingCopy& c = q.copies[q.begin % 1024];
            memcpy(shared_memory + c.to, c.from, c.valid);
            for (int i = c.valid; i < 16; ++i) shared_memory[c.to + i] = 0;
        }
}
template <bool TRANSPOSED> void read_matrices(unsigned (&x)[4], unsigned from) {
    static unsigned rows[1024];
    const int lane = threadIdx.x % 32, warp = threadIdx.x - lane;
    if (from % 16) __builtin_trap();
    rows[threadIdx.x] = from;
    meet_warp();
    for (int i = 0; i < 4; ++i) {
        const unsigned* const row = rows + warp + 8 * i;
        if (TRANSPOSED) {
            unsigned short both[2];
            for (int e = 0; e < 2; ++e) memcpy(both + e, shared_memory + row[lane % 4 * 2 + e] + lane / 4 * 2, 2);
            x[i] = both[0] | static_cast<unsigned>(both[1]) << 16;
        } else
            memcpy(x + i, shared_memory + row[lane / 4] + lane % 4 * 4, 4);
    }
    meet_warp();
}
static double item_of(float, unsigned word, int i) { return planes::widened(word >> 16 * i & 0xffff); }
static long long item_of(int, unsigned word, int i) { return static_cast<signed char>(word >> 8 * i); }
template <class Sum> void mma(Sum* c, const unsigned (&a)[4], const unsigned* b) {
    constexpr int ITEMS = sizeof(Sum) == 4 && static_cast<Sum>(0.5) == 0 ? 4 : 2;  // numbers in a word
    static unsigned left[1024][4], right[1024][2];
    const int lane = threadIdx.x % 32, warp = threadIdx.x - lane;
    memcpy(left[threadIdx.x], a, 16);
    memcpy(right[threadIdx.x], b, 8);
    meet_warp();
    for (int r = 0; r < 2; ++r)
        for (int j = 0; j < 2; ++j) {
            decltype(item_of(Sum(), 0, 0)) sum = c[2 * r + j];
            for (int word = 0; word < 8; ++word)
                for (int i = 0; i < ITEMS; ++i)
                    sum += item_of(Sum(), left[warp + lane / 4 * 4 + word % 4][r + word / 4 * 2], i) *
                           item_of(Sum(), right[warp + (lane % 4 * 2 + j) * 4 + word % 4][word / 4], i);
            c[2 * r + j] = static_cast<Sum>(sum);
        }
    meet_warp();
}
}
