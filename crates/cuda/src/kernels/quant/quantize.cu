// Rows of activations as whole numbers, `docs/ARITHMETIC.md`, "QuantMatMul": 16 bits as two planes of bytes, a step for each group of
// STEP columns; of single precision (SINGLE) a row and its rounding error.
//
// Leaves for each row and cell of 64 columns 128 bytes, the high plane and then the low one, and for each group its step and the step
// times the sum of the group. INTERLEAVED as in `quant.cuh`.
// Launch: a warp for each cell, shared out in x. Compiled with the tag X, and SINGLE, STEP and INTERLEAVED.

#include "view.cuh"
#include "whole_numbers.cuh"

#define GROUPS (64 / STEP)

struct QuantizeArgs {
    Launch launch;
    View x;
    char *planes;
    float2 *steps;
};
static_assert(sizeof(QuantizeArgs) == 184, "as in quantize.rs");

extern "C" __global__ void quantize(const __grid_constant__ QuantizeArgs args) {
    Lane &owner = lane_of(args.launch);
    if (is_halted(owner)) return;
    const u32 axis = args.x.rank - 1, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const i64 length = args.x.size(owner, axis), stride = args.x.stride(owner, axis);
    i64 rows = 1;
    for (u32 outer = 0; outer < axis; ++outer) rows *= args.x.size(owner, outer);
    const i64 cells = (length + 63) / 64, groups = length / STEP;
    const X::Element *data = args.x.data<X>(owner);
    for (i64 item = (i64)blockIdx.x * warps + threadIdx.x / 32; item < rows * cells; item += (i64)gridDim.x * warps) {
        const i64 row = View::divided(item, cells), cell = item - row * cells, column = cell * 64 + 2 * lane;
        const bool exists = column < length;
        const X::Element *from = data + args.x.at(owner, row, axis) + column * stride;
        float x[2] = {0.0f, 0.0f};
        if (exists) x[0] = X::to_float(from[0]), x[1] = X::to_float(from[stride]);
        const WholePair whole(x);
        const i64 to = SINGLE ? 2 * row : row;
        whole.store((u8 *)args.planes + (to * cells + cell) * 128, args.steps + to * groups + cell * GROUPS, lane, exists);
#if SINGLE
        const float rest[2] = {__fmaf_rn(-whole.step, (float)whole.q[0], x[0]), __fmaf_rn(-whole.step, (float)whole.q[1], x[1])};
        const WholePair error(rest);
        error.store((u8 *)args.planes + ((to + 1) * cells + cell) * 128, args.steps + (to + 1) * groups + cell * GROUPS, lane, exists);
#endif
    }
}
