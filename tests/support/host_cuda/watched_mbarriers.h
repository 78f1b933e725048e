namespace fmm {
constexpr auto NO_ORDER = std::memory_order_relaxed;
constexpr int PHASES = 64;
struct Barrier {
    std::atomic<unsigned> phase;          // completed phases; opens the barrier without memory order
    std::atomic<long long> missing;       // of this phase: 2^32 for each missing arrival, and missing bytes
    std::atomic<int> order[PHASES];       // of each phase: released by arriving threads, acquired by waiting ones
    int arrivals;
};
static void init_barrier(Barrier* g, int arrivals) {
    new (g) Barrier();
    g->arrivals = arrivals;
    g->missing = (long long)arrivals << 32;
}
static void fence_barrier_init() {}
static void settle(Barrier* g, long long come) {
    const unsigned phase = g->phase.load(NO_ORDER);
    if (phase >= PHASES) std::abort();
    g->order[phase].fetch_add(1, std::memory_order_release);
    if (g->missing.fetch_sub(come, NO_ORDER) != come) return;
    g->missing.store((long long)g->arrivals << 32, NO_ORDER);
    g->phase.store(phase + 1, std::memory_order_release);  // never acquired
    wake_all(g->phase);
}
static void arrive(Barrier* g) { settle(g, 1LL << 32); }
static void expect_bytes(Barrier* g, int bytes) { settle(g, (1LL << 32) - bytes); }
static void wait_barrier(Barrier* g, unsigned parity) {
    unsigned phase;
    while (((phase = g->phase.load(NO_ORDER)) & 1) == parity) wait_while(g->phase, phase);
    if (left_out == (g->arrivals == 1 ? COPIES : SUMS)) return;
    if (phase) g->order[phase - 1].load(std::memory_order_acquire);
}
// The copy engine: each copy is ordered after its request and before its barrier, and with no other copy.
static thread_local std::vector<std::thread> copies;
static void load_tile(void* to, const Map* m, int x, int y, int z, Barrier* g) {
    copies.emplace_back([=] {
        copy(to, m, x, y, z);
        settle(g, 4 * m->across * m->down);
    });
}
template <int THREADS> void meet() { __syncthreads(); }
static void wait_for_turn(const unsigned* count, unsigned turn) {
    std::atomic_ref<unsigned> now(*const_cast<unsigned*>(count));
    while (now.load(left_out == TURNS ? NO_ORDER : std::memory_order_acquire) != turn) std::this_thread::yield();
}
static void pass_turn(unsigned* count, unsigned turn) {
    std::atomic_ref<unsigned>(*count).store(turn, std::memory_order_release);
}
template <int N> void reduce_add(float* q, const float (&x)[N]) { for (int e = 0; e < N; ++e) q[e] += x[e]; }
}
