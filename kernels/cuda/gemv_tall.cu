// Matrix times vector for a matrix of many rows, on ordinary cores: E2B's head, the one matrix of a step that takes
// longer to read than a kernel takes to start and to end.
//
// Idea: as gemv.cu, a lane takes groups of two rows, packed words with f16 steps, and the next ones are on their way
// while these are multiplied. But the warps of the whole grid take units of rows in turn, so that all of them read
// next to each other and end together, and the lane that ends up with a row's sum finishes it at once: of its two
// rows' sums each lane gives one away before the rest is added up.
//
// Order of summation: that of gemv.cu, a lane's groups from left to right, lanes by a butterfly: the same bits.
//
// Moves: rows * columns * 9/16 bytes. Limit: read bandwidth. On an H200, of 226 MB: 55.4 us, gemv.cu 56.6, a plain
// read 50.3. Not faster: four and eight rows beside the same digits, one group ahead instead of all, three
// blocks a multiprocessor, what comes next asked into the second-level cache.
#include "logits.cuh"
#include "token_cores.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32;

struct TallGemv {
    Matrix matrix; // packed, f16 steps; a row has as many groups as all its lanes, once, twice or three times
    Input input;
    float *out; // [rows]
    u64 *best;  // the likeliest row goes there, or null: none is looked for
    float cap;  // softcap; 0: none
    int lanes;  // of a row: 8, 16 or 32; there are whole units of 2 * 32 / lanes rows
};

// A lane's group of two rows.
struct Group {
    uint4 words[2];
    u32 steps[2];

    __device__ __forceinline__ void load(const Matrix &m, size_t group, int groups) {
#pragma unroll
        for (int r = 0; r < 2; r++, group += groups) {
            words[r] = load_weights((const uint4 *)m.values + group);
            steps[r] = load_step(m.steps, PACKED_F16, group);
        }
    }
};

// The sum over `lanes` lanes: of the second row in odd lanes, of the first in even ones.
__device__ __forceinline__ float reduce(const float (&sum)[2], int lanes, int lane) {
    const bool odd = lane % 2;
    float all = (odd ? sum[1] : sum[0]) + __shfl_xor_sync(ALL, odd ? sum[0] : sum[1], 1);
#pragma unroll
    for (int offset = 2; offset < 32; offset <<= 1)
        if (offset < lanes) all += __shfl_xor_sync(ALL, all, offset);
    return all;
}

template <int COUNT> __device__ __forceinline__ void gemv_tall(const TallGemv &g) {
    extern __shared__ uint4 memory[];
    __shared__ float scratch[2 * WARPS];
    __shared__ u64 block_best;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, l = lane % g.lanes;
    const int groups = COUNT * g.lanes, pairs = 32 / g.lanes; // of a row; of a unit
    const int units = g.matrix.rows / (2 * pairs), step = gridDim.x * WARPS;
    auto first_row = [&](int unit) { return 2 * (unit * pairs + lane / g.lanes); };
    Group next[COUNT];
    auto load = [&](int unit) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            next[i].load(g.matrix, (size_t)first_row(unit) * groups + l + i * g.lanes, groups);
    };

    let_next_start();
    if (threadIdx.x == 0) block_best = 0;
    int unit = blockIdx.x * WARPS + warp;
    if (unit < units) load(unit); // weights do not depend on what runs before
    wait_for_previous();
    const Digits x = digits_at(memory, groups);
    const float scale = stage<THREADS>(g.input, g.matrix.columns, x, scratch, blockIdx.x == 0);

    u64 best = 0;
#pragma unroll 1
    for (; unit < units; unit += step) {
        Group now[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) now[i] = next[i];
        load(unit + step < units ? unit + step : unit);
        float sum[2] = {};
#pragma unroll
        for (int i = 0; i < COUNT; i++) multiply_group(now[i].words, now[i].steps, x, groups, l + i * g.lanes, sum);
        const float all = reduce(sum, g.lanes, lane);
        if (l >= 2) continue;
        const int row = first_row(unit) + l;
        const float y = softcap(all * scale, g.cap);
        g.out[row] = y;
        best = max(best, candidate(y, row));
    }
    if (!g.best) return;
    best = warp_max(best);
    if (lane == 0) atomicMax(&block_best, best);
    __syncthreads();
    if (threadIdx.x == 0) atomicMax(g.best, block_best);
}

#define GEMV_TALL(COUNT)                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) gemv_tall_##COUNT(const TallGemv g) { \
        gemv_tall<COUNT>(g);                                                                       \
    }
GEMV_TALL(1)
GEMV_TALL(2)
GEMV_TALL(3)
