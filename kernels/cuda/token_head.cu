// The head of one token: all logits, and the largest of them.
//
// Idea: sixteen rows of 1,536 lie side by side, words and steps. Two such tiles are two bulk copies, for which one
// thread asks, as soon as the block is through with the pair of tiles that lay there before; so
// memory sees long runs, and warps spend no instructions on asking. A warp has a class of one of the two
// tiles, as in token_rows.cuh.
//
// Order of sums: that of token_product.cu, so that both give the same bits.
//
// Moves: rows * 1,536 * (1/2 + 2/32) bytes of weights. Limit: read bandwidth.
#include "bulk.cuh"
#include "token_rows.cuh"

struct TokenHead {
    Input input;   // with a delta or a norm
    Matrix matrix; // f16 steps, rows a multiple of 16
    float *out;    // [rows]
    u64 *best;     // the largest, see `Step`
    float cap;     // 0: none
    int tiles_per_block;
};

#if __CUDA_ARCH__ == 900
constexpr int THREADS = 256, WARPS = THREADS / 32;
typedef Row<16, 3> OfHidden;
constexpr int HIDDEN = OfHidden::GROUPS * GROUP;
constexpr int PAIR = WARPS / OfHidden::CLASSES; // tiles that a block multiplies at once
static_assert(PAIR == 2, "a warp has a class of one of two tiles");
constexpr int STAGES = 3;

struct Stage {
    uint4 words[PAIR * TILE][OfHidden::GROUPS];
    u16 steps[PAIR * TILE][OfHidden::GROUPS];
};
struct Memory {
    Stage stages[STAGES];
    uint4 digits[digit_bytes(HIDDEN) / 16];
    Turnstile full[STAGES], free[STAGES];
};
static_assert(sizeof(Memory) == 87984, "as parameters/head.rs says");

extern "C" __global__ void __launch_bounds__(THREADS, 2) token_head(const __grid_constant__ TokenHead g) {
    extern __shared__ uint4 memory[];
    __shared__ float scratch[2 * WARPS];
    __shared__ u64 block_best;
    Memory &m = *(Memory *)memory;
    float *partial = (float *)(&m + 1); // [tiles * 16, classes]
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
    const int c = warp % OfHidden::CLASSES, mine = warp / OfHidden::CLASSES; // of the pair's tiles
    const int first_tile = blockIdx.x * g.tiles_per_block;
    const int tiles = min(g.tiles_per_block, g.matrix.rows / TILE - first_tile);
    const int pairs = (tiles + PAIR - 1) / PAIR;
    let_next_start();
    auto ask = [&](int pair) {
        Stage &stage = m.stages[pair % STAGES];
        Turnstile &full = m.full[pair % STAGES];
        const u32 rows = min(PAIR, tiles - PAIR * pair) * TILE;
        const size_t group = (size_t)(first_tile + PAIR * pair) * TILE * OfHidden::GROUPS;
        full.arrive_and_expect(rows * (sizeof(stage.words[0]) + sizeof(stage.steps[0])));
        copy_bulk(stage.words, (const uint4 *)g.matrix.values + group, rows * sizeof(stage.words[0]), full);
        copy_bulk(stage.steps, (const u16 *)g.matrix.steps + group, rows * sizeof(stage.steps[0]), full);
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) m.full[i].set_up(1), m.free[i].set_up(WARPS);
        Turnstile::publish();
        for (int pair = 0; pair < min(STAGES, pairs); pair++) ask(pair);
        block_best = 0;
    }
    Norms norms;
    norms.load(g.input, HIDDEN);
    wait_for_previous();

    const Digits x = digits_at(m.digits, OfHidden::GROUPS);
    const float scale = stage<THREADS, false>(g.input, HIDDEN, x, scratch, blockIdx.x == 0, &norms);
    Operand<OfHidden::COUNT> operand;
    operand.load(x, OfHidden::GROUPS, 4 * c + t, OfHidden::LANES);
#pragma unroll 1
    for (int pair = 0; pair < pairs; pair++) {
        const int tile = PAIR * pair + mine, turn = pair / STAGES + 1;
        const Stage &stage = m.stages[pair % STAGES];
        m.full[pair % STAGES].wait_for(turn);
        if (tile < tiles) {
            float sum[2] = {0.f, 0.f};
#pragma unroll
            for (int i = 0; i < OfHidden::COUNT; i++) {
                const int row = mine * TILE + r, at = 4 * c + t + i * OfHidden::LANES;
                const uint4 words[2] = {stage.words[row][at], stage.words[row + 8][at]};
                const u16 steps[2] = {stage.steps[row][at], stage.steps[row + 8][at]};
                multiply(words, steps, operand.low[i], operand.high[i], operand.ends[i], sum);
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                sum[h] += __shfl_xor_sync(ALL, sum[h], 1);
                sum[h] += __shfl_xor_sync(ALL, sum[h], 2);
                if (t == 0) partial[(tile * TILE + r + 8 * h) * OfHidden::CLASSES + c] = sum[h];
            }
        }
        __syncwarp();
        if (lane == 0) m.free[pair % STAGES].arrive();
        // The pair before: by now others are through with it, too.
        const int next = pair - 1 + STAGES;
        if (threadIdx.x == 0 && pair > 0 && next < pairs) {
            m.free[next % STAGES].wait_for(next / STAGES);
            ask(next);
        }
    }
    __syncthreads();
    u64 best = 0;
    for (int i = threadIdx.x; i - lane < tiles * TILE; i += THREADS) {
        const int row = min(i, tiles * TILE - 1);
        const float *v = partial + row * OfHidden::CLASSES;
        float y = (0.f + ((v[0] + v[1]) + (v[2] + v[3]))) * scale;
        if (g.cap > 0.f) y = tanhf(y / g.cap) * g.cap;
        const int id = first_tile * TILE + row;
        best = max(best, (u64)ordered(y) << 32 | (u32)~id);
        if (i < tiles * TILE) g.out[id] = y;
    }
    for (int offset = 16; offset; offset >>= 1) best = max(best, __shfl_xor_sync(ALL, best, offset));
    if (lane == 0) atomicMax(&block_best, best);
    __syncthreads();
    if (threadIdx.x == 0) atomicMax(g.best, block_best);
}
#else
extern "C" __global__ void token_head(const TokenHead) {}
#endif
