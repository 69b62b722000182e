// Matrix times the activations of up to sixteen tokens of different sequences, on tensor cores.
//
// Idea: the integers of token_product.cu, with a column for each token: a product of 16 rows and eight
// tokens takes one group of 32, once for each digit, and gives every lane exact sums of two rows and two
// tokens. Weights are read once for all tokens. All digits are made by the kernels before (`batch_digits`
// behind a norm) and lie as the columns take them, 256 bytes for a group, a digit and eight tokens.
//
// Order of summation: that of gemv.cu and token_product.cu, whatever the number of tokens: a lane's
// groups from left to right, the lanes of a row pair by pair, slices from left to right. So a token's
// bits are those that it has alone.
//
// Moves: rows * columns * (1/2 + 2/32) bytes of weights, and for every block the digits of all tokens,
// 3.25 bytes a number, from the second-level cache. Limit: latency with two tokens; with sixteen the
// conversions and additions behind the products, ten instructions for a group, two rows and two tokens.
#include "ahead.cuh"
#include "copies.cuh"
#include "digits.cuh"
#include "logits.cuh"
#include "tensor.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int TILE = 16; // rows of a tensor-core product
constexpr int QUADS = 3; // groups of a lane in one slice of a row
constexpr int EIGHT = BatchDigits::TOKENS;

enum Result {
    STORE = 0,  // out[token][row] = y
    GEGLU = 1,  // digits of gelu(gate) * up; part 0 is gate, part 1 is up
    GATED = 2,  // digits of gelu(y) * gate_with[token][row]
    LOGITS = 3, // softcap; out[token][row] = y; the largest goes to the token's step
};

struct BatchProduct {
    Matrix part[3];       // concatenated by rows, f16 steps, rows a multiple of 16 in each
    const char *digits;   // of all tokens
    const float *factors; // of each token's products; null: 1
    float *out;           // STORE, LOGITS: [tokens, rows]
    char *digits_out;     // GEGLU, GATED
    const float *gate_with;
    Step *steps;          // LOGITS: of each token
    Span ahead[2];        // what a later kernel reads
    u64 gate_stride;      // numbers from a token's gate_with to the next one's
    float cap;            // 0: none
    int parts;
    int rows; // of all parts, or of one with GEGLU
    int columns;
    int lanes; // of a row: 8, 16 or 32
    int slices;
    int tiles_per_block; // of 16 rows, or of 8 and 8 with GEGLU; GEGLU 4 n, GATED 2 n
    int slots;           // tasks of a warp that are under way, 1 to 3
    int tokens;
    int padding;
};

// Words and steps of a task in shared memory, sixteen rows and up to three times four groups. The four
// words of a group are one uint4; group q of row r lies in place (q + r / 2) % 4, so that no two lanes of a
// load meet in a bank.
struct Slot {
    uint4 words[2][QUADS][8][4];
    u16 steps[2][QUADS][8][4];
};

// What one task is: four neighbouring lanes of a row, in the words of gemv.cu, and a slice.
struct Task {
    int tile, slice, quad;
};

