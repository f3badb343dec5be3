// Sorting and running sums, along lines of an axis.

#include "view.cuh"

struct SortArgs {
    Launch launch;
    View out, x;
    u64 *keys, *other_keys;
    u32 *indices, *other_indices;
    // The lines, and the elements of each.
    i64 lines, length;
    // The elements of a sorted run.
    i64 width;
    u32 axis;
    u32 wants_indices;
};
static_assert(sizeof(SortArgs) == 384, "as in order.rs");

// The distance of the first element of a line from that of the view.
__device__ __forceinline__ i64 line_start(const View &view, const Lane &lane, u32 axis, i64 line) {
    i64 distance = 0;
    for (u32 other = view.rank; other-- > 0;) {
        if (other == axis) continue;
        const i64 size = view.size(lane, other), quotient = View::divided(line, size);
        distance += (line - quotient * size) * view.stride(lane, other);
        line = quotient;
    }
    return distance;
}

// Whole numbers in the order of the elements: zeros are equal, NaN is above all.
__device__ __forceinline__ u64 sort_key(const View &x, const Lane &lane, i64 at) {
    if (!is_float(x.dtype)) return (u64)x.get_int(lane, at) ^ 0x8000000000000000ull;
    const float number = x.get_float(lane, at);
    if (number != number) return ~0ull;
    const u32 bits = __float_as_uint(number + 0.0f);
    return bits ^ ((u32)((i32)bits >> 31) | 0x80000000u);
}

#define MOST_SHORT 1024

// Sorts short lines, a block each: an element goes behind all that are below it, and those equal to it that come first.
extern "C" __global__ void __launch_bounds__(MOST_SHORT) sort_short(const __grid_constant__ SortArgs args) {
    __shared__ u64 keys[MOST_SHORT];
    const Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    const u32 at = threadIdx.x, length = (u32)args.length;
    for (i64 line = blockIdx.x; line < args.lines; line += gridDim.x) {
        const i64 from = line_start(args.x, lane, args.axis, line) + at * args.x.stride(lane, args.axis);
        const u64 key = at < length ? sort_key(args.x, lane, from) : 0;
        if (at < length) keys[at] = key;
        __syncthreads();
        u32 before = 0;
#pragma unroll 16
        for (u32 other = 0; other < length; ++other) before += keys[other] < key || (keys[other] == key && other < at);
        if (at < length) {
            const i64 to = line_start(args.out, lane, args.axis, line) + before * args.out.stride(lane, args.axis);
            if (args.wants_indices) args.out.set_int(lane, to, at);
            else if (is_float(args.x.dtype)) args.out.set_float(lane, to, args.x.get_float(lane, from));
            else args.out.set_int(lane, to, args.x.get_int(lane, from));
        }
        __syncthreads();
    }
}

// Makes runs of one element.
extern "C" __global__ void sort_begin(const __grid_constant__ SortArgs args) {
    const Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    for (i64 i = first_item(); i < args.lines * args.length; i += item_step()) {
        const i64 line = i / args.length, at = i % args.length;
        args.keys[i] = sort_key(args.x, lane, line_start(args.x, lane, args.axis, line) + at * args.x.stride(lane, args.axis));
        args.indices[i] = (u32)at;
    }
}

// Merges pairs of runs: an element goes as far behind its place in its run as there are elements of the other run before it.
extern "C" __global__ void sort_merge(const __grid_constant__ SortArgs args) {
    const Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    for (i64 i = first_item(); i < args.lines * args.length; i += item_step()) {
        const i64 line = i / args.length, at = i % args.length, start = line * args.length;
        const i64 run = at / args.width, pair = run / 2 * 2 * args.width;
        const bool is_second = run & 1;
        const i64 low_end = pair + args.width < args.length ? pair + args.width : args.length;
        const i64 high_end = low_end + args.width < args.length ? low_end + args.width : args.length;
        const u64 key = args.keys[i];
        // Equals of the first run come before those of the second.
        i64 low = is_second ? pair : low_end, high = is_second ? low_end : high_end;
        const i64 begin = low;
        while (low < high) {
            const i64 middle = (low + high) / 2;
            const u64 other = args.keys[start + middle];
            if (is_second ? other <= key : other < key) low = middle + 1;
            else high = middle;
        }
        const i64 to = start + pair + (at - run * args.width) + (low - begin);
        args.other_keys[to] = key;
        args.other_indices[to] = args.indices[i];
    }
}

extern "C" __global__ void sort_end(const __grid_constant__ SortArgs args) {
    const Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    for (i64 i = first_item(); i < args.lines * args.length; i += item_step()) {
        const i64 line = i / args.length, at = i % args.length, index = args.indices[i];
        const i64 to = line_start(args.out, lane, args.axis, line) + at * args.out.stride(lane, args.axis);
        if (args.wants_indices) {
            args.out.set_int(lane, to, index);
            continue;
        }
        const i64 from = line_start(args.x, lane, args.axis, line) + index * args.x.stride(lane, args.axis);
        if (is_float(args.x.dtype)) args.out.set_float(lane, to, args.x.get_float(lane, from));
        else args.out.set_int(lane, to, args.x.get_int(lane, from));
    }
}

struct CumsumArgs {
    Launch launch;
    View out, x;
    u32 axis;
    u32 reverse;
    u32 inclusive;
    u32 unused;
};
static_assert(sizeof(CumsumArgs) == 336, "as in order.rs");

// A thread to a line: the order of the sum is defined.
extern "C" __global__ void cumsum(const __grid_constant__ CumsumArgs args) {
    const Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    const i64 length = args.x.size(lane, args.axis), lines = length ? args.x.count(lane) / length : 0;
    const i64 from_stride = args.x.stride(lane, args.axis), to_stride = args.out.stride(lane, args.axis);
    for (i64 line = first_item(); line < lines; line += item_step()) {
        const i64 from = line_start(args.x, lane, args.axis, line), to = line_start(args.out, lane, args.axis, line);
        float sum = 0.0f;
        u64 whole = 0;
        for (i64 turn = 0; turn < length; ++turn) {
            const i64 i = args.reverse ? length - 1 - turn : turn;
            if (is_float(args.x.dtype)) {
                const float before = sum;
                sum = sum + args.x.get_float(lane, from + i * from_stride);
                args.out.set_float(lane, to + i * to_stride, args.inclusive ? sum : before);
            } else {
                const u64 before = whole;
                whole += (u64)args.x.get_int(lane, from + i * from_stride);
                args.out.set_int(lane, to + i * to_stride, (i64)(args.inclusive ? whole : before));
            }
        }
    }
}
