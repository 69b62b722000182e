// Matrix product of prefill on tensor cores: packed words times f16 pairs, sums in f32.
//
// Idea: codes are exact in f16, so the words of a tile go to registers as they are and become the A
// operand by masks and one subtraction; no 16-bit copy of a matrix is made anywhere. The sum of a
// group of 32 is taken by tensor cores, multiplied by the step in f32 and added: sum first, step
// last. Activations come as a high and a low f16 (activations.cuh), so that a product keeps 22
// bits; the low part costs a second product.
//
// A block makes 64 rows x 64 tokens; a warp 32 rows x 32 tokens, since with fewer rows it would wait
// for the activations from shared memory. In each group lane (g, t) holds word t of rows g and g+8
// (and 16 more): its eight nibbles are the K indices 8t..8t+7, which the order of the
// activations matches, so that B comes with one 16-byte load a group.
//
// Order of summation: the tensor core's within 16 columns, then groups from left to right. It does
// not depend on how many tokens there are, nor on their place in the chunk.
//
// Moves: the weights once for every 64 tokens, the activations once for every 64 rows. Limit: tensor
// cores (4 * tokens * rows * columns operations) from a few dozen tokens on; weights below.
#include "gemm.cuh"
#include "tensor.cuh"

constexpr int ROWS = 64, TOKENS = 64, COLUMNS = 128, GROUPS = COLUMNS / GROUP;
constexpr int THREADS = 128;
// Strides that spread a quarter warp's 16-byte loads, and a warp's words, over all banks.
constexpr int X_STRIDE = COLUMNS + 32; // halves
constexpr int W_STRIDE = COLUMNS / 8 + 4; // words

// Nibbles i and i+4 of a word as a pair of f16 codes: 0x6400 | n is 1024 + n, and 1032 less is n - 8.
__device__ __forceinline__ u32 code_pair(u32 word, int i) {
    const u32 bits = (word >> (4 * i) & 0x000f000fu) | 0x64006400u;
    const __half2 codes = __hsub2(*(const __half2 *)&bits, __floats2half2_rn(1032.f, 1032.f));
    return *(const u32 *)&codes;
}

// One tile of words, steps and activations in shared memory.
struct Stage {
    __half x[2][TOKENS][X_STRIDE];
    u32 words[ROWS][W_STRIDE];
    float steps[ROWS][GROUPS];
};

// From sm_80 a tile is copied while the one before it is multiplied.
#if __CUDA_ARCH__ >= 800
constexpr int STAGES = 2;
#else
constexpr int STAGES = 1;
#endif

// 16 bytes to shared memory, zeros where `on` is false.
__device__ __forceinline__ void copy_16(void *to, const void *from, bool on) {
#if __CUDA_ARCH__ >= 800
    const u32 address = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                 "r"(on ? 16 : 0));
#else
    *(uint4 *)to = on ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
#endif
}
__device__ __forceinline__ void end_of_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;");
#endif
}
template <int OPEN> __device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(OPEN));
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS) gemm_mma(const Gemm a) {
    extern __shared__ __align__(16) char memory[];
    Stage *stages = (Stage *)memory; // [STAGES]
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int row0 = blockIdx.x * ROWS, token0 = blockIdx.y * TOKENS;
    const int columns = a.weight.columns, groups = columns / GROUP;
    const int tiles = min(8, (a.tokens - token0 + 7) / 8); // of eight tokens
    const int warp_row = warp % 2 * 32, warp_tile = warp / 2 * 4;
    const __half *planes = (const __half *)a.x.values;
    let_next_start();
    wait_for_previous();

    // Beyond any edge there are zeros, and zero steps.
    auto fetch = [&](Stage &to, int column0) {
        for (int i = threadIdx.x; i < ROWS * GROUPS; i += THREADS) {
            const int row = i / GROUPS, group = column0 / GROUP + i % GROUPS;
            const bool on = row0 + row < a.weight.rows && group < groups;
            const size_t index = on ? (size_t)(row0 + row) * groups + group : 0;
            copy_16(&to.words[row][i % GROUPS * 4], (const uint4 *)a.weight.values + index, on);
            const u32 step = load_step(a.weight.steps, a.weight.kind, index);
            to.steps[row][i % GROUPS] = on ? step_value(step, a.weight.kind) : 0.f;
        }
        for (int i = threadIdx.x; i < 2 * 8 * tiles * (COLUMNS / 8); i += THREADS) {
            const int part = i % 2, j = i / 2;
            const int token = j / (COLUMNS / 8), eight = j % (COLUMNS / 8);
            const bool on = token0 + token < a.tokens && column0 + 8 * eight < columns;
            const u64 index = on ? (u64)(token0 + token) * columns + column0 + 8 * eight : 0;
            copy_16(&to.x[part][token][8 * eight], planes + part * a.x.plane + index, on);
        }
        end_of_copies();
    };

    float sum[2][4][4] = {}; // rows 16 apart, tiles, the four numbers of a lane
    const int steps = (columns + COLUMNS - 1) / COLUMNS;
    if (STAGES == 2) fetch(stages[0], 0);
    for (int step = 0; step < steps; step++) {
        if (STAGES == 1) {
            fetch(stages[0], step * COLUMNS);
        } else if (step + 1 < steps) {
            fetch(stages[(step + 1) % STAGES], (step + 1) * COLUMNS);
            wait_for_copies<1>();
        } else {
            wait_for_copies<0>();
        }
        __syncthreads();
        const Stage &now = stages[step % STAGES];
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            u32 codes[2][2][4]; // rows 16 apart, halves of the group
            float step_of[2][2];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const int row = warp_row + 16 * m + g;
                const u32 low = now.words[row][group * 4 + t];
                const u32 high = now.words[row + 8][group * 4 + t];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    codes[m][half][0] = code_pair(low, 2 * half);
                    codes[m][half][1] = code_pair(high, 2 * half);
                    codes[m][half][2] = code_pair(low, 2 * half + 1);
                    codes[m][half][3] = code_pair(high, 2 * half + 1);
                }
                step_of[m][0] = now.steps[row][group];
                step_of[m][1] = now.steps[row + 8][group];
            }
#pragma unroll
            for (int n = 0; n < 4; n++) {
                if (warp_tile + n >= tiles) break;
                const int token = (warp_tile + n) * 8 + g;
                const uint4 high = *(const uint4 *)&now.x[0][token][group * GROUP + 8 * t];
                const uint4 low = *(const uint4 *)&now.x[1][token][group * GROUP + 8 * t];
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    float part[4] = {}; // the small parts first
                    mma_halves(part, codes[m][0], low.x, low.y);
                    mma_halves(part, codes[m][1], low.z, low.w);
                    mma_halves(part, codes[m][0], high.x, high.y);
                    mma_halves(part, codes[m][1], high.z, high.w);
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        sum[m][n][i] = fmaf(part[i], step_of[m][i / 2], sum[m][n][i]);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = row0 + warp_row + 16 * m + g + i / 2 * 8;
                const int token = token0 + (warp_tile + n) * 8 + 2 * t + i % 2;
                if (row < a.weight.rows && token < a.tokens)
                    a.out[token * a.out_stride + row] = sum[m][n][i] * a.x.scales[token];
            }
}