// EIGHTS times eight tokens; COUNT groups of each lane in a slice, 0: it is asked at run time, and there may
// be fewer at the end.
template <int RESULT, int EIGHTS, int COUNT> __device__ __forceinline__ void product(const BatchProduct &g) {
    constexpr int TOKENS = EIGHTS * EIGHT;
    constexpr int OUT_ROWS = RESULT == GEGLU ? TILE / 2 : TILE; // of a tile
    extern __shared__ uint4 memory[];
    __shared__ u64 best_of[TOKENS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
    const int groups = g.columns / GROUP, quads = g.lanes / 4, tasks_of_tile = quads * g.slices;
    const int of_lane = (groups + g.lanes - 1) / g.lanes; // groups, in all slices
    const int held = COUNT ? COUNT : (of_lane + g.slices - 1) / g.slices; // in one
    constexpr int MOST_HELD = COUNT ? COUNT : QUADS;
    const int slice_groups = held * g.lanes;
    const int first_tile = blockIdx.x * g.tiles_per_block;
    const int tiles = min(g.tiles_per_block, g.rows / OUT_ROWS - first_tile);
    Slot *ring = (Slot *)memory + warp * g.slots;
    float *partial = (float *)((Slot *)memory + WARPS * g.slots); // [tiles * 16, tasks, TOKENS]

    let_next_start();
    // All warps go through the tiles of one quad before the next, so that the first-level cache has its digits.
    auto task_of = [&](int number) {
        const int of_tile = number / tiles, slice = of_tile / quads;
        return Task{number - of_tile * tiles, slice, of_tile - slice * quads};
    };
    const int tasks = tiles * tasks_of_tile;
    // Weights of a task on their way; rows as they lie, a lane four words of one of the four groups.
    auto ask = [&](int number, Slot &slot) {
        if (number < tasks) {
            const Task task = task_of(number);
            u32 row = (first_tile + task.tile) * OUT_ROWS;
            const void *values = g.part[0].values, *steps = g.part[0].steps;
            if (RESULT == STORE && row >= g.part[0].rows) {
                const bool is_third = row >= g.part[0].rows + g.part[1].rows;
                row -= is_third ? g.part[0].rows + g.part[1].rows : g.part[0].rows;
                values = is_third ? g.part[2].values : g.part[1].values;
                steps = is_third ? g.part[2].steps : g.part[1].steps;
            }
            const int first = task.slice * slice_groups + 4 * task.quad;
            const int end = min((task.slice + 1) * slice_groups, groups);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const void *of_values = h && RESULT == GEGLU ? g.part[1].values : values;
                const void *of_steps = h && RESULT == GEGLU ? g.part[1].steps : steps;
                const u32 index = (row + r + (RESULT == GEGLU ? 0 : 8 * h)) * groups + first;
#pragma unroll
                for (int i = 0; i < MOST_HELD; i++) {
                    if (!COUNT && i >= held) break;
                    // Groups are a multiple of four: all four lanes have theirs, or none.
                    const bool on = COUNT || first + i * g.lanes < end;
                    const u32 at = on ? index + i * g.lanes : 0;
                    copy<16>(&slot.words[h][i][r][(t + r / 2) % 4], (const uint4 *)of_values + at + t, on);
                    if (t == 0) copy<8>(slot.steps[h][i][r], (const u16 *)of_steps + at, on);
                }
            }
        }
        end_of_copies();
    };
    int asked = warp, slot = 0;
#pragma unroll 1
    for (int i = 0; i < g.slots; i++, asked += WARPS) ask(asked, ring[i]);
    ask_for(g.ahead[0]);
    ask_for(g.ahead[1]);
    if (threadIdx.x < TOKENS) best_of[threadIdx.x] = 0;
    wait_for_previous();

    const char *digits = g.digits + 8 * lane;
    const char *ends = g.digits + BatchDigits::ENDS + 16 * t;
    const u32 eight_bytes = groups * BatchDigits::GROUP_BYTES;
#pragma unroll 1
    for (int number = warp; number < tasks; number += WARPS) {
        const Task task = task_of(number);
        if (g.slots == 3) wait_for_copies<2>();
        else if (g.slots == 2) wait_for_copies<1>();
        else wait_for_copies<0>();
        __syncwarp(); // lanes read what others have copied
        const Slot &from = ring[slot];
        const int first = task.slice * slice_groups + 4 * task.quad;
        // Of the task, of two of its lanes, of one.
        float all[EIGHTS][4], two[EIGHTS][4];
#pragma unroll
        for (int q = 0; q < 4; q++) {
            float one[EIGHTS][4] = {};
#pragma unroll
            for (int i = 0; i < MOST_HELD; i++) {
                if (!COUNT && i >= held) break;
                // Beyond the end words and steps are 0, and whatever group they are multiplied by.
                const int group = COUNT || first + i * g.lanes < groups ? first + i * g.lanes + q : q;
                const u32 w0 = ((const u32 *)&from.words[0][i][r][(q + r / 2) % 4])[t];
                const u32 w1 = ((const u32 *)&from.words[1][i][r][(q + r / 2) % 4])[t];
                const u32 nibbles = 0x0f0f0f0fu;
                const u32 codes[4] = {w0 & nibbles, w1 & nibbles, w0 >> 4 & nibbles, w1 >> 4 & nibbles};
                const float step[2] = {from_f16(from.steps[0][i][r][q]), from_f16(from.steps[1][i][r][q])};
#pragma unroll
                for (int e = 0; e < EIGHTS; e++) {
                    const u32 place = e * eight_bytes + group * BatchDigits::GROUP_BYTES;
                    uint2 d[3];
#pragma unroll
                    for (int k = 0; k < 3; k++)
                        d[k] = *(const uint2 *)(digits + place + k * EIGHT * GROUP);
                    const uint4 both = *(const uint4 *)(ends + place); // of tokens 2t and 2t+1
                    const float scale[2] = {__uint_as_float(both.x), __uint_as_float(both.z)};
                    const int offset[2] = {(int)both.y, (int)both.w};
                    int s0[4] = {offset[0], offset[1], offset[0], offset[1]}, s1[4] = {}, s2[4] = {};
                    mma_bytes(s0, codes, d[0].x, d[0].y);
                    mma_bytes(s1, codes, d[1].x, d[1].y);
                    mma_bytes(s2, codes, d[2].x, d[2].y);
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const int total = s0[k] + (s1[k] << 8) + (s2[k] << 16);
                        one[e][k] = fmaf((float)total, step[k / 2] * scale[k % 2], one[e][k]);
                    }
                }
            }
#pragma unroll
            for (int e = 0; e < EIGHTS; e++)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    if (q == 0 || q == 2) two[e][k] = one[e][k];
                    else two[e][k] += one[e][k];
                    if (q == 1) all[e][k] = two[e][k];
                    if (q == 3) all[e][k] += two[e][k];
                }
        }
        __syncwarp();
        ask(asked, ring[slot]); // into the slot that is free now
        asked += WARPS;
        slot = slot + 1 == g.slots ? 0 : slot + 1;
        const int of_tile = task.slice * quads + task.quad;
