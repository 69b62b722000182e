// The cache of keys and values: where a position lies, and how a number is stored.
//
// Rows are [kv_heads, head_dim]. A full layer has a row for every position; a sliding layer a ring
// of `ring` rows, position p in row p % ring: a window's, and a few more, so that tokens that are only
// tried overwrite nothing that the ones before them see. Rows of a prefill chunk are staged beside the
// ring until the chunk is done: its early queries still need what its late keys will overwrite.
#pragma once
#include "common.cuh"

// How numbers are stored. The numbers are Rust's `KvType`.
//   F16   default: keys and values are RMS-normed, so they are bounded by sqrt(head_dim) times the
//         norm's weight, far inside f16's range, and keep three bits more than in bf16
//   BF16  for norm weights beyond that
//   Q8    a byte a number and an f16 step for every 32
enum KvType { KV_F16 = 0, KV_BF16 = 1, KV_Q8 = 2 };

struct Rows {
    void *keys;
    void *values;
    u16 *key_steps; // Q8 only, [positions, kv_heads * head_dim / 32]
    u16 *value_steps;
};

struct KvLayer {
    Rows stored;
    Rows staged; // of positions from `first` on; used by sliding layers in prefill
    int kv_heads;
    int head_dim;
    int window; // positions that a query sees, itself included; 0: a full layer
    int ring;   // rows of a sliding layer, at least `window`
};

template <int TYPE> struct Element { typedef u16 type; };
template <> struct Element<KV_Q8> { typedef signed char type; };

template <int TYPE> __device__ __forceinline__ float kv_decode(u32 bits, float step) {
    if (TYPE == KV_F16) return from_f16((u16)bits);
    if (TYPE == KV_BF16) return from_bf16((u16)bits);
    return (float)(int)(signed char)bits * step;
}

// N neighbouring numbers of a row, N a power of two up to 8, aligned to N.
template <int TYPE, int N> struct Packed {
    static constexpr int BYTES = N * sizeof(typename Element<TYPE>::type);
    static constexpr int WORDS = (BYTES + 3) / 4;
    u32 words[WORDS];
    float step;

    __device__ __forceinline__ void load(const void *row, const u16 *steps, size_t index) {
        const char *from = (const char *)row + index * sizeof(typename Element<TYPE>::type);
        if (BYTES == 16) *(uint4 *)words = *(const uint4 *)from;
        if (BYTES == 8) *(uint2 *)words = *(const uint2 *)from;
        if (BYTES == 4) words[0] = *(const u32 *)from;
        if (BYTES == 2) words[0] = *(const u16 *)from;
        if (BYTES == 1) words[0] = *(const u8 *)from;
        step = TYPE == KV_Q8 ? from_f16(steps[index / GROUP]) : 0.f;
    }
    __device__ __forceinline__ float operator[](int i) const {
        constexpr int per_word = 4 / sizeof(typename Element<TYPE>::type);
        const u32 bits = words[i / per_word] >> (32 / per_word) * (i % per_word);
        return kv_decode<TYPE>(bits, step);
    }
};

// Stores a number. For Q8 the warp's lanes hold the 32 numbers of a step.
template <int TYPE>
__device__ __forceinline__ void kv_store(float value, void *to, u16 *steps, size_t index) {
    if (TYPE == KV_Q8) {
        float largest = fabsf(value);
#pragma unroll
        for (int offset = 16; offset; offset >>= 1)
            largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, offset));
        const u16 bits = __half_as_ushort(__float2half_rn(largest / 127.f));
        const float step = from_f16(bits);
        const int code = step > 0.f ? max(-127, min(127, __float2int_rn(value / step))) : 0;
        ((signed char *)to)[index] = (signed char)code;
        if (threadIdx.x % 32 == 0) steps[index / GROUP] = bits;
    } else {
        ((u16 *)to)[index] = TYPE == KV_F16 ? __half_as_ushort(__float2half_rn(value)) : to_bf16(value);
    }
}

// A head of HEAD_DIM numbers in a warp: lane l has numbers l, l+32, l+64, ... RMS norm, then the
// rotation of pairs (j, j + HEAD_DIM/2), of which the first `pairs` turn; `turns` holds the cosine
// and the sine of each for the token's position, null: no rotation.
template <int HEAD_DIM>
__device__ __forceinline__ void norm_and_rotate(float (&head)[HEAD_DIM / 32], const float *weight,
                                                float epsilon, const float2 *turns, int pairs) {
    constexpr int N = HEAD_DIM / 32;
    const int lane = threadIdx.x % 32;
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < N; i++) squares += head[i] * head[i];
    const float scale = rsqrtf(warp_sum(squares) / HEAD_DIM + epsilon);
#pragma unroll
    for (int i = 0; i < N; i++) head[i] *= weight ? scale * weight[32 * i + lane] : scale;
    if (!turns) return;
    if (N == 1) { // the partner is 16 lanes away
        const float other = __shfl_xor_sync(ALL, head[0], 16);
        const int pair = lane % 16;
        const float2 turn = pair < pairs ? turns[pair] : make_float2(1.f, 0.f);
        head[0] = head[0] * turn.x + (lane < 16 ? -other : other) * turn.y;
        return;
    }
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const int pair = 32 * i + lane;
        if (pair >= pairs) continue;
        const float2 turn = turns[pair];
        const float low = head[i], high = head[i + N / 2];
        head[i] = low * turn.x - high * turn.y;
        head[i + N / 2] = high * turn.x + low * turn.y;
    }
}
