// Attention of one token on tensor cores, for eight query heads that share keys and values in f16; or of
// one token each of several sequences, which do not meet: every block works for one token. Tokens that one
// sequence tries see each other's keys and values, which `token_keys` has stored.
//
// Idea: the scores of 16 keys for 8 heads are one row of tensor-core products with the keys as they lie
// in the cache (a lane's 16 bytes are two fragments) and q as a high and a low f16. The weighted sum
// takes the values as A, pairs of keys side by side, and the weights as B, again in two f16, so
// that nothing but the order of sums differs from f32. A block of four warps takes 64 keys at a time:
// each warp the scores of 16 of them, then each the sums of its share of the head's numbers.
//
// Each key and value is read once for all eight heads. The pieces of a sliding layer, eight at most, are
// one cluster from sm_90, joined in the blocks' shared memory; those of full layers, and of all
// layers elsewhere, by `token_join`. Either leaves digits for the output projection.
//
// Which positions a piece holds follows from the token's own position and the number of pieces alone.
//
// Moves: positions * 2 * head_dim * 2 bytes. Limit: read bandwidth on long contexts, latency on short
// ones.
#include "token_pieces.cuh"
#include "tensor.cuh"

constexpr int KEYS = 16; // of a warp at once
constexpr int TILE = WARPS * KEYS;

template <int HEAD_DIM, bool SLIDING>
__device__ __forceinline__ void attention(const TokenAttention &a) {
    constexpr int N = HEAD_DIM / 32;
    constexpr int SIXTY_FOURS = HEAD_DIM / 64;                    // of the head's numbers
    constexpr int MINE = (SIXTY_FOURS + WARPS - 1) / WARPS;       // of them to a warp
    constexpr bool HELD = HEAD_DIM <= 256;       // a whole tile fits into registers
    constexpr int EARLY = HELD ? WARPS : 1; // key tiles whose values are asked for before scores
    __shared__ __align__(16) __half q_parts[2][HEADS][HEAD_DIM + 32];
    __shared__ uint4 weights[WARPS][32];
    __shared__ float warp_most[WARPS][HEADS], warp_total[WARPS][HEADS];
#if __CUDA_ARCH__ >= 900
    constexpr bool IN_CLUSTER = SLIDING;
    __shared__ __align__(16) char end_of_piece[SLIDING ? sizeof(OfHead<HEAD_DIM>) : sizeof(Piece<HEAD_DIM>)];
    OfHead<HEAD_DIM> &of_head = *(OfHead<HEAD_DIM> *)end_of_piece;
    Piece<HEAD_DIM> &piece = *(Piece<HEAD_DIM> *)end_of_piece;
    if (IN_CLUSTER) {
        if (threadIdx.x == 0) of_head.arrival.expect(sizeof(of_head.sums) + sizeof(of_head.state));
        __syncwarp();
        announce();
    }
#else
    __shared__ __align__(16) Piece<HEAD_DIM> piece;
#endif
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
    const int token = blockIdx.y / a.cache.kv_heads, kv_head = blockIdx.y - token * a.cache.kv_heads;
    const int head0 = kv_head * HEADS;
    const size_t row_size = (size_t)a.cache.kv_heads * HEAD_DIM;
    let_next_start();
    // No kernel of this step writes positions and slots: they are there before the first one starts.
    const int position = a.step[token].position;
    // Rows from here on are not there before the wait: the token's own, and of a draft all of its tokens'.
    const int fresh = a.is_draft ? a.step[0].position : position;
    const size_t slot_at = (a.slots ? a.slots[token] * a.slot_bytes : 0) / sizeof(__half) + kv_head * HEAD_DIM;
    const __half *keys = (const __half *)a.cache.stored.keys + slot_at;
    const __half *values = (const __half *)a.cache.stored.values + slot_at;
    const Range range(position, SLIDING ? a.cache.window : 0, a.max_pieces);
    const int begin = range.first + blockIdx.x * range.size;
    const int end = min(begin + range.size, position + 1);
    const int begin_slot = SLIDING ? begin % a.cache.ring : begin;
    auto row_of = [&](int p) {
        int slot = begin_slot + min(p, end - 1) - begin; // beyond the end a copy of the last one
        if (SLIDING && slot >= a.cache.ring) slot -= a.cache.ring;
        return slot * row_size;
    };
    // Keys 16 * warp + r and 8 further of a tile of 64, and of 16 of them the values 2t, 2t+1, 2t+8 and
    // 2t+9 of a share of the head.
    uint4 x[2][HEAD_DIM / 32], v[MINE][WARPS][4];
    auto load_keys = [&](int first) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 *row = (const uint4 *)(keys + row_of(first + KEYS * warp + r + 8 * h)) + t;
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 32; i++) x[h][i] = __ldcg(row + 4 * i);
        }
    };
    auto load_values = [&](int first, int tile) {
#pragma unroll
        for (int m = 0; m < MINE; m++) {
            if (warp + m * WARPS >= SIXTY_FOURS) continue;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int p = first + KEYS * tile + 2 * t + i % 2 + i / 2 * 8;
                v[m][tile][i] =
                    __ldcg((const uint4 *)(values + row_of(p) + 64 * (warp + m * WARPS)) + r);
            }
        }
    };
    if (HELD) {
        // What earlier steps have stored does not change: it comes before the wait. Only fresh rows are
        // not there yet, and come again later; so nothing here may stay in the first-level cache.
        if (begin < end) {
            load_keys(begin);
#pragma unroll
            for (int tile = 0; tile < WARPS; tile++) load_values(begin, tile);
        }
    }
