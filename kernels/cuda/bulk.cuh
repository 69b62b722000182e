// Copies of neighbouring bytes to shared memory by one instruction each, from sm_90, and barriers that count what has
// arrived.
#pragma once
#include "common.cuh"

#if __CUDA_ARCH__ >= 900
// A barrier of a block that is used again and again: a turn ends when `count` have arrived, and all bytes that they
// expect.
struct Turnstile {
    u64 barrier;

    __device__ __forceinline__ u32 address() const { return (u32)__cvta_generic_to_shared(&barrier); }
    // By one thread, before a barrier of the block.
    __device__ __forceinline__ void set_up(int count) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(count) : "memory");
    }
    __device__ __forceinline__ void arrive() {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
    }
    __device__ __forceinline__ void arrive_and_expect(u32 bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes)
                     : "memory");
    }
    // Until so many turns have ended.
    __device__ __forceinline__ void wait_for(int turns) const {
        asm volatile("{\n.reg .pred there;\nAGAIN:\n"
                     "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 there, [%0], %1;\n"
                     "@!there bra AGAIN;\n}" ::"r"(address()),
                     "r"((turns - 1) & 1)
                     : "memory");
    }
    // What was set up is seen by copies, too.
    static __device__ __forceinline__ void publish() {
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
    }
};

// A multiple of 16 bytes; the turnstile expects them.
__device__ __forceinline__ void copy_bulk(void *to, const void *from, u32 bytes, const Turnstile &arrives) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     (u32)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(bytes), "r"(arrives.address())
                 : "memory");
}
#endif
