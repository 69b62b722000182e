// Blocks of a cluster, from sm_90: they run at the same time, write into each other's shared memory, and wait
// for what the others write.
//
// Idea: numbers go by stores that count the bytes as they arrive (`st.async`), at a barrier in the memory they
// go to. So nobody waits for everybody: a block goes on when its own numbers are there, one way through
// the cluster after the last was sent, and ends when it likes, since nobody reads from it.
#pragma once
#include "common.cuh"

#if __CUDA_ARCH__ >= 900
// What a block gets from others, once in a launch.
struct Arrival {
    u64 barrier;

    // By one thread; then all of the cluster announce that, before anything is sent.
    __device__ __forceinline__ void expect(u32 bytes) {
        const u32 at = (u32)__cvta_generic_to_shared(&barrier);
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n"
                     "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
                     : "memory");
    }
    // By every thread that reads what has arrived.
    __device__ __forceinline__ void wait() const {
        const u32 at = (u32)__cvta_generic_to_shared(&barrier);
        asm volatile("{\n.reg .pred there;\nAGAIN:\n"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 there, [%0], 0;\n"
                     "@!there bra AGAIN;\n}" ::"r"(at)
                     : "memory");
    }
};
// A barrier of the whole cluster in two halves, with other work between.
__device__ __forceinline__ void announce() {
    asm volatile("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_for_announcements() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Sends to the block of this rank, to the place that is `to` here; `arrival` counts there.
__device__ __forceinline__ void send(float4 *to, const float4 &numbers, const Arrival &arrival, int rank) {
    asm volatile("{\n.reg .u32 there, counter;\nmapa.shared::cluster.u32 there, %0, %6;\n"
                 "mapa.shared::cluster.u32 counter, %1, %6;\n"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%2,%3,%4,%5}, "
                 "[counter];\n}" ::"r"((u32)__cvta_generic_to_shared(to)),
                 "r"((u32)__cvta_generic_to_shared(&arrival.barrier)), "f"(numbers.x), "f"(numbers.y),
                 "f"(numbers.z), "f"(numbers.w), "r"(rank)
                 : "memory");
}
__device__ __forceinline__ void send(float *to, float number, const Arrival &arrival, int rank) {
    asm volatile("{\n.reg .u32 there, counter;\nmapa.shared::cluster.u32 there, %0, %3;\n"
                 "mapa.shared::cluster.u32 counter, %1, %3;\n"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %2, [counter];\n}" ::"r"(
                     (u32)__cvta_generic_to_shared(to)),
                 "r"((u32)__cvta_generic_to_shared(&arrival.barrier)), "f"(number), "r"(rank)
                 : "memory");
}
#endif
