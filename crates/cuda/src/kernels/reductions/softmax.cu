// Softmax along an axis, `docs/ARITHMETIC.md`, "Softmax": p = exp(x - largest), out = p * (1 / sum of p), in 64 strands.
//
// Launch: a warp for each line; lines are shared out in x. Compiled with the tags X and OUT.

#include "strands.cuh"
#include "view.cuh"

struct SoftmaxArgs {
    Launch launch;
    // The axis is the last one of both (`softmax.rs` moves it there).
    View out, x;
};
static_assert(sizeof(SoftmaxArgs) == 320, "as in softmax.rs");

extern "C" __global__ void softmax(const __grid_constant__ SoftmaxArgs args) {
    Lane &owner = lane_of(args.launch);
    if (is_halted(owner)) return;
    const u32 axis = args.x.rank - 1, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const i64 size = args.x.size(owner, axis);
    i64 lines = 1;
    for (u32 outer = 0; outer < axis; ++outer) lines *= args.x.size(owner, outer);
    const i64 x_stride = args.x.stride(owner, axis), out_stride = args.out.stride(owner, axis);
    for (i64 line = (i64)blockIdx.x * warps + threadIdx.x / 32; line < lines; line += (i64)gridDim.x * warps) {
        const X::Element *x = args.x.data<X>(owner) + args.x.at(owner, line, axis);
        OUT::Element *out = args.out.data<OUT>(owner) + args.out.at(owner, line, axis);
        const auto get = [&](i64 at) { return X::to_float(x[at * x_stride]); };
        const float largest = strand_max(size, lane, get);
        const float sum = strand_sum(size, lane, [&](i64 at) { return arithmetic::exp(get(at) - largest); });
        const float factor = 1.0f / sum;
        for (i64 at = lane; at < size; at += 32) {
            out[at * out_stride] = OUT::from_float(arithmetic::exp(get(at) - largest) * factor);
        }
    }
}
