// Matrix times vector, from packed words: every linear of a decode step, and the head.
//
// Idea: a lane takes a whole group (16 bytes of words) and its step, multiplies in integers
// (digits.cuh) and adds f32 across groups. Two rows at a time share the activations read from
// shared memory; for the MLP these are a gate row and its up row, so that GeGLU needs no pass of
// its own. Norms and residual additions ride in front (`Input`), the softcap and the argmax behind.
//
// Order of summation: a row is cut into slices of at most 3 groups a lane, by `columns` alone; a
// lane adds its groups from left to right, lanes by a butterfly, slices from left to right. It
// depends neither on the grid nor on the number of tokens M, so that verifying eight drafted tokens
// in one pass gives the bits that eight single steps give.
//
// Moves: rows * columns * (1/2 + step bytes / 32) bytes of weights, once for up to 8 tokens.
// Limit: read bandwidth; per 32 weights 24 dp4a, 12 logical operations and 6 shared 16-byte loads
// for two rows, so that from some 3 TB/s on the arithmetic shows.
#include "digits.cuh"
#include "logits.cuh"

constexpr int THREADS = 256; // two blocks a multiprocessor: the next kernel's loads its weights
constexpr int WARPS = THREADS / 32;

enum Epilogue {
    STORE = 0,  // out[token][row] = y
    GEGLU = 1,  // out[token][row] = gelu(gate) * up; part 0 is gate, part 1 is up
    GATED = 2,  // out[token][row] = gelu(y) * gate_with[token][row]
    LOGITS = 3, // softcap; out[token][row] = y; the largest goes to `best[token]`
};

struct Gemv {
    Matrix part[3]; // concatenated by rows
    Input input;    // of one token
    void *digits;   // of M tokens, made by `digits` below, where M > 1
    float *out;     // [M, rows]
    const float *gate_with;
    u64 *best;
    u64 digit_stride; // bytes from a token's digits to the next one's
    int gate_stride;  // numbers from a token's gate_with to the next one's
    float cap;        // 0: none
    int parts;
    int rows; // of all parts, or of one with GEGLU
    int columns;
    int lanes; // of a row: 8, 16 or 32
    int slices;
    int pairs_per_block;
    int epilogue;
};

struct Row {
    const uint4 *words;
    const void *steps; // of the row's first group on, see `step0`
    size_t step0;
    int kind;
};

__device__ __forceinline__ Row row_in(const Matrix &m, int row) {
    const size_t group0 = (size_t)row * (m.columns / GROUP);
    const int per_group = m.kind == PLAIN_BF16 ? 4 : 1;
    return Row{(const uint4 *)m.values + group0 * per_group, m.steps, group0, m.kind};
}

// A row of the parts together, or with GEGLU of the given part.
__device__ __forceinline__ Row row_of(const Gemv &g, int row, int part) {
    if (g.epilogue == GEGLU) return part ? row_in(g.part[1], row) : row_in(g.part[0], row);
    if (g.parts == 1 || row < g.part[0].rows) return row_in(g.part[0], row);
    row -= g.part[0].rows;
    if (g.parts == 2 || row < g.part[1].rows) return row_in(g.part[1], row);
    return row_in(g.part[2], row - g.part[1].rows);
}

// Plain values: rare on a card (an off-grid tensor, a checkpoint that was never packed), so simple:
// one value after another, with the activation put together again from its digits.
template <int M>
__device__ __forceinline__ void plain(const uint4 *values, const Digits (&x)[M], int groups, int first,
                                   int end, int lanes, float (&sum)[M]) {
#pragma unroll 1
    for (int group = first; group < end; group += lanes)
#pragma unroll 1
        for (int k = 0; k < GROUP; k++) {
            const float w = from_bf16(__ldg((const u16 *)(values + 4 * group) + k));
            for (int m = 0; m < M; m++)
                sum[m] = fmaf(w, digit_value(x[m], groups, group, k), sum[m]);
        }
}

// The words and steps of a lane's groups of one slice, in registers. For one token all three
// are loaded ahead of use, which is what keeps memory busy; for more, the arithmetic does.
//
// KIND and COUNT are what all rows and lanes have in common, so that nothing of it is asked at run
// time: packed words with f16 steps, exactly COUNT groups a lane. ANY and 0: it is.
constexpr int ANY = -1;

