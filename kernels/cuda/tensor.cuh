// Tensor-core products of 16 rows, 8 columns and 32 bytes of depth, on every card that has them.
//
// Lane (r, t) = (lane / 4, lane % 4) holds of A rows r and r+8, of B column r, of the sums rows r and
// r+8 in columns 2t and 2t+1; of the depth its own share, the same in A and B. Turing has the same
// products in smaller pieces, with the same fragments.
#pragma once
#include "common.cuh"

// Unsigned bytes times signed bytes, exact. a: row r, row r+8, both again in the other half of the
// depth.
__device__ __forceinline__ void mma_bytes(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                : "+r"(d[2 * i]), "+r"(d[2 * i + 1])
                : "r"(a[2 * half + i]), "r"(half ? b1 : b0));
#endif
}

// f16 in, f32 sums; a depth of 16.
__device__ __forceinline__ void mma_halves(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

// Two numbers as the halves of a word.
__device__ __forceinline__ u32 half_pair(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *(const u32 *)&pair;
}

// What they lack, as halves again.
__device__ __forceinline__ u32 rest_pair(float low, float high, u32 rounded) {
    const float2 f = __half22float2(*(const __half2 *)&rounded);
    return half_pair(low - f.x, high - f.y);
}

// Turns an 8 x 8 tile of halves round: lane (r, t) gives row r, columns 2t and 2t+1, and gets column
// r, rows 2t and 2t+1.
__device__ __forceinline__ u32 transposed(u32 pair) {
    u32 turned;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pair));
    return turned;
}
