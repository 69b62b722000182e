// Attention of a prefill chunk: norms and rotations, then every query against all it sees.
//
// Idea: `rope_rows` makes q ready in place and puts keys and values where they belong; `attend`
// gives a block 16 tokens of one query head, goes through the keys 64 at a time with an online
// softmax (scores as small register tiles, head dimension in slices of 32) and keeps the block's
// output in registers; `commit` moves staged rows into the ring.
//
// The order in which a query meets keys follows from their positions, in tiles that begin at
// multiples of 64, so that it does not depend on how the prompt was cut.
//
// Moves: the visible keys and values once for every 16 tokens and head, from the second-level
// cache. Limit: f32 multiply-adds, 4 * head_dim * heads for each (token, visible position).
#include "attend.cuh"

constexpr int QUERIES = 16, KEYS = 64, SLICE = 32, THREADS = 128;

struct RopeRows {
    KvLayer cache;
    float *q;       // [tokens, stride]; heads * head_dim numbers a token, in place
    const float *k; // [tokens, stride] or null
    const float *v;
    const float *q_norm;
    const float *k_norm;
    const float2 *turns; // [tokens, turns_stride]
    u64 stride;
    int turns_stride;
    int pairs;
    int first; // position of the first token
    int heads;
    float epsilon;
    int padding;
};

// A warp a head; grid (ceil((heads + 2 kv_heads) / 4), tokens).
template <int TYPE, int HEAD_DIM> __device__ __forceinline__ void rope_rows(const RopeRows &a) {
    constexpr int N = HEAD_DIM / 32;
    const int lane = threadIdx.x % 32;
    const u64 token = blockIdx.y;
    let_next_start();
    wait_for_previous();
    const int kv_heads = a.cache.kv_heads;
    int head = blockIdx.x * 4 + threadIdx.x / 32;
    const float2 *turns = a.turns + token * a.turns_stride;
    float numbers[N];
    if (head < a.heads) {
        float *q = a.q + token * a.stride + head * HEAD_DIM;
#pragma unroll
        for (int i = 0; i < N; i++) numbers[i] = q[32 * i + lane];
        norm_and_rotate<HEAD_DIM>(numbers, a.q_norm, a.epsilon, turns, a.pairs);
#pragma unroll
        for (int i = 0; i < N; i++) q[32 * i + lane] = numbers[i];
        return;
    }
    head -= a.heads;
    if (!a.k || head >= 2 * kv_heads) return;
    const bool is_key = head < kv_heads;
    if (!is_key) head -= kv_heads;
    const float *from = (is_key ? a.k : a.v) + token * a.stride + head * HEAD_DIM;
#pragma unroll
    for (int i = 0; i < N; i++) numbers[i] = from[32 * i + lane];
    norm_and_rotate<HEAD_DIM>(numbers, is_key ? a.k_norm : nullptr, a.epsilon,
                              is_key ? turns : nullptr, a.pairs);
    const Rows &rows = a.cache.window ? a.cache.staged : a.cache.stored;
    const u64 row = a.cache.window ? token : a.first + token;
    const u64 index = (row * kv_heads + head) * HEAD_DIM;
#pragma unroll
    for (int i = 0; i < N; i++)
        kv_store<TYPE>(numbers[i], is_key ? rows.keys : rows.values,
                       is_key ? rows.key_steps : rows.value_steps, index + 32 * i + lane);
}