template <int M, int KIND, int COUNT> struct Tile {
    static constexpr int AHEAD = M > 1 ? 1 : COUNT ? COUNT : 3;
    uint4 words[2][AHEAD];
    u32 steps[2][AHEAD];

    static __device__ __forceinline__ int kind(const Row &row) { return KIND == ANY ? row.kind : KIND; }

    __device__ __forceinline__ void load_group(const Row (&row)[2], int i, int group, int end) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (COUNT == 0) {
                words[r][i] = make_uint4(0, 0, 0, 0);
                steps[r][i] = 0;
                if (group >= end || kind(row[r]) == PLAIN_BF16) continue;
            }
            words[r][i] = load_weights(row[r].words + group);
            steps[r][i] = load_step(row[r].steps, kind(row[r]), row[r].step0 + group);
        }
    }

    __device__ __forceinline__ void load(const Row (&row)[2], int first, int end, int lanes) {
#pragma unroll
        for (int i = 0; i < (M == 1 ? AHEAD : 0); i++) load_group(row, i, first + i * lanes, end);
    }

    __device__ __forceinline__ void multiply(const Row (&row)[2], const Digits (&x)[M], int groups,
                                             int first, int end, int lanes,
                                             float (&sum)[2][M]) const {
        if (M == 1) {
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const int group = first + i * lanes;
                if (COUNT || group < end) multiply_group(row, x, groups, i, group, sum);
            }
        } else {
#pragma unroll 1
            for (int group = first; group < end; group += lanes) {
                Tile one;
                one.load_group(row, 0, group, end);
                one.multiply_group(row, x, groups, 0, group, sum);
            }
        }
        if (KIND != ANY) return;
        if (row[0].kind == PLAIN_BF16) plain<M>(row[0].words, x, groups, first, end, lanes, sum[0]);
        if (row[1].kind == PLAIN_BF16) plain<M>(row[1].words, x, groups, first, end, lanes, sum[1]);
    }

    __device__ __forceinline__ void multiply_group(const Row (&row)[2], const Digits (&x)[M],
                                                   int groups, int i, int group,
                                                   float (&sum)[2][M]) const {
#pragma unroll
        for (int m = 0; m < M; m++) {
            int a[2][3] = {};
#pragma unroll
            for (int half = 0; half < 2; half++) { // of the group's words
                const uint4 d0 = x[m].planes[(0 + half) * groups + group];
                const uint4 d1 = x[m].planes[(2 + half) * groups + group];
                const uint4 d2 = x[m].planes[(4 + half) * groups + group];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const uint4 w = words[r][i];
                    const u32 one = half ? w.z : w.x, two = half ? w.w : w.y;
                    const u32 nibbles = 0x0f0f0f0fu;
                    const int n[4] = {(int)(one & nibbles), (int)(one >> 4 & nibbles),
                                      (int)(two & nibbles), (int)(two >> 4 & nibbles)};
                    const int *e0 = (const int *)&d0, *e1 = (const int *)&d1, *e2 = (const int *)&d2;
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        a[r][0] = __dp4a(n[k], e0[k], a[r][0]);
                        a[r][1] = __dp4a(n[k], e1[k], a[r][1]);
                        a[r][2] = __dp4a(n[k], e2[k], a[r][2]);
                    }
                }
            }
            const Ends ends = x[m].ends[group];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int total = ends.offset + a[r][0] + (a[r][1] << 8) + (a[r][2] << 16);
                const float step = step_value(steps[r][i], kind(row[r])) * ends.scale;
                const float more = fmaf((float)total, step, sum[r][m]);
                sum[r][m] = kind(row[r]) == PLAIN_BF16 ? sum[r][m] : more;
            }
        }
    }
};

// The products of a row pair and a token go where they belong; returns what competes for the argmax.
__device__ __forceinline__ u64 finish(const Gemv &g, int pair, int token, float y0, float y1) {
    float *out = g.out + (size_t)token * g.rows;
    if (g.epilogue == GEGLU) {
        out[pair] = gelu(y0) * y1;
        return 0;
    }
    u64 best = 0;
    for (int r = 0; r < 2; r++) {
        const int row = 2 * pair + r;
        if (row >= g.rows) break;
        float y = r ? y1 : y0;
        if (g.epilogue == GATED) y = gelu(y) * g.gate_with[(size_t)token * g.gate_stride + row];
        if (g.epilogue == LOGITS) {
            y = softcap(y, g.cap);
            best = max(best, candidate(y, row));
        }
        out[row] = y;
    }
    return best;
}

