// What all kernels share: types, reductions, the view of a weight matrix.
//
// NVRTC compiles these files without the C++ standard headers; cuda_fp16.h is all that is included.
#pragma once
#include <cuda_fp16.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int GROUP = 32; // weights that share a step
constexpr u32 ALL = 0xffffffffu;
#define MINUS_INFINITY __int_as_float(0xff800000)

// How the values of a matrix are stored. The numbers are Rust's `Kind`.
enum Kind { PACKED_F16 = 0, PACKED_BF16 = 1, PACKED_F32 = 2, PLAIN_BF16 = 3 };

// A weight matrix [rows, columns], row-major, as it lies in the checkpoint: eight codes a word
// (nibble = code + 8, lowest first), a step for every 32 codes of a row; or plain bf16.
struct Matrix {
    const void *values;
    const void *steps;
    int rows;
    int columns;
    int kind;
    int padding;
};

__device__ __forceinline__ float from_f16(u16 bits) { return __half2float(__ushort_as_half(bits)); }
__device__ __forceinline__ float from_bf16(u16 bits) { return __uint_as_float((u32)bits << 16); }

// Round to nearest even; NaN stays NaN.
__device__ __forceinline__ u16 to_bf16(float value) {
    u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)((bits >> 16) | 0x40);
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

// The bits of a step, to be decoded once they are needed: a load without a dependent conversion.
__device__ __forceinline__ u32 load_step(const void *steps, int kind, size_t index) {
    if (kind == PACKED_F32) return __ldg((const u32 *)steps + index);
    return __ldg((const u16 *)steps + index);
}
__device__ __forceinline__ float step_value(u32 bits, int kind) {
    if (kind == PACKED_F32) return __uint_as_float(bits);
    return kind == PACKED_F16 ? from_f16((u16)bits) : from_bf16((u16)bits);
}

// Weights are read once: they should not push activations out of the first-level cache.
__device__ __forceinline__ uint4 load_weights(const uint4 *address) {
    uint4 words;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(address));
    return words;
}

// One value of a matrix: code times step.
__device__ __forceinline__ float matrix_value(const Matrix &matrix, size_t row, int column) {
    const size_t index = row * matrix.columns + column;
    if (matrix.kind == PLAIN_BF16) return from_bf16(__ldg((const u16 *)matrix.values + index));
    const u32 word = __ldg((const u32 *)matrix.values + index / 8);
    const int code = (int)((word >> (4 * (column % 8))) & 15) - 8;
    const u32 step = load_step(matrix.steps, matrix.kind, index / GROUP);
    return code * step_value(step, matrix.kind);
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) value += __shfl_xor_sync(ALL, value, offset);
    return value;
}

// Sum over a block of THREADS threads, the same in every thread; `scratch` holds THREADS/32
// numbers and may be used again after the next barrier.
template <int THREADS> __device__ __forceinline__ float block_sum(float value, float *scratch) {
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0.f;
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; warp++) sum += scratch[warp];
    return sum;
}

// The tanh form of GELU.
__device__ __forceinline__ float gelu(float x) {
    return 0.5f * x * (1.f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

// Programmatic dependent launch, from sm_90: the next kernel of the stream may start, and load its
// weights, while this one still runs; nothing that an earlier kernel writes may be touched before
// `wait_for_previous`. Elsewhere, and without the launch attribute, both do nothing.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// What a decode step is about, in device memory, so that one captured graph serves every step. Kernels read it
// before they wait for each other; so it is written before the step begins: by the host, or by the first
// kernel of the step before (embed.cu).
struct Step {
    int position; // of the token
    int token;    // its id; -1: the one that the step before chose
    u64 best;     // of the previous head, see logits.cuh
};
