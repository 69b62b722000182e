// Matrix times the activations of one token on tensor cores: the linears of a decode step and the head.
//
// Idea: the digits of the activations (digits.cuh) are bytes, and so are codes taken out of their words;
// a tensor core multiplies them exactly, 16 rows at a time (token_tile.cuh).
//
// The digits of the MLP's output, of the attention's and of the per-layer gate's are made once, by the
// block that has the numbers; only products behind a norm make their own.
//
// Order of summation: that of gemv.cu, so that both give the same bits.
//
// Moves: rows * columns * (1/2 + 2/32) bytes of weights. Limit: latency on large cards (start, one
// trip to the second-level cache, digits, one to six tiles a warp, end), read bandwidth on small ones.
#include "ahead.cuh"
#include "copies.cuh"
#include "token_product.cuh"
#include "token_tile.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int QUADS = 3; // groups of a lane in one slice of a row

// A lane's place in a task: two rows of words and steps from its first group on.
struct Place {
    const uint4 *words[2];
    const u16 *steps[2];
};

template <int SOURCE, int RESULT>
__device__ __forceinline__ Place place_of(const TokenProduct &g, int groups, int tile, int first) {
    const Matrix *m = g.part;
    u32 row = (RESULT == GEGLU ? TILE / 2 : TILE) * tile;
    const void *values = m[0].values, *steps = m[0].steps;
    if (SOURCE == NORMED && RESULT == STORE && row >= m[0].rows) {
        const bool is_third = row >= m[0].rows + m[1].rows;
        row -= is_third ? m[0].rows + m[1].rows : m[0].rows;
        values = is_third ? m[2].values : m[1].values;
        steps = is_third ? m[2].steps : m[1].steps;
    }
    const u32 index = (row + threadIdx.x % 32 / 4) * groups + first;
    Place place;
    place.words[0] = (const uint4 *)values + index;
    place.steps[0] = (const u16 *)steps + index;
    place.words[1] = RESULT == GEGLU ? (const uint4 *)m[1].values + index : place.words[0] + 8 * groups;
    place.steps[1] = RESULT == GEGLU ? (const u16 *)m[1].steps + index : place.steps[0] + 8 * groups;
    return place;
}

// Words and steps of a task in shared memory: of two rows and up to three groups a lane.
struct Slot {
    uint4 words[2][QUADS][32];  // by lane
    u16 steps[2][QUADS][8][4]; // by row and lane of the row
};

// The digits that a producer has left, to shared memory.
__device__ __forceinline__ void fetch_digits(void *to, const char *from, int bytes) {
#pragma unroll 4
    for (int at = 16 * threadIdx.x; at < bytes; at += 16 * THREADS)
        copy<16>((char *)to + at, from + at, true);
    end_of_copies();
    wait_for_copies<0>();
    __syncthreads();
}

