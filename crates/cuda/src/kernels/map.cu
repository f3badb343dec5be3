// Elementwise functions: `generated.cuh` holds one, made of an expression (`map.rs`).
//
// `function` loads the elements that it needs, computes and returns the number to store. A step of a float type is a `float`, others
// are `i64`; each is rounded or wrapped to its type.

#include "view.cuh"
#include "scalar.cuh"

#define MOST_INPUTS 18
#define MOST_NUMBERS 64

// A view without its shape, which is that of the result.
struct Operand {
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
    Operand ins[MOST_INPUTS];
    // Integers of the host that the function uses.
    Number numbers[MOST_NUMBERS];
};
static_assert(sizeof(MapArgs) == 2264, "as in map.rs");

// What a function sees of an element.
struct Point {
    const MapArgs &args;
    const Lane &lane;
    // By input, the distance of its element from its first.
    const i64 *from;
    const i64 *coordinates;

    template <typename T> __device__ __forceinline__ typename T::Element element(u32 input) const {
        const Operand &operand = args.ins[input];
        return ((const typename T::Element *)operand.start(lane))[operand.offset.of(lane) + from[input]];
    }
    __device__ __forceinline__ i64 number(u32 at) const { return args.numbers[at].of(lane); }
};

#include "generated.cuh"

extern "C" __global__ void map(const __grid_constant__ MapArgs args) {
    const Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    const i64 count = args.out.count(lane);
    OUT::Element *const out = args.out.data<OUT>(lane);
    for (i64 item = first_item(); item < count; item += item_step()) {
        i64 rest = item, to = 0, from[INPUTS + 1] = {}, coordinates[MOST_AXES];
#pragma unroll 1
        for (u32 axis = args.out.rank; axis-- > 0;) {
            // What is left is the coordinate of the outermost axis.
            i64 coordinate = rest;
            if (axis) {
                const i64 size = args.out.size(lane, axis), quotient = View::divided(rest, size);
                coordinate = rest - quotient * size;
                rest = quotient;
            }
            coordinates[axis] = coordinate;
            to += coordinate * args.out.stride(lane, axis);
#pragma unroll
            for (u32 input = 0; input < INPUTS; ++input) from[input] += coordinate * args.ins[input].strides[axis].of(lane);
        }
        out[to] = function(Point{args, lane, from, coordinates});
    }
}
