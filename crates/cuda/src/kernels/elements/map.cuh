// What elementwise functions get, and what they see of an element.

#pragma once

#include "scalar.cuh"
#include "view.cuh"

#define MOST_INPUTS 18
#define MOST_NUMBERS 64

// A view without its shape, which is that of the result.
struct MapOperand {
    u64 buffer;
    u32 region;
    u32 unused;
    Number offset;
    Number strides[MOST_AXES];

    __device__ __forceinline__ char *start(const Lane &lane) const { return (char *)(region == SHARED_REGION ? buffer : lane.regions[region] + buffer); }
};

struct MapArgs {
    Launch launch;
    View out;
    MapOperand ins[MOST_INPUTS];
    // Integers of the host that the function uses.
    Number numbers[MOST_NUMBERS];
};
static_assert(sizeof(MapArgs) == 2264, "as in map.rs");

// What a function sees of an element.
struct MapPoint {
    const MapArgs &args;
    const Lane &lane;
    // By input, the distance of its element from its first.
    const i64 *from;
    const i64 *coordinates;

    template <typename T> __device__ __forceinline__ typename T::Element element(u32 input) const {
        const MapOperand &operand = args.ins[input];
        return ((const typename T::Element *)operand.start(lane))[operand.offset.of(lane) + from[input]];
    }
    __device__ __forceinline__ i64 number(u32 at) const { return args.numbers[at].of(lane); }
};