#pragma unroll
        for (int e = 0; e < EIGHTS; e++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int row = task.tile * TILE + r + 8 * h;
                *(float2 *)(partial + (row * tasks_of_tile + of_tile) * TOKENS + e * EIGHT + 2 * t) =
                    make_float2(all[e][2 * h], all[e][2 * h + 1]);
            }
    }
    wait_for_copies<0>();
    __syncthreads();

    // A row's tasks of a slice pair by pair, then slices from left to right.
    const int token = threadIdx.x % TOKENS;
    const bool is_token = token < g.tokens;
    const float factor = g.factors && is_token ? __ldcg(g.factors + token) : 1.f;
    auto total = [&](int row) {
        const float *of_row = partial + row * tasks_of_tile * TOKENS + token;
        float y = 0.f;
#pragma unroll 1
        for (int s = 0; s < g.slices; s++, of_row += quads * TOKENS) {
            float v = of_row[0] + of_row[TOKENS];
            if (quads > 2) v += of_row[2 * TOKENS] + of_row[3 * TOKENS];
            if (quads > 4)
                v += (of_row[4 * TOKENS] + of_row[5 * TOKENS]) + (of_row[6 * TOKENS] + of_row[7 * TOKENS]);
            y += v;
        }
        return y * factor;
    };
    const int outputs = tiles * OUT_ROWS, first_output = first_tile * OUT_ROWS;
    float *activated = (float *)memory; // [TOKENS, outputs]; the ring is used up
    u64 best = 0;
#pragma unroll 1
    for (int o = threadIdx.x / TOKENS; o < outputs; o += THREADS / TOKENS) {
        const int row = first_output + o;
        if (RESULT == GEGLU) {
            const int gate_row = o / 8 * TILE + o % 8;
            const float gate = total(gate_row), up = total(gate_row + 8);
            activated[token * outputs + o] = gelu(gate) * up;
            continue;
        }
        float y = total(o);
        if (RESULT == GATED) {
            const float with = is_token ? __ldcg(g.gate_with + token * g.gate_stride + row) : 0.f;
            activated[token * outputs + o] = gelu(y) * with;
            continue;
        }
        if (!is_token) continue;
        if (RESULT == LOGITS) {
            y = softcap(y, g.cap);
            best = max(best, candidate(y, row));
        }
        g.out[(u64)token * g.rows + row] = y;
    }
    if (RESULT == STORE) return;
    if (RESULT == LOGITS) {
        if (is_token) atomicMax(best_of + token, best);
        __syncthreads();
        if (threadIdx.x < g.tokens) atomicMax(&g.steps[threadIdx.x].best, best_of[threadIdx.x]);
        return;
    }
    __syncthreads();
    const int chunks = outputs / 8; // of a token; a multiple of four
#pragma unroll 1
    for (int begin = warp * 32; begin < TOKENS * chunks; begin += THREADS) {
        const int of_token = min((begin + lane) / chunks, TOKENS - 1);
        const int chunk = begin + lane - of_token * chunks;
        const bool on = begin + lane < TOKENS * chunks && of_token < g.tokens;
        float numbers[8];
#pragma unroll
        for (int i = 0; i < 8; i++) numbers[i] = on ? activated[of_token * outputs + 8 * chunk + i] : 0.f;
        const BatchDigits to(g.digits_out, g.rows / GROUP, of_token);
        write_digits(to, g.rows / GROUP, first_output / 8 + chunk, on, numbers);
    }
}

#define BATCH_PRODUCT(NAME, RESULT, COUNT)                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) batch_##NAME##_8_##COUNT(const BatchProduct g) { \
        product<RESULT, 1, COUNT>(g);                                                              \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) batch_##NAME##_16_##COUNT(const BatchProduct g) { \
        product<RESULT, 2, COUNT>(g);                                                              \
    }
BATCH_PRODUCT(store, STORE, 0)
BATCH_PRODUCT(store, STORE, 1)
BATCH_PRODUCT(store, STORE, 2)
BATCH_PRODUCT(store, STORE, 3)
BATCH_PRODUCT(geglu, GEGLU, 0)
BATCH_PRODUCT(geglu, GEGLU, 3)
BATCH_PRODUCT(gated, GATED, 0)
BATCH_PRODUCT(gated, GATED, 3)
BATCH_PRODUCT(logits, LOGITS, 0)
BATCH_PRODUCT(logits, LOGITS, 3)

// The digits of all tokens' inputs, a block a token, by the same `stage` that a single token's products
// run; and what each token's products are multiplied by.
extern "C" __global__ void __launch_bounds__(THREADS)
batch_digits(Input input, int columns, char *out, float *factors) {
    __shared__ float scratch[2 * WARPS];
    const u64 token = blockIdx.x;
    let_next_start();
    wait_for_previous();
    input.stream += token * columns;
    if (input.delta) input.delta += token * columns;
    if (input.stream_out) input.stream_out += token * columns;
    const BatchDigits to(out, columns / GROUP, token);
    const float factor = stage<THREADS>(input, columns, to, scratch, true);
    if (threadIdx.x == 0) factors[token] = factor;
}
