// The per-layer block of one token, its gate and its projection, in one cluster of sixteen blocks.
//
// Idea: 0.4 MB of weights in two dependent steps, each of which as a kernel of its own would cost more to start
// and to end than to do. A block has sixteen rows of the gate and 96 of the projection, asked for before
// the wait, and sends what its gate gives to all others (cluster.cuh); each makes the digits of all 256.
//
// Made for rows of 1,536 and a per-layer width of 256. Order of sums: that of token_product.cu, so that both give
// the same bits.
//
// Moves: 0.44 MB. Limit: latency: a trip to the second-level cache and one way from block to block.
#include "cluster.cuh"
#include "token_rows.cuh"

struct TokenBlock {
    Input input;            // with a delta, without a norm
    Matrix gate;            // [256, 1536]
    Matrix projection;      // [1536, 256]
    const float *gate_with; // [256]
    float *out;             // [1536]
};

#if __CUDA_ARCH__ == 900
constexpr int CLUSTER = 16, THREADS = 256, WARPS = THREADS / 32;
constexpr int HIDDEN = 1536, WIDTH = 256;
constexpr int GATE_ROWS = WIDTH / CLUSTER, ROWS = HIDDEN / CLUSTER; // of a block
typedef Row<16, 3> OfHidden;
typedef Row<8, 1> OfWidth;
constexpr int GATE_TASKS = OfHidden::CLASSES, TASKS = ROWS / TILE * OfWidth::CLASSES;
static_assert(GATE_ROWS == TILE, "a block has one tile of the gate");

struct Memory {
    Slot<OfHidden::COUNT> gate[GATE_TASKS];
    Slot<OfWidth::COUNT> projection[TASKS];
    uint4 hidden_digits[digit_bytes(HIDDEN) / 16], width_digits[digit_bytes(WIDTH) / 16];
    float4 gated[WIDTH / 4];
    float4 staged[GATE_ROWS / 4];
    float partial[ROWS * OfWidth::CLASSES];
    float scratch[2 * WARPS];
    Arrival has_gated;
};
static_assert(sizeof(Memory) == 35408, "as parameters/block.rs says");

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 2)
token_block(const __grid_constant__ TokenBlock g) {
    extern __shared__ uint4 memory[];
    Memory &m = *(Memory *)memory;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
    const int rank = blockIdx.x;
    let_next_start();
    if (threadIdx.x == 0) m.has_gated.expect(sizeof(m.gated));
    __syncwarp();
    announce();
    for (int task = warp; task < GATE_TASKS; task += WARPS)
        m.gate[task].ask<OfHidden::LANES>(g.gate, OfHidden::GROUPS,
                                          (rank * GATE_ROWS + r) * OfHidden::GROUPS + 4 * task + t);
    end_of_copies();
    for (int task = warp; task < TASKS; task += WARPS) {
        const int row = rank * ROWS + task / OfWidth::CLASSES * TILE + r;
        m.projection[task].ask<OfWidth::LANES>(g.projection, OfWidth::GROUPS,
                                               row * OfWidth::GROUPS + 4 * (task % OfWidth::CLASSES) + t);
    }
    end_of_copies();
    Norms norms;
    norms.load(g.input, HIDDEN);
    wait_for_announcements();
    wait_for_previous();

    float gate_with = 0.f;
    if (threadIdx.x < GATE_ROWS * OfHidden::CLASSES)
        gate_with = __ldcg(g.gate_with + rank * GATE_ROWS + threadIdx.x / OfHidden::CLASSES);
    const Digits hidden = digits_at(m.hidden_digits, HIDDEN / GROUP);
    stage<THREADS, false>(g.input, HIDDEN, hidden, m.scratch, rank == 0, &norms);
    wait_for_copies<1>();
    multiply_all<OfHidden, WARPS>(m.gate, GATE_TASKS, hidden, m.partial);
    if (threadIdx.x < GATE_ROWS * OfHidden::CLASSES) {
        const float y = 0.f + total<OfHidden>(m.partial, threadIdx.x);
        const int row = threadIdx.x / OfHidden::CLASSES;
        if (threadIdx.x % OfHidden::CLASSES == 0) ((float *)m.staged)[row] = gelu(y) * gate_with;
        __syncwarp();
        // Two warps with eight numbers each: two times sixteen bytes to sixteen blocks.
        const int four = 2 * warp + lane % 2;
        send(&m.gated[rank * (GATE_ROWS / 4) + four], m.staged[four], m.has_gated, lane / 2);
    }
    m.has_gated.wait();
    const Digits width = digits_at(m.width_digits, WIDTH / GROUP);
    if (warp == 0) {
        __align__(16) float numbers[8];
        *(float4 *)numbers = m.gated[2 * lane];
        *(float4 *)(numbers + 4) = m.gated[2 * lane + 1];
        write_digits(width, WIDTH / GROUP, lane, true, numbers);
    }
    __syncthreads();
    wait_for_copies<0>();
    multiply_all<OfWidth, WARPS>(m.projection, TASKS, width, m.partial);
    if (threadIdx.x < ROWS * OfWidth::CLASSES) {
        const float y = 0.f + total<OfWidth>(m.partial, threadIdx.x);
        if (threadIdx.x % OfWidth::CLASSES == 0) g.out[rank * ROWS + threadIdx.x / OfWidth::CLASSES] = y;
    }
}
#else
extern "C" __global__ void token_block(const TokenBlock) {}
#endif
