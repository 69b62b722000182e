// Attention of a prefill chunk on tensor cores, keys and values in f16, sums in f32.
//
// Idea: the query heads that share keys and values are rows of one product, so that a block of 64 rows,
// eight tokens times eight heads in E2B, reads each key and value once for all of them. It goes through
// the positions 64 at a time with an online softmax. Keys come as slices of the head, values as slices
// of the positions, all of the same size, through a ring in shared memory: while one is multiplied the
// next ones are on their way. For the scores a warp takes 32 rows and a share of the keys; for the
// weighted sum the same rows and a share of the head's numbers, 128 of them in registers.
//
// Queries and weights are rounded to f16, whose error is that of the f16 keys and values themselves.
//
// The order in which a query meets keys follows from their positions, in tiles that begin at multiples
// of 64, and no row of a product depends on another, so that nothing depends on how the prompt was cut.
//
// Moves: the visible keys and values once for every ROWS rows, from the second-level cache. Limit: tensor
// cores, 4 * head_dim operations for each (row, visible position), and shared memory, from which a warp
// reads a fragment for every two products.
#include "attend.cuh"
#include "copies.cuh"
#include "tensor.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS;
constexpr int TILE = 64; // positions

// Rows of a block, and bytes of a slice, by what a block may have of shared memory; the host knows
// them as `AttendShape`.
#if __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
constexpr int ROWS = 64, SLICE = 32768;
#else
constexpr int ROWS = 32, SLICE = 16384;
#endif
#if __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
constexpr int MOST_STAGES = 3;
#elif __CUDA_ARCH__ >= 800
constexpr int MOST_STAGES = 2;
#else
constexpr int MOST_STAGES = 1;
#endif

constexpr int ROW_GROUPS = ROWS / 32, SHARES = WARPS / ROW_GROUPS; // of the keys, or of the head

constexpr float LOG2_E = 1.4426950408889634f;
__device__ __forceinline__ float power_of_two(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// Four 8 x 8 tiles of halves, of whose 32 rows each lane gives the address of one; lane (r, t) gets row r,
// columns 2t and 2t+1 of each, or, turned round, column r, rows 2t and 2t+1.
__device__ __forceinline__ void load_tiles(u32 (&to)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((u32)__cvta_generic_to_shared(row)));
}
__device__ __forceinline__ void load_turned_tiles(u32 (&to)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((u32)__cvta_generic_to_shared(row)));
}

// Rows of CHUNKS times eight halves, chunk c of row r in place c ^ (r % 8), so that eight rows of one
// chunk lie in all banks.
template <int CHUNKS> __device__ __forceinline__ uint4 *chunk_of(uint4 *rows, int row, int chunk) {
    return rows + row * CHUNKS + (chunk ^ (row & 7));
}

// COUNT rows of CHUNKS chunks, of positions from `p` on, to shared memory. Mostly they lie `stride` chunks
// apart (`is_straight`); where a ring turns, where staged rows begin, and at the ends, each is looked for.
template <int CHUNKS, int COUNT, class RowOf>
__device__ __forceinline__ void fetch_rows(uint4 *to, int p, u32 stride, bool is_straight, RowOf row_of) {
    constexpr int STEP = THREADS / CHUNKS;
    const int key = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    if (is_straight) {
        const uint4 *first = row_of(p) + key * stride + chunk;
#pragma unroll
        for (int i = 0; i < COUNT / STEP; i++)
            copy<16>(chunk_of<CHUNKS>(to, key + i * STEP, chunk), first + i * STEP * stride, true);
    } else {
#pragma unroll 1
        for (int i = key; i < COUNT; i += STEP)
            copy<16>(chunk_of<CHUNKS>(to, i, chunk), row_of(p + i) + chunk, true);
    }
}

template <int HEAD_DIM> struct Shape {
    static constexpr int KEY_DIMS = HEAD_DIM < SLICE / 2 / TILE ? HEAD_DIM : SLICE / 2 / TILE;
    static constexpr int VALUE_KEYS = TILE < SLICE / 2 / HEAD_DIM ? TILE : SLICE / 2 / HEAD_DIM;
    static constexpr int KEY_SLICES = HEAD_DIM / KEY_DIMS, VALUE_SLICES = TILE / VALUE_KEYS;
    static constexpr int SLICES = KEY_SLICES + VALUE_SLICES; // of a tile
    static constexpr int BYTES = 2 * TILE * KEY_DIMS;        // of a slice
    // Two blocks a multiprocessor where heads are small.
    static constexpr int STAGES = HEAD_DIM > 256 || MOST_STAGES < 2 ? MOST_STAGES : 2;
};