// LANES, COUNT and COLUMNS are what is known of the shape: lanes of a row, groups that each of them has
// in a slice, and the columns themselves; 0 where it is not.
template <int SOURCE, int RESULT, int LANES, int COUNT, int COLUMNS>
__device__ __forceinline__ void product(const TokenProduct &g) {
    extern __shared__ uint4 memory[];
    __shared__ float scratch[2 * WARPS];
    __shared__ u64 block_best;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
    const int all_columns = COLUMNS ? COLUMNS : g.columns;
    const int groups = all_columns / GROUP, lanes = LANES ? LANES : g.lanes;
    const int slices = COLUMNS ? 1 : g.slices;
    // A task is a class of four neighbouring lanes of a row, and a slice, in the words of gemv.cu.
    const int class_bits = LANES ? (LANES == 32 ? 3 : LANES == 16 ? 2 : 1) : 29 - __clz(g.lanes);
    const int classes = 1 << class_bits, tasks_of_tile = slices << class_bits;
    const int slice_groups = COUNT ? COUNT * lanes : ((groups + lanes - 1) / lanes + slices - 1) / slices * lanes;
    const int all_tiles = g.rows / (RESULT == GEGLU ? TILE / 2 : TILE);
    const int first_tile = blockIdx.x * g.tiles_per_block;
    const int tiles = min(g.tiles_per_block, all_tiles - first_tile);

    let_next_start();
    auto settle = [&](int &tile, int &task) { // of the block's tiles, of the tile's tasks
        if (tasks_of_tile & (tasks_of_tile - 1)) {
            while (task >= tasks_of_tile) task -= tasks_of_tile, tile++;
        } else {
            tile += task >> (31 - __clz(tasks_of_tile));
            task &= tasks_of_tile - 1;
        }
    };
    // A ring of slots for each warp: what the first tasks read is on its way before the wait.
    constexpr int HELD = COUNT ? COUNT : QUADS;
    constexpr bool IS_FIXED = COLUMNS != 0; // all tasks of a warp have the same groups
    const Digits x = digits_at(memory, groups);
    const int bytes = (digit_bytes(all_columns) + 15) / 16 * 16;
    Slot *ring = (Slot *)((char *)memory + bytes) + warp * g.slots;
    float *partial = (float *)((Slot *)((char *)memory + bytes) + WARPS * g.slots); // [tiles * 16, tasks]
    int asked_tile = 0, asked_task = warp, asked_slot = 0;
    auto advance = [&](int &tile, int &task, int &slot) {
        task += WARPS;
        settle(tile, task);
        slot = slot + 1 == g.slots ? 0 : slot + 1;
    };
    auto ask = [&] {
        if (asked_tile < tiles) {
            const int slice = asked_task >> class_bits, c = asked_task & (classes - 1);
            const int first = slice * slice_groups + 4 * c + t;
            const int end = min((slice + 1) * slice_groups, groups);
            const Place from = place_of<SOURCE, RESULT>(g, groups, first_tile + asked_tile, first);
            Slot &slot = ring[asked_slot];
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                const bool on = COUNT || first + i * lanes < end;
                const int at = on ? i * lanes : 0;
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    copy<16>(&slot.words[h][i][lane], from.words[h] + at, on);
                    if (t == 0) copy<8>(slot.steps[h][i][r], from.steps[h] + at, on);
                }
            }
        }
        end_of_copies();
        advance(asked_tile, asked_task, asked_slot);
    };
    settle(asked_tile, asked_task);
#pragma unroll 1
    for (int i = 0; i < g.slots; i++) ask();
    ask_for(g.ahead[0]);
    ask_for(g.ahead[1]);
    if (threadIdx.x == 0) block_best = 0;
    constexpr bool IS_EARLY = SOURCE == NORMED && COLUMNS && COLUMNS <= 8 * THREADS;
    Norms norms;
    if (IS_EARLY) norms.load(g.input, COLUMNS);
    wait_for_previous();

    float scale = 1.f;
    if (SOURCE == DIGITS) fetch_digits(memory, g.digits, bytes);
    else
        scale = stage<THREADS, false>(g.input, all_columns, x, scratch, blockIdx.x == 0,
                                      IS_EARLY ? &norms : nullptr);
    Operand<HELD> operand;
    if (IS_FIXED) operand.load(x, groups, 4 * (warp & (classes - 1)) + t, lanes);
    int tile = 0, task = warp, slot = 0;
    settle(tile, task);
