// Shared memory and warp barrier of a kernel for the copy engine, run by the emulated threads of emulated_threads.cpp.
alignas(1024) float memory[1 << 16];
static void __syncwarp() { meet_warp(); }
