// Matrix product of prefill on ordinary cores: for cards without tensor cores, for plain bf16
// matrices, and as the slow version that explains the fast one.
//
// Idea: tiles of 64 rows x 64 tokens x 32 columns; the weights of a tile are unpacked to f32 values
// (code * step, exact for 16-bit steps) in shared memory; a thread adds a 4 x 4 square.
//
// Order of summation: columns from left to right, whatever the number of tokens.
//
// Moves: as gemm_mma. Limit: f32 multiply-adds (tokens * rows * columns).
#include "gemm.cuh"

constexpr int TILE = 64, THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS) gemm_ffma(const Gemm a) {
    __shared__ __align__(16) float weights[GROUP][TILE + 4];
    __shared__ __align__(16) float x[GROUP][TILE + 4];
    const Share weight = share_of_block<TILE>(a);
    const int row0 = weight.row0, token0 = blockIdx.y * TILE;
    const int r = threadIdx.x % 16 * 4, t = threadIdx.x / 16 * 4;
    const int columns = a.part[0].columns, groups = columns / GROUP;
    const float *in = (const float *)a.x.values;
    let_next_start();
    wait_for_previous();

    float sum[4][4] = {};
    for (int group = 0; group < groups; group++) {
        {   // A thread unpacks one word: eight columns of a row.
            const int row = threadIdx.x / 4, word = threadIdx.x % 4;
            const size_t index = (size_t)(row0 + row) * groups + group;
            float value[8] = {};
            if (row0 + row < weight.rows) {
                if (weight.kind == PLAIN_BF16) {
                    const u16 *from = (const u16 *)weight.values + index * GROUP + word * 8;
                    for (int i = 0; i < 8; i++) value[i] = from_bf16(from[i]);
                } else {
                    const u32 bits = __ldg((const u32 *)weight.values + index * 4 + word);
                    const float step =
                        step_value(load_step(weight.steps, weight.kind, index), weight.kind);
                    for (int i = 0; i < 8; i++) value[i] = ((int)(bits >> 4 * i & 15) - 8) * step;
                }
            }
            for (int i = 0; i < 8; i++) weights[word * 8 + i][row] = value[i];
        }
        for (int i = threadIdx.x; i < TILE * GROUP; i += THREADS) {
            const int token = i / GROUP, column = i % GROUP;
            const bool on = token0 + token < a.tokens;
            x[column][token] = on ? in[(u64)(token0 + token) * columns + group * GROUP + column] : 0.f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < GROUP; k++) {
            const float4 w = *(const float4 *)&weights[k][r], v = *(const float4 *)&x[k][t];
            const float ws[4] = {w.x, w.y, w.z, w.w}, vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] = fmaf(ws[i], vs[j], sum[i][j]);
        }
        __syncthreads();
    }
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 4; i++)
            if (row0 + r + i < weight.rows && token0 + t + j < a.tokens)
                a.out[(token0 + t + j) * a.out_stride + weight.begin + row0 + r + i] = sum[i][j];
}
