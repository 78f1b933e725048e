#include <setjmp.h>
#include <stdlib.h>
#include <ucontext.h>
struct Dim { unsigned x, y, z; };
Dim blockIdx, gridDim, threadIdx;

// A thread runs until it has to wait for others. Then it is another's turn, in an order that changes, and for some time
// half of the warps have none: so who reads what nobody has written yet, for want of a barrier, is found out.
constexpr unsigned STACK = 1 << 16, MOST = 1024;
struct Thread {
    ucontext_t start;
    jmp_buf here;
    bool begun, done;
    char* stack;
};
static Thread threads[MOST];
static jmp_buf next_turn;
extern "C" void let_others() {
    if (!_setjmp(threads[threadIdx.x].here)) _longjmp(next_turn, 1);
}
struct Barrier {
    unsigned size = 32, arrived = 0, times = 0;
    void wait() {
        const unsigned before = times;
        if (++arrived == size) arrived = 0, ++times;
        while (times == before) let_others();
    }
};
static Barrier everyone, warps[MOST / 32];
extern "C" void meet() { everyone.wait(); }
extern "C" void meet_warp() { warps[threadIdx.x / 32].wait(); }

static void (*kernel)(const void*);
static const void* told;
static void thread() {
    kernel(told);
    threads[threadIdx.x].done = true;
    _longjmp(next_turn, 1);
}
static bool take_turns(unsigned count) {
    static unsigned random = 1, turns, held, i, left;
    static unsigned step;  // shares no factor with counts, which are powers of two, maybe times 3: each thread is met
    random = random * 1664525 + 1013904223;
    step = random >> 16 | 1;
    while (step % 3 == 0) step += 2;
    if (turns++ % 64 == 0) held = random >> 16;
    for (i = left = 0; i < count; ++i) {
        threadIdx.x = (random >> 8 & 1023) + i * step;
        threadIdx.x %= count;
        Thread& mine = threads[threadIdx.x];
        if (mine.done) continue;
        ++left;
        if (held >> threadIdx.x / 32 % 16 & 1) continue;
        if (_setjmp(next_turn)) continue;
        if (mine.begun) _longjmp(mine.here, 1);
        mine.begun = true;
        setcontext(&mine.start);
    }
    return left;
}
static void run_block(unsigned count) {
    everyone = {count};
    for (Thread* t = threads; t < threads + count; ++t) {
        Thread& x = *t;
        x.stack = x.stack ? x.stack : static_cast<char*>(malloc(STACK));
        x.begun = x.done = false;
        getcontext(&x.start);
        x.start.uc_stack.ss_sp = x.stack, x.start.uc_stack.ss_size = STACK;
        makecontext(&x.start, thread, 0);
    }
    while (take_turns(count)) {}
}
extern "C" void run(void (*entry)(const void*), const void* parameters, int blocks, int products, unsigned count) {
    kernel = entry, told = parameters;
    gridDim = {unsigned(blocks), 1, unsigned(products)};
    for (unsigned i = 0; i < blocks * products; ++i) {
        blockIdx = {i % blocks, 0, i / blocks};
        run_block(count);
    }
}
