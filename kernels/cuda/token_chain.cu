// Products of one token that follow one another, in one launch: cards before sm_80, with tensor cores or without.
//
// Idea: there a kernel only starts when the one before it has ended, which takes as long as what most of them
// do. So the blocks of several products are one grid, those of the first in front. A block asks for its weights
// as soon as it runs, then waits until all blocks of the product before have counted themselves.
// Blocks start in the order of their numbers, so that what a block waits for is running or done, however few
// of them a card holds at once. CUDA promises no order; all cards are known to keep this one, and a number drawn
// by each block instead would cost every launch a trip to memory.
//
// All of it is multiplied on ordinary cores, which every card has: a Turing card reads 6 times slower than they
// multiply. The digits of what attention, MLP and gate give are made once, by the block that has
// the numbers (digits.cuh). Order of summation: that of gemv.cu, so that both give the same bits.
//
// Moves: rows * columns * (1/2 + 2/32) bytes of weights a product. Limit: read bandwidth on small cards, on large
// ones the way from block to block: a count in the second-level cache, a trip for the numbers, digits.
#include "token_cores.cuh"
#include "token_product.cuh"

// What a product is made for: its source and result, lanes of a row, groups of each in a slice. The numbers
// are Rust's `ChainKind`.
enum ChainKind { STORE_1536 = 0, GEGLU_1536 = 1, GATED_1536 = 2, LOGITS_1536 = 3, PLAIN_256 = 4, PLAIN_TWO = 5, PLAIN_THREE = 6 };

constexpr int MOST_PRODUCTS = 6;

// Of a product's description `tiles_per_block`, `slots` and `ahead` are not read: blocks have a share by pairs of rows,
// and ask for their own weights.
struct TokenChain {
    TokenProduct product[MOST_PRODUCTS];
    int kind[MOST_PRODUCTS];
    int blocks[MOST_PRODUCTS];
    int pairs[MOST_PRODUCTS]; // of rows that a block takes; GEGLU 32 n, GATED 16 n
    u32 *done;    // [MOST_PRODUCTS] blocks that are, 0 between launches
    int count;    // products
    int prefetch; // whether blocks ask for all their weights before they wait
};

#if __CUDA_ARCH__ < 800
constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;

// Until all blocks of the product before are done. What they wrote is read around the first-level cache, which
// may hold what was there before.
__device__ __forceinline__ void wait_for(const u32 *done, u32 blocks) {
    if (threadIdx.x == 0) {
        u32 count;
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(done) : "memory");
        while (count != blocks);
    }
    __syncthreads();
}

// What all threads of the block have written is there for whoever sees the count. The last block of the last
// product clears all counts: nobody waits any more.
__device__ __forceinline__ void count_block(const TokenChain &g, int number) {
    __syncthreads();
    if (threadIdx.x) return;
    __threadfence();
    const u32 before = atomicAdd(g.done + number, 1);
    if (number + 1 < g.count || before + 1 != g.blocks[number]) return;
    for (int i = 0; i < g.count; i++) g.done[i] = 0;
}

// The digits that a producer has left, to shared memory; five loads of a thread are under way at once.
__device__ __forceinline__ void fetch_digits(uint4 *to, const char *from, int bytes) {
    constexpr int TOGETHER = 5;
#pragma unroll 1
    for (int first = threadIdx.x; first < bytes / 16; first += TOGETHER * THREADS) {
        uint4 piece[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int at = first + i * THREADS;
            if (at < bytes / 16) piece[i] = __ldcg((const uint4 *)from + at);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int at = first + i * THREADS;
            if (at < bytes / 16) to[at] = piece[i];
        }
    }
    __syncthreads();
}

// The lines of the rows from `row` on, to the second-level cache.
__device__ __forceinline__ void prefetch_rows(const Matrix &m, int row, int rows, int groups) {
    const u64 size = (u64)groups * 16;
    prefetch(Span{(const char *)m.values + row * size, rows * size}, 0, 1);
    prefetch(Span{(const char *)m.steps + row * size / 8, rows * size / 8}, 0, 1);
}

// Weights of norms, which are then as near as the stream that they go with.
__device__ __forceinline__ void prefetch_norms(const Input &in, int columns) {
    const int at = 8 * threadIdx.x;
    if (at >= columns) return;
    if (in.norm) asm volatile("prefetch.global.L2 [%0];" ::"l"(in.norm + at));
    if (in.delta_norm) asm volatile("prefetch.global.L2 [%0];" ::"l"(in.delta_norm + at));
}

// Of a gate row and its up row, or of two neighbours.
template <int RESULT> __device__ __forceinline__ Place place_of(const TokenProduct &g, int groups, int pair, int group) {
    const Matrix *m = g.part;
    u32 row = RESULT == GEGLU ? pair : 2 * pair;
    Place place = {{m[0].values, m[RESULT == GEGLU ? 1 : 0].values}, {m[0].steps, m[RESULT == GEGLU ? 1 : 0].steps}};
    if (RESULT == STORE && row >= m[0].rows) {
        const bool is_third = row >= m[0].rows + m[1].rows;
        row -= is_third ? m[0].rows + m[1].rows : m[0].rows;
        place.words[0] = place.words[1] = is_third ? m[2].values : m[1].values;
        place.steps[0] = place.steps[1] = is_third ? m[2].steps : m[1].steps;
    }
    place.at[0] = row * groups + group;
    place.at[1] = RESULT == GEGLU ? place.at[0] : place.at[0] + groups;
    return place;
}

