// A matrix times the activations of one token: how the host describes it to token_product.cu and token_chain.cu, and
// what becomes of the result in both.
#pragma once
#include "ahead.cuh"
#include "digits.cuh"
#include "logits.cuh"

enum Source { NORMED = 0, DIGITS = 1 };
enum Result {
    STORE = 0,  // out[row] = y
    GEGLU = 1,  // digits of gelu(gate) * up; part 0 is gate, part 1 is up
    GATED = 2,  // digits of gelu(y) * gate_with[row]
    LOGITS = 3, // softcap; out[row] = y; the largest goes to `best`
};

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

// LOGITS: what the threads of a block have found competes with what other blocks have. `block_best` lies in shared
// memory and was 0 before.
__device__ __forceinline__ void give_best(const TokenProduct &g, int lane, u64 best, u64 *block_best) {
    best = warp_max(best);
    if (lane == 0) atomicMax(block_best, best);
    __syncthreads();
    if (threadIdx.x == 0) atomicMax(g.best, *block_best);
}
