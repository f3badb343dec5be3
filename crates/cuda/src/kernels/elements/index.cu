// Scatter: elements at indices; and checks of indices.

#include "index.cuh"

// Latches a fault if an index is out of range. Goes before a launch that changes what a failed step must not change.
extern "C" __global__ void check_indices(const __grid_constant__ IndexArgs args) {
    Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    const i64 count = args.other.count(lane);
    i64 coordinates[MOST_AXES];
    for (i64 i = first_item(); i < count; i += item_step()) {
        decompose(args.other, lane, i, ALL_AXES, coordinates);
        indexed_at(args, lane, coordinates);
    }
}

// indexed[…] = other[p], or += it. A thread takes all elements that may fall on one, in row-major order.
extern "C" __global__ void scatter(const __grid_constant__ IndexArgs args) {
    Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    i64 items = 1, turns = 1;
    for (u32 axis = 0; axis < args.other.rank; ++axis) (args.apart >> axis & 1 ? items : turns) *= args.other.size(lane, axis);
    i64 coordinates[MOST_AXES];
    for (i64 item = first_item(); item < items; item += item_step()) {
        decompose(args.other, lane, item, args.apart, coordinates);
        for (i64 turn = 0; turn < turns; ++turn) {
            decompose(args.other, lane, turn, ~args.apart, coordinates);
            const i64 target = indexed_at(args, lane, coordinates), source = distance_of(args.other, lane, coordinates);
            if (target == OUTSIDE) continue;
            if (is_float(args.other.dtype)) {
                const float update = args.other.get_float(lane, source);
                args.indexed.set_float(lane, target, args.adds ? args.indexed.get_float(lane, target) + update : update);
            } else {
                const u64 update = (u64)args.other.get_int(lane, source);
                args.indexed.set_int(lane, target, (i64)(args.adds ? (u64)args.indexed.get_int(lane, target) + update : update));
            }
        }
    }
}

struct CheckArgs {
    Launch launch;
    View index;
    i64 size;
};
static_assert(sizeof(CheckArgs) == 176, "as in index.rs");

// Latches a fault if an element is not an index below `size`; negative ones are not.
extern "C" __global__ void check_choices(const __grid_constant__ CheckArgs args) {
    Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    const i64 count = args.index.count(lane);
    for (i64 i = first_item(); i < count; i += item_step()) {
        const i64 index = args.index.get_int(lane, args.index.at(lane, i));
        if (index < 0 || index >= args.size) fail(lane, args.launch, INDEX_OUTSIDE, index, args.size);
    }
}
