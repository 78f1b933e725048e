// The emulated threads of emulated_threads.cpp.
extern Dim blockIdx, gridDim, threadIdx;
extern "C" void meet();
extern "C" void meet_warp();
extern "C" void meet_cluster();
extern "C" void let_others();
extern "C" unsigned thread_number();
extern "C" unsigned next_random();
extern "C" void run(void (*entry)(const void*), const void* parameters, int blocks, int products, unsigned count);
extern "C" void run_clusters(
    void (*entry)(const void*), const void* parameters, int blocks, int products, unsigned count, unsigned cluster);
static void __syncthreads() { meet(); }
