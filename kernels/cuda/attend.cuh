// What both kinds of attention of a prefill chunk take.
#pragma once
#include "kv.cuh"

struct Attend {
    KvLayer cache;
    const float *q; // [tokens, stride], normed and rotated
    float *out;     // [tokens, heads * head_dim]
    u64 stride;
    int first; // position of the first token
    int staged_first; // position of the first staged row
    int tokens;
    int heads;
};
