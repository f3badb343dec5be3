// Rows of activations as whole numbers, `docs/ARITHMETIC.md`, "QuantMatMul": 16 bits as two planes of bytes, a step for each group of
// STEP columns; of single precision (SINGLE) a row and its rounding error.
//
// Leaves for each row and cell of 64 columns 128 bytes, the high plane and then the low one, and for each group its step and the step
// times the sum of the group. INTERLEAVED as in `quant.cuh`.
// Launch: a warp for each cell, shared out in x. Compiled with the tag X, and SINGLE, STEP and INTERLEAVED.

#include "strands.cuh"
#include "view.cuh"

#define GROUPS (64 / STEP)

struct QuantizeArgs {
    Launch launch;
    View x;
    char *planes;
    float2 *steps;
};
static_assert(sizeof(QuantizeArgs) == 184, "as in quantize.rs");

// The largest magnitude of an activation as a whole number: 127 · 257, so that it is two signed bytes.
#define LARGEST 32639.0f
// 2^-96: groups of activations that are all smaller are zeros.
#define SMALLEST 1.2621774e-29f

// Two neighbouring columns of a group: their whole numbers.
struct WholePair {
    int q[2];
    float step;

    // A group is STEP / 2 threads.
    __device__ __forceinline__ WholePair(const float (&x)[2]) {
        float largest = arithmetic::max(arithmetic::max(0.0f, fabsf(x[0])), fabsf(x[1]));
#pragma unroll
        for (u32 width = STEP / 4; width > 0; width /= 2) {
            largest = arithmetic::max(largest, __shfl_xor_sync(WHOLE_WARP, largest, width));
        }
        const bool is_finite = arithmetic::is_finite(largest), is_zero = !is_finite || largest < SMALLEST;
        step = is_zero ? (is_finite ? 0.0f : PTERO_NAN) : largest * (1.0f / LARGEST);
        const float inverse = LARGEST / largest;
        q[0] = is_zero ? 0 : (int)rintf(x[0] * inverse);
        q[1] = is_zero ? 0 : (int)rintf(x[1] * inverse);
    }

    // Stores both planes, and by one thread of the group its step.
    __device__ __forceinline__ void store(u8 *planes, float2 *steps, u32 lane, bool exists) const {
        int sum = q[0] + q[1];
#pragma unroll
        for (u32 width = STEP / 4; width > 0; width /= 2) sum += __shfl_xor_sync(WHOLE_WARP, sum, width);
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const u32 column = 2 * lane + i;
            const u32 at = INTERLEAVED ? column / 8 * 8 + column % 2 * 4 + column % 8 / 2 : column;
            planes[at] = (u8)((q[i] + 128) >> 8);
            planes[64 + at] = (u8)q[i];
        }
        if (exists && lane % (STEP / 2) == 0) steps[lane / (STEP / 2)] = make_float2(step, step * (float)sum);
    }
};

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
