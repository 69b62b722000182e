// Sixteen rows times the digits of one token on tensor cores: what the kernels of a token's products share.
//
// A lane holds a whole group (16 bytes of words, as they lie) of two rows; the four lanes of a row hold
// four neighbouring groups. To keep the groups apart, each has columns of its own: column 2t takes
// digit 0 of group t and column 2t+1 its digit 1, with zeros where the depth belongs to another group; a
// second product takes digit 2. So every lane finds the three sums of the groups that it loaded, the
// integers that `gemv.cu` finds, with a quarter of its instructions.
#pragma once
#include "digits.cuh"
#include "tensor.cuh"

constexpr int TILE = 16; // rows of a tensor-core product

// `low` are the digits 0 or 1 of the lane's column and `high` digit 2, for the words 0 and 1 of the
// group and for 2 and 3; zeros where the columns are another group's.
__device__ __forceinline__ void multiply(const uint4 (&words)[2], const u16 (&steps)[2],
                                         const uint4 (&low)[2], const uint4 (&high)[2],
                                         const Ends &ends, float (&sum)[2]) {
    int d01[4] = {ends.offset, 0, ends.offset, 0}, d2[4] = {};
    const u32 *w0 = (const u32 *)&words[0], *w1 = (const u32 *)&words[1];
    const u32 *b01 = (const u32 *)low, *b2 = (const u32 *)high;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const u32 nibbles = 0x0f0f0f0fu;
        const u32 a[4] = {w0[k] & nibbles, w1[k] & nibbles, w0[k] >> 4 & nibbles, w1[k] >> 4 & nibbles};
        mma_bytes(d01, a, b01[2 * k], b01[2 * k + 1]);
        mma_bytes(d2, a, b2[2 * k], b2[2 * k + 1]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int total = d01[2 * h] + (d01[2 * h + 1] << 8) + (d2[2 * h] << 16);
        sum[h] = fmaf((float)total, from_f16(steps[h]) * ends.scale, sum[h]);
    }
}

// The digits of a lane's groups as columns: of `count` groups from `first` on, `lanes` apart. Only the lanes whose
// column is of the group that they load have any.
//
// In registers, because a warp multiplies many rows by the same groups: read again for each tile, they are
// most of what goes through shared memory, and that is what a product waits for.
template <int COUNT> struct Operand {
    uint4 low[COUNT][2], high[COUNT][2];
    Ends ends[COUNT];

    __device__ __forceinline__ void load(const Digits &x, int groups, int first, int lanes, int count = COUNT) {
        const int lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
        const bool is_low = r / 2 == t, is_high = is_low && r % 2 == 0;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int at = first + i * lanes;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                low[i][half] = high[i][half] = make_uint4(0, 0, 0, 0);
                if (is_low && i < count) low[i][half] = x.planes[(r % 2 * 2 + half) * groups + at];
                if (is_high && i < count) high[i][half] = x.planes[(4 + half) * groups + at];
            }
            if (i < count) ends[i] = x.ends[at];
        }
    }
};
