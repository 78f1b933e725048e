#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <linux/futex.h>
#include <new>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

static thread_local Dim threadIdx;

// A wait without memory order: ThreadSanitizer knows the order of library functions, but not of this system call.
static void wait_while(std::atomic<unsigned>& word, unsigned value) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
static void wake_all(std::atomic<unsigned>& word) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

struct Barrier {
    unsigned size;
    std::atomic<unsigned> arrived = 0, times = 0;
    void wait() {
        const unsigned before = times;
        if (++arrived == size) {
            arrived = 0;
            ++times;
            wake_all(times);
        } else {
            while (times == before) wait_while(times, before);
        }
    }
};
constexpr int MOST_WARPS = 8;
struct ThreadBlock {
    alignas(1024) float memory[1 << 16];
    Barrier everyone, warps[MOST_WARPS];
    Dim index;
};
static thread_local ThreadBlock* mine;
#define blockIdx mine->index

// The order that a test leaves out, one of LEFT_OUT, to see that the race is found.
static int left_out;
static int early;  // by this many tiles too early a stage is filled again

static void __syncthreads() { mine->everyone.wait(); }
static void __syncwarp() { if (left_out != WARPS) mine->warps[threadIdx.x / 32].wait(); }
