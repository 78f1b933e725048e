static void arrive_remote(Barrier* barrier, int rank) { arrive(remote_address(barrier, rank)); }
template <int COUNT> void load_tile_multicast(void* to, const Map* m, int x, int y, int z, Barrier* g) {
    for (int i = 0; i < COUNT; ++i) ask_copy({m, shared_begin(i), shared_address(to), x, y, z, -1, 0, remote_address(g, i)});
}
static void store_tile(const Map* m, const void* from, int x, int y, int z) {
    ask_copy({m, shared_begin(), shared_address(from), x, y, z, static_cast<int>(thread_number()), 0, nullptr});
}
static void reduce_tile(const Map* m, const void* from, int x, int y, int z) {
    ask_copy({m, shared_begin(), shared_address(from), x, y, z, static_cast<int>(thread_number()), 1, nullptr});
}
static void commit_stores() {}
static void wait_stores() {
    for (bool all = false; !all;) {
        all = true;
        for (int i = 0; i < copies_asked; ++i) all = all && copies[i].sender != static_cast<int>(thread_number());
        if (all) return;
        engine_works();
        let_others();
    }
}
template <int PENDING = 0> static void wait_stores_read() { wait_stores(); }
static void fence_async_proxy() {}
template <int REGISTERS> void increase_registers() {}
template <int REGISTERS> void decrease_registers() {}

static float tabled(unsigned short half) {
    static float all[1 << 16];
    static bool made;
    for (unsigned i = 0; !made && i < 1 << 16; ++i) all[i] = planes::widened(i);
    made = true;
    return all[half];
}
static void add_numbers(long long kind, char* to, const char* more, long long bytes) {
    for (long long i = 0; kind == 3 && i < bytes; i += 4)
        *reinterpret_cast<float*>(to + i) += *reinterpret_cast<const float*>(more + i);
    for (long long i = 0; (kind == 1 || kind == 2) && i < bytes; i += 2) {
        unsigned short& x = *reinterpret_cast<unsigned short*>(to + i);
        const unsigned short y = *reinterpret_cast<const unsigned short*>(more + i);
        x = kind == 1 ? static_cast<unsigned short>(planes::narrowed(tabled(x) + tabled(y)))
                      : bfloat16_of(__uint_as_float(x << 16) + __uint_as_float(y << 16));
    }
    if (kind == 0) __builtin_trap();
}

// ---- collective instructions

struct Meeting { unsigned arrived, times; };
static Meeting meetings[16];
static void warpgroup_meets() {
    Meeting& m = meetings[thread_number() / 128];
    const unsigned before = m.times;
    if (++m.arrived == 128) m.arrived = 0, ++m.times;
    while (m.times == before) let_others();
}
// stmatrix: four blocks of 8 x 8. A lane has two neighbours in a row of each; rows, or with TRANSPOSED columns, are stored
// to the addresses of eight lanes each.
template <bool TRANSPOSED>
static void store_matrices(void* to, const unsigned (&block)[4]) {
    static unsigned given[2048][4];
    for (int b = 0; b < 4; ++b) given[thread_number()][b] = block[b];
    meet_warp();
    const unsigned first = thread_number() / 32 * 32, lane = thread_number() % 32, line = lane % 8;
    if (shared_address(to) % 16) __builtin_trap();
    for (unsigned i = 0; i < 8; ++i) {
        const unsigned row = TRANSPOSED ? i : line, col = TRANSPOSED ? line : i;
        static_cast<unsigned short*>(to)[i] = given[first + 4 * row + col / 2][lane / 8] >> 16 * (col % 2);
    }
    meet_warp();
}

// ---- a thread's pending wgmma instructions, in groups

enum Kind { FLOAT16, BFLOAT16, TF32, BYTES };
struct Asked { void* x; unsigned long long a, b; int count, keeps, left_turned, right_turned, last; };
struct Queue { Asked asked[64]; int begin, end, groups; };
static Queue queues[2048];
static void wgmma_fence() {}
static void wgmma_commit() {
    Queue& q = queues[thread_number()];
    q.asked[(q.end - 1) % 64].last = 1;
    ++q.groups;
}
// A number of an operand by its matrix descriptor (PTX manual): groups of 8 lines of 128 bytes; MN-major, 64 numbers in
// each line.
template <Kind KIND> static auto number_at(unsigned long long told, bool turned, int out, int k) {
    constexpr unsigned ITEM = KIND == BYTES ? 1 : KIND == TF32 ? 4 : 2;
    const unsigned begin = (told & 0x3fff) << 4, next = (told >> 16 & 0x3fff) << 4, eight = (told >> 32 & 0x3fff) << 4;
    if (told >> 62 != 1) __builtin_trap();
    const unsigned at = turned ? begin + out / 64 * next + k / 8 * eight + k % 8 * 128 + out % 64 * 2
                               : begin + out / 8 * eight + out % 8 * 128 + k * ITEM;
    const char* const place = shared_begin() + exchanged(at);
    if constexpr (KIND == BYTES) return static_cast<int>(*reinterpret_cast<const signed char*>(place));
    if constexpr (KIND == TF32) return static_cast<double>(__uint_as_float(*reinterpret_cast<const unsigned*>(place) & ~0x1fffu));
    if constexpr (KIND == FLOAT16) return static_cast<double>(tabled(*reinterpret_cast<const unsigned short*>(place)));
    if constexpr (KIND == BFLOAT16)
        return static_cast<double>(__uint_as_float(*reinterpret_cast<const unsigned short*>(place) << 16));
}
template <Kind KIND, class Sum> static void multiply_now(const Asked& asked) {
    constexpr int DEEP = KIND == BYTES ? 32 : KIND == TF32 ? 8 : 16;
    const int thread = threadIdx.x % 128, lane = thread % 32, row = thread / 32 * 16 + lane / 4;
    Sum* const to = static_cast<Sum*>(asked.x);
    for (int r = 0; r < 2; ++r) {
        decltype(number_at<KIND>(0, false, 0, 0)) left[DEEP];
        for (int k = 0; k < DEEP; ++k) left[k] = number_at<KIND>(asked.a, asked.left_turned, row + 8 * r, k);
        for (int j = 0; j < asked.count; j += 4)
            for (int c = 0; c < 2; ++c) {
                Sum& x = to[j + 2 * r + c];
                decltype(left[0] + 0) sum = 0;
                if (asked.keeps) sum = x;
                for (int k = 0; k < DEEP; ++k)
                    sum += left[k] * number_at<KIND>(asked.b, asked.right_turned, 2 * j + lane % 4 * 2 + c, k);
                x = static_cast<Sum>(sum);
            }
    }
}
template <int PENDING> void wgmma_wait() {
    Queue& q = queues[thread_number()];
    while (q.groups > PENDING) {
        const Asked& next = q.asked[q.begin++ % 64];
        multiply_now<KIND_OF_STEP, SUM_OF_STEP>(next);
        q.groups -= next.last;
    }
    warpgroup_meets();  // an instruction belongs to a warpgroup
}

