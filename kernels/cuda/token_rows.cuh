// Rows of fixed shapes in shared memory, and their products: what kernels of one token share whose blocks are
// clusters, from sm_90.
//
// Idea: a task is a class of four neighbouring lanes of a row in sixteen rows, and a warp has tasks of one class
// alone, of one tile after another. So it takes the digits from shared memory once. All weights of a
// block are on their way before they are needed, a slot for each task.
#pragma once
#include "copies.cuh"
#include "token_tile.cuh"

// How LANES lanes share the groups of a row: COUNT each, in every class of four.
template <int LANES_, int COUNT_> struct Row {
    static constexpr int LANES = LANES_, COUNT = COUNT_, GROUPS = LANES * COUNT, CLASSES = LANES / 4;
};

// Words and steps of a task.
template <int COUNT> struct Slot {
    uint4 words[2][COUNT][32];   // by lane
    u16 steps[2][COUNT][8][4];   // by row and lane of the row

    // Of rows with `groups` groups, from the lane's first one at `index` on.
    template <int LANES> __device__ __forceinline__ void ask(const Matrix &m, int groups, u32 index) {
        const int lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const u32 at = index + 8 * h * groups + i * LANES;
                copy<16>(&words[h][i][lane], (const uint4 *)m.values + at, true);
                if (t == 0) copy<8>(steps[h][i][r], (const u16 *)m.steps + at, true);
            }
    }
    // The lane's sums of two rows, added over the class.
    __device__ __forceinline__ void times(const Operand<COUNT> &x, float (&sum)[2]) const {
        const int lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
        sum[0] = sum[1] = 0.f;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const uint4 two[2] = {words[0][i][lane], words[1][i][lane]};
            const u16 of_two[2] = {steps[0][i][r][t], steps[1][i][r][t]};
            multiply(two, of_two, x.low[i], x.high[i], x.ends[i], sum);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            sum[h] += __shfl_xor_sync(ALL, sum[h], 1);
            sum[h] += __shfl_xor_sync(ALL, sum[h], 2);
        }
    }
};

// A warp's tasks of `tasks`, `WARPS` apart, to [rows, classes]; ends with a barrier.
template <class R, int WARPS>
__device__ __forceinline__ void multiply_all(const Slot<R::COUNT> *slots, int tasks, const Digits &x, float *partial) {
    static_assert(WARPS % R::CLASSES == 0, "a warp has one class");
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
    const int c = warp % R::CLASSES;
    Operand<R::COUNT> operand;
    operand.load(x, R::GROUPS, 4 * c + t, R::LANES);
    __syncwarp(); // a row's steps come by one of its lanes
#pragma unroll 1
    for (int task = warp; task < tasks; task += WARPS) {
        float sum[2];
        slots[task].times(operand, sum);
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (t == 0) partial[(TILE * (task / R::CLASSES) + r + 8 * h) * R::CLASSES + c] = sum[h];
    }
    __syncthreads();
}

// The sum of row i / classes, by a lane a class; all of them get it.
template <class R> __device__ __forceinline__ float total(const float *partial, int i) {
    float v = partial[i];
#pragma unroll
    for (int offset = 1; offset < R::CLASSES; offset <<= 1) v += __shfl_xor_sync(ALL, v, offset);
    return v;
}