#if __CUDA_ARCH__ >= 900
    else if (begin + (int)threadIdx.x / 2 < end) {
        const __half *row = (threadIdx.x % 2 ? values : keys) + row_of(begin + threadIdx.x / 2);
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(row), "r"(2 * HEAD_DIM));
    }
#endif
    ask_for(a.ahead[0]);
    ask_for(a.ahead[1]);
#if __CUDA_ARCH__ >= 900
    if (IN_CLUSTER) wait_for_announcements();
#endif
    wait_for_previous();

    float most[2] = {MINUS_INFINITY, MINUS_INFINITY}, total[2] = {0.f, 0.f}; // of heads 2t, 2t+1
    float sums[MINE][4][4] = {};
    if (begin <= position) {
        // A warp brings two heads of q into shape, and where the token's own key and value belong into
        // this piece, two warps one of these.
        const bool has_own = a.k && end == position + 1 && warp >= 2;
        const bool is_key = warp == 2;
        const float2 *turns = a.turns + token * a.turns_stride;
        float q[2][N], own[N];
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < N; i++)
                q[j][i] = __ldcg(a.q + token * a.qkv_stride + (head0 + warp + j * WARPS) * HEAD_DIM +
                                 32 * i + lane);
        if (has_own)
#pragma unroll
            for (int i = 0; i < N; i++)
                own[i] = __ldcg((is_key ? a.k : a.v) + token * a.qkv_stride + kv_head * HEAD_DIM +
                                32 * i + lane);
#pragma unroll
        for (int j = 0; j < 2; j++)
            norm_and_rotate<HEAD_DIM>(q[j], a.q_norm, a.epsilon, turns, a.pairs);
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < N; i++) {
                const __half high = __float2half_rn(q[j][i]);
                q_parts[0][warp + j * WARPS][32 * i + lane] = high;
                q_parts[1][warp + j * WARPS][32 * i + lane] =
                    __float2half_rn(q[j][i] - __half2float(high));
            }
        if (has_own) {
            norm_and_rotate<HEAD_DIM>(own, is_key ? a.k_norm : nullptr, a.epsilon,
                                      is_key ? turns : nullptr, a.pairs);
            __half *to = (__half *)(is_key ? keys : values) + row_of(position);
#pragma unroll
            for (int i = 0; i < N; i++) to[32 * i + lane] = __float2half_rn(own[i]);
        }
        __syncthreads();

        for (int first = begin; first < end; first += TILE) {
            const int key = first + KEYS * warp + r;
            if (!HELD || first > begin) {
                load_keys(first);
            } else if (end > fresh && first + TILE > fresh) {
                // Fresh rows, and copies of the last one, are there now.
                if (key + 8 >= fresh) load_keys(first);
            }
            float high_scores[4] = {}, low_scores[4] = {};
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 32; i++) {
                const uint4 x0 = x[0][i], x1 = x[1][i];
                const uint4 high = *(const uint4 *)&q_parts[0][r][32 * i + 8 * t];
                const uint4 low = *(const uint4 *)&q_parts[1][r][32 * i + 8 * t];
                const u32 front[4] = {x0.x, x1.x, x0.y, x1.y}, back[4] = {x0.z, x1.z, x0.w, x1.w};
                mma_halves(high_scores, front, high.x, high.y);
                mma_halves(low_scores, front, low.x, low.y);
                mma_halves(high_scores, back, high.z, high.w);
                mma_halves(low_scores, back, low.z, low.w);
            }
            if (!HELD || first > begin || (end > fresh && first + TILE > fresh))