template <int M, int KIND, int COUNT> __device__ __forceinline__ void gemv(const Gemv &g) {
    extern __shared__ uint4 memory[];
    __shared__ float scratch[2 * WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int groups = g.columns / GROUP, sub = lane / g.lanes, l = lane % g.lanes;
    const int pairs_of_warp = g.slices > 1 ? 1 : 32 / g.lanes;
    const int all_pairs = g.epilogue == GEGLU ? g.rows : (g.rows + 1) / 2;
    const int first_pair = blockIdx.x * g.pairs_per_block;
    const int pairs = min(g.pairs_per_block, all_pairs - first_pair);
    // An item is one slice of one row pair (a row is then as wide as a warp), or, where a row is
    // one slice, the pairs that a warp takes at once.
    const int slice_groups = ((groups + g.lanes - 1) / g.lanes + g.slices - 1) / g.slices * g.lanes;
    const int items = g.slices > 1 ? pairs * g.slices : (pairs + pairs_of_warp - 1) / pairs_of_warp;

    let_next_start();
    Row row[2];
    int place, first, end; // `place` in `partial`, or -1
    auto locate = [&](int item) {
        const int slice = g.slices > 1 ? item % g.slices : 0;
        int pair = g.slices > 1 ? item / g.slices : item * pairs_of_warp + sub;
        const bool on = item < items && pair < pairs;
        place = on ? pair * g.slices + slice : -1;
        pair = on ? first_pair + pair : 0;
        const int row0 = g.epilogue == GEGLU ? pair : 2 * pair;
        const int row1 = g.epilogue == GEGLU ? row0 : min(row0 + 1, g.rows - 1);
        row[0] = row_of(g, row0, 0);
        row[1] = row_of(g, row1, 1);
        first = slice * slice_groups + l;
        end = on ? min((slice + 1) * slice_groups, groups) : 0;
    };
    Tile<M, KIND, COUNT> tile;
    locate(warp);
    tile.load(row, first, end, g.lanes); // weights do not depend on what runs before
    wait_for_previous();

    Digits x[M];
    __shared__ float factor[M];       // what a token's products are multiplied by
    float *partial = (float *)memory; // [pairs, slices, 2, M]
    if (M == 1) {
        x[0] = digits_at(memory, groups);
        partial = (float *)((char *)memory + digit_bytes(g.columns));
        const float scale = stage<THREADS>(g.input, g.columns, x[0], scratch, blockIdx.x == 0);
        if (threadIdx.x == 0) factor[0] = scale;
    } else {
#pragma unroll
        for (int m = 0; m < M; m++) {
            x[m] = digits_at((char *)g.digits + m * g.digit_stride, groups);
            if (threadIdx.x == m) factor[m] = *(const float *)(x[m].ends + groups);
        }
    }
    for (int item = warp; item < items; item += WARPS) {
        // The next item's weights are on their way while this one's are multiplied.
        float sum[2][M] = {};
        const Tile<M, KIND, COUNT> now = tile;
        const Row now_row[2] = {row[0], row[1]};
        const int now_first = first, now_end = end, done = place;
        locate(item + WARPS);
        tile.load(row, first, end, g.lanes);
        now.multiply(now_row, x, groups, now_first, now_end, g.lanes, sum);
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int m = 0; m < M; m++) {
#pragma unroll
                for (int offset = 1; offset < 32; offset <<= 1)
                    if (offset < g.lanes) sum[r][m] += __shfl_xor_sync(ALL, sum[r][m], offset);
                if (l == 0 && done >= 0) partial[(2 * done + r) * M + m] = sum[r][m];
            }
    }
    __shared__ u64 block_best[M];
    if (threadIdx.x < M) block_best[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll 1
    for (int m = 0; m < M; m++) {
        u64 best = 0;
        for (int p = threadIdx.x; p < pairs; p += THREADS) {
            float y[2] = {0.f, 0.f};
            for (int s = 0; s < g.slices; s++)
#pragma unroll
                for (int r = 0; r < 2; r++) y[r] += partial[(2 * (p * g.slices + s) + r) * M + m];
            const float scale = factor[m];
            best = max(best, finish(g, first_pair + p, m, y[0] * scale, y[1] * scale));
        }
        if (g.epilogue != LOGITS) continue;
        best = warp_max(best);
        if (lane == 0) atomicMax(block_best + m, best);
    }
    if (g.epilogue != LOGITS) return;
    __syncthreads();
    if (threadIdx.x < M) atomicMax(g.best + threadIdx.x, block_best[threadIdx.x]);
}

#define GEMV(NAME, M, KIND, COUNT)                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) NAME(const Gemv g) {                  \
        gemv<M, KIND, COUNT>(g);                                                                   \
    }
GEMV(gemv_f16_1, 1, PACKED_F16, 1)
GEMV(gemv_f16_2, 1, PACKED_F16, 2)
GEMV(gemv_f16_3, 1, PACKED_F16, 3)
GEMV(gemv_m1, 1, ANY, 0)
GEMV(gemv_m2, 2, ANY, 0)
GEMV(gemv_m3, 3, ANY, 0)
GEMV(gemv_m4, 4, ANY, 0)
GEMV(gemv_m5, 5, ANY, 0)
GEMV(gemv_m6, 6, ANY, 0)
GEMV(gemv_m7, 7, ANY, 0)
GEMV(gemv_m8, 8, ANY, 0)

// The digits of M tokens for gemv_m2 .. gemv_m8: a block a token, the same `stage` that gemv_m1
// runs in each of its blocks. Behind a token's digits lies what its products are multiplied by.
extern "C" __global__ void __launch_bounds__(THREADS)
digits(Input input, int columns, char *out, u64 digit_stride) {
    __shared__ float scratch[2 * WARPS];
    const u64 token = blockIdx.x;
    let_next_start();
    wait_for_previous();
    input.stream += token * columns;
    if (input.delta) input.delta += token * columns;
    if (input.stream_out) input.stream_out += token * columns;
    const Digits to = digits_at(out + token * digit_stride, columns / GROUP);
    const float scale = stage<THREADS>(input, columns, to, scratch, true);
    if (threadIdx.x == 0) *(float *)(to.ends + columns / GROUP) = scale;
}
