// Activations as integers: three balanced base-256 digits a number, with one power of two a group.
//
// A group of 32 activations becomes q = round(x * 2^(20-e)), where 2^e <= max|x| < 2^(e+1), so
// |q| < 2^21: 22 bits that belong to the largest of the group, about what f32 sums keep anyway.
// q = d0 + 256 d1 + 65536 d2 with digits in -128..127 feeds dp4a, four products an instruction,
// and the sum over a group is an exact integer: it depends on no order. Only sums across groups
// are f32.
#pragma once
#include "common.cuh"

// What goes with the digits of a group.
struct Ends {
    float scale; // what an integer sum is multiplied by; NaN if x was not finite
    int offset;  // -8 * sum of q: nibbles are codes + 8
};

// The digits of one vector of `groups` groups. `planes` holds six planes of `groups` uint4: digit d
// for the words 0 and 1 of a group in plane 2d, for 2 and 3 in plane 2d+1; of each word the even
// elements, then the odd ones, as nibbles & 0x0f0f0f0f and (nibbles >> 4) & 0x0f0f0f0f come out.
struct Digits {
    uint4 *planes;
    Ends *ends; // [groups]

    // Digit 0 of a word, and as many u32 further digits 1 and 2.
    __device__ __forceinline__ u32 *word_of(int groups, int group, int word) const {
        return (u32 *)(planes + word / 2 * groups + group) + word % 2 * 2;
    }
    __device__ __forceinline__ int stride(int groups) const { return 2 * groups * 4; }
    __device__ __forceinline__ Ends &ends_of(int group) const { return ends[group]; }
};

// The digits of one of up to sixteen vectors, which lie as products of several tokens take them: eight
// vectors side by side, in each group first [3 digits][8 vectors][4 words][even, odd], then [8] ends.
struct BatchDigits {
    static constexpr int TOKENS = 8;
    static constexpr int ENDS = 3 * TOKENS * GROUP, GROUP_BYTES = ENDS + TOKENS * (int)sizeof(Ends);
    char *words; // of this vector in group 0
    char *ends;

    __device__ __forceinline__ BatchDigits(char *memory, int groups, int token) {
        char *eight = memory + token / TOKENS * groups * GROUP_BYTES;
        words = eight + token % TOKENS * GROUP;
        ends = eight + ENDS + token % TOKENS * sizeof(Ends);
    }
    __device__ __forceinline__ u32 *word_of(int, int group, int word) const {
        return (u32 *)(words + group * GROUP_BYTES) + word * 2;
    }
    __device__ __forceinline__ int stride(int) const { return TOKENS * GROUP / 4; }
    __device__ __forceinline__ Ends &ends_of(int group) const {
        return *(Ends *)(ends + group * GROUP_BYTES);
    }
};

// Bytes of the digits of a vector of `columns` numbers.
__host__ __device__ constexpr int digit_bytes(int columns) { return columns / GROUP * (6 * 16 + 8); }

__device__ __forceinline__ Digits digits_at(void *memory, int groups) {
    uint4 *planes = (uint4 *)memory;
    return Digits{planes, (Ends *)(planes + 6 * groups)};
}

// Writes eight neighbouring numbers, `chunk` counting in eights; the four lanes of a group call it
// together, and the whole warp (numbers beyond the end are 0 and `on` is false).
template <class To>
__device__ __forceinline__ void write_digits(const To &to, int groups, int chunk, bool on,
                                             const float (&x)[8]) {
    u32 largest = 0; // of the absolute bits, so that NaN and infinity win
#pragma unroll
    for (int i = 0; i < 8; i++) largest = max(largest, __float_as_uint(x[i]) & 0x7fffffffu);
    largest = max(largest, __shfl_xor_sync(ALL, largest, 1));
    largest = max(largest, __shfl_xor_sync(ALL, largest, 2));
    // Exponents below -90 count as -90: such numbers are 0 beside anything.
    const int exponent = max((int)(largest >> 23) - 127, -90);
    const float inverse = __uint_as_float((u32)(127 + 20 - min(exponent, 127)) << 23);
    // Added to 1.5 * 2^23 a number is rounded to an integer in the low bits. With 0x8080 more, the
    // three digits are its bytes, the lower two with their sign bit turned over.
    int t[8], sum = -8 * 0x8080;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        t[i] = __float_as_int(fmaf(x[i], inverse, 12582912.f)) + (0x8080 - 0x4b400000);
        sum += t[i];
    }
    sum += __shfl_xor_sync(ALL, sum, 1);
    sum += __shfl_xor_sync(ALL, sum, 2);
    if (!on) return;
    const int group = chunk / 4, word = chunk % 4;
    u32 *plane = to.word_of(groups, group, word);
    const int stride = to.stride(groups);
#pragma unroll
    for (int odd = 0; odd < 2; odd++) {
        const u32 low0 = __byte_perm(t[odd], t[2 + odd], 0x5140);      // bytes 0 0 1 1
        const u32 low1 = __byte_perm(t[4 + odd], t[6 + odd], 0x5140);
        const u32 high0 = __byte_perm(t[odd], t[2 + odd], 0x0062);     // bytes 2 2
        const u32 high1 = __byte_perm(t[4 + odd], t[6 + odd], 0x0062);
        plane[odd] = __byte_perm(low0, low1, 0x5410) ^ 0x80808080u;
        plane[stride + odd] = __byte_perm(low0, low1, 0x7632) ^ 0x80808080u;
        plane[2 * stride + odd] = __byte_perm(high0, high1, 0x5410);
    }
    if (word == 0) {
        const u32 power = (u32)(127 - 20 + exponent) << 23;
        to.ends_of(group) =
            Ends{__uint_as_float(largest >= 0x7f800000u ? 0x7fc00000u : power), -8 * sum};
    }
}