#pragma unroll
                for (int tile = 0; tile < EARLY; tile++)
                    if (!HELD || first > begin || first + KEYS * (tile + 1) > fresh)
                        load_values(first, tile);

            float scores[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                scores[i] = key + i / 2 * 8 < end ? high_scores[i] + low_scores[i] : MINUS_INFINITY;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float largest = fmaxf(scores[h], scores[2 + h]);
#pragma unroll
                for (int offset = 4; offset < 32; offset <<= 1)
                    largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, offset));
                if (r == 0) warp_most[warp][2 * t + h] = largest;
            }
            __syncthreads();
            float factor[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float largest = most[h];
#pragma unroll
                for (int w = 0; w < WARPS; w++) largest = fmaxf(largest, warp_most[w][2 * t + h]);
                factor[h] = expf(most[h] - largest); // 0 the first time
                most[h] = largest;
                scores[h] = expf(scores[h] - largest);
                scores[2 + h] = expf(scores[2 + h] - largest);
                total[h] = fmaf(total[h], factor[h], scores[h] + scores[2 + h]);
            }
            uint4 part;
            part.x = half_pair(scores[0], scores[1]);
            part.y = half_pair(scores[2], scores[3]);
            part.z = transposed(rest_pair(scores[0], scores[1], part.x));
            part.w = transposed(rest_pair(scores[2], scores[3], part.y));
            part.x = transposed(part.x);
            part.y = transposed(part.y);
            weights[warp][lane] = part;
            __syncthreads();
#pragma unroll
            for (int m = 0; m < MINE; m++)
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++) sums[m][j][i] *= factor[i % 2];
#pragma unroll
            for (int tile = 0; tile < WARPS; tile++) {
                if (tile + EARLY < WARPS) load_values(first, tile + EARLY);
                const uint4 w = weights[tile][lane];
#pragma unroll
                for (int m = 0; m < MINE; m++)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        // Numbers 8r+j and 8r+4+j of this sixty-four, pairs of keys side by side.
                        const u32 take = j % 2 ? 0x7632 : 0x5410;
                        u32 pairs[4];
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            const u32 *even = (const u32 *)&v[m][tile][i / 2 * 2];
                            const u32 *odd = (const u32 *)&v[m][tile][i / 2 * 2 + 1];
                            const int word = j / 2 + i % 2 * 2;
                            pairs[i] = __byte_perm(even[word], odd[word], take);
                        }
                        mma_halves(sums[m][j], pairs, w.x, w.y);
                        mma_halves(sums[m][j], pairs, w.z, w.w);
                    }
            }
        }
    }

    // Lane (r, t) has of heads 2t and 2t+1 the numbers 8r .. 8r+7 of its sixty-fours.
    auto numbers_of = [&](int m, int h, int half) {
        return make_float4(sums[m][0][2 * half + h], sums[m][1][2 * half + h], sums[m][2][2 * half + h],
                           sums[m][3][2 * half + h]);
    };
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int offset = 4; offset < 32; offset <<= 1)
            total[h] += __shfl_xor_sync(ALL, total[h], offset);
#if __CUDA_ARCH__ >= 900
    if (IN_CLUSTER) {
        // Block b of the cluster joins the pieces of head b: they are sent to it.
        const int mine = blockIdx.x;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (r == 0) send(&of_head.state[mine][1 + warp], total[h], of_head.arrival, 2 * t + h);
            if (r == 1 && warp == 0) send(&of_head.state[mine][0], most[h], of_head.arrival, 2 * t + h);
        }
#pragma unroll
        for (int m = 0; m < MINE; m++) {
            const int sixty_four = warp + m * WARPS;
            if (sixty_four >= SIXTY_FOURS) continue;
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    send(&of_head.sums[mine][16 * sixty_four + 2 * r + half], numbers_of(m, h, half),
                         of_head.arrival, 2 * t + h);
        }
        of_head.arrival.wait();
        float factors[CLUSTER];
        float largest = MINUS_INFINITY, all = 0.f;
#pragma unroll
        for (int p = 0; p < CLUSTER; p++) {
            factors[p] = of_head.state[p][0];
            largest = fmaxf(largest, factors[p]);
        }
#pragma unroll
        for (int p = 0; p < CLUSTER; p++) {
            float weights_of_piece = 0.f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) weights_of_piece += of_head.state[p][1 + w];
            factors[p] = expf(factors[p] - largest); // 0 of a block without keys, and its sums are 0
            all += weights_of_piece * factors[p];
        }
        float *joined = (float *)q_parts; // no warp needs q any more: all have sent
