// Barriers: a phase completes when all threads have arrived and all bytes are copied; copies are done at once.
namespace fmm {
struct Barrier { int arrivals, waiting, due; unsigned phase; };
static void init_barrier(Barrier* g, int arrivals) { *g = {arrivals, arrivals, 0, 0}; }
static void fence_barrier_init() {}
static void settle(Barrier* g) {
    if (g->waiting == 0 && g->due == 0) { g->waiting = g->arrivals; ++g->phase; }
}
static void expect_bytes(Barrier* g, int bytes) { g->due += bytes; --g->waiting; settle(g); }
static void arrive(Barrier* g) { --g->waiting; settle(g); }
static void wait_barrier(Barrier* g, unsigned parity) { while ((g->phase & 1) == parity) let_others(); }
static void load_tile(void* to, const Map* m, int x, int y, int z, Barrier* g) {
    copy(to, m, x, y, z);
    g->due -= 4 * m->across * m->down; settle(g);
}
template <int THREADS> void meet() { __syncthreads(); }
static void wait_for_turn(const unsigned* count, unsigned turn) { if (*count != turn) __builtin_trap(); }
static void pass_turn(unsigned* count, unsigned turn) { *count = turn; }
template <int N> void reduce_add(float* q, const float (&x)[N]) { for (int e = 0; e < N; ++e) q[e] += x[e]; }
}
