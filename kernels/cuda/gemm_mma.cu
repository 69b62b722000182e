// Matrix product of prefill on tensor cores: packed words times f16 pairs, sums in f32.
//
// Idea: codes are exact in f16, so the words of a tile go to registers as they are and become the A
// operand by masks and one fused multiply-add; no 16-bit copy of a matrix is made anywhere. The sum of a
// group of 32 is taken by tensor cores, multiplied by the step in f32 and added: sum first, step
// last. Activations come as a high and a low f16 (activations.cuh), so that a product keeps 22
// bits; the low part costs a second product.
//
// A warp makes 32 rows times 32 or 64 tokens. In each group lane (g, t) holds word t of rows g and g+8
// of sixteen: its eight nibbles are the K indices 8t..8t+7, which the order of the activations matches,
// so that B comes with one 16-byte load a group. Tiles of 64 columns lie in a ring in shared memory; while
// one is multiplied the next ones are on their way. Prompts that fill the card take blocks of 256 rows
// (`gemm_mma_wide`): each activation is then read from the second-level cache once for 256 rows.
//
// Order of summation: the tensor core's within 16 columns, then groups from left to right. It does
// not depend on how many tokens there are, nor on their place in the chunk, nor on the shape of a block.
//
// Moves: the weights once for every 64 tokens, the activations once for every 64 or 256 rows. Limit:
// tensor cores (4 * tokens * rows * columns operations) from a few dozen tokens on; weights below.
#include "copies.cuh"
#include "gemm.cuh"
#include "tensor.cuh"

constexpr int TOKENS = 64, COLUMNS = 64, GROUPS = COLUMNS / GROUP;
constexpr int PIECES = COLUMNS / 8; // 16-byte pieces of a token's high or low numbers in a tile

#if __CUDA_ARCH__ >= 800
constexpr int STAGES = 3;
#else
constexpr int STAGES = 2;
#endif

// Two of the pairs of codes in a word, nibbles 0 and 4, and 1 and 5, as f16: 0x6400 | n is 1024 + n
// and 0x6400 | n << 4 is 1024 + 16 n.
__device__ __forceinline__ void code_pairs(u32 word, u32 &even, u32 &odd) {
    const u32 low = (word & 0x000f000fu) | 0x64006400u, high = (word & 0x00f000f0u) | 0x64006400u;
    const __half2 n0 = __hsub2(*(const __half2 *)&low, __floats2half2_rn(1032.f, 1032.f));
    const __half2 n1 = __hfma2(*(const __half2 *)&high, __floats2half2_rn(0.0625f, 0.0625f),
                               __floats2half2_rn(-72.f, -72.f));
    even = *(const u32 *)&n0;
    odd = *(const u32 *)&n1;
}

// One tile of activations, words and steps. Pieces and words are moved about within a row so that no two
// lanes of a load meet in a bank.
template <int ROWS> struct Stage {
    uint4 x[2][TOKENS][PIECES]; // piece p of a token in place p ^ (token % 2 * 4)
    uint4 words[ROWS][GROUPS];  // group g of a row in place g ^ (row / 4 % 2)
    float steps[ROWS][GROUPS];
};

