// Attention of one token: norms and rotates q and the new k and v, stores k and v, attends.
//
// Idea: a block takes ROWS query heads that share keys and values, and a piece of the positions
// they see; its four warps go through the positions with an online softmax, a lane holding a slice
// of the head. For full layers ROWS is 8, so that each key and value is read from memory once for
// all of E2B's query heads; sliding layers hold at most `window` positions, which the second-level
// cache serves to a block a head, and so does a full layer as long as it holds few. Pieces are joined by
// the last block that finishes, or, where there may be many, by `attention_join`.
//
// Blocks that have no piece ask for what later kernels read.
//
// Which positions a piece holds follows from the token's own position and the number of pieces
// alone, so results do not depend on what else a step computes.
//
// Moves: (positions) * 2 * head_dim * 2 bytes of f16 keys and values for each group of 8 heads.
// Limit: read bandwidth on long contexts, latency on short ones.
#include "ahead.cuh"
#include "digits.cuh"
#include "kv.cuh"

constexpr int WARPS = 4;
constexpr int LEAST_PIECE = 64; // positions
constexpr int FEW_PIECES = 8;   // that the last block joins by itself

struct Attention {
    KvLayer cache;
    const float *q; // [heads, head_dim] raw, one token
    const float *k; // [kv_heads, head_dim] raw; null in layers that read another's
    const float *v;
    const float *q_norm; // [head_dim]
    const float *k_norm;
    const float2 *turns; // [pairs], of the token's position
    float *out;          // [heads, head_dim]
    char *digits_out;    // digits of [heads * head_dim] instead; may be null
    float *pieces;       // [heads, max pieces, head_dim] sums, not yet divided
    float2 *piece_state; // [heads, max pieces] largest score, sum of weights
    u32 *finished;       // [heads], 0 between launches
    const Step *step;
    Span ahead[2]; // what later kernels read
    float epsilon;
    int pairs;
    int heads;
    int max_pieces;
    int join_here; // the last block joins the pieces
    int rows;      // ROWS
};

// The pieces of the positions that a query at `position` sees.
struct Range {
    int first, count, size;
    __device__ __forceinline__ Range(int position, int window, int max_pieces) {
        first = window ? max(0, position + 1 - window) : 0;
        count = position + 1 - first;
        size = max(LEAST_PIECE, (count + max_pieces - 1) / max_pieces);
    }
    __device__ __forceinline__ int pieces() const { return (count + size - 1) / size; }
    // Whether there is a block for each piece of each of `rows` heads: few positions take less time in many
    // blocks than reading them once saves.
    __device__ __forceinline__ bool is_short(int rows, int max_pieces) const {
        return rows > 1 && size == LEAST_PIECE && pieces() <= FEW_PIECES && pieces() * rows <= max_pieces;
    }
};

// Sums N values over the warp at once: afterwards lane l holds the sum of value l % N, N a power of
// two. Halving what is exchanged takes N-1 + log2(32/N) shuffles instead of 5 N.
template <int N> struct SumMany {
    static __device__ __forceinline__ float of(float (&values)[N]) {
        const bool upper = threadIdx.x & (N / 2);
        float kept[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const float give = upper ? values[i] : values[i + N / 2];
            const float keep = upper ? values[i + N / 2] : values[i];
            kept[i] = keep + __shfl_xor_sync(ALL, give, N / 2);
        }
        return SumMany<N / 2>::of(kept);
    }
};
template <> struct SumMany<1> {
    static __device__ __forceinline__ float of(float (&values)[1]) { return values[0]; }
};
template <int N> __device__ __forceinline__ float sum_many(float (&values)[N]) {
    float sum = SumMany<N>::of(values);
#pragma unroll
    for (int width = N; width < 32; width <<= 1) sum += __shfl_xor_sync(ALL, sum, width);
    return sum;
}

// Adds number d of piece after piece in order.
__device__ __forceinline__ float joined(const Attention &a, int head, int pieces, int head_dim, int d) {
    const float2 *state = a.piece_state + (size_t)head * a.max_pieces;
    const float *sums = a.pieces + (size_t)head * a.max_pieces * head_dim;
    float largest = MINUS_INFINITY, sum = 0.f, total = 0.f;
#pragma unroll 1
    for (int p = 0; p < pieces; p++) largest = fmaxf(largest, __ldcg(state + p).x);
#pragma unroll 2
    for (int p = 0; p < pieces; p++) {
        const float2 s = __ldcg(state + p);
        const float factor = expf(s.x - largest);
        total += s.y * factor;
        sum += __ldcg(sums + (size_t)p * head_dim + d) * factor;
    }
    return sum / total;
}

