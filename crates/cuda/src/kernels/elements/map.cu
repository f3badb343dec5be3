// Elementwise functions: each is made of an expression (`map.rs`), and its text comes before this file.
//
// `function` loads the elements that it needs, computes and returns the number to store. A step of a float type is a `float`, others
// are `i64`; each is rounded or wrapped to its type.
// Launch: elements are shared out in x, so any grid is right, also for a count that grows from step to step. Compiled with the tag OUT, and
// INPUTS, the number of operands.

#include "block.cuh"
#include "map.cuh"

__device__ __forceinline__ void map(const MapArgs &args, const Block &block) {
    const Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    const i64 count = args.out.count(lane);
    OUT::Element *const out = args.out.data<OUT>(lane);
    for (i64 item = (i64)block.x * block.threads + threadIdx.x; item < count; item += (i64)block.across * block.threads) {
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
        out[to] = function(MapPoint{args, lane, from, coordinates});
    }
}
