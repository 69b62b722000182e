// Activations of a prefill chunk as the matrix product takes them.
//
// FFMA:  f32, [tokens, columns].
// MMA:   two f16 numbers for one f32: high = f16(x * 2^k), low = f16(x * 2^k - high), with a power of
//        two for the token that puts its largest number near 2^12: 22 bits, whatever the size of
//        the activations (Gemma's overflow f16). Two planes of [tokens, columns] halves; within
//        eight neighbours the order is 0 4 1 5 2 6 3 7, in which the nibbles of a word come out.
#pragma once
#include "common.cuh"

enum Format { FORMAT_F32 = 0, FORMAT_MMA = 1 };

struct Activations {
    void *values;
    float *scales; // MMA: [tokens], 2^-k
    u64 plane;     // MMA: halves from the high plane to the low one
    int format;
    int padding;
};

__device__ __forceinline__ u32 largest_bits(u32 bits, const float x) {
    return max(bits, __float_as_uint(x) & 0x7fffffffu);
}

// 2^k for a token whose largest absolute number has these bits; NaN if that is not finite.
__device__ __forceinline__ float power_for(u32 bits) {
    if (bits >= 0x7f800000u) return __uint_as_float(0x7fc00000u);
    const int exponent = max((int)(bits >> 23) - 127, -100);
    return __uint_as_float((u32)(127 + 12 - exponent) << 23);
}

// Writes eight neighbours, `chunk` counting in eights.
__device__ __forceinline__ void write_activations(const Activations &to, u64 token, int columns,
                                                  int chunk, const float (&x)[8], float power) {
    const u64 first = token * columns + 8 * chunk;
    if (to.format == FORMAT_F32) {
        float4 *out = (float4 *)((float *)to.values + first);
        out[0] = make_float4(x[0], x[1], x[2], x[3]);
        out[1] = make_float4(x[4], x[5], x[6], x[7]);
        return;
    }
    constexpr int ORDER[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    __align__(16) __half high[8], low[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float value = x[ORDER[i]] * power;
        high[i] = __float2half_rn(value);
        low[i] = __float2half_rn(value - __half2float(high[i]));
    }
    __half *out = (__half *)to.values + first;
    *(uint4 *)out = *(const uint4 *)high;
    *(uint4 *)(out + to.plane) = *(const uint4 *)low;
}

__device__ __forceinline__ u32 block_max(u32 value, u32 *scratch) {
#pragma unroll
    for (int offset = 16; offset; offset >>= 1)
        value = max(value, __shfl_xor_sync(ALL, value, offset));
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
    for (int warp = 0; warp < blockDim.x / 32; warp++) value = max(value, scratch[warp]);
    return value;
}
