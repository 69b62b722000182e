// Copies from global to shared memory that run beside arithmetic, from sm_80; before that they are
// loads and stores, done when the call returns.
#pragma once
#include "common.cuh"

// BYTES, 8 or 16; from sm_80 around the first-level cache where they are 16. Zeros where `on` is false.
template <int BYTES> __device__ __forceinline__ void copy(void *to, const void *from, bool on) {
#if __CUDA_ARCH__ >= 800
    const u32 address = (u32)__cvta_generic_to_shared(to);
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                     "r"(on ? 16 : 0));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(address), "l"(from),
                     "r"(on ? 8 : 0));
#else
    // Through the first-level cache, for warps share what is fetched: of a row 64 bytes each, of its steps 8.
    // No kernel starts there before the one that wrote what it copies has ended.
    if (BYTES == 16) *(uint4 *)to = on ? __ldg((const uint4 *)from) : make_uint4(0, 0, 0, 0);
    else *(uint2 *)to = on ? __ldg((const uint2 *)from) : make_uint2(0, 0);
#endif
}
// The thread's copies since the last call are a group.
__device__ __forceinline__ void end_of_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Until all but the last OPEN groups of the thread's copies are there.
template <int OPEN> __device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(OPEN) : "memory");
#endif
}