// Grid (ceil(tokens / 16), heads).
template <int TYPE, int HEAD_DIM> __device__ __forceinline__ void attend(const Attend &a) {
    constexpr int DIMS = HEAD_DIM / 32;      // of the output, in a thread: lane + 32 i
    constexpr int OUT_ROWS = QUERIES / 4;    // and rows: warp * 4 ..
    __shared__ __align__(16) float queries[QUERIES][SLICE + 4];
    __shared__ __align__(16) float keys[KEYS][SLICE + 4];
    __shared__ __align__(16) float weights[QUERIES][KEYS + 4];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int token0 = blockIdx.x * QUERIES, head = blockIdx.y;
    const int kv_head = head / (a.heads / a.cache.kv_heads);
    const u64 row_size = (u64)a.cache.kv_heads * HEAD_DIM;
    let_next_start();
    wait_for_previous();
    const int last_token = min(token0 + QUERIES, a.tokens) - 1;
    const int end = a.first + last_token + 1; // positions that the last of them sees
    const int window = a.cache.window;
    const int begin = window ? max(0, a.first + token0 + 1 - window) : 0;

    // Where a position's row is.
    auto locate = [&](int p, const Rows *&rows) -> u64 {
        const bool is_staged = window && p >= a.staged_first;
        rows = is_staged ? &a.cache.staged : &a.cache.stored;
        const u64 row = is_staged ? p - a.staged_first : window ? p % a.cache.ring : p;
        return row * row_size + kv_head * HEAD_DIM;
    };

    float sums[OUT_ROWS][DIMS] = {};
    // Scores: rows 4 (warp) .. + 3, keys lane and lane + 32.
    float largest[OUT_ROWS], total[OUT_ROWS];
#pragma unroll
    for (int i = 0; i < OUT_ROWS; i++) largest[i] = MINUS_INFINITY, total[i] = 0.f;
    for (int tile = begin / KEYS * KEYS; tile < end; tile += KEYS) {
        float scores[OUT_ROWS][2] = {};
        for (int slice = 0; slice < HEAD_DIM; slice += SLICE) {
            __syncthreads();
            for (int i = threadIdx.x; i < QUERIES * SLICE; i += THREADS) {
                const int row = i / SLICE, d = i % SLICE, token = min(token0 + row, last_token);
                queries[row][d] = a.q[token * a.stride + head * HEAD_DIM + slice + d];
            }
            for (int i = threadIdx.x; i < KEYS * SLICE / 8; i += THREADS) {
                const int key = i / (SLICE / 8), d = i % (SLICE / 8) * 8;
                const Rows *rows;
                // Rows outside what is stored are masked below; any that exists will do for them.
                const u64 row = locate(max(begin, min(tile + key, end - 1)), rows);
                Packed<TYPE, 8> eight;
                eight.load(rows->keys, rows->key_steps, row + slice + d);
#pragma unroll
                for (int j = 0; j < 8; j++) keys[key][d + j] = eight[j];
            }
            __syncthreads();
#pragma unroll
            for (int d = 0; d < SLICE; d += 4) {
                const float4 k0 = *(const float4 *)&keys[lane][d];
                const float4 k1 = *(const float4 *)&keys[lane + 32][d];
#pragma unroll
                for (int i = 0; i < OUT_ROWS; i++) {
                    const float4 q = *(const float4 *)&queries[warp * OUT_ROWS + i][d];
                    scores[i][0] += q.x * k0.x + q.y * k0.y + q.z * k0.z + q.w * k0.w;
                    scores[i][1] += q.x * k1.x + q.y * k1.y + q.z * k1.z + q.w * k1.w;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < OUT_ROWS; i++) {
            const int query = a.first + token0 + warp * OUT_ROWS + i;
            float most = largest[i];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int p = tile + lane + 32 * j;
                const bool is_seen = p <= query && (!window || p > query - window);
                if (!is_seen) scores[i][j] = MINUS_INFINITY;
                most = fmaxf(most, scores[i][j]);
            }
#pragma unroll
            for (int offset = 16; offset; offset >>= 1)
                most = fmaxf(most, __shfl_xor_sync(ALL, most, offset));
            // A query that sees nothing of this tile keeps its state.
            const bool any = most > MINUS_INFINITY;
            const float factor = any ? expf(largest[i] - most) : 1.f;
            const float w0 = any ? expf(scores[i][0] - most) : 0.f;
            const float w1 = any ? expf(scores[i][1] - most) : 0.f;
            total[i] = total[i] * factor + warp_sum(w0 + w1);
            largest[i] = most;
            weights[warp * OUT_ROWS + i][lane] = w0;
            weights[warp * OUT_ROWS + i][lane + 32] = w1;
#pragma unroll
            for (int d = 0; d < DIMS; d++) sums[i][d] *= factor;
        }
        __syncwarp(); // a warp reads the weights of its own rows only
#pragma unroll 4
        for (int key = 0; key < KEYS; key++) {
            const Rows *rows;
            const int p = tile + key;
            if (p < begin || p >= end) continue;
            const u64 row = locate(p, rows);
            float value[DIMS];
#pragma unroll
            for (int d = 0; d < DIMS; d++) {
                Packed<TYPE, 1> one;
                one.load(rows->values, rows->value_steps, row + 32 * d + lane);
                value[d] = one[0];
            }
#pragma unroll
            for (int i = 0; i < OUT_ROWS; i++) {
                const float w = weights[warp * OUT_ROWS + i][key];
#pragma unroll
                for (int d = 0; d < DIMS; d++) sums[i][d] = fmaf(w, value[d], sums[i][d]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < OUT_ROWS; i++) {
        const int token = token0 + warp * OUT_ROWS + i;
        if (token > last_token) continue;
        float *out = a.out + ((u64)token * a.heads + head) * HEAD_DIM;
#pragma unroll
        for (int d = 0; d < DIMS; d++) out[32 * d + lane] = sums[i][d] / total[i];
    }
}

struct Commit {
    KvLayer cache;
    int first; // position of the first staged row
    int tokens;
};

// Of a chunk longer than the ring only the end stays. Grid-stride over rows and numbers.
template <int TYPE> __device__ __forceinline__ void commit(const Commit &a) {
    typedef typename Element<TYPE>::type E;
    let_next_start();
    wait_for_previous();
    const u64 row_size = (u64)a.cache.kv_heads * a.cache.head_dim;
    const int from = max(0, a.tokens - a.cache.ring);
    const u64 count = (u64)(a.tokens - from) * row_size;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (u64)gridDim.x * blockDim.x) {
        const u64 row = from + i / row_size, column = i % row_size;
        const u64 to = (a.first + row) % a.cache.ring * row_size + column;
        const u64 source = row * row_size + column;
        ((E *)a.cache.stored.keys)[to] = ((const E *)a.cache.staged.keys)[source];
        ((E *)a.cache.stored.values)[to] = ((const E *)a.cache.staged.values)[source];
        if (TYPE == KV_Q8 && column % GROUP == 0) {
            a.cache.stored.key_steps[to / GROUP] = a.cache.staged.key_steps[source / GROUP];
            a.cache.stored.value_steps[to / GROUP] = a.cache.staged.value_steps[source / GROUP];
        }
    }
}

#define SIZE(NAME, TYPE, HEAD_DIM)                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS) rope_##NAME##_##HEAD_DIM(const RopeRows a) { \
        rope_rows<TYPE, HEAD_DIM>(a);                                                              \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS) attend_##NAME##_##HEAD_DIM(const Attend a) { \
        attend<TYPE, HEAD_DIM>(a);                                                                 \
    }
#define SIZES(NAME, TYPE)                                                                          \
    SIZE(NAME, TYPE, 32) SIZE(NAME, TYPE, 64) SIZE(NAME, TYPE, 256) SIZE(NAME, TYPE, 512)          \
    extern "C" __global__ void commit_##NAME(const Commit a) { commit<TYPE>(a); }
SIZES(f16, KV_F16)
SIZES(bf16, KV_BF16)
SIZES(q8, KV_Q8)