#pragma unroll
        for (int d = threadIdx.x; d < HEAD_DIM; d += THREADS) {
            float sum = 0.f;
#pragma unroll
            for (int p = 0; p < CLUSTER; p++) sum = fmaf(((const float *)of_head.sums[p])[d], factors[p], sum);
            joined[d] = sum / all;
        }
        __syncthreads();
        for (int first = 32 * warp; first < HEAD_DIM / 8; first += THREADS) {
            const bool on = first + lane < HEAD_DIM / 8;
            float numbers[8];
#pragma unroll
            for (int i = 0; i < 8; i++) numbers[i] = on ? joined[8 * (first + lane) + i] : 0.f;
            const int chunk = (head0 + mine) * (HEAD_DIM / 8) + first + lane;
            write_digits_of(a, token, HEAD_DIM, chunk, on, numbers);
        }
        return;
    }
#endif
#pragma unroll
    for (int m = 0; m < MINE; m++) {
        const int sixty_four = warp + m * WARPS;
        if (sixty_four >= SIXTY_FOURS) continue;
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *(float4 *)&piece.sums[2 * t + h][64 * sixty_four + 8 * r + 4 * half] = numbers_of(m, h, half);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (r == 0) warp_total[warp][2 * t + h] = total[h];
        if (r == 0 && warp == 0) piece.state[2 * t + h].x = most[h];
    }
    __syncthreads();
    if (threadIdx.x < HEADS) {
        float all = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) all += warp_total[w][threadIdx.x];
        piece.state[threadIdx.x].y = all;
    }
    if (begin > position) return;
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < HEADS * HEAD_DIM; i += THREADS) {
        const int head = i / HEAD_DIM, d = i % HEAD_DIM;
        const size_t at = (size_t)(token * a.heads + head0 + head) * a.max_pieces + blockIdx.x;
        a.pieces[at * HEAD_DIM + d] = piece.sums[head][d];
        if (d == 0) a.piece_state[at] = piece.state[head];
    }
}

// Joins pieces in order and leaves digits. Grid (head_dim / 32, tokens * heads): a block a group.
constexpr int MOST_PIECES = 512;
extern "C" __global__ void __launch_bounds__(THREADS) token_join(const TokenAttention a) {
    __shared__ float factors[MOST_PIECES];
    __shared__ float parts[WARPS][GROUP];
    __shared__ float scratch[2 * WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int head_dim = a.cache.head_dim, token = blockIdx.y / a.heads;
    const int head = blockIdx.y - token * a.heads;
    let_next_start();
    const int pieces = Range(a.step[token].position, a.cache.window, a.max_pieces).pieces();
    const float2 *state = a.piece_state + (size_t)blockIdx.y * a.max_pieces;
    wait_for_previous();
    float largest = MINUS_INFINITY;
    for (int p = lane; p < pieces; p += 32) largest = fmaxf(largest, __ldcg(&state[p].x));
#pragma unroll
    for (int offset = 16; offset; offset >>= 1)
        largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, offset));
    float all = 0.f;
    for (int p = threadIdx.x; p < pieces; p += THREADS) {
        const float2 s = __ldcg(state + p);
        factors[p] = expf(s.x - largest);
        all += s.y * factors[p];
    }
    all = block_sum<THREADS>(all, scratch);
    const float *sums =
        a.pieces + (size_t)blockIdx.y * a.max_pieces * head_dim + blockIdx.x * GROUP + lane;
    float sum = 0.f;
#pragma unroll 8
    for (int p = warp; p < pieces; p += WARPS)
        sum = fmaf(__ldcg(sums + (size_t)p * head_dim), factors[p], sum);
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp) return;
    sum = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += parts[w][lane];
    parts[0][lane] = sum / all;
    __syncwarp();
    float numbers[8];
#pragma unroll
    for (int i = 0; i < 8; i++) numbers[i] = lane < 4 ? parts[0][8 * lane + i] : 0.f;
    const int group = head * (head_dim / GROUP) + blockIdx.x;
    write_digits_of(a, token, head_dim, 4 * group + lane, lane < 4, numbers);
}

#if __CUDA_ARCH__ >= 900
#define IN_CLUSTERS __cluster_dims__(CLUSTER, 1, 1)
#else
#define IN_CLUSTERS
#endif
// Sliding layers in clusters of 8 pieces, full layers in any number.
#define TOKEN_ATTENTION(HEAD_DIM)                                                                  \
    extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, 2)                           \
    token_attention_sliding_##HEAD_DIM(const TokenAttention a) {                                   \
        attention<HEAD_DIM, true>(a);                                                              \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                       \
    token_attention_full_##HEAD_DIM(const TokenAttention a) {                                      \
        attention<HEAD_DIM, false>(a);                                                             \
    }
TOKEN_ATTENTION(64)
TOKEN_ATTENTION(256)
TOKEN_ATTENTION(512)
