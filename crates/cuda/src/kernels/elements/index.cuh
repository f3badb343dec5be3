// Elements at indices.

#pragma once

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