// One block's share of one product.
template <int SOURCE, int RESULT, int LANES, int COUNT>
__device__ __forceinline__ void product(const TokenChain &chain, int number, int block, float *scratch, u64 *block_best) {
    extern __shared__ uint4 memory[];
    const TokenProduct &g = chain.product[number];
    constexpr int OF_SLICE = LANES * COUNT, TOGETHER = 32 / LANES; // pairs of a task
    constexpr int ROWS = RESULT == GEGLU ? 1 : 2;                  // outputs of a pair
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, l = lane % LANES;
    const int slices = SOURCE == NORMED ? 1 : g.slices, groups = OF_SLICE * slices;
    const int first_pair = block * chain.pairs[number];
    const int pairs = min(chain.pairs[number], g.rows / ROWS - first_pair);

    // A warp's task is a slice of as many pairs as it has lanes for.
    int pair = lane / LANES, slice = warp;
    auto settle = [&] {
        while (slice >= slices) slice -= slices, pair += TOGETHER;
    };
    settle();
    Task<LANES, COUNT> held;
    if (pair < pairs) {
        const Place from = place_of<RESULT>(g, groups, first_pair + pair, slice * OF_SLICE + l);
#pragma unroll
        for (int i = 0; i < COUNT; i++) held.ask(from, i);
    }
    // Of several parts a large card's blocks have one task a warp.
    if (chain.prefetch && pairs * slices > WARPS * TOGETHER && (RESULT == GEGLU || g.parts == 1)) {
        prefetch_rows(g.part[0], first_pair * ROWS, pairs * ROWS, groups);
        if (RESULT == GEGLU) prefetch_rows(g.part[1], first_pair, pairs, groups);
    }
    if (SOURCE == NORMED) prefetch_norms(g.input, OF_SLICE * GROUP);
    if (number) wait_for(chain.done + number - 1, chain.blocks[number - 1]);

    const Digits x = digits_at(memory, groups);
    const int bytes = digit_bytes(groups * GROUP); // a multiple of 16
    float *partial = (float *)((char *)memory + bytes);
    const int stride = 2 * slices + 1; // pairs begin in different banks
    float scale = 1.f;
    if (SOURCE == DIGITS) fetch_digits(memory, g.digits, bytes);
    else scale = stage<THREADS, false>(g.input, OF_SLICE * GROUP, x, scratch, block == 0);

#pragma unroll 1
    while (__any_sync(ALL, pair < pairs)) {
        const int group = slice * OF_SLICE + l;
        const bool on = pair < pairs;
        float *to = partial + pair * stride + 2 * slice;
        slice += WARPS;
        settle();
        const bool has_next = pair < pairs;
        const Place from = place_of<RESULT>(g, groups, first_pair + (has_next ? pair : 0), slice * OF_SLICE + l);
        float sum[2] = {0.f, 0.f};
        // Where group i was, the next task's goes.
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            held.multiply(i, x, groups, group + i * LANES, sum);
            if (has_next) held.ask(from, i);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int offset = 1; offset < LANES; offset <<= 1) sum[h] += __shfl_xor_sync(ALL, sum[h], offset);
            if (on && l == 0) to[h] = sum[h];
        }
    }
    __syncthreads();

    // Slices from left to right.
    auto total = [&](int row) {
        const float *of_row = partial + row / 2 * stride + row % 2;
        float y = 0.f;
#pragma unroll 1
        for (int s = 0; s < slices; s++) y += of_row[2 * s];
        return y * scale;
    };
    const int outputs = pairs * ROWS, first_output = first_pair * ROWS;
    float *activated = (float *)memory; // the digits are used up
    u64 best = 0;
#pragma unroll 1
    for (int o = threadIdx.x; o < outputs; o += THREADS) {
        if (RESULT == GEGLU) {
            activated[o] = gelu(total(2 * o)) * total(2 * o + 1);
            continue;
        }
        float y = total(o);
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
    if (RESULT == LOGITS) give_best(g, lane, best, block_best);
    if (RESULT == GEGLU || RESULT == GATED) {
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
    count_block(chain, number);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) token_chain(const __grid_constant__ TokenChain g) {
    __shared__ float scratch[2 * WARPS];
    __shared__ u64 block_best;
    if (threadIdx.x == 0) block_best = 0; // a barrier follows before it is used
    int number = 0, block = blockIdx.x;
    while (block >= g.blocks[number]) block -= g.blocks[number++];
    switch (g.kind[number]) {
    case STORE_1536: return product<NORMED, STORE, 16, 3>(g, number, block, scratch, &block_best);
    case GEGLU_1536: return product<NORMED, GEGLU, 16, 3>(g, number, block, scratch, &block_best);
    case GATED_1536: return product<NORMED, GATED, 16, 3>(g, number, block, scratch, &block_best);
    case LOGITS_1536: return product<NORMED, LOGITS, 16, 3>(g, number, block, scratch, &block_best);
    case PLAIN_256: return product<DIGITS, STORE, 8, 1>(g, number, block, scratch, &block_best);
    case PLAIN_TWO: return product<DIGITS, STORE, 32, 2>(g, number, block, scratch, &block_best);
    default: return product<DIGITS, STORE, 32, 3>(g, number, block, scratch, &block_best);
    }
}
#else
extern "C" __global__ void token_chain(const TokenChain) {}
#endif
