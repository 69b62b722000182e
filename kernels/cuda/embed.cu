// From token ids to the residual stream and the per-layer inputs.
//
// Moves: one row of each table a token (864 + 5,040 bytes in E2B) and the rows written. Limit:
// latency; the two kernels are two of some 250 steps of a decoded token.
#include "digits.cuh"

constexpr int THREADS = 256;

// Whose embeddings.
struct Embed {
    Matrix table;
    const int *ids;     // of a chunk's tokens, the first at position `first`; null: the tokens of steps
    Step *step;         // of each token: its position, and its id where the host gave it
    Step *other;        // of one token that may go on by itself: the step before this one and behind it
    u64 *told;          // what the step before has chosen, if it goes on so: a word of the host's
    int *ids_out;       // of steps
    const float *frequencies; // [pairs]
    float *x;           // [tokens, columns]
    char *digits_out;   // those of x, if one token's are wanted
    float2 *turns;      // [tokens, pairs]
    float factor;       // sqrt(columns)
    int first;
    int pairs;
    int padding;
};

// Eight neighbouring numbers of a row.
__device__ __forceinline__ void eight_of(const Matrix &table, size_t row, int chunk, float (&numbers)[8]) {
    const size_t index = row * (table.columns / 8) + chunk;
    if (table.kind == PLAIN_BF16) {
        const uint4 pairs = __ldg((const uint4 *)table.values + index);
        const u32 words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
        for (int i = 0; i < 8; i++) numbers[i] = from_bf16((u16)(words[i / 2] >> 16 * (i % 2)));
        return;
    }
    const u32 word = __ldg((const u32 *)table.values + index);
    const float step = step_value(load_step(table.steps, table.kind, index / 4), table.kind);
#pragma unroll
    for (int i = 0; i < 8; i++) numbers[i] = ((int)(word >> 4 * i & 15) - 8) * step;
}

// x[token] = row * sqrt(hidden), and the cosines and sines of the token's position for every kind
// of layer. A block a token. A step clears the place for its own head's choice.
//
// A step whose token is -1 goes on by itself: with what the head of the step before it has chosen, which the
// host hears of here and not by a copy, and at the position that the step before has left for it. Two steps
// take turns, because no kernel may write what kernels of its own step read: they read their position before
// they wait for each other.
extern "C" __global__ void __launch_bounds__(THREADS) embed(const __grid_constant__ Embed g) {
    let_next_start();
    wait_for_previous();
    int id, position;
    if (g.ids) {
        id = g.ids[blockIdx.x];
        position = g.first + blockIdx.x;
    } else {
        Step &step = g.step[blockIdx.x];
        id = step.token;
        position = step.position;
        const u64 best = g.other ? g.other->best : 0; // asked for together with the step, wanted or not
        const bool goes_on = id < 0;
        if (goes_on) id = (int)~(u32)best;
        __syncthreads();
        if (threadIdx.x == 0) {
            if (goes_on) *(volatile u64 *)g.told = best;
            step.best = 0;
            if (g.other) {
                g.other->position = position + 1;
                g.other->token = -1;
            }
            g.ids_out[blockIdx.x] = id;
        }
    }
    const int chunks = g.table.columns / 8, lane = threadIdx.x % 32;
    float4 *out = (float4 *)g.x + (size_t)blockIdx.x * chunks * 2;
    for (int chunk = threadIdx.x; chunk - lane < chunks; chunk += THREADS) {
        const bool on = chunk < chunks;
        float x[8] = {};
        if (on) {
            eight_of(g.table, id, chunk, x);
#pragma unroll
            for (int i = 0; i < 8; i++) x[i] *= g.factor;
            out[2 * chunk] = make_float4(x[0], x[1], x[2], x[3]);
            out[2 * chunk + 1] = make_float4(x[4], x[5], x[6], x[7]);
        }
        if (g.digits_out) write_digits(digits_at(g.digits_out, chunks / 4), chunks / 4, chunk, on, x);
    }
    for (int i = threadIdx.x; i < g.pairs; i += THREADS) {
        // An angle is an f32 number: so the model was trained, and so it is run elsewhere.
        float sine, cosine;
        sincosf((float)position * g.frequencies[i], &sine, &cosine);
        g.turns[(size_t)blockIdx.x * g.pairs + i] = make_float2(cosine, sine);
    }
}

// inputs[token][layer] = (rms(projection * hidden^-0.5) * norm + row * sqrt(width)) * sqrt(1/2), in
// place of the projection. Grid (layers, tokens). The table may lie in pinned host memory, and
// with `rows_are_tokens` it holds just the rows of these tokens, in their order.
extern "C" __global__ void __launch_bounds__(THREADS)
per_layer_inputs(Matrix table, const int *ids, int rows_are_tokens, float projection_factor,
                 const float *norm, float epsilon, float table_factor, int width, float *inputs) {
    __shared__ float scratch[THREADS / 32];
    let_next_start();
    const int token = blockIdx.y;
    wait_for_previous();
    const size_t row = rows_are_tokens ? token : ids[token];
    float *out = inputs + (size_t)token * table.columns + blockIdx.x * width;
    auto entry_of = [&](int i) { return matrix_value(table, row, blockIdx.x * width + i); };
    // A thread's first number of the table comes while the projection's are added up.
    const float first = (int)threadIdx.x < width ? entry_of(threadIdx.x) : 0.f;
    float squares = 0.f;
    for (int i = threadIdx.x; i < width; i += THREADS) {
        const float c = out[i] * projection_factor;
        squares += c * c;
    }
    const float scale = rsqrtf(block_sum<THREADS>(squares, scratch) / width + epsilon);
    for (int i = threadIdx.x; i < width; i += THREADS) {
        const float entry = (i == threadIdx.x ? first : entry_of(i)) * table_factor;
        out[i] = (out[i] * projection_factor * scale * norm[i] + entry) * 0.70710678118654752f;
    }
}