template <int HEAD_DIM> __device__ __forceinline__ void attend(const Attend &a) {
    typedef Shape<HEAD_DIM> S;
    constexpr int HEAD_CHUNKS = HEAD_DIM / 8, KEY_CHUNKS = S::KEY_DIMS / 8;
    constexpr int KEYS = TILE / SHARES;      // of a warp: 16 or 8
    constexpr int DIMS = HEAD_DIM / SHARES;  // of a warp
    constexpr int KEY_TILES = KEYS / 8, DIM_TILES = DIMS / 8;
    extern __shared__ uint4 memory[];
    uint4 *queries = memory;                             // [ROWS][HEAD_CHUNKS]
    uint4 *weights = queries + ROWS * HEAD_CHUNKS;       // [ROWS][TILE / 8]
    uint4 *ring = weights + ROWS * TILE / 8;             // [STAGES][BYTES / 16]
    __shared__ __align__(16) float most_of_share[ROWS][SHARES], total_of_share[ROWS][SHARES];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
    const int row0 = warp / SHARES * 32, share = warp % SHARES;
    const int heads_per_kv = a.heads / a.cache.kv_heads, kv_head = blockIdx.y;
    const int tokens_per_block = ROWS / heads_per_kv;
    // Those that see most come first.
    const int token0 = (gridDim.x - 1 - blockIdx.x) * tokens_per_block;
    let_next_start();
    wait_for_previous();
    const int last_token = min(token0 + tokens_per_block, a.tokens) - 1;
    const int end = a.first + last_token + 1; // positions that the last of them sees
    const int window = a.cache.window;
    const int begin = window ? max(0, a.first + token0 + 1 - window) : 0;
    const int first_tile = begin / TILE, tiles = (end + TILE - 1) / TILE - first_tile;

    // Where a position's row is; of positions outside what is stored some row that is, to be masked.
    const int ring_first = window ? a.staged_first % a.cache.ring : 0;
    const u32 row_chunks = a.cache.kv_heads * HEAD_CHUNKS;
    auto row_of = [&](int p, const void *stored, const void *staged) -> const uint4 * {
        p = max(begin, min(p, end - 1));
        const void *from = stored;
        if (window) {
            const int behind = p - a.staged_first; // the first staged row; of the ring at most a turn
            from = behind < 0 ? stored : staged;
            p = behind < 0 ? ring_first + behind : behind;
            if (p < 0) p += a.cache.ring;
        }
        return (const uint4 *)from + (u32)p * row_chunks + kv_head * HEAD_CHUNKS;
    };
    // Whether the rows of these positions lie side by side: all there are, of the chunk, or between two
    // turns of the ring. (The distance of the first row and the last does not tell: a ring and the staged
    // rows lie somewhere, and may lie just so far apart.)
    auto is_straight = [&](int p, int count) {
        const int last = p + count - 1;
        if (p < begin || last >= end) return false;
        if (!window || p >= a.staged_first) return true;
        const int from = ring_first + p - a.staged_first;
        return last < a.staged_first && (from < 0) == (from + count - 1 < 0);
    };
    auto fetch = [&](uint4 *to, int slice) {
        const int tile = (first_tile + slice / S::SLICES) * TILE, part = slice % S::SLICES;
        if (part < S::KEY_SLICES)
            fetch_rows<KEY_CHUNKS, TILE>(to, tile, row_chunks, is_straight(tile, TILE), [&](int p) {
                return row_of(p, a.cache.stored.keys, a.cache.staged.keys) + part * KEY_CHUNKS;
            });
        else {
            const int first = tile + (part - S::KEY_SLICES) * S::VALUE_KEYS;
            fetch_rows<HEAD_CHUNKS, S::VALUE_KEYS>(
                to, first, row_chunks, is_straight(first, S::VALUE_KEYS),
                [&](int p) { return row_of(p, a.cache.stored.values, a.cache.staged.values); });
        }
    };

    const int slices = tiles * S::SLICES;
#pragma unroll
    for (int slice = 0; slice < S::STAGES - 1; slice++) {
        fetch(ring + slice * S::BYTES / 16, slice);
        end_of_copies();
    }
    // Row i is head i % heads_per_kv of token i / heads_per_kv.
    for (int at = threadIdx.x; at < ROWS * HEAD_CHUNKS; at += THREADS) {
        const int row = at / HEAD_CHUNKS, chunk = at % HEAD_CHUNKS;
        const int token = min(token0 + row / heads_per_kv, last_token);
        const int head = kv_head * heads_per_kv + row % heads_per_kv;
        const float4 *from = (const float4 *)(a.q + token * a.stride + head * HEAD_DIM + 8 * chunk);
        const float4 low = from[0], high = from[1];
        *chunk_of<HEAD_CHUNKS>(queries, row, chunk) =
            make_uint4(half_pair(low.x, low.y), half_pair(low.z, low.w),
                       half_pair(high.x, high.y), half_pair(high.z, high.w));
    }

    // A lane has rows row0 + 16 m + r and 8 further.
    float sums[2][DIM_TILES][4] = {}, scores[2][KEY_TILES][4];
    float largest[2][2], total[2][2] = {};
#pragma unroll
    for (int m = 0; m < 2; m++) largest[m][0] = largest[m][1] = MINUS_INFINITY;
    // The row of a tile of four that this lane gives the address of: A is rows, then columns; of
    // keys the same tiles are columns, then rows.
    const int lane_row = lane % 16, lane_chunk = lane / 16;
    const int key_row = lane % 8 + lane / 16 * 8, key_chunk = lane / 8 % 2;

    // Of scores of the whole tile: weights in f16, and sums brought to the new largest score.
    auto weigh = [&](int tile) {
        const int first = tile * TILE, seen_by_all = a.first + token0;
        const bool is_inside = first + TILE - 1 <= seen_by_all &&
                               (!window || first > a.first + last_token - window);
        if (!is_inside)
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int p = first + share * KEYS + 8 * n + 2 * t + i % 2;
                        const int behind = seen_by_all + (row0 + 16 * m + i / 2 * 8 + r) / heads_per_kv - p;
                        if (behind < 0 || window && behind >= window) scores[m][n][i] = MINUS_INFINITY;
                    }
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float most = MINUS_INFINITY;
#pragma unroll
                for (int n = 0; n < KEY_TILES; n++)
                    most = fmaxf(most, fmaxf(scores[m][n][2 * h], scores[m][n][2 * h + 1]));
                most = fmaxf(most, __shfl_xor_sync(ALL, most, 1));
                most = fmaxf(most, __shfl_xor_sync(ALL, most, 2));
                if (t == 0) most_of_share[row0 + 16 * m + 8 * h + r][share] = most;
            }
        __syncthreads();
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int row = row0 + 16 * m + 8 * h + r;
                float most = largest[m][h];