// Numbers of a head from `first` on, a multiple of 32 each, go where they belong, by one warp.
__device__ __forceinline__ void finish(const Attention &a, int head, int head_dim, int first, int count,
                                       const float *numbers) {
    const int lane = threadIdx.x % 32, groups = a.heads * head_dim / GROUP;
    const int begin = head * head_dim + first;
#pragma unroll 1
    for (int chunk = 0; 8 * chunk < count; chunk += 32) {
        const bool on = 8 * (chunk + lane) < count;
        __align__(16) float x[8] = {};
        if (on) {
            *(float4 *)x = *(const float4 *)(numbers + 8 * (chunk + lane));
            *(float4 *)(x + 4) = *(const float4 *)(numbers + 8 * (chunk + lane) + 4);
        }
        if (a.digits_out) {
            write_digits(digits_at(a.digits_out, groups), groups, begin / 8 + chunk + lane, on, x);
        } else if (on) {
            *(float4 *)(a.out + begin + 8 * (chunk + lane)) = *(const float4 *)x;
            *(float4 *)(a.out + begin + 8 * (chunk + lane) + 4) = *(const float4 *)(x + 4);
        }
    }
}

// N neighbouring numbers at once, N 1, 2 or 4.
template <int N> __device__ __forceinline__ void copy(float *to, const float *from) {
    if (N == 4) *(float4 *)to = *(const float4 *)from;
    if (N == 2) *(float2 *)to = *(const float2 *)from;
    if (N == 1) *to = *from;
}

// The piece `piece` of `pieces` of ROWS heads from head0 on; its positions are begin to end - 1. `queries`
// has room for ROWS heads.
template <int TYPE, int HEAD_DIM, int ROWS>
__device__ __forceinline__ void attend(const Attention &a, int position, int head0, int begin, int end, int piece,
                                       int pieces, bool join_here, float (*queries)[HEAD_DIM]) {
    constexpr int N = HEAD_DIM / 32;                 // numbers of a head in a lane
    constexpr int VECTOR = N < 8 ? N : 8;            // of them side by side
    constexpr int VECTORS = N / VECTOR;              // lane l: l * VECTOR + i * 32 * VECTOR
    // Keys of a warp at once; ROWS * KEYS sums and ROWS * N more live in registers.
    constexpr int KEYS = ROWS == 1 ? 8 : HEAD_DIM == 512 ? 2 : 4;
    __shared__ float2 warp_state[WARPS][ROWS];
    __shared__ float2 row_state[ROWS];
    __shared__ bool is_last;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int heads_per_kv = a.heads / a.cache.kv_heads;
    const int kv_head = head0 / heads_per_kv;
    const size_t row_size = (size_t)a.cache.kv_heads * HEAD_DIM;
    const size_t column = (size_t)kv_head * HEAD_DIM;

    // Keys of the next turn and values of this one are under way while this one's are multiplied.
    Packed<TYPE, VECTOR> keys[VECTORS][KEYS], values[VECTORS][KEYS];
    auto load = [&](Packed<TYPE, VECTOR> (&to)[VECTORS][KEYS], int first, const void *rows,
                    const u16 *steps) {
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            const int p = min(first + j, end - 1); // beyond the end a copy of the last one
            const int slot = a.cache.window ? p % a.cache.ring : p;
            const size_t index = slot * row_size + column + lane * VECTOR;
#pragma unroll
            for (int c = 0; c < VECTORS; c++) to[c][j].load(rows, steps, index + c * 32 * VECTOR);
        }
    };
    int first = begin + warp * KEYS;
    // Of a layer that stores none itself they can come before the query is ready.
    if (!a.k && first < end) load(keys, first, a.cache.stored.keys, a.cache.stored.key_steps);

    for (int row = warp; row < ROWS; row += WARPS) {
        float head[N];
#pragma unroll
        for (int i = 0; i < N; i++) head[i] = __ldcg(a.q + (head0 + row) * HEAD_DIM + 32 * i + lane);
        norm_and_rotate<HEAD_DIM>(head, a.q_norm, a.epsilon, a.turns, a.pairs);
#pragma unroll
        for (int i = 0; i < N; i++) queries[row][32 * i + lane] = head[i];
    }
    if (a.k && end == position + 1 && warp >= 2) {
        // The token's own key and value. Every block that reads them writes them (to the last bit
        // the same), so that none has to wait for another.
        const bool is_key = warp == 2;
        const int slot = a.cache.window ? position % a.cache.ring : position;
        float head[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            head[i] = __ldcg((is_key ? a.k : a.v) + column + 32 * i + lane);
        norm_and_rotate<HEAD_DIM>(head, is_key ? a.k_norm : nullptr, a.epsilon,
                                  is_key ? a.turns : nullptr, a.pairs);
#pragma unroll
        for (int i = 0; i < N; i++)
            kv_store<TYPE>(head[i], is_key ? a.cache.stored.keys : a.cache.stored.values,
                           is_key ? a.cache.stored.key_steps : a.cache.stored.value_steps,
                           slot * row_size + column + 32 * i + lane);
    }
    __syncthreads();

    float sums[ROWS][N] = {};
    // The state of row lane / KEYS % ROWS, the same in the lanes that share it.
    float largest = MINUS_INFINITY, total = 0.f;
    if (a.k && first < end) load(keys, first, a.cache.stored.keys, a.cache.stored.key_steps);
    for (; first < end; first += WARPS * KEYS) {
        load(values, first, a.cache.stored.values, a.cache.stored.value_steps);
        float scores[ROWS * KEYS];
#pragma unroll
        for (int i = 0; i < ROWS * KEYS; i++) scores[i] = 0.f;
#pragma unroll
        for (int c = 0; c < VECTORS; c++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float q[VECTOR];
#pragma unroll
                for (int i = 0; i < VECTOR; i++) q[i] = queries[r][c * 32 * VECTOR + lane * VECTOR + i];
#pragma unroll
                for (int j = 0; j < KEYS; j++)
#pragma unroll
                    for (int i = 0; i < VECTOR; i++)
                        scores[r * KEYS + j] = fmaf(q[i], keys[c][j][i], scores[r * KEYS + j]);
            }
        if (first + WARPS * KEYS < end)
            load(keys, first + WARPS * KEYS, a.cache.stored.keys, a.cache.stored.key_steps);
        float score = sum_many<ROWS * KEYS>(scores);
        if (first + lane % KEYS >= end) score = MINUS_INFINITY;
        float most = score;
#pragma unroll
        for (int offset = KEYS / 2; offset; offset >>= 1)
            most = fmaxf(most, __shfl_xor_sync(ALL, most, offset));
        most = fmaxf(most, largest);
        const float factor = expf(largest - most); // 0 the first time
        const float weight = expf(score - most);
        float weights = weight;
#pragma unroll
        for (int offset = KEYS / 2; offset; offset >>= 1)
            weights += __shfl_xor_sync(ALL, weights, offset);
        total = total * factor + weights;
        const bool grew = most > largest;
        largest = most;
        if (__any_sync(ALL, grew)) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float f = __shfl_sync(ALL, factor, r * KEYS);
#pragma unroll
                for (int i = 0; i < N; i++) sums[r][i] *= f;
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int j = 0; j < KEYS; j++) {
                const float w = __shfl_sync(ALL, weight, r * KEYS + j);
#pragma unroll
                for (int c = 0; c < VECTORS; c++)
#pragma unroll
                    for (int i = 0; i < VECTOR; i++)
                        sums[r][c * VECTOR + i] = fmaf(w, values[c][j][i], sums[r][c * VECTOR + i]);
            }
    }

    // The warps' parts, in order. `queries` is free now and takes the sums, a warp after another; a
    // warp without keys has nothing to add.
    if (lane % KEYS == 0 && lane / KEYS < ROWS) warp_state[warp][lane / KEYS] = make_float2(largest, total);
    __syncthreads();
    constexpr int QUAD = VECTOR < 4 ? VECTOR : 4; // numbers of one access to shared memory
    bool is_first = true;
