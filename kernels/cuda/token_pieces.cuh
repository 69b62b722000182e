// Pieces of the positions that one token attends to: which there are, and what each leaves to those that join them.
#pragma once
#include "ahead.cuh"
#include "cluster.cuh"
#include "digits.cuh"
#include "kv.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;
constexpr int HEADS = 8;        // that share keys and values
constexpr int LEAST_PIECE = 64; // positions

struct TokenAttention {
    KvLayer cache;
    const float *q; // [heads, head_dim] raw
    const float *k; // [kv_heads, head_dim] raw; null in layers that read another's
    const float *v;
    const float *q_norm; // [head_dim]
    const float *k_norm;
    const float2 *turns; // [pairs], of the token's position
    char *digits_out;    // of [heads * head_dim]
    float *pieces;       // [heads, max pieces, head_dim] sums, not yet divided
    float2 *piece_state; // [heads, max pieces] largest score, sum of weights
    const Step *step;
    Span ahead[2]; // what a later kernel reads
    float epsilon;
    int pairs;
    int heads;
    int max_pieces;
    // Of several tokens all of this lies one after another, but for digits, which are BatchDigits.
    const int *slots; // of each token; null: one token, of the slot that `cache` is
    u64 slot_bytes;   // from a slot's rows to the next one's
    int qkv_stride;   // numbers from a token's q, k and v to the next one's
    int turns_stride;
    int is_draft; // the tokens are of one sequence, at neighbouring positions from the first one's on
    int padding;
};

// Digits of one token's head: what a warp's lanes hold.
__device__ __forceinline__ void write_digits_of(const TokenAttention &a, int token, int head_dim, int chunk,
                                                bool on, const float (&numbers)[8]) {
    const int groups = a.heads * head_dim / GROUP;
    if (a.slots) write_digits(BatchDigits(a.digits_out, groups, token), groups, chunk, on, numbers);
    else write_digits(digits_at(a.digits_out, groups), groups, chunk, on, numbers);
}

// The pieces of the positions that a query at `position` sees.
struct Range {
    int first, count, size;
    __device__ __forceinline__ Range(int position, int window, int max_pieces) {
        first = window ? max(0, position + 1 - window) : 0;
        count = position + 1 - first;
        size = max(LEAST_PIECE, (count + max_pieces - 1) / max_pieces);
    }
    __device__ __forceinline__ int pieces() const { return (count + size - 1) / size; }
};

#if __CUDA_ARCH__ >= 900
constexpr int CLUSTER = 8; // blocks

// What block b of a cluster gets of head b, from every piece.
template <int HEAD_DIM> struct OfHead {
    float4 sums[CLUSTER][HEAD_DIM / 4];
    float state[CLUSTER][1 + WARPS]; // largest score, sums of weights of the warps
    Arrival arrival;
};
#endif

// What a block knows at the end of its piece, where pieces are joined by a kernel.
template <int HEAD_DIM> struct Piece {
    float sums[HEADS][HEAD_DIM + 4];
    float2 state[HEADS]; // largest score, sum of weights
};
