// Stores the keys and values of the tokens that one sequence tries, before any of them attends: each sees
// those before it.
//
// Idea: a warp for each head of a key or a value, normed and rotated by the same function as in
// token_attention.cu, where a token that comes alone stores its own: the same bits. Tokens that fill up a
// launch are the last one again, at its position, and store the same.
//
// Moves: nothing worth counting. Limit: latency.
#include "kv.cuh"

struct TokenKeys {
    KvLayer cache;
    const float *k; // [kv_heads, head_dim] raw, of the first token
    const float *v;
    const float *k_norm;  // [head_dim]
    const float2 *turns;  // [pairs], of the first token's position
    const Step *step;     // of each token
    const int *slots;     // of each token
    u64 slot_bytes;       // from a slot's rows to the next one's
    float epsilon;
    int pairs;
    int qkv_stride;       // numbers from a token's q, k and v to the next one's
    int turns_stride;
};

// Grid (2 kv_heads, tokens).
template <int HEAD_DIM> __device__ __forceinline__ void token_keys(const TokenKeys &a) {
    constexpr int N = HEAD_DIM / 32;
    const int lane = threadIdx.x, token = blockIdx.y;
    const bool is_key = (int)blockIdx.x < a.cache.kv_heads;
    const int head = is_key ? blockIdx.x : blockIdx.x - a.cache.kv_heads;
    let_next_start();
    const int position = a.step[token].position;
    const int row = a.cache.window ? position % a.cache.ring : position;
    __half *to = (__half *)((char *)(is_key ? a.cache.stored.keys : a.cache.stored.values) +
                            a.slots[token] * a.slot_bytes) +
                 ((size_t)row * a.cache.kv_heads + head) * HEAD_DIM;
    wait_for_previous();
    float own[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        own[i] = __ldcg((is_key ? a.k : a.v) + token * a.qkv_stride + head * HEAD_DIM + 32 * i + lane);
    norm_and_rotate<HEAD_DIM>(own, is_key ? a.k_norm : nullptr, a.epsilon,
                              is_key ? a.turns + token * a.turns_stride : nullptr, a.pairs);
#pragma unroll
    for (int i = 0; i < N; i++) to[32 * i + lane] = __float2half_rn(own[i]);
}

#define TOKEN_KEYS(HEAD_DIM)                                                                       \
    extern "C" __global__ void __launch_bounds__(32) token_keys_##HEAD_DIM(const TokenKeys a) {    \
        token_keys<HEAD_DIM>(a);                                                                   \
    }
TOKEN_KEYS(64)
TOKEN_KEYS(256)
TOKEN_KEYS(512)
