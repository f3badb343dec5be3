// Random bits in MLX's layout.

#include "view.cuh"
#include "threefry.cuh"

struct RandomArgs {
    Launch launch;
    View out;
    Number seed;
    // The seed is the key; else the next one of the lane's own sequence is.
    u32 is_seeded;
    u32 unused;
};
static_assert(sizeof(RandomArgs) == 184, "as in random.rs");

extern "C" __global__ void random_bits(const __grid_constant__ RandomArgs args) {
    const Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    const u64 seed = (u64)args.seed.of(lane);
    u32 k0 = (u32)(seed >> 32), k1 = (u32)seed;
    if (!args.is_seeded) k0 = threefry(lane.key[0], lane.key[1], 0, 2).high, k1 = threefry(lane.key[0], lane.key[1], 1, 3).high;
    const i64 count = args.out.count(lane);
    const u32 size = size_of(args.out.dtype);
    const u64 words = ((u64)count * size + 3) / 4;
    for (i64 i = first_item(); i < count; i += item_step()) {
        const u64 byte = (u64)i * size;
        const u32 word = random_word(k0, k1, words, byte / 4) >> byte % 4 * 8;
        args.out.set_int(lane, args.out.at(lane, i), (i64)word);
    }
}

struct AdvanceArgs {
    Launch launch;
};
static_assert(sizeof(AdvanceArgs) == 16, "as in random.rs");

// Moves the lane's sequence of keys on, after a launch that has used its next one.
extern "C" __global__ void advance_key(const __grid_constant__ AdvanceArgs args) {
    Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    const u32 k0 = lane.key[0], k1 = lane.key[1];
    lane.key[0] = threefry(k0, k1, 0, 2).low;
    lane.key[1] = threefry(k0, k1, 1, 3).low;
}
