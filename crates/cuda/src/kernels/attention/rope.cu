// Rotary embeddings, `docs/ARITHMETIC.md`, "Rope", of `x [B, …, T, D]`: a pair (a, b) of the first `dims` elements of a row becomes
// (a cos - b sin, a sin + b cos) of its angle; the other elements are copied.
//
// Launch of `rope`, for any views: a thread for each pair of a row, and for each element that is copied; shared out in x. For one token,
// `rope_angles` leaves the sines and cosines of its position, once for all layers, for `rope_row.cu`.
// Compiled with the tags X, OUT, POSITION (of integers; HOST_POSITION is 1 if there is no such tensor) and PERIODS (USES_PERIODS).

#include "arithmetic.cuh"
#include "view.cuh"

struct RopeArgs {
    Launch launch;
    View out, x, position, periods;
    Number host_position;
    i64 dims;
    float scale;
    float base;
    u32 interleaved;
    u32 unused;
};
static_assert(sizeof(RopeArgs) == 656, "as in rope.rs");

extern "C" __global__ void rope(const __grid_constant__ RopeArgs args) {
    Lane &owner = lane_of(args.launch);
    if (is_halted(owner)) return;
    const u32 axis = args.x.rank - 1;
    const i64 width = args.x.size(owner, axis), half = args.dims / 2, items = half + (width - 2 * half);
    const i64 tokens = axis > 0 ? args.x.size(owner, axis - 1) : 1;
    i64 rows = 1;
    for (u32 outer = 0; outer < axis; ++outer) rows *= args.x.size(owner, outer);
    const i64 rows_per_batch = axis > 1 && rows > 0 ? rows / args.x.size(owner, 0) : 1;
    const i64 x_stride = args.x.stride(owner, axis), out_stride = args.out.stride(owner, axis);
    const X::Element *data = args.x.data<X>(owner);
    OUT::Element *results = args.out.data<OUT>(owner);
    for (i64 item = first_item(); item < rows * items; item += item_step()) {
        const i64 row = View::divided(item, items), pair = item - row * items;
        const X::Element *x = data + args.x.at(owner, row, axis);
        OUT::Element *out = results + args.out.at(owner, row, axis);
        if (pair >= half) {
            const i64 at = pair + half;
            out[at * out_stride] = OUT::from_float(X::to_float(x[at * x_stride]));
            continue;
        }
#if HOST_POSITION
        const i64 start = args.host_position.of(owner);
#else
        const i64 starts = args.position.count(owner), batch = starts == 1 || axis < 2 ? 0 : View::divided(row, rows_per_batch);
        const i64 start = POSITION::to_int(args.position.data<POSITION>(owner)[args.position.at(owner, batch)]);
#endif
        const i64 token = row - View::divided(row, tokens) * tokens;
        const float position = (float)(i64)((u64)start + (u64)token) * args.scale;
#if USES_PERIODS
        const float period = PERIODS::to_float(args.periods.data<PERIODS>(owner)[pair * args.periods.stride(owner, 0)]);
        const float angle = position / period;
#else
        const float angle = position * arithmetic::power(args.base, -2.0f * (float)pair / (float)args.dims);
#endif
        float sine, cosine;
        arithmetic::sin_cos(angle, sine, cosine);
        const i64 first = args.interleaved ? 2 * pair : pair, second = args.interleaved ? 2 * pair + 1 : pair + half;
        const float a = X::to_float(x[first * x_stride]), b = X::to_float(x[second * x_stride]);
        out[first * out_stride] = OUT::from_float(a * cosine - b * sine);
        out[second * out_stride] = OUT::from_float(a * sine + b * cosine);
    }
}

struct RopeAnglesArgs {
    Launch launch;
    // By pair: sine and cosine.
    float2 *angles;
    const PERIODS::Element *periods;
    Number position;
    u32 dims;
    float scale;
    float base;
    u32 unused;
};
static_assert(sizeof(RopeAnglesArgs) == 56, "as in rope.rs");

extern "C" __global__ void rope_angles(const __grid_constant__ RopeAnglesArgs args) {
    Lane &owner = lane_of(args.launch);
    if (is_halted(owner)) return;
    const u32 pair = blockIdx.x * blockDim.x + threadIdx.x;
    if (pair >= args.dims / 2) return;
    const float position = (float)args.position.of(owner) * args.scale;
#if USES_PERIODS
    const float angle = position / PERIODS::to_float(args.periods[pair]);
#else
    const float angle = position * arithmetic::power(args.base, -2.0f * (float)pair / (float)args.dims);
#endif
    float2 found;
    arithmetic::sin_cos(angle, found.x, found.y);
    args.angles[pair] = found;
}
