// Weights on their way into the second-level cache before the kernel that reads them starts.
//
// A decode step is a chain of short kernels that leaves memory idle most of the time. So each kernel
// asks for the weights of one further down the chain, a few thousand bytes an instruction; when
// that one's turn comes it finds them 3 times nearer. From sm_90; elsewhere the kernels read
// their weights from memory themselves.
#pragma once
#include "common.cuh"

struct Span {
    const char *address; // of 16 bytes at a time
    u64 bytes;
};

// By the first blocks, every thread of which asks for a piece. A multiprocessor takes one such instruction after
// another: these blocks are a little late, and all others have nothing to do with it.
__device__ __forceinline__ void ask_for(const Span &span) {
#if __CUDA_ARCH__ >= 900
    constexpr u32 PIECE = 4096;
    const u64 stride = (u64)gridDim.x * gridDim.y * blockDim.x * PIECE;
    const u64 block = blockIdx.y * gridDim.x + blockIdx.x;
#pragma unroll 1
    for (u64 at = (block * blockDim.x + threadIdx.x) * PIECE; at < span.bytes; at += stride) {
        const u32 size = (u32)min((u64)PIECE, span.bytes - at);
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(span.address + at), "r"(size));
    }
#endif
}
// By one warp after another of one block after another: where there is little to ask for, nobody is late.
__device__ __forceinline__ void ask_together(const Span &span) {
#if __CUDA_ARCH__ >= 900
    constexpr u32 PIECE = 4096;
    const u32 blocks = gridDim.x, mine = threadIdx.x % 32 * (blockDim.x / 32) + threadIdx.x / 32;
    const u64 stride = (u64)blocks * blockDim.x * PIECE;
#pragma unroll 1
    for (u64 at = ((u64)mine * blocks + blockIdx.x) * PIECE; at < span.bytes; at += stride) {
        const u32 size = (u32)min((u64)PIECE, span.bytes - at);
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(span.address + at), "r"(size));
    }
#endif
}
// By `workers` blocks that have nothing else to do, a line after another, on every card; the host knows which have a
// cache for it.
__device__ __forceinline__ void prefetch(const Span &span, u32 worker, u32 workers) {
    constexpr u32 PIECE = 128;
    const u64 stride = (u64)workers * blockDim.x * PIECE;
#pragma unroll 4
    for (u64 at = ((u64)worker * blockDim.x + threadIdx.x) * PIECE; at < span.bytes; at += stride)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(span.address + at));
}
