// Two rows times the digits of one token on ordinary cores: a group of gemv_tall.cu, and what a task of token_chain.cu
// is.
//
// LANES lanes share a row; each holds COUNT groups (16 bytes of words, as they lie), LANES apart, of two rows, which
// share what is read of the digits. The integers and the order of sums are those of gemv.cu.
#pragma once
#include "digits.cuh"

// Adds a group of two rows, its words and f16 steps, times its digits.
__device__ __forceinline__ void multiply_group(const uint4 (&words)[2], const u32 (&steps)[2], const Digits &x, int groups,
                                               int group, float (&sum)[2]) {
    int a[2][3] = {};
#pragma unroll
    for (int half = 0; half < 2; half++) { // of the group's words
        const uint4 d0 = x.planes[(0 + half) * groups + group];
        const uint4 d1 = x.planes[(2 + half) * groups + group];
        const uint4 d2 = x.planes[(4 + half) * groups + group];
        const int *e0 = (const int *)&d0, *e1 = (const int *)&d1, *e2 = (const int *)&d2;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const u32 one = half ? words[h].z : words[h].x, two = half ? words[h].w : words[h].y;
            const u32 nibbles = 0x0f0f0f0fu;
            const int n[4] = {(int)(one & nibbles), (int)(one >> 4 & nibbles), (int)(two & nibbles),
                              (int)(two >> 4 & nibbles)};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                a[h][0] = __dp4a(n[k], e0[k], a[h][0]);
                a[h][1] = __dp4a(n[k], e1[k], a[h][1]);
                a[h][2] = __dp4a(n[k], e2[k], a[h][2]);
            }
        }
    }
    const Ends ends = x.ends[group];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int total = ends.offset + a[h][0] + (a[h][1] << 8) + (a[h][2] << 16);
        sum[h] = fmaf((float)total, from_f16((u16)steps[h]) * ends.scale, sum[h]);
    }
}

// Where a lane's groups of two rows lie in their matrices.
struct Place {
    const void *words[2];
    const void *steps[2];
    u32 at[2];
};

// Words and steps of a task in registers.
template <int LANES, int COUNT> struct Task {
    uint4 words[2][COUNT];
    u32 steps[2][COUNT];

    __device__ __forceinline__ void ask(const Place &from, int i) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            words[h][i] = load_weights((const uint4 *)from.words[h] + from.at[h] + i * LANES);
            steps[h][i] = __ldg((const u16 *)from.steps[h] + from.at[h] + i * LANES);
        }
    }

    // Adds group i of both rows times its digits.
    __device__ __forceinline__ void multiply(int i, const Digits &x, int groups, int group, float (&sum)[2]) const {
        multiply_group({words[0][i], words[1][i]}, {steps[0][i], steps[1][i]}, x, groups, group, sum);
    }
};