// ROW_WARPS times TOKEN_WARPS warps, each with two sixteens of rows.
template <int ROW_WARPS, int TOKEN_WARPS> __device__ __forceinline__ void gemm(const Gemm &a) {
    constexpr int THREADS = 32 * ROW_WARPS * TOKEN_WARPS;
    constexpr int M = 2, ROWS = 16 * M * ROW_WARPS;
    constexpr int N = TOKENS / TOKEN_WARPS / 8; // eights of tokens of a warp
    constexpr int WORD_COPIES = ROWS * GROUPS / THREADS, X_COPIES = TOKENS * PIECES / THREADS;
    constexpr int WORD_ROWS = THREADS / GROUPS, X_TOKENS = THREADS / PIECES; // from one to the next
    static_assert(GROUPS == 2 && WORD_ROWS % 8 == 0, "places of words are made for two groups");
    extern __shared__ __align__(16) char memory[];
    Stage<ROWS> *ring = (Stage<ROWS> *)memory; // [STAGES]
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int token0 = blockIdx.y * TOKENS;
    const Share weight = share_of_block<ROWS>(a);
    const int row0 = weight.row0, kind = weight.kind;
    const int columns = a.part[0].columns, groups = columns / GROUP;
    const int warp_row = warp % ROW_WARPS * 16 * M, warp_token = warp / ROW_WARPS * 8 * N;
    const int tiles = min(N, (a.tokens - token0 - warp_token + 7) / 8); // of eight tokens
    const __half *planes = (const __half *)a.x.values;
    let_next_start();
    wait_for_previous();

    // What this thread copies of a tile: groups of some rows, pieces of some tokens. Beyond any edge
    // there are zeros, and zero steps.
    const int copy_row = threadIdx.x / GROUPS, copy_group = threadIdx.x % GROUPS;
    const int copy_token = threadIdx.x / PIECES, copy_piece = threadIdx.x % PIECES;
    const u32 first_group = (u32)(row0 + copy_row) * groups + copy_group;
    const u32 first_x = (u32)(token0 + copy_token) * columns + 8 * copy_piece;
    u32 steps[WORD_COPIES];
    auto fetch = [&](Stage<ROWS> &to, int tile) {
        const bool has_group = tile * GROUPS + copy_group < groups;
        uint4 *words = &to.words[copy_row][copy_group ^ (copy_row / 4 & 1)];
#pragma unroll
        for (int i = 0; i < WORD_COPIES; i++) {
            const bool on = has_group && row0 + copy_row + i * WORD_ROWS < weight.rows;
            const u32 index = on ? first_group + i * WORD_ROWS * groups + tile * GROUPS : 0;
            copy<16>(words + i * WORD_ROWS * GROUPS, (const uint4 *)weight.values + index, on);
            steps[i] = on ? load_step(weight.steps, kind, index) : 0;
        }
        const bool has_piece = tile * COLUMNS + 8 * copy_piece < columns;
        uint4 *x = &to.x[0][copy_token][copy_piece ^ copy_token % 2 * 4];
#pragma unroll
        for (int i = 0; i < X_COPIES; i++) {
            const bool on = has_piece && token0 + copy_token + i * X_TOKENS < a.tokens;
            const u32 index = on ? first_x + i * X_TOKENS * columns + tile * COLUMNS : 0;
            copy<16>(x + i * X_TOKENS * PIECES, planes + index, on);
            copy<16>(x + (TOKENS + i * X_TOKENS) * PIECES, planes + a.x.plane + index, on);
        }
    };
    auto store_steps = [&](Stage<ROWS> &to) {
#pragma unroll
        for (int i = 0; i < WORD_COPIES; i++)
            to.steps[copy_row + i * WORD_ROWS][copy_group] = step_value(steps[i], kind);
    };

    float sum[M][N][4] = {}; // sixteens of rows, eights of tokens, the four numbers of a lane
    const int all = (columns + COLUMNS - 1) / COLUMNS;
#pragma unroll
    for (int tile = 0; tile < STAGES - 1; tile++) {
        if (tile < all) {
            fetch(ring[tile], tile);
            store_steps(ring[tile]);
        }
        end_of_copies();
    }
    int now = 0, then = STAGES - 1; // places in the ring
#pragma unroll 1
    for (int tile = 0; tile < all; tile++) {
        const bool is_more = tile + STAGES - 1 < all;
        wait_for_copies<STAGES - 2>();
        __syncthreads(); // this tile is there, and nobody reads the one before any more
        if (is_more) fetch(ring[then], tile + STAGES - 1);
        end_of_copies();
        const Stage<ROWS> &stage = ring[now];
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            u32 codes[M][2][4]; // halves of the group
            float step_of[M][2];
#pragma unroll
            for (int m = 0; m < M; m++) {
                const int row = warp_row + 16 * m + g, place = group ^ (g / 4);
                const u32 low = ((const u32 *)&stage.words[row][place])[t];
                const u32 high = ((const u32 *)&stage.words[row + 8][place])[t];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    code_pairs(low >> 8 * half, codes[m][half][0], codes[m][half][2]);
                    code_pairs(high >> 8 * half, codes[m][half][1], codes[m][half][3]);
                }
                step_of[m][0] = stage.steps[row][group];
                step_of[m][1] = stage.steps[row + 8][group];
            }
#pragma unroll
            for (int n = 0; n < N; n++) {
                // Of a few tokens the products wait for each other, and those with zeros cost nothing; a jump does.
                if (N > 4 && n >= tiles) break;
                const int token = warp_token + 8 * n + g, place = (4 * group + t) ^ g % 2 * 4;
                const uint4 high = stage.x[0][token][place], low = stage.x[1][token][place];
#pragma unroll
                for (int m = 0; m < M; m++) {
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
        if (is_more) store_steps(ring[then]);
        now = now + 1 == STAGES ? 0 : now + 1;
        then = then + 1 == STAGES ? 0 : then + 1;
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int token = token0 + warp_token + 8 * n + 2 * t + i;
            if (token >= a.tokens) continue;
            const float scale = a.x.scales[token];
            float *out = a.out + token * a.out_stride + weight.begin;
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int row = row0 + warp_row + 16 * m + g + 8 * h;
                    if (row < weight.rows) out[row] = sum[m][n][2 * h + i] * scale;
                }
        }
}

extern "C" __global__ void __launch_bounds__(128) gemm_mma(const Gemm a) { gemm<2, 2>(a); }
extern "C" __global__ void __launch_bounds__(256, 2) gemm_mma_wide(const Gemm a) { gemm<8, 1>(a); }
