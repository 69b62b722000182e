// Matrix product of prefill on tensor cores: packed words times f16 pairs, sums in f32.
//
// Idea: codes are exact in f16, so the words of a tile go to registers as they are and become the A
// operand by masks and one subtraction; no 16-bit copy of a matrix is made anywhere. The sum of a
// group of 32 is taken by tensor cores, multiplied by the step in f32 and added: sum first, step
// last. Activations come as a high and a low f16 (activations.cuh), so that a product keeps 22
// bits; the low part costs a second product.
//
// A block makes 64 rows x 64 tokens; a warp 16 rows x 64 tokens. In each group lane (g, t) holds
// word t of rows g and g+8: its eight nibbles are the K indices 8t..8t+7, which the order of the
// activations matches, so that B comes with one 16-byte load a group.
//
// Order of summation: the tensor core's within 16 columns, then groups from left to right. It does
// not depend on how many tokens there are, nor on their place in the chunk.
//
// Moves: the weights once for every 64 tokens, the activations once for every 64 rows. Limit: tensor
// cores (4 * tokens * rows * columns operations) from a few dozen tokens on; weights below.
#include "gemm.cuh"

constexpr int ROWS = 64, TOKENS = 64, COLUMNS = 128, GROUPS = COLUMNS / GROUP;
constexpr int THREADS = 128;
// Strides that spread a quarter warp's 16-byte loads, and a warp's words, over all banks.
constexpr int X_STRIDE = COLUMNS + 32; // halves
constexpr int W_STRIDE = COLUMNS / 8 + 4; // words

// D += A * B for 16 x 16 times 16 x 8, f16 in, f32 out.
__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
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

// Nibbles i and i+4 of a word as a pair of f16 codes: 0x6400 | n is 1024 + n, and 1032 less is n - 8.
__device__ __forceinline__ u32 code_pair(u32 word, int i) {
    const u32 bits = (word >> (4 * i) & 0x000f000fu) | 0x64006400u;
    const __half2 codes = __hsub2(*(const __half2 *)&bits, __floats2half2_rn(1032.f, 1032.f));
    return *(const u32 *)&codes;
}

extern "C" __global__ void __launch_bounds__(THREADS) gemm_mma(const Gemm a) {
    __shared__ __align__(16) __half x[2][TOKENS][X_STRIDE];
    __shared__ __align__(16) u32 words[ROWS][W_STRIDE];
    __shared__ float steps[ROWS][GROUPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int row0 = blockIdx.x * ROWS, token0 = blockIdx.y * TOKENS;
    const int columns = a.weight.columns, groups = columns / GROUP;
    const __half *planes = (const __half *)a.x.values;
    let_next_start();
    wait_for_previous();

    float sum[8][4] = {};
    for (int column0 = 0; column0 < columns; column0 += COLUMNS) {
        // 16 bytes at a time; beyond any edge there are zeros, and zero steps.
        for (int i = threadIdx.x; i < ROWS * GROUPS; i += THREADS) {
            const int row = i / GROUPS, group = column0 / GROUP + i % GROUPS;
            uint4 w = make_uint4(0, 0, 0, 0);
            float step = 0.f;
            if (row0 + row < a.weight.rows && group < groups) {
                const size_t index = (size_t)(row0 + row) * groups + group;
                w = load_weights((const uint4 *)a.weight.values + index);
                step = step_value(load_step(a.weight.steps, a.weight.kind, index), a.weight.kind);
            }
            *(uint4 *)&words[row][i % GROUPS * 4] = w;
            steps[row][i % GROUPS] = step;
        }
        for (int i = threadIdx.x; i < 2 * TOKENS * (COLUMNS / 8); i += THREADS) {
            const int part = i / (TOKENS * (COLUMNS / 8)), j = i % (TOKENS * (COLUMNS / 8));
            const int token = j / (COLUMNS / 8), column = column0 + j % (COLUMNS / 8) * 8;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (token0 + token < a.tokens && column < columns)
                v = *(const uint4 *)(planes + part * a.x.plane + (u64)(token0 + token) * columns + column);
            *(uint4 *)&x[part][token][j % (COLUMNS / 8) * 8] = v;
        }
        __syncthreads();
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            const int row = warp * 16 + g;
            const u32 low = words[row][group * 4 + t], high = words[row + 8][group * 4 + t];
            const u32 first[4] = {code_pair(low, 0), code_pair(high, 0), code_pair(low, 1),
                                  code_pair(high, 1)};
            const u32 second[4] = {code_pair(low, 2), code_pair(high, 2), code_pair(low, 3),
                                   code_pair(high, 3)};
            const float step_low = steps[row][group], step_high = steps[row + 8][group];
#pragma unroll
            for (int n = 0; n < 8; n++) {
                float part[4] = {};
#pragma unroll
                for (int p = 1; p >= 0; p--) { // the small parts first
                    const uint4 b = *(const uint4 *)&x[p][n * 8 + g][group * GROUP + 8 * t];
                    mma(part, first, b.x, b.y);
                    mma(part, second, b.z, b.w);
                }
                sum[n][0] = fmaf(part[0], step_low, sum[n][0]);
                sum[n][1] = fmaf(part[1], step_low, sum[n][1]);
                sum[n][2] = fmaf(part[2], step_high, sum[n][2]);
                sum[n][3] = fmaf(part[3], step_high, sum[n][3]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = row0 + warp * 16 + g + (i / 2) * 8, token = token0 + n * 8 + 2 * t + i % 2;
            if (row < a.weight.rows && token < a.tokens)
                a.out[token * a.out_stride + row] = sum[n][i] * a.x.scales[token];
        }
}