#pragma unroll
                for (int s = 0; s < SHARES; s++) most = fmaxf(most, most_of_share[row][s]);
                // A row that has seen nothing yet has sums of 0, whatever they are multiplied by. Where the
                // largest stays, the factor is 1 and not a bit changes.
                const float shift = most > MINUS_INFINITY ? most : 0.f;
                const float factor = power_of_two((largest[m][h] - shift) * LOG2_E);
                largest[m][h] = most;
                float sum = 0.f;
#pragma unroll
                for (int n = 0; n < KEY_TILES; n++) {
                    const float w0 = power_of_two(fmaf(scores[m][n][2 * h], LOG2_E, -shift * LOG2_E));
                    const float w1 = power_of_two(fmaf(scores[m][n][2 * h + 1], LOG2_E, -shift * LOG2_E));
                    sum += w0 + w1;
                    u32 *to = (u32 *)chunk_of<TILE / 8>(weights, row, share * KEY_TILES + n);
                    to[t] = half_pair(w0, w1);
                }
                total[m][h] = fmaf(total[m][h], factor, sum);
                if (__any_sync(ALL, factor != 1.f))
#pragma unroll
                    for (int n = 0; n < DIM_TILES; n++) {
                        sums[m][n][2 * h] *= factor;
                        sums[m][n][2 * h + 1] *= factor;
                    }
            }
    };

    int slice = 0, now = 0, then = S::STAGES - 1; // places in the ring
    // The next slice; all but the first STAGES - 1 are asked for here.
    auto next = [&]() -> uint4 * {
        if (S::STAGES == 1) {
            __syncthreads();
            fetch(ring, slice++);
            __syncthreads();
            return ring;
        }
        wait_for_copies<S::STAGES < 2 ? 0 : S::STAGES - 2>();
        __syncthreads();
        if (slice + S::STAGES - 1 < slices) fetch(ring + then * (S::BYTES / 16), slice + S::STAGES - 1);
        end_of_copies();
        uint4 *found = ring + now * (S::BYTES / 16);
        now = now + 1 == S::STAGES ? 0 : now + 1;
        then = then + 1 == S::STAGES ? 0 : then + 1;
        slice++;
        return found;
    };
