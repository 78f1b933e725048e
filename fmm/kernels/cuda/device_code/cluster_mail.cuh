// Messages among the thread blocks of a cluster. A message is a store of 16 bytes into another thread block's shared
// memory; a barrier of the receiver counts the bytes. A barrier's phase is complete when the receiver has called
// `expect_mail` and all expected bytes have arrived. Tests on the host replace these functions.
#pragma once

#include "cluster.cuh"

namespace fmm {

struct alignas(16) Message {
    int words[4];
};
using MailBarrier = unsigned long long;

__device__ __forceinline__ unsigned shared_address(const void* here) {
    return static_cast<unsigned>(__cvta_generic_to_shared(here));
}
__device__ __forceinline__ void init_mail(MailBarrier* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void expect_mail(MailBarrier* barrier, int bytes) {
    asm volatile("{\n"
                 ".reg .b64 state;\n"
                 "mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n"
                 "}" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
// Send a message to the same address in the thread block `rank`, and count it at the same barrier there.
__device__ __forceinline__ void send_mail(Message* here, const Message& x, MailBarrier* barrier, int rank) {
    asm volatile("{\n"
                 ".reg .b32 to, counter;\n"
                 "mapa.shared::cluster.u32 to, %0, %6;\n"
                 "mapa.shared::cluster.u32 counter, %1, %6;\n"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [to], {%2, %3, %4, %5}, [counter];\n"
                 "}" ::"r"(shared_address(here)), "r"(shared_address(barrier)),
                 "r"(x.words[0]), "r"(x.words[1]), "r"(x.words[2]), "r"(x.words[3]), "r"(rank)
                 : "memory");
}
// Wait until a phase is complete; `parity` is 0 for the first, third, ... phase, and 1 for the others.
__device__ __forceinline__ void wait_mail(MailBarrier* barrier, int parity) {
    int done = 0;
    while (!done)
        asm volatile("{\n"
                     ".reg .pred complete;\n"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 complete, [%1], %2;\n"
                     "selp.b32 %0, 1, 0, complete;\n"
                     "}"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
}

}  // namespace fmm
