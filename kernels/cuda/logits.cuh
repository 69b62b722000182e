// The end of the head: softcap, and which logit is the largest.
#pragma once
#include "common.cuh"

// Without a cap, which is 0 then, it stays as it is. A reference, since a kernel's parameter is read where it lies.
__device__ __forceinline__ float softcap(float logit, const float &cap) {
    if (cap > 0.f) logit = tanhf(logit / cap) * cap;
    return logit;
}

// Float bits in an order of integers; NaN of either sign above everything.
__device__ __forceinline__ u32 ordered(float value) {
    const u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0xffffffffu;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// What competes for the argmax; of equal logits the smaller id wins.
__device__ __forceinline__ u64 candidate(float logit, int id) { return (u64)ordered(logit) << 32 | (u32)~id; }

// The largest candidate of a warp, in every lane.
__device__ __forceinline__ u64 warp_max(u64 best) {
    for (int offset = 16; offset; offset >>= 1) best = max(best, __shfl_xor_sync(ALL, best, offset));
    return best;
}
