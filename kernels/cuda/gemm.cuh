// What both matrix products of prefill share.
#pragma once
#include "activations.cuh"

// out[token][row] = sum over columns of x[token][column] * weight[row][column].
struct Gemm {
    Matrix weight;
    Activations x; // [tokens, columns]
    float *out;    // [tokens, out_stride]
    u64 out_stride;
    int tokens;
    int padding;
};
