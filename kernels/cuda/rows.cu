// What a prefill chunk needs between its matrix products, a block a token: norms, residual
// additions, GeGLU, gates, and the activations in the form the product takes.
//
// Moves: each input and output once, 4 bytes a number. Limit: bandwidth, mostly of the second-level
// cache; a few percent of a chunk's time.
#include "activations.cuh"

constexpr int THREADS = 256;

// What becomes of a token's numbers before the next product.
//   v = stream, or (stream + rms(delta) * delta_norm) * scalar; written back to stream
//   x = v, or rms(v) * norm
struct NormRows {
    float *stream;           // [tokens, columns]
    const float *delta;      // [tokens, columns] or null
    const float *delta_norm; // [columns]
    const float *norm;       // [columns] or null
    Activations out;
    float scalar;
    float epsilon;
    int columns;
    int padding;
};

extern "C" __global__ void __launch_bounds__(THREADS) norm_rows(const NormRows a) {
    extern __shared__ float4 row4[];
    __shared__ float scratch[2 * THREADS / 32];
    __shared__ u32 most[THREADS / 32];
    let_next_start();
    wait_for_previous();
    float *row = (float *)row4;
    const u64 first = (u64)blockIdx.x * a.columns;
    float delta_scale = 0.f;
    if (a.delta) {
        float squares = 0.f;
        for (int i = threadIdx.x; i < a.columns; i += THREADS) {
            const float d = a.delta[first + i];
            squares += d * d;
        }
        delta_scale = rsqrtf(block_sum<THREADS>(squares, scratch) / a.columns + a.epsilon);
    }
    float squares = 0.f;
    for (int i = threadIdx.x; i < a.columns; i += THREADS) {
        float v = a.stream[first + i];
        if (a.delta) {
            v = (v + a.delta[first + i] * delta_scale * a.delta_norm[i]) * a.scalar;
            a.stream[first + i] = v;
        }
        squares += v * v;
        row[i] = v;
    }
    float scale = 1.f;
    if (a.norm)
        scale = rsqrtf(block_sum<THREADS>(squares, scratch + THREADS / 32) / a.columns + a.epsilon);
    u32 bits = 0;
    for (int i = threadIdx.x; i < a.columns; i += THREADS) {
        const float x = a.norm ? row[i] * scale * a.norm[i] : row[i];
        bits = largest_bits(bits, x);
        row[i] = x;
    }
    const float power = power_for(block_max(bits, most)); // its barrier also ends the row
    if (threadIdx.x == 0 && a.out.format == FORMAT_MMA) a.out.scales[blockIdx.x] = 1.f / power;
    for (int chunk = threadIdx.x; chunk < a.columns / 8; chunk += THREADS) {
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = row[8 * chunk + i];
        write_activations(a.out, blockIdx.x, a.columns, chunk, x, power);
    }
}

// x = in, gelu(in) * with, or gelu(gate) * up. `in` has a stride of its own, so that gate and up
// may lie side by side.
struct MapRows {
    const float *in;   // [tokens, in_stride]
    const float *with; // [tokens, with_stride] or null
    Activations out;   // [tokens, columns]
    u64 in_stride;
    u64 with_stride;
    int columns;
    int padding;
};

extern "C" __global__ void __launch_bounds__(THREADS) map_rows(const MapRows a) {
    __shared__ u32 most[THREADS / 32];
    let_next_start();
    wait_for_previous();
    const float *in = a.in + blockIdx.x * a.in_stride;
    const float *with = a.with ? a.with + blockIdx.x * a.with_stride : nullptr;
    u32 bits = 0;
    float power = 1.f;
    // Twice the same numbers: once for the largest, once to write them.
    for (int pass = a.out.format == FORMAT_MMA ? 0 : 1; pass < 2; pass++) {
        for (int chunk = threadIdx.x; chunk < a.columns / 8; chunk += THREADS) {
            float x[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                x[i] = in[8 * chunk + i];
                if (with) x[i] = gelu(x[i]) * with[8 * chunk + i];
                bits = largest_bits(bits, x[i]);
            }
            if (pass == 1) write_activations(a.out, blockIdx.x, a.columns, chunk, x, power);
        }
        if (pass == 0) {
            power = power_for(block_max(bits, most));
            if (threadIdx.x == 0) a.out.scales[blockIdx.x] = 1.f / power;
        }
    }
}

// The softcap of logits, in place.
extern "C" __global__ void softcap(float *logits, u64 count, float cap) {
    let_next_start();
    wait_for_previous();
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (u64)gridDim.x * blockDim.x)
        logits[i] = tanhf(logits[i] / cap) * cap;
}
