// Gates, the copy engine and the tensor cores of a thread block that is a cluster by itself. Copies are made at once;
// products only when they are waited for, of those that may still be under way none: so what is overwritten or read too
// early is found out.
static const char* shared_begin;  // of the block's shared memory
namespace fmm {
static unsigned shared_address(const void* p) { return static_cast<unsigned>(static_cast<const char*>(p) - shared_begin); }
static int cluster_rank() { return 0; }
static void cluster_meets() { meet(); }

struct alignas(64) Map { long long address, length, lines, layers, leading, layer, across, down, rest[8]; };
static unsigned exchanged(unsigned at) { return at ^ (at >> 7 & 7) << 4; }
static void copy(void* to, const Map* m, int x, int y, int z) {
    for (int j = 0; j < m->down; ++j)
        for (int i = 0; i < m->across; ++i) {
            const bool there = x + i < m->length && y + j < m->lines && z < m->layers;
            const char* line = reinterpret_cast<const char*>(m->address) + z * m->layer + (y + j) * m->leading;
            const unsigned at = exchanged(shared_address(to) + 2 * (j * m->across + i));
            *reinterpret_cast<unsigned short*>(const_cast<char*>(shared_begin) + at) =
                there ? reinterpret_cast<const unsigned short*>(line)[x + i] : 0;
        }
}

struct Gate { int arrivals, waiting; short due, phase; };  // due: in units of 128 bytes
static void make_gate(Gate* g, int arrivals) { *g = {arrivals, arrivals, 0, 0}; }
static void show_gates() {}
static void settle(Gate* g) {
    if (g->waiting == 0 && g->due == 0) { g->waiting = g->arrivals; ++g->phase; }
}
static void expect(Gate* g, int bytes) { g->due += bytes / 128; --g->waiting; settle(g); }
static void arrive(Gate* g) { --g->waiting; settle(g); }
static void pass(Gate* g, unsigned parity) { while ((g->phase & 1) == parity) let_others(); }
static void bring(void* to, const Map* m, int x, int y, int z, Gate* g) {
    copy(to, m, x, y, z);
    g->due -= 2 * m->across * m->down / 128; settle(g);
}
}
