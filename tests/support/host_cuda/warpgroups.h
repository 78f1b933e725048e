// Barriers, copy engine and tensor cores of the BLOCKS thread blocks of a cluster. Copies are done later, in any order, and
// products only when they are waited for. Data that is overwritten or read too early is therefore found.
constexpr unsigned ROOM = 1 << 18;  // bytes of a thread block's shared memory
alignas(1024) static char shared_memory[BLOCKS][ROOM];
namespace fmm {
static int cluster_rank() { return static_cast<int>(blockIdx.x % BLOCKS); }
static void cluster_sync() { meet_cluster(); }
// For the split kernels, which have clusters of single thread blocks here.
template <class T> static T load_remote(const T* here, int) { return *here; }
static char* shared_begin(int rank = cluster_rank()) { return shared_memory[rank]; }
static unsigned shared_address(const void* p) { return static_cast<unsigned>(static_cast<const char*>(p) - shared_begin()); }
// The same place in another thread block's shared memory.
template <class T> static T* remote_address(T* here, int rank) {
    return reinterpret_cast<T*>(shared_begin(rank) + shared_address(here));
}

// In bytes; `kind`: 0 bytes, 1 float16, 2 bfloat16, 3 float32.
struct alignas(64) Map {
    long long address, length, lines, layers, leading, layer, across, down, item, kind, rest[6];
};
static unsigned exchanged(unsigned at) { return at ^ (at >> 7 & 7) << 4; }
static unsigned short bfloat16_of(float x) {
    const unsigned word = __float_as_uint(x);
    return static_cast<unsigned short>((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

struct Barrier { short arrivals, waiting, due, phase; };  // due: in units of 128 bytes
static void init_barrier(Barrier* g, int arrivals) {
    const short count = static_cast<short>(arrivals);
    *g = {count, count, 0, 0};
}
static void fence_barrier_init() {}
static void settle(Barrier* g) {
    if (g->waiting < 0) __builtin_trap();  // a thread has arrived twice
    if (g->waiting == 0 && g->due == 0) { g->waiting = g->arrivals; ++g->phase; }
}
static void expect_bytes(Barrier* g, int bytes) { g->due += bytes / 128; --g->waiting; settle(g); }
static void arrive(Barrier* g) { --g->waiting; settle(g); }

// ---- pending copies of the copy engine, done 16 bytes at a time

struct Copy { const Map* map; char* memory; unsigned at; int x, y, z, sender, adds; Barrier* barrier; };
constexpr int MOST_COPIES = 4096;
static Copy copies[MOST_COPIES];
static int copies_asked;
static void add_numbers(long long kind, char* to, const char* more, long long bytes);
static void make_copy(const Copy& c) {
    const Map& m = *c.map;
    for (int j = 0; j < m.down; ++j)
        for (int i = 0; i < m.across; i += 16) {
            const long long first = c.x * m.item + i;
            const bool line_there = c.y + j < m.lines && c.z < m.layers;
            const long long rest = line_there ? m.length - first : 0, bytes = rest < 0 ? 0 : rest < 16 ? rest : 16;
            char* const line = reinterpret_cast<char*>(m.address) + c.z * m.layer + (c.y + j) * m.leading + first;
            char* const here = c.memory + exchanged(c.at + static_cast<unsigned>(j * m.across + i));
            if (c.barrier) {
                memcpy(here, line, bytes);
                for (long long b = bytes; b < 16; ++b) here[b] = 0;
            } else if (c.adds) {
                add_numbers(m.kind, line, here, bytes);
            } else {
                memcpy(line, here, bytes);
            }
        }
    if (c.barrier) {
        c.barrier->due -= static_cast<short>(m.across * m.down / 128);
        settle(c.barrier);
    }
}
static void ask_copy(const Copy& c) {
    if (copies_asked == MOST_COPIES || (c.map->address | c.map->leading | c.map->layer) % 16) __builtin_trap();
    copies[copies_asked++] = c;
}
static void engine_works() {
    if (!copies_asked || next_random() & 1) return;
    const int i = static_cast<int>(next_random() % static_cast<unsigned>(copies_asked));
    const Copy c = copies[i];
    copies[i] = copies[--copies_asked];
    make_copy(c);
}
static void wait_barrier(Barrier* g, unsigned parity) {
    while ((g->phase & 1) == parity) {
        engine_works();
        let_others();
    }
}
static void load_tile(void* to, const Map* m, int x, int y, int z, Barrier* g) {
    ask_copy({m, shared_begin(), shared_address(to), x, y, z, -1, 0, g});
}
}