#pragma unroll 1
    for (int w = 0; w < WARPS; w++) {
        if (warp_state[w][0].x == MINUS_INFINITY) continue;
        if (warp == w) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float most = MINUS_INFINITY;
                for (int o = 0; o < WARPS; o++) most = fmaxf(most, warp_state[o][r].x);
                const float factor = expf(warp_state[w][r].x - most);
#pragma unroll
                for (int c = 0; c < VECTORS; c++)
#pragma unroll
                    for (int i = 0; i < VECTOR; i += QUAD) {
                        float *place = &queries[r][c * 32 * VECTOR + lane * VECTOR + i];
                        __align__(16) float old[QUAD] = {};
                        if (!is_first) copy<QUAD>(old, place);
#pragma unroll
                        for (int k = 0; k < QUAD; k++)
                            old[k] = fmaf(sums[r][c * VECTOR + i + k], factor, old[k]);
                        copy<QUAD>(place, old);
                    }
            }
        }
        is_first = false;
        __syncthreads();
    }
    if (threadIdx.x < ROWS) {
        float most = MINUS_INFINITY, all = 0.f;
        for (int w = 0; w < WARPS; w++) most = fmaxf(most, warp_state[w][threadIdx.x].x);
        for (int w = 0; w < WARPS; w++) {
            const float2 state = warp_state[w][threadIdx.x];
            if (state.x > MINUS_INFINITY) all += state.y * expf(state.x - most);
        }
        row_state[threadIdx.x] = make_float2(most, all);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < ROWS * HEAD_DIM; i += 32 * WARPS) {
        const int r = i / HEAD_DIM, d = i % HEAD_DIM;
        if (pieces == 1) {
            queries[r][d] /= row_state[r].y;
        } else {
            const size_t place = (size_t)(head0 + r) * a.max_pieces + piece;
            a.pieces[place * HEAD_DIM + d] = queries[r][d];
            if (d == 0) a.piece_state[place] = row_state[r];
        }
    }
    if (pieces > 1) {
        if (!join_here) return;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) is_last = atomicAdd(a.finished + head0, 1) == pieces - 1;
        __syncthreads();
        if (!is_last) return;
        __threadfence();
