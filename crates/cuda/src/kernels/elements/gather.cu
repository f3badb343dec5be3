// Gather: elements at indices.
//
// Launch: a thread for each element, shared out in x.

#include "block.cuh"
#include "index.cuh"

// other[p] = indexed[…]; elements of one type.
__device__ __forceinline__ void gather(const IndexArgs &args, const Block &block) {
    Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    const i64 count = args.other.count(lane);
    const u32 size = size_of(args.other.dtype);
    const char *from = args.indexed.start(lane) + args.indexed.offset.of(lane) * size;
    char *to = args.other.start(lane) + args.other.offset.of(lane) * size;
    i64 coordinates[MOST_AXES];
    for (i64 i = (i64)block.x * block.threads + threadIdx.x; i < count; i += (i64)block.across * block.threads) {
        decompose(args.other, lane, i, ALL_AXES, coordinates);
        const i64 source = indexed_at(args, lane, coordinates), target = distance_of(args.other, lane, coordinates);
        if (source == OUTSIDE) continue;
        switch (size) {
        case 1: ((u8 *)to)[target] = ((const u8 *)from)[source]; break;
        case 2: ((u16 *)to)[target] = ((const u16 *)from)[source]; break;
        case 4: ((u32 *)to)[target] = ((const u32 *)from)[source]; break;
        default: ((u64 *)to)[target] = ((const u64 *)from)[source]; break;
        }
    }
}
