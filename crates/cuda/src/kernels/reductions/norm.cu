// Norms along the last axis, `docs/ARITHMETIC.md`, "Norm":
//   Rms:   spread = sum(x x) / count, center = 0;   Layer: center = sum(x) / count, spread = sum((x - center)^2) / count
//   out = (x - center) * (1 / sqrt(spread + eps)) * weight + bias, sums in 64 strands
//
// Launch, for any views: short rows have a warp each (`WIDE` is 0), long ones a block each, which holds the row in shared
// memory if it fits (`staged`). Rows are shared out in x.
// Compiled with the tags X, WEIGHT, BIAS and OUT, and HAS_WEIGHT and HAS_BIAS.

#include "norm_row.cuh"
#include "view.cuh"

struct NormArgs {
    Launch launch;
    View out, x, weight, bias;
    float eps;
    u32 is_layer;
    u32 staged;
    u32 unused;
};
static_assert(sizeof(NormArgs) == 640, "as in norm.rs");

extern "C" __global__ void normalize(const __grid_constant__ NormArgs args) {
    Lane &owner = lane_of(args.launch);
    if (is_halted(owner)) return;
    const u32 axis = args.x.rank - 1, lane = threadIdx.x % 32;
    const i64 size = args.x.size(owner, axis);
    i64 rows = 1;
    for (u32 outer = 0; outer < axis; ++outer) rows *= args.x.size(owner, outer);
    const i64 x_stride = args.x.stride(owner, axis), out_stride = args.out.stride(owner, axis);
#if HAS_WEIGHT
    const WEIGHT::Element *weight = args.weight.data<WEIGHT>(owner);
    const i64 weight_stride = args.weight.stride(owner, 0);
#endif
#if HAS_BIAS
    const BIAS::Element *bias = args.bias.data<BIAS>(owner);
    const i64 bias_stride = args.bias.stride(owner, 0);
#endif
    const auto finished = [&](float x, float2 row, i64 at) {
        float y = (x - row.x) * row.y;
#if HAS_WEIGHT
        y = y * WEIGHT::to_float(weight[at * weight_stride]);
#endif
#if HAS_BIAS
        y = y + BIAS::to_float(bias[at * bias_stride]);
#endif
        return OUT::from_float(y);
    };
#if WIDE
    extern __shared__ float staged[];
    __shared__ float2 shared;
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const X::Element *x = args.x.data<X>(owner) + args.x.at(owner, row, axis);
        OUT::Element *out = args.out.data<OUT>(owner) + args.out.at(owner, row, axis);
        if (args.staged) {
            for (i64 at = threadIdx.x; at < size; at += blockDim.x) staged[at] = X::to_float(x[at * x_stride]);
        }
        __syncthreads();
        const auto get = [&](i64 at) { return args.staged ? staged[at] : X::to_float(x[at * x_stride]); };
        if (threadIdx.x < 32) {
            // One loop each, so that neither chooses for every element.
            const float2 found = args.staged
                ? center_and_factor(size, lane, args.is_layer, args.eps, [&](i64 at) { return staged[at]; })
                : center_and_factor(size, lane, args.is_layer, args.eps, [&](i64 at) { return X::to_float(x[at * x_stride]); });
            if (lane == 0) shared = found;
        }
        __syncthreads();
        const float2 found = shared;
        for (i64 at = threadIdx.x; at < size; at += blockDim.x) out[at * out_stride] = finished(get(at), found, at);
        __syncthreads();
    }
#else
    const u32 warps = blockDim.x / 32;
    for (i64 row = (i64)blockIdx.x * warps + threadIdx.x / 32; row < rows; row += (i64)gridDim.x * warps) {
        const X::Element *x = args.x.data<X>(owner) + args.x.at(owner, row, axis);
        OUT::Element *out = args.out.data<OUT>(owner) + args.out.at(owner, row, axis);
        const auto get = [&](i64 at) { return X::to_float(x[at * x_stride]); };
        const float2 found = center_and_factor(size, lane, args.is_layer, args.eps, get);
        for (i64 at = lane; at < size; at += 32) out[at * out_stride] = finished(get(at), found, at);
    }
#endif
}