#pragma unroll 1
        for (int i = threadIdx.x; i < ROWS * HEAD_DIM; i += 32 * WARPS)
            queries[i / HEAD_DIM][i % HEAD_DIM] = joined(a, head0 + i / HEAD_DIM, pieces, HEAD_DIM, i % HEAD_DIM);
        if (threadIdx.x == 0) a.finished[head0] = 0;
    }
    __syncthreads();
#pragma unroll 1
    for (int r = warp; r < ROWS; r += WARPS) finish(a, head0 + r, HEAD_DIM, 0, HEAD_DIM, queries[r]);
}

template <int TYPE, int HEAD_DIM, int ROWS>
__device__ __forceinline__ void attention(const Attention &a) {
    __shared__ __align__(16) float queries[ROWS][HEAD_DIM];
    let_next_start();
    // Weights of norms, on their way while the position is.
    if (threadIdx.x < HEAD_DIM / 16) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(a.q_norm + 16 * threadIdx.x));
        if (a.k) asm volatile("prefetch.global.L2 [%0];" ::"l"(a.k_norm + 16 * threadIdx.x));
    }
    wait_for_previous();
    const int position = a.step->position;
    const Range range(position, a.cache.window, a.max_pieces);
    const int pieces = range.pieces();
    const bool is_short = range.is_short(ROWS, a.max_pieces);
    const int used = is_short ? pieces * ROWS : pieces; // blocks of gridDim.x
    if (blockIdx.x >= used) {
        const int idle = gridDim.x - used, worker = blockIdx.y * idle + blockIdx.x - used;
        prefetch(a.ahead[0], worker, idle * gridDim.y);
        prefetch(a.ahead[1], worker, idle * gridDim.y);
        return;
    }
    const int piece = is_short ? blockIdx.x / ROWS : blockIdx.x;
    const int begin = range.first + piece * range.size, end = min(begin + range.size, position + 1);
    if (is_short)
        attend<TYPE, HEAD_DIM, 1>(a, position, blockIdx.y * ROWS + blockIdx.x % ROWS, begin, end, piece, pieces, true,
                                  queries);
    else
        attend<TYPE, HEAD_DIM, ROWS>(a, position, blockIdx.y * ROWS, begin, end, piece, pieces, a.join_here, queries);
}

// Joins many pieces. Grid (head_dim / 64, heads), 64 threads.
extern "C" __global__ void __launch_bounds__(64) attention_join(const Attention a) {
    __shared__ __align__(16) float numbers[64];
    let_next_start();
    wait_for_previous();
    const Range range(a.step->position, a.cache.window, a.max_pieces);
    if (range.pieces() == 1 || range.is_short(a.rows, a.max_pieces)) return;
    const int first = 64 * blockIdx.x, count = min(64, a.cache.head_dim - first);
    if (threadIdx.x < count)
        numbers[threadIdx.x] = joined(a, blockIdx.y, range.pieces(), a.cache.head_dim, first + threadIdx.x);
    __syncthreads();
    if (threadIdx.x < 32) finish(a, blockIdx.y, a.cache.head_dim, first, count, numbers);
}

#define ATTENTION(NAME, TYPE, HEAD_DIM, ROWS)                                                      \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                                       \
    attention_##NAME##_##HEAD_DIM##_##ROWS(const Attention a) {                                    \
        attention<TYPE, HEAD_DIM, ROWS>(a);                                                        \
    }
// ROWS is 8 for full layers of models with 8 query heads a key head and heads of 64 (tests) or 512.
#define SIZES(NAME, TYPE)                                                                          \
    ATTENTION(NAME, TYPE, 32, 1) ATTENTION(NAME, TYPE, 64, 1)                                      \
    ATTENTION(NAME, TYPE, 256, 1) ATTENTION(NAME, TYPE, 512, 1)                                    \
    ATTENTION(NAME, TYPE, 64, 8) ATTENTION(NAME, TYPE, 512, 8)
SIZES(f16, KV_F16)
SIZES(bf16, KV_BF16)
SIZES(q8, KV_Q8)
