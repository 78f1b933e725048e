#include <setjmp.h>
#include <stdlib.h>
#include <ucontext.h>
struct Dim { unsigned x, y, z; };
Dim blockIdx, gridDim, threadIdx;

// Emulated threads of a thread block, as coroutines. A thread runs until it must wait for others; then another one runs, in
// an order that changes. For some time half of the warps do not run at all, so that reads without the necessary barrier
// find unwritten data. The thread blocks of a cluster run together.
constexpr unsigned STACK = 1 << 16, MOST = 2048;
struct Thread {
    ucontext_t start;
    jmp_buf here;
    bool begun, done;
    char* stack;
};
static Thread threads[MOST];
static jmp_buf next_turn;
static unsigned mine, each = 1;  // number among all emulated threads; threads of a thread block
extern "C" unsigned thread_number() { return mine; }
extern "C" void let_others() {
    if (!_setjmp(threads[mine].here)) _longjmp(next_turn, 1);
}
struct Barrier {
    unsigned size = 32, arrived = 0, times = 0;
    void wait() {
        const unsigned before = times;
        if (++arrived == size) arrived = 0, ++times;
        while (times == before) let_others();
    }
};
static Barrier everyone, blocks[MOST / 32], warps[MOST / 32];
extern "C" void meet() { blocks[mine / each].wait(); }
extern "C" void meet_warp() { warps[mine / 32].wait(); }
extern "C" void meet_cluster() { everyone.wait(); }

static unsigned random_state = 1;
extern "C" unsigned next_random() { return (random_state = random_state * 1664525 + 1013904223) >> 8; }

static void (*kernel)(const void*);
static const void* told;
static void thread() {
    kernel(told);
    threads[mine].done = true;
    _longjmp(next_turn, 1);
}
static bool take_turns(unsigned first, unsigned grid, unsigned count) {
    static unsigned turns, held, i, left, start;
    static unsigned step;  // shares no factor with counts, which are powers of two, maybe times 3: each thread is met
    start = next_random();
    step = next_random() >> 8 | 1;
    while (step % 3 == 0) step += 2;
    if (turns++ % 64 == 0) held = next_random() >> 8;
    for (i = left = 0; i < count; ++i) {
        mine = (start + i * step) % count;
        threadIdx.x = mine % each;
        blockIdx = {(first + mine / each) % grid, 0, (first + mine / each) / grid};
        Thread& its = threads[mine];
        if (its.done) continue;
        ++left;
        if (held >> mine / 32 % 16 & 1) continue;
        if (_setjmp(next_turn)) continue;
        if (its.begun) _longjmp(its.here, 1);
        its.begun = true;
        setcontext(&its.start);
    }
    return left;
}
static void run_cluster(unsigned first, unsigned grid, unsigned count) {
    everyone = {count};
    for (Barrier& x : blocks) x = {each};
    for (Thread* t = threads; t < threads + count; ++t) {
        Thread& x = *t;
        x.stack = x.stack ? x.stack : static_cast<char*>(malloc(STACK));
        x.begun = x.done = false;
        getcontext(&x.start);
        x.start.uc_stack.ss_sp = x.stack, x.start.uc_stack.ss_size = STACK;
        makecontext(&x.start, thread, 0);
    }
    while (take_turns(first, grid, count)) {}
}
extern "C" void run_clusters(
    void (*entry)(const void*), const void* parameters, int grid, int products, unsigned count, unsigned cluster) {
    kernel = entry, told = parameters, each = count;
    gridDim = {unsigned(grid), 1, unsigned(products)};
    for (unsigned i = 0; i < grid * products; i += cluster) run_cluster(i, grid, count * cluster);
}
extern "C" void run(void (*entry)(const void*), const void* parameters, int grid, int products, unsigned count) {
    run_clusters(entry, parameters, grid, products, count, 1);
}
