// Plain read bandwidth: the yardstick every speed is set against.
//
// Moves: `count` * 16 bytes, read once. Limit: the card's memory; `count` should be well beyond its
// second-level cache.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(512)
read_all(const uint4 *from, u64 count, u32 *out) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u32 mixed = 0;
    for (; i + 3 * stride < count; i += 4 * stride) {
        const uint4 a = load_weights(from + i), b = load_weights(from + i + stride);
        const uint4 c = load_weights(from + i + 2 * stride), d = load_weights(from + i + 3 * stride);
        mixed ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w;
        mixed ^= c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    for (; i < count; i += stride) {
        const uint4 a = load_weights(from + i);
        mixed ^= a.x ^ a.y ^ a.z ^ a.w;
    }
    if (mixed == 0x12345678u) *out = mixed; // so that the loads stay
}

// Random words that no compression of memory helps.
extern "C" __global__ void fill_random(u32 *to, u64 count, u32 seed) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (u64)gridDim.x * blockDim.x) {
        u32 h = (u32)i * 2654435761u + seed;
        h = (h ^ h >> 15) * 2246822519u;
        h = (h ^ h >> 13) * 3266489917u;
        to[i] = h ^ h >> 16;
    }
}