#pragma unroll 1
    while (tile < tiles) {
        const int slice = task >> class_bits, c = task & (classes - 1);
        const int first = slice * slice_groups + 4 * c + t;
        const int end = min((slice + 1) * slice_groups, groups);
        float *to = partial + (tile * TILE + r) * tasks_of_tile + task;
        float sum[2] = {0.f, 0.f};
        // Of groups that lanes do not share evenly, some have fewer.
        const int count = COUNT ? COUNT : max(0, end - first + lanes - 1) / lanes;
        if (!IS_FIXED) operand.load(x, groups, first, lanes, count);
        if (g.slots == 3) wait_for_copies<2>();
        else if (g.slots == 2) wait_for_copies<1>();
        else wait_for_copies<0>();
        __syncwarp(); // a row's steps come by one of its lanes
        const Slot &held = ring[slot];
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            if (!COUNT && i >= count) break; // the same for all four lanes of a row
            const uint4 words[2] = {held.words[0][i][lane], held.words[1][i][lane]};
            const u16 steps[2] = {held.steps[0][i][r][t], held.steps[1][i][r][t]};
            multiply(words, steps, operand.low[i], operand.high[i], operand.ends[i], sum);
        }
        __syncwarp();
        ask(); // into the slot that is free now
        advance(tile, task, slot);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            sum[h] += __shfl_xor_sync(ALL, sum[h], 1);
            sum[h] += __shfl_xor_sync(ALL, sum[h], 2);
            if (t == 0) to[8 * h * tasks_of_tile] = sum[h];
        }
    }
    wait_for_copies<0>();
    __syncthreads();

    // Classes in pairs, then pairs of them; then slices from left to right. A lane a row, where all of that is
    // known, else a lane a class.
    const int lanes_of_row = IS_FIXED ? 1 : classes, lane_bits = IS_FIXED ? 0 : class_bits;
    auto total = [&](int row, int c) {
        float y = 0.f;
        if (IS_FIXED) {
            constexpr int CLASSES = IS_FIXED ? LANES / 4 : 1;
            float v[CLASSES];
#pragma unroll
            for (int i = 0; i < CLASSES; i++) v[i] = partial[row * CLASSES + i];
#pragma unroll
            for (int offset = 1; offset < CLASSES; offset <<= 1)
#pragma unroll
                for (int i = 0; i < CLASSES; i += 2 * offset) v[i] += v[i + offset];
            y += v[0];
            return y * scale;
        }
#pragma unroll 1
        for (int s = 0; s < slices; s++) {
            float v = partial[row * tasks_of_tile + (s << class_bits) + c];
#pragma unroll
            for (int offset = 1; offset < 8; offset <<= 1)
                if (offset < classes) v += __shfl_xor_sync(ALL, v, offset);
            y += v;
        }
        return y * scale;
    };
    const int outputs = tiles * (RESULT == GEGLU ? TILE / 2 : TILE);
    const int first_output = first_tile * (RESULT == GEGLU ? TILE / 2 : TILE);
    float *activated = (float *)memory; // the digits are used up
    u64 best = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i - lane < outputs << lane_bits; i += THREADS) {
        const int o = min(i >> lane_bits, outputs - 1), c = i & (lanes_of_row - 1);
        const bool on = c == 0 && i < outputs << lane_bits;
        if (RESULT == GEGLU) {
            const int gate_row = o / 8 * TILE + o % 8;
            const float gate = total(gate_row, c), up = total(gate_row + 8, c);
            if (on) activated[o] = gelu(gate) * up;
            continue;
        }
        float y = total(o, c);
        if (!on) continue;
        if (RESULT == GATED) {
            activated[o] = gelu(y) * __ldcg(g.gate_with + first_output + o);
            continue;
        }
        if (RESULT == LOGITS) {
            y = softcap(y, g.cap);
            best = max(best, candidate(y, first_output + o));
        }
        g.out[first_output + o] = y;
    }
    if (RESULT == STORE) return;
    if (RESULT == LOGITS) return give_best(g, lane, best, &block_best);
    __syncthreads();
    const Digits out = digits_at(g.digits_out, g.rows / GROUP);
#pragma unroll 1
    for (int first = warp * 32; first < outputs / 8; first += THREADS) {
        const int chunk = first + lane;
        const bool on = chunk < outputs / 8;
        float numbers[8];
#pragma unroll
        for (int i = 0; i < 8; i++) numbers[i] = on ? activated[8 * chunk + i] : 0.f;
        write_digits(out, g.rows / GROUP, first_output / 8 + chunk, on, numbers);
    }
}

#define TOKEN_PRODUCT(NAME, SOURCE, RESULT, LANES, COUNT, COLUMNS)                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) NAME(const TokenProduct g) {          \
        product<SOURCE, RESULT, LANES, COUNT, COLUMNS>(g);                                         \
    }
TOKEN_PRODUCT(token_normed, NORMED, STORE, 0, 0, 0)
TOKEN_PRODUCT(token_geglu, NORMED, GEGLU, 0, 0, 0)
TOKEN_PRODUCT(token_gated, NORMED, GATED, 0, 0, 0)
TOKEN_PRODUCT(token_logits, NORMED, LOGITS, 0, 0, 0)
TOKEN_PRODUCT(token_plain, DIGITS, STORE, 0, 0, 0)
TOKEN_PRODUCT(token_normed_1536, NORMED, STORE, 16, 3, 1536)
TOKEN_PRODUCT(token_geglu_1536, NORMED, GEGLU, 16, 3, 1536)
TOKEN_PRODUCT(token_gated_1536, NORMED, GATED, 16, 3, 1536)
TOKEN_PRODUCT(token_logits_1536, NORMED, LOGITS, 16, 3, 1536)
TOKEN_PRODUCT(token_plain_1536, DIGITS, STORE, 16, 3, 1536)
TOKEN_PRODUCT(token_plain_256, DIGITS, STORE, 8, 1, 256)
TOKEN_PRODUCT(token_plain_two, DIGITS, STORE, 32, 2, 0)
TOKEN_PRODUCT(token_plain_three, DIGITS, STORE, 32, 3, 0)