// The i-th number of a group, back as f32 (for matrices of plain values).
__device__ __forceinline__ float digit_value(const Digits &from, int groups, int group, int i) {
    const int word = i / 8, odd = i % 2, byte = i % 8 / 2;
    int q = 0;
#pragma unroll
    for (int d = 2; d >= 0; d--) {
        const uint4 *plane = from.planes + (2 * d + word / 2) * groups + group;
        q = q * 256 + ((const signed char *)plane)[8 * (word % 2) + 4 * odd + byte];
    }
    return q * from.ends[group].scale;
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

// Weights of the norms of an input, of a thread's first eight numbers: no kernel writes them, so that they may be
// asked for before the wait.
struct Norms {
    __align__(16) float delta[8], norm[8];

    __device__ __forceinline__ void load(const Input &in, int columns) {
        const int chunk = threadIdx.x;
        auto get = [&](const float *from, float (&to)[8]) {
#pragma unroll
            for (int h = 0; h < 2; h++)
                *(float4 *)(to + 4 * h) = from && chunk < columns / 8 ? __ldg((const float4 *)from + 2 * chunk + h)
                                                                      : make_float4(0.f, 0.f, 0.f, 0.f);
        };
        get(in.delta_norm, delta);
        get(in.norm, norm);
    }
};

// Makes the digits of x for the whole block; returns what products are multiplied by.
// `scratch`: 2 * THREADS/32 numbers. Ends with a barrier.
//
// Everything a thread needs of its first eight numbers is asked for at once, so that the chain of a
// decode step has one trip to memory here and not one for each norm. Only the first 256 threads
// work, so that sums come out the same in blocks of more.
//
// Without MAY_BE_PLAIN there is a delta or a norm, and no code for the other case. With `early` a thread has
// eight numbers at most.
template <int THREADS, bool MAY_BE_PLAIN = true, class To = Digits>
__device__ __forceinline__ float stage(const Input &in, int columns, const To &to, float *scratch,
                                       bool write_stream, const Norms *early = nullptr) {
    constexpr int TEAM = 256;
    static_assert(THREADS >= TEAM, "a block has the threads that make digits");
    const int chunks = columns / 8, groups = columns / GROUP;
    const int lane = threadIdx.x % 32;
    const int mine = threadIdx.x < TEAM ? threadIdx.x : chunks + lane; // whole warps are idle
    const float share = 1.f / columns;
    if (MAY_BE_PLAIN && !in.delta && !in.norm) {
        for (int chunk = mine; chunk - lane < chunks; chunk += TEAM) {
            __align__(16) float x[8] = {};
            if (chunk < chunks) {
                *(float4 *)x = __ldcg((const float4 *)in.stream + 2 * chunk);
                *(float4 *)(x + 4) = __ldcg((const float4 *)in.stream + 2 * chunk + 1);
            }
            write_digits(to, groups, chunk, chunk < chunks, x);
        }
        __syncthreads();
        return 1.f;
    }
    __align__(16) float stream[8], delta[8], delta_norm[8], norm[8];
    auto load = [&](int chunk) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float4 zero = make_float4(0.f, 0.f, 0.f, 0.f);
            const bool on = chunk < chunks;
            auto get = [&](const float *from) {
                return on && from ? __ldcg((const float4 *)from + 2 * chunk + h) : zero;
            };
            *(float4 *)(stream + 4 * h) = get(in.stream);
            *(float4 *)(delta + 4 * h) = get(in.delta);
            *(float4 *)(delta_norm + 4 * h) = early ? *(const float4 *)(early->delta + 4 * h) : get(in.delta_norm);
            *(float4 *)(norm + 4 * h) = early ? *(const float4 *)(early->norm + 4 * h) : get(in.norm);
        }
    };
    load(mine);
    float delta_scale = 0.f;
    if (in.delta) {
        float squares = 0.f;
#pragma unroll
        for (int i = 0; i < 8; i++) squares += delta[i] * delta[i];
        if (chunks > TEAM)
#pragma unroll 1
            for (int chunk = mine + TEAM; chunk < chunks; chunk += TEAM)
                for (int i = 0; i < 8; i++) {
                    const float d = __ldcg(in.delta + 8 * chunk + i);
                    squares += d * d;
                }
        delta_scale = rsqrtf(block_sum<THREADS>(squares, scratch) * share + in.epsilon);
    }
    float squares = 0.f;
#pragma unroll 1
    for (int chunk = mine; chunk - lane < chunks; chunk += TEAM) {
        if (chunks > TEAM && chunk >= TEAM) load(chunk);
        if (in.delta) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                stream[i] = (stream[i] + delta[i] * delta_scale * delta_norm[i]) * in.scalar;
        }
        if (write_stream && in.stream_out && chunk < chunks) {
            float4 *out = (float4 *)in.stream_out + 2 * chunk;
            out[0] = make_float4(stream[0], stream[1], stream[2], stream[3]);
            out[1] = make_float4(stream[4], stream[5], stream[6], stream[7]);
        }
        if (in.norm) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                squares += stream[i] * stream[i];
                stream[i] *= norm[i];
            }
        }
        write_digits(to, groups, chunk, chunk < chunks, stream);
        if (chunks <= TEAM) break;
    }
    if (!in.norm) {
        __syncthreads();
        return 1.f;
    }
    return rsqrtf(block_sum<THREADS>(squares, scratch + THREADS / 32) * share + in.epsilon);
}
