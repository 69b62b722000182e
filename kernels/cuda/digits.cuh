// Activations as integers: three balanced base-256 digits a number, with one power of two a group.
//
// A group of 32 activations becomes q = round(x * 2^(20-e)), where 2^e <= max|x| < 2^(e+1), so
// |q| < 2^21: 22 bits that belong to the largest of the group, about what f32 sums keep anyway.
// q = d0 + 256 d1 + 65536 d2 with digits in -128..127 feeds dp4a, four products an instruction,
// and the sum over a group is an exact integer: it depends on no order. Only sums across groups
// are f32.
#pragma once
#include "common.cuh"

// The digits of one vector of `groups` groups. `planes` holds six planes of `groups` uint4: digit d
// of the even elements in plane 2d, of the odd ones in plane 2d+1; component w of a uint4 belongs
// to word w of the group, as nibbles & 0x0f0f0f0f and (nibbles >> 4) & 0x0f0f0f0f come out.
struct Digits {
    uint4 *planes;
    float *scales; // [groups], what an integer sum is multiplied by; NaN if x was not finite
    int *offsets;  // [groups], -8 * sum of q: nibbles are codes + 8
};

// Bytes of the digits of a vector of `columns` numbers.
__host__ __device__ constexpr int digit_bytes(int columns) { return columns / GROUP * (6 * 16 + 8); }

__device__ __forceinline__ Digits digits_at(void *memory, int groups) {
    uint4 *planes = (uint4 *)memory;
    float *scales = (float *)(planes + 6 * groups);
    return Digits{planes, scales, (int *)(scales + groups)};
}

__device__ __forceinline__ u32 low_bytes(int a, int b, int c, int d) {
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// Writes eight neighbouring numbers, `chunk` counting in eights; the four lanes of a group call it
// together, and the whole warp (numbers beyond the end are 0 and `on` is false).
__device__ __forceinline__ void write_digits(const Digits &to, int groups, int chunk, bool on,
                                             const float (&x)[8]) {
    u32 largest = 0; // of the absolute bits, so that NaN and infinity win
#pragma unroll
    for (int i = 0; i < 8; i++) largest = max(largest, __float_as_uint(x[i]) & 0x7fffffffu);
    largest = max(largest, __shfl_xor_sync(ALL, largest, 1));
    largest = max(largest, __shfl_xor_sync(ALL, largest, 2));
    // Exponents below -90 count as -90: such numbers are 0 beside anything.
    const int exponent = max((int)(largest >> 23) - 127, -90);
    const float inverse = __uint_as_float((u32)(127 + 20 - min(exponent, 127)) << 23);
    int q[8], r[8], s[8], sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        q[i] = __float2int_rn(x[i] * inverse);
        sum += q[i];
        r[i] = (q[i] - (int)(signed char)q[i]) >> 8;
        s[i] = (r[i] - (int)(signed char)r[i]) >> 8;
    }
    sum += __shfl_xor_sync(ALL, sum, 1);
    sum += __shfl_xor_sync(ALL, sum, 2);
    if (!on) return;
    const int group = chunk / 4, word = chunk % 4;
    u32 *plane = (u32 *)(to.planes + group) + word;
    const int stride = groups * 4;
    plane[0 * stride] = low_bytes(q[0], q[2], q[4], q[6]);
    plane[1 * stride] = low_bytes(q[1], q[3], q[5], q[7]);
    plane[2 * stride] = low_bytes(r[0], r[2], r[4], r[6]);
    plane[3 * stride] = low_bytes(r[1], r[3], r[5], r[7]);
    plane[4 * stride] = low_bytes(s[0], s[2], s[4], s[6]);
    plane[5 * stride] = low_bytes(s[1], s[3], s[5], s[7]);
    if (word == 0) {
        const u32 power = (u32)(127 - 20 + exponent) << 23;
        to.scales[group] = __uint_as_float(largest >= 0x7f800000u ? 0x7fc00000u : power);
        to.offsets[group] = -8 * sum;
    }
}

// The i-th number of a group, back as f32 (for matrices of plain values).
__device__ __forceinline__ float digit_value(const Digits &from, int groups, int group, int i) {
    const int word = i / 8, odd = i % 2, byte = i % 8 / 2;
    int q = 0;
#pragma unroll
    for (int d = 2; d >= 0; d--) {
        const signed char *bytes = (const signed char *)(from.planes + (2 * d + odd) * groups + group);
        q = q * 256 + bytes[4 * word + byte];
    }
    return q * from.scales[group];
}

// Where a matrix product's input comes from: the residual stream, brought up to date on the way.
//   v = stream                                          without a delta
//   v = (stream + rms(delta) * delta_norm) * scalar     with one (a block's output, post-normed)
//   x = v * norm, and the product is divided by rms(v)  with a norm
struct Input {
    const float *stream;
    const float *delta;      // may be null
    const float *delta_norm; // with delta
    const float *norm;       // null: x = v
    float *stream_out;       // where v goes, if anywhere; never `stream` itself
    float scalar;
    float epsilon;
};

// Makes the digits of x for the whole block; returns what products are multiplied by.
// `scratch`: 2 * THREADS/32 numbers. Ends with a barrier.
template <int THREADS>
__device__ __forceinline__ float stage(const Input &in, int columns, const Digits &to, float *scratch,
                                       bool write_stream) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int chunks = columns / 8, groups = columns / GROUP;
    float delta_scale = 0.f;
    if (in.delta) {
        float squares = 0.f;
        for (int i = threadIdx.x; i < columns / 4; i += THREADS) {
            const float4 d = __ldcg((const float4 *)in.delta + i);
            squares += d.x * d.x + d.y * d.y + d.z * d.z + d.w * d.w;
        }
        delta_scale = rsqrtf(block_sum<THREADS>(squares, scratch) / columns + in.epsilon);
    }
    float squares = 0.f;
    for (int first = warp * 32; first < chunks; first += THREADS) {
        const int chunk = first + lane;
        const bool on = chunk < chunks;
        float v[8] = {};
        if (on) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float4 s = __ldcg((const float4 *)in.stream + 2 * chunk + h);
                float *o = v + 4 * h;
                o[0] = s.x, o[1] = s.y, o[2] = s.z, o[3] = s.w;
                if (in.delta) {
                    const float4 d = __ldcg((const float4 *)in.delta + 2 * chunk + h);
                    const float4 n = __ldg((const float4 *)in.delta_norm + 2 * chunk + h);
                    o[0] = (o[0] + d.x * delta_scale * n.x) * in.scalar;
                    o[1] = (o[1] + d.y * delta_scale * n.y) * in.scalar;
                    o[2] = (o[2] + d.z * delta_scale * n.z) * in.scalar;
                    o[3] = (o[3] + d.w * delta_scale * n.w) * in.scalar;
                }
                if (write_stream && in.stream_out)
                    ((float4 *)in.stream_out)[2 * chunk + h] = make_float4(o[0], o[1], o[2], o[3]);
                if (in.norm) {
                    const float4 n = __ldg((const float4 *)in.norm + 2 * chunk + h);
                    squares += o[0] * o[0] + o[1] * o[1] + o[2] * o[2] + o[3] * o[3];
                    o[0] *= n.x, o[1] *= n.y, o[2] *= n.z, o[3] *= n.w;
                }
            }
        }
        write_digits(to, groups, chunk, on, v);
    }
    if (!in.norm) {
        __syncthreads();
        return 1.f;
    }
    return rsqrtf(block_sum<THREADS>(squares, scratch + THREADS / 32) / columns + in.epsilon);
}
