// The flag of one stream, and what is counted with it: how kernels tell those behind them that C has an inf or NaN.
//
// No header is needed, so that NVRTC alone compiles this.
#pragma once

namespace fmm {

struct Slot {
    int flag;           // up: C has an inf or NaN
    unsigned finished;  // thread blocks that are done with computing it again
    unsigned rescues;   // products computed again so far
};

__device__ __forceinline__ bool is_up(const int* flag) { return *static_cast<const volatile int*>(flag) != 0; }

// The last thread block to finish puts the slot back as it was and tells the host: no memset between calls. `count`: the
// slot's rescues once more, in the host's memory.
__device__ __forceinline__ void finish(Slot* slot, unsigned* count) {
    __syncthreads();
    if (threadIdx.x) return;
    __threadfence();
    if (atomicAdd(&slot->finished, 1u) != gridDim.x - 1) return;
    slot->finished = 0;
    slot->flag = 0;
    *static_cast<volatile unsigned*>(count) = ++slot->rescues;
    __threadfence_system();
}

}  // namespace fmm
