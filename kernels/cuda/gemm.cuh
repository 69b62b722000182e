// What both matrix products of prefill share.
#pragma once
#include "activations.cuh"

// out[token][row] = sum over columns of x[token][column] * weight[row][column], for up to three
// weights whose rows lie side by side in `out`.
struct Gemm {
    Matrix part[3];
    Activations x; // [tokens, columns]
    float *out;    // [tokens, out_stride]
    u64 out_stride;
    int parts;
    int tokens;
};

// What a block multiplies: ROWS rows from `row0` on of one of the weights.
struct Share {
    const void *values;
    const void *steps;
    int kind;
    int rows; // of the weight
    int row0;
    int begin; // of the weight's rows in a token of `out`
};

template <int ROWS> __device__ __forceinline__ Share share_of_block(const Gemm &a) {
    int tile = blockIdx.x, begin = 0;
    // Weights one by one, so that nothing of the parameters is indexed at run time.
    Share share{a.part[0].values, a.part[0].steps, a.part[0].kind, a.part[0].rows, 0, 0};
#pragma unroll
    for (int part = 1; part < 3; part++) {
        const int tiles = (share.rows + ROWS - 1) / ROWS;
        if (part >= a.parts || tile < tiles) break;
        tile -= tiles;
        begin += share.rows;
        share = Share{a.part[part].values, a.part[part].steps, a.part[part].kind, a.part[part].rows, 0, begin};
    }
    share.row0 = tile * ROWS;
    return share;
}