#pragma unroll 1
    for (int tile = first_tile; tile < first_tile + tiles; tile++) {
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) scores[m][n][i] = 0.f;
#pragma unroll 1
        for (int part = 0; part < S::KEY_SLICES; part++) {
            uint4 *keys = next();
#pragma unroll
            for (int k = 0; k < S::KEY_DIMS / 16; k++) {
                u32 q[2][4], x[4];
#pragma unroll
                for (int m = 0; m < 2; m++)
                    load_tiles(q[m], chunk_of<HEAD_CHUNKS>(queries, row0 + 16 * m + lane_row,
                                                           part * KEY_CHUNKS + 2 * k + lane_chunk));
                if (KEY_TILES == 2) {
                    load_tiles(x, chunk_of<KEY_CHUNKS>(keys, share * KEYS + key_row, 2 * k + key_chunk));
                } else if (k % 2 == 0) { // eight keys: two steps at once
                    load_tiles(x, chunk_of<KEY_CHUNKS>(keys, share * KEYS + lane % 8, 2 * k + lane / 8));
                }
                const int from = KEY_TILES == 2 ? 0 : k % 2 * 2;
#pragma unroll
                for (int m = 0; m < 2; m++)
#pragma unroll
                    for (int n = 0; n < KEY_TILES; n++)
                        mma_halves(scores[m][n], q[m], x[from + 2 * n], x[from + 2 * n + 1]);
            }
        }
        weigh(tile);
#pragma unroll 1
        for (int part = 0; part < S::VALUE_SLICES; part++) {
            uint4 *values = next(); // its barrier is also that of the weights
#pragma unroll
            for (int k = 0; k < S::VALUE_KEYS / 16; k++) {
                u32 w[2][4];
#pragma unroll
                for (int m = 0; m < 2; m++)
                    load_tiles(w[m], chunk_of<TILE / 8>(weights, row0 + 16 * m + lane_row,
                                                        part * S::VALUE_KEYS / 8 + 2 * k + lane_chunk));
#pragma unroll
                for (int n = 0; n < (DIM_TILES + 1) / 2; n++) {
                    u32 x[4];
                    const int chunk = share * DIM_TILES + 2 * n + (DIM_TILES > 1 ? lane_chunk : 0);
                    load_turned_tiles(x, chunk_of<HEAD_CHUNKS>(values, 16 * k + lane_row, chunk));
#pragma unroll
                    for (int m = 0; m < 2; m++)
#pragma unroll
                        for (int i = 0; i < (DIM_TILES > 1 ? 2 : 1); i++)
                            mma_halves(sums[m][2 * n + i], w[m], x[2 * i], x[2 * i + 1]);
                }
            }
        }
    }

    // The shares' totals, from left to right.
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float all = total[m][h];
            all += __shfl_xor_sync(ALL, all, 1);
            all += __shfl_xor_sync(ALL, all, 2);
            if (t == 0) total_of_share[row0 + 16 * m + 8 * h + r][share] = all;
        }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = row0 + 16 * m + 8 * h + r, token = token0 + row / heads_per_kv;
            if (token > last_token) continue;
            float all = 0.f;
#pragma unroll
            for (int s = 0; s < SHARES; s++) all += total_of_share[row][s];
            const float inverse = 1.f / all;
            const int head = kv_head * heads_per_kv + row % heads_per_kv;
            float *out = a.out + ((u64)token * a.heads + head) * HEAD_DIM + share * DIMS + 2 * t;
#pragma unroll
            for (int n = 0; n < DIM_TILES; n++)
                *(float2 *)(out + 8 * n) =
                    make_float2(sums[m][n][2 * h] * inverse, sums[m][n][2 * h + 1] * inverse);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) attend_mma_64(const Attend a) { attend<64>(a); }
extern "C" __global__ void __launch_bounds__(THREADS, 2) attend_mma_256(const Attend a) { attend<256>(a); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) attend_mma_512(const Attend a) { attend<512>(a); }
