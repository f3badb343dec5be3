// Convolutions over any number of spatial axes, `docs/ARITHMETIC.md`, "Conv": an element is the product, in 16 strands, of a patch and a
// filter as rows: the positions of the filter in order, and for each the channels of its group. Positions outside hold +0.
//
// `x [N, spatial…, C]`, `w [O, spatial…, C / groups]`, `out [N, spatial…, O]`.
// Launch: `conv_short` has a thread for each element, for rows of up to 16; `conv` 16 threads, one for each strand. `conv_line` is for
// filters of one channel each along one axis, with a thread for each element. Elements are shared out in x. Compiled with the tags X, W and
// OUT, and TAPS, the length of such a filter. With HAS_EPILOGUE, results go through the function in `generated.cuh` before they are stored.

#include "fused.cuh"
#include "strands.cuh"
#include "view.cuh"

struct ConvArgs {
    Launch launch;
    View out, x, w;
    i64 stride[MOST_AXES], padding[MOST_AXES], dilation[MOST_AXES];
    i64 filters_per_group;
    u32 transposed;
    u32 unused;
};
static_assert(sizeof(ConvArgs) == 680, "as in conv.rs");

// The element of the output that is computed, and what it reads.
struct Place {
    const ConvArgs &args;
    const Lane &lane;
    u32 spatial;
    i64 channels, length;
    i64 at[MOST_AXES];
    const X::Element *x;
    const W::Element *w;

    __device__ __forceinline__ Place(const ConvArgs &args, const Lane &lane) : args(args), lane(lane) {
        spatial = args.x.rank - 2;
        channels = args.w.size(lane, spatial + 1);
        length = channels;
        for (u32 axis = 0; axis < spatial; ++axis) length *= args.w.size(lane, axis + 1);
    }

    __device__ __forceinline__ void go_to(i64 index) {
        const i64 filters = args.out.size(lane, spatial + 1), row = View::divided(index, filters), filter = index - row * filters;
        i64 rest = row;
        for (u32 axis = spatial; axis-- > 0;) {
            const i64 size = args.out.size(lane, axis + 1), quotient = View::divided(rest, size);
            at[axis] = rest - quotient * size;
            rest = quotient;
        }
        const i64 first_channel = View::divided(filter, args.filters_per_group) * channels;
        x = args.x.data<X>(lane) + rest * args.x.stride(lane, 0) + first_channel * args.x.stride(lane, spatial + 1);
        w = args.w.data<W>(lane) + filter * args.w.stride(lane, 0);
    }

    // Adds product `i` of patch and filter to a strand.
    __device__ __forceinline__ float add(float strand, i64 i) const {
        i64 tap = View::divided(i, channels);
        const i64 channel = i - tap * channels;
        i64 x_distance = channel * args.x.stride(lane, spatial + 1), w_distance = channel * args.w.stride(lane, spatial + 1);
        bool exists = true;
        for (u32 axis = spatial; axis-- > 0;) {
            const i64 taps = args.w.size(lane, axis + 1), quotient = View::divided(tap, taps), along = tap - quotient * taps;
            tap = quotient;
            w_distance += along * args.w.stride(lane, axis + 1);
            const i64 reach = along * args.dilation[axis];
            i64 source;
            if (args.transposed) {
                // The `source` with `at == source * stride - padding + reach`, if there is one.
                const i64 scaled = at[axis] + args.padding[axis] - reach;
                exists = exists && scaled % args.stride[axis] == 0;
                source = scaled / args.stride[axis];
            } else {
                source = at[axis] * args.stride[axis] - args.padding[axis] + reach;
            }
            exists = exists && source >= 0 && source < args.x.size(lane, axis + 1);
            x_distance += source * args.x.stride(lane, axis + 1);
        }
        return __fmaf_rn(exists ? X::to_float(x[x_distance]) : 0.0f, W::to_float(w[w_distance]), strand);
    }
};

extern "C" __global__ void conv(const __grid_constant__ ConvArgs args) {
    Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    Place place(args, lane);
    const i64 count = args.out.count(lane);
    const u32 strand = threadIdx.x % 16, per_block = blockDim.x / 16;
    // All threads of a warp go on together, because they exchange sums.
    for (i64 first = (i64)blockIdx.x * per_block; first < count; first += (i64)gridDim.x * per_block) {
        const i64 wanted = first + threadIdx.x / 16, index = wanted < count ? wanted : count - 1;
        place.go_to(index);
        float sum = 0.0f;
        for (i64 i = strand; i < place.length; i += 16) sum = place.add(sum, i);
        sum = combined_16(sum);
        if (strand == 0 && wanted < count) args.out.data<OUT>(lane)[args.out.at(lane, index)] = OUT::from_float(sum);
    }
}

extern "C" __global__ void conv_short(const __grid_constant__ ConvArgs args) {
    Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    Place place(args, lane);
    const i64 count = args.out.count(lane);
    for (i64 index = first_item(); index < count; index += item_step()) {
        place.go_to(index);
        float strands[16];
#pragma unroll
        for (u32 i = 0; i < 16; ++i) strands[i] = i < place.length ? place.add(0.0f, i) : 0.0f;
        args.out.data<OUT>(lane)[args.out.at(lane, index)] = OUT::from_float(combined(strands));
    }
}

struct ConvLineArgs {
    Launch launch;
    const X::Element *x;
    const W::Element *w;
    OUT::Element *out;
    // Strides, in elements.
    i64 x_place, x_channel, w_filter, w_tap, out_place, out_channel;
    i64 stride, padding, dilation;
    // Places of x, channels of both, and elements of the result.
    i64 places, channels, count;
};
static_assert(sizeof(ConvLineArgs) == 136, "as in conv.rs");

extern "C" __global__ void conv_line(const __grid_constant__ ConvLineArgs args) {
    if (is_halted(lane_of(args.launch))) return;
    for (i64 index = first_item(); index < args.count; index += item_step()) {
        const i64 place = View::divided(index, args.channels), channel = index - place * args.channels;
        const i64 first = place * args.stride - args.padding;
        float strands[16];
#pragma unroll
        for (u32 i = 0; i < 16; ++i) {
            strands[i] = 0.0f;
            if (i >= TAPS) continue;
            const i64 source = first + i * args.dilation;
            const bool exists = source >= 0 && source < args.places;
            const float x = exists ? X::to_float(args.x[source * args.x_place + channel * args.x_channel]) : 0.0f;
            strands[i] = __fmaf_rn(x, W::to_float(args.w[channel * args.w_filter + i * args.w_tap]), 0.0f);
        }
        args.out[place * args.out_place + channel * args.out_channel] = epilogue::stored({nullptr, 0, 0, 0, combined(strands)});
    }
}
