// A matrix of long rows times the digits of one token: the MLP's projection down.
//
// Idea: a row of 6,144 or 12,288 columns is two or four slices of 3,072 in the words of gemv.cu. The blocks of a
// cluster, one a slice, share as many tiles of sixteen rows: each multiplies its slice of all of them, so
// that it fetches a quarter of the digits and takes them from shared memory once, and then sends its
// sums to the block that the rows belong to. All weights of a block are on their way before the wait.
//
// Order of sums: that of gemv.cu, so that all give the same bits.
//
// Moves: rows * columns * (1/2 + 2/32) bytes of weights. Limit: read bandwidth; before it the start, a trip
// to the second-level cache and one way from block to block.
#include "ahead.cuh"
#include "cluster.cuh"
#include "token_rows.cuh"

struct TokenLong {
    Matrix matrix; // f16 steps, rows a multiple of 16 * slices
    const char *digits;
    float *out;
    Span ahead[4]; // what later kernels read
};

#if __CUDA_ARCH__ == 900
constexpr int THREADS = 256, WARPS = THREADS / 32;
typedef Row<32, 3> OfSlice;
static_assert(WARPS == OfSlice::CLASSES, "a warp has a class, and a task of each tile");

template <int SLICES> struct Memory {
    Slot<OfSlice::COUNT> slots[SLICES * WARPS];
    uint4 digits[6 * OfSlice::GROUPS + OfSlice::GROUPS / 2];
    float partial[SLICES * TILE * OfSlice::CLASSES];
    float sums[SLICES][TILE]; // of the block's own tile, by slice
    Arrival has_sums;
};

static_assert(sizeof(Memory<2>) == 66448 && sizeof(Memory<4>) == 122896, "as parameters/long.rs says");

template <int SLICES> __device__ __forceinline__ void product(const TokenLong &g) {
    extern __shared__ uint4 memory[];
    Memory<SLICES> &m = *(Memory<SLICES> *)memory;
    constexpr int GROUPS = OfSlice::GROUPS, ALL_GROUPS = SLICES * GROUPS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
    const int slice = blockIdx.x % SLICES, first_tile = blockIdx.x - slice;
    let_next_start();
    if (threadIdx.x == 0) m.has_sums.expect(sizeof(m.sums));
    __syncwarp();
    announce();
#pragma unroll
    for (int tile = 0; tile < SLICES; tile++)
        m.slots[tile * WARPS + warp].template ask<OfSlice::LANES>(
            g.matrix, ALL_GROUPS, (TILE * (first_tile + tile) + r) * ALL_GROUPS + slice * GROUPS + 4 * warp + t);
    end_of_copies();
#pragma unroll
    for (const Span &span : g.ahead) ask_together(span);
    wait_for_announcements();
    wait_for_previous();

    const uint4 *planes = (const uint4 *)g.digits + slice * GROUPS;
#pragma unroll
    for (int i = threadIdx.x; i < 6 * GROUPS; i += THREADS)
        copy<16>(m.digits + i, planes + i / GROUPS * ALL_GROUPS + i % GROUPS, true);
    if (threadIdx.x < GROUPS / 2)
        copy<16>(m.digits + 6 * GROUPS + threadIdx.x,
                 (const uint4 *)g.digits + 6 * ALL_GROUPS + slice * (GROUPS / 2) + threadIdx.x, true);
    end_of_copies();
    wait_for_copies<0>();
    __syncthreads();
    multiply_all<OfSlice, WARPS>(m.slots, SLICES * WARPS, digits_at(m.digits, GROUPS), m.partial);
#pragma unroll
    for (int i = threadIdx.x; i < SLICES * TILE * OfSlice::CLASSES; i += THREADS) {
        const float sum = total<OfSlice>(m.partial, i);
        const int row = i / OfSlice::CLASSES;
        if (i % OfSlice::CLASSES == 0) send(&m.sums[slice][row % TILE], sum, m.has_sums, row / TILE);
    }
    m.has_sums.wait();
    if (threadIdx.x < TILE) {
        float y = 0.f;
#pragma unroll
        for (int s = 0; s < SLICES; s++) y += m.sums[s][threadIdx.x];
        g.out[blockIdx.x * TILE + threadIdx.x] = y;
    }
}
#define TOKEN_LONG(NAME, SLICES)                                                                   \
    extern "C" __global__ void __cluster_dims__(SLICES, 1, 1) __launch_bounds__(THREADS, 2)        \
    NAME(const __grid_constant__ TokenLong g) { product<SLICES>(g); }
#else
#define TOKEN_LONG(NAME, SLICES)                                                                   \
    extern "C" __global__ void NAME(const TokenLong g) {}
#endif
TOKEN_LONG(token_long_two, 2)
TOKEN_LONG(token_long_four, 4)
