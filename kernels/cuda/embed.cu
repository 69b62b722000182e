// From token ids to the residual stream and the per-layer inputs.
//
// Moves: one row of each table a token (864 + 5,040 bytes in E2B) and the rows written. Limit:
// latency; the two kernels are two of some 250 steps of a decoded token.
#include "common.cuh"

// x[token] = row * sqrt(hidden), and the cosines and sines of the token's position for every kind
// of layer. A block a token. `ids` null: the tokens of decode steps, each of which the host gave or the
// previous step's head chose; the place for the next choice is then cleared.
extern "C" __global__ void __launch_bounds__(256)
embed(Matrix table, const int *ids, int first, Step *step, int *ids_out, float factor, float *x,
      const float *frequencies, int pairs, float2 *turns) {
    let_next_start();
    wait_for_previous();
    int id, position;
    if (ids) {
        id = ids[blockIdx.x];
        position = first + blockIdx.x;
    } else {
        step += blockIdx.x;
        id = step->token >= 0 ? step->token : (int)~(u32)step->best;
        position = step->position;
        __syncthreads();
        if (threadIdx.x == 0) {
            step->best = 0;
            ids_out[blockIdx.x] = id;
        }
    }
    float *out = x + (size_t)blockIdx.x * table.columns;
    for (int i = threadIdx.x; i < table.columns; i += blockDim.x)
        out[i] = matrix_value(table, id, i) * factor;
    for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
        // An angle is an f32 number: so the model was trained, and so it is run elsewhere.
        float sine, cosine;
        sincosf((float)position * frequencies[i], &sine, &cosine);
        turns[(size_t)blockIdx.x * pairs + i] = make_float2(cosine, sine);
    }
}

// inputs[token][layer] = (rms(projection * hidden^-0.5) * norm + row * sqrt(width)) * sqrt(1/2), in
// place of the projection. Grid (layers, tokens). The table may lie in pinned host memory, and
// with `rows_are_tokens` it holds just the rows of these tokens, in their order.
extern "C" __global__ void __launch_bounds__(256)
per_layer_inputs(Matrix table, const int *ids, int rows_are_tokens, float projection_factor,
                 const float *norm, float epsilon, float table_factor, int width, float *inputs) {
    __shared__ float scratch[8];
    let_next_start();
    const int token = blockIdx.y;
    wait_for_previous();
    const size_t row = rows_are_tokens ? token : ids[token];
    float *out = inputs + (size_t)token * table.columns + blockIdx.x * width;
    float squares = 0.f;
    for (int i = threadIdx.x; i < width; i += 256) {
        const float c = out[i] * projection_factor;
        squares += c * c;
    }
    const float scale = rsqrtf(block_sum<256>(squares, scratch) / width + epsilon);
    for (int i = threadIdx.x; i < width; i += 256) {
        const float entry = matrix_value(table, row, blockIdx.x * width + i) * table_factor;
        out[i] = (out[i] * projection_factor * scale * norm[i] + entry) * 0.70710678118654752f;
    }
}
