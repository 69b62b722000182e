// A matrix times the activations of one token, as the host describes it to token_product.cu and token_chain.cu.
#pragma once
#include "ahead.cuh"
#include "digits.cuh"

struct TokenProduct {
    Matrix part[3];      // concatenated by rows, f16 steps, rows a multiple of 16 in each
    Input input;         // NORMED
    const char *digits;  // DIGITS
    float *out;          // STORE, LOGITS
    char *digits_out;    // GEGLU, GATED
    const float *gate_with;
    u64 *best;
    Span ahead[2];       // what a later kernel reads
    float cap;           // 0: none
    int parts;
    int rows; // of all parts, or of one with GEGLU
    int columns;
    int lanes; // of a row: 8, 16 or 32
    int slices;
    int tiles_per_block; // of 16 rows, or of 8 and 8 with GEGLU; GEGLU 4 n, GATED 2 n
    int slots;           // tasks of a warp that are under way, 1 to 3
};
