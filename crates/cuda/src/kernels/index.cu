// Gather and scatter: elements at indices.

#include "view.cuh"

// How an axis of the indexed tensor is indexed: by the sum of an index and a coordinate of the other tensor.
struct Axis {
    // Of the shape of the other tensor.
    View index;
    u32 has_index;
    // An axis of the other tensor; at least `MOST_AXES` if there is none.
    u32 coordinate;
};
static_assert(sizeof(Axis) == 160, "as in index.rs");

struct IndexArgs {
    Launch launch;
    // What is read (gather) or changed (scatter) at indices, and the tensor whose elements have those.
    View indexed, other;
    Axis axes[MOST_AXES];
    u32 adds;
    // Axes of `other` that choose elements which no other element along them falls on (`index.rs`): a bit for each.
    u32 apart;
};
static_assert(sizeof(IndexArgs) == 1608, "as in index.rs");

#define OUTSIDE ((i64)0x8000000000000000ull)

// The distance that an element of `other` has in `indexed`, given by its coordinates; `OUTSIDE` if an index is out of range, which is
// latched.
__device__ __forceinline__ i64 indexed_at(const IndexArgs &args, Lane &lane, const i64 *coordinates) {
    i64 distance = 0;
    for (u32 axis = 0; axis < args.indexed.rank; ++axis) {
        const Axis &rule = args.axes[axis];
        i64 index = 0;
        if (rule.has_index) {
            i64 from = 0;
            for (u32 other = 0; other < args.other.rank; ++other) from += coordinates[other] * rule.index.stride(lane, other);
            index = rule.index.get_int(lane, from);
        }
        const i64 size = args.indexed.size(lane, axis), coordinate = rule.coordinate < MOST_AXES ? coordinates[rule.coordinate] : 0;
        const i64 start = index < 0 ? index + size : index;
        // Sizes are far below 2^62, so that nothing wraps where the index is in range.
        if (start < 0 || start >= size || coordinate >= size - start) {
            fail(lane, args.launch, INDEX_OUTSIDE, index + coordinate, size);
            return OUTSIDE;
        }
        distance += (start + coordinate) * args.indexed.stride(lane, axis);
    }
    return distance;
}

// The coordinates of an element of a view, by its number in row-major order of the axes in `which`; others stay.
__device__ __forceinline__ void decompose(const View &view, const Lane &lane, i64 number, u32 which, i64 *coordinates) {
    for (u32 axis = view.rank; axis-- > 0;) {
        if (!(which >> axis & 1)) continue;
        const i64 size = view.size(lane, axis), quotient = View::divided(number, size);
        coordinates[axis] = number - quotient * size;
        number = quotient;
    }
}

__device__ __forceinline__ i64 distance_of(const View &view, const Lane &lane, const i64 *coordinates) {
    i64 distance = 0;
    for (u32 axis = 0; axis < view.rank; ++axis) distance += coordinates[axis] * view.stride(lane, axis);
    return distance;
}

#define ALL_AXES 0xffffffffu

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

// other[p] = indexed[…]; elements of one type.
extern "C" __global__ void gather(const __grid_constant__ IndexArgs args) {
    Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    const i64 count = args.other.count(lane);
    const u32 size = size_of(args.other.dtype);
    const char *from = args.indexed.start(lane) + args.indexed.offset.of(lane) * size;
    char *to = args.other.start(lane) + args.other.offset.of(lane) * size;
    i64 coordinates[MOST_AXES];
    for (i64 i = first_item(); i < count; i += item_step()) {
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
