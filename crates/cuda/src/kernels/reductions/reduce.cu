// Reductions, in 64 strands.
//
// Launch: `reduce` has 64 threads for a group of elements, one per strand; `reduce_few` has one thread, for groups of up to eight. Groups
// are shared out in x. Compiled with the tag X.

#include "view.cuh"
#include "scalar.cuh"

#define SUM 0
#define PROD 1
#define MAX 2
#define MIN 3
#define ANY 4
#define ALL 5
#define MEAN 6
#define VAR 7
#define LOG_SUM_EXP 8

struct ReduceArgs {
    Launch launch;
    View out, x;
    // A bit for each axis that is combined.
    u32 axes;
    u32 fold;
    i64 ddof;
};
static_assert(sizeof(ReduceArgs) == 336, "as in reduce.rs");

// Groups of a block.
#define GROUPS 4
#define STRANDS 64

// Combines the strands of 64 threads, upper half with lower half, until one is left, which all get. `shared` holds 64 numbers of these
// threads alone. All threads of the block must call it.
template <typename N, typename Combine> __device__ __forceinline__ N combine_strands(N own, N *shared, u32 strand, Combine combine) {
    __syncthreads();
    shared[strand] = own;
    for (u32 width = STRANDS / 2; width; width /= 2) {
        __syncthreads();
        if (strand < width) shared[strand] = combine(shared[strand], shared[strand + width]);
    }
    __syncthreads();
    return shared[0];
}

// The elements that are combined to one.
struct Group {
    const ReduceArgs &args;
    const Lane &lane;
    const X::Element *first;
    // From one to the next, if a single axis is combined.
    i64 step;
    bool is_line;

    __device__ __forceinline__ Group(const ReduceArgs &args, const Lane &lane, i64 first) : args(args), lane(lane) {
        this->first = args.x.data<X>(lane) + first;
        is_line = (args.axes & (args.axes - 1)) == 0;
        step = is_line && args.axes ? args.x.stride(lane, 31 - __clz(args.axes)) : 0;
    }

    // The distance of an element, by its number in row-major order of the combined axes.
    __device__ __forceinline__ i64 at(i64 number) const {
        if (is_line) return number * step;
        i64 distance = 0;
        for (u32 axis = args.x.rank; axis-- > 0;) {
            if (!(args.axes >> axis & 1)) continue;
            const i64 size = args.x.size(lane, axis), quotient = View::divided(number, size);
            distance += (number - quotient * size) * args.x.stride(lane, axis);
            number = quotient;
        }
        return distance;
    }
    __device__ __forceinline__ float as_float(i64 number) const { return X::to_float(first[at(number)]); }
    __device__ __forceinline__ i64 as_int(i64 number) const { return X::to_int(first[at(number)]); }
};

// A group as 64 threads combine it.
struct Together {
    u32 strand;
    void *shared;

    template <typename N, typename Get, typename Combine> __device__ __forceinline__ N fold(i64 count, N start, Get get, Combine combine) const {
        N own = start;
        for (i64 i = strand; i < count; i += STRANDS) own = combine(own, get(i));
        return combine_strands(own, (N *)shared, strand, combine);
    }
};

#define FEW 8

// A group of up to eight as one thread combines it. The other strands hold what they start with, which changes none of these.
struct Alone {
    template <typename N, typename Get, typename Combine> __device__ __forceinline__ N fold(i64 count, N start, Get get, Combine combine) const {
        N own[FEW];
#pragma unroll
        for (u32 i = 0; i < FEW; ++i) own[i] = i < count ? combine(start, get(i)) : start;
#pragma unroll
        for (u32 width = FEW / 2; width > 0; width /= 2) {
#pragma unroll
            for (u32 i = 0; i < width; ++i) own[i] = combine(own[i], own[i + width]);
        }
        return own[0];
    }
};

template <typename Threads> struct Reducer {
    const Group &group;
    i64 count;
    Threads threads;

    template <typename Value, typename Combine> __device__ __forceinline__ float floats(float start, Value value, Combine combine) const {
        return threads.fold(count, start, [&](i64 i) { return value(group.as_float(i)); }, combine);
    }
    template <typename Value, typename Combine> __device__ __forceinline__ i64 ints(i64 start, Value value, Combine combine) const {
        return threads.fold(count, start, [&](i64 i) { return value(group.as_int(i)); }, combine);
    }
    __device__ __forceinline__ float sum() const {
        return floats(0.0f, [](float x) { return x; }, [](float a, float b) { return a + b; });
    }
    __device__ __forceinline__ float mean() const { return sum() / (float)count; }
    __device__ __forceinline__ float largest() const {
        return floats(-PTERO_INFINITY, [](float x) { return x; }, [](float a, float b) { return f_max(a, b); });
    }
    __device__ __forceinline__ float variance(i64 ddof) const {
        const float center = mean();
        const float squares = floats(0.0f, [=](float x) { return (x - center) * (x - center); }, [](float a, float b) { return a + b; });
        return squares / (float)(count > ddof ? count - ddof : 0);
    }
    __device__ __forceinline__ float log_sum_exp() const {
        const float top = largest();
        if (top == PTERO_INFINITY || top == -PTERO_INFINITY) {
            // The other groups of the block still meet here.
            floats(0.0f, [](float) { return 0.0f; }, [](float a, float b) { return a + b; });
            return top;
        }
        const float sum = floats(0.0f, [=](float x) { return f_exp(x - top); }, [](float a, float b) { return a + b; });
        return top + f_log(sum);
    }
    __device__ __forceinline__ float fold_floats(u32 fold, i64 ddof) const {
        switch (fold) {
        case SUM: return sum();
        case PROD: return floats(1.0f, [](float x) { return x; }, [](float a, float b) { return a * b; });
        case MAX: return largest();
        case MIN: return floats(PTERO_INFINITY, [](float x) { return x; }, [](float a, float b) { return f_min(a, b); });
        case MEAN: return mean();
        case VAR: return variance(ddof);
        default: return log_sum_exp();
        }
    }
    __device__ __forceinline__ i64 fold_ints(u32 fold) const {
        switch (fold) {
        case SUM: return ints(0, [](i64 x) { return x; }, [](i64 a, i64 b) { return i_add(a, b); });
        case PROD: return ints(1, [](i64 x) { return x; }, [](i64 a, i64 b) { return i_mul(a, b); });
        case MAX: return ints((i64)0x8000000000000000ull, [](i64 x) { return x; }, [](i64 a, i64 b) { return a > b ? a : b; });
        default: return ints(0x7fffffffffffffffll, [](i64 x) { return x; }, [](i64 a, i64 b) { return a < b ? a : b; });
        }
    }
    // True if any element is zero (`zero`), or if any is not.
    __device__ __forceinline__ bool has(bool zero) const {
        return floats(0.0f, [=](float x) { return (x == 0.0f) == zero ? 1.0f : 0.0f; }, [](float a, float b) { return a + b > 0.0f ? 1.0f : 0.0f; }) != 0.0f;
    }
    __device__ __forceinline__ bool has_int(bool zero) const {
        return ints(0, [=](i64 x) { return (i64)((x == 0) == zero); }, [](i64 a, i64 b) { return a | b; }) != 0;
    }
};

// Combines group `number`, and stores the result if `stores`.
template <typename Threads>
__device__ __forceinline__ void reduce_group(const ReduceArgs &args, const Lane &lane, i64 count, i64 number, bool stores, Threads threads) {
    const bool floats = X::IS_FLOAT || args.fold >= MEAN;
    i64 start = 0, rest = number;
    // The result has size 1 along the combined axes.
    for (u32 axis = args.out.rank; axis-- > 0;) {
        const i64 size = args.out.size(lane, axis), quotient = View::divided(rest, size);
        start += (rest - quotient * size) * args.x.stride(lane, axis);
        rest = quotient;
    }
    const Group group(args, lane, start);
    const Reducer<Threads> reducer = {group, count, threads};
    float as_float = 0.0f;
    i64 as_int = 0;
    const bool tests = args.fold == ANY || args.fold == ALL;
    if (tests) as_int = (floats ? reducer.has(args.fold == ALL) : reducer.has_int(args.fold == ALL)) != (args.fold == ALL);
    else if (floats) as_float = reducer.fold_floats(args.fold, args.ddof);
    else as_int = reducer.fold_ints(args.fold);
    if (!stores) return;
    const i64 to = args.out.at(lane, number);
    if (floats && !tests) args.out.set_float(lane, to, as_float);
    else args.out.set_int(lane, to, as_int);
}

__device__ __forceinline__ i64 group_size(const ReduceArgs &args, const Lane &lane) {
    i64 count = 1;
    for (u32 axis = 0; axis < args.x.rank; ++axis) count *= args.axes >> axis & 1 ? args.x.size(lane, axis) : 1;
    return count;
}

extern "C" __global__ void reduce(const __grid_constant__ ReduceArgs args) {
    __shared__ i64 shared[GROUPS][STRANDS];
    const Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    const u32 strand = threadIdx.x % STRANDS, part = threadIdx.x / STRANDS;
    const i64 groups = args.out.count(lane), count = group_size(args, lane);
    for (i64 first = (i64)blockIdx.x * GROUPS; first < groups; first += (i64)gridDim.x * GROUPS) {
        // The block stays together: what is beyond the last group is combined again and not stored.
        const i64 wanted = first + part, number = wanted < groups ? wanted : groups - 1;
        reduce_group(args, lane, count, number, strand == 0 && wanted < groups, Together{strand, shared[part]});
    }
}

extern "C" __global__ void reduce_few(const __grid_constant__ ReduceArgs args) {
    const Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    const i64 groups = args.out.count(lane), count = group_size(args, lane);
    for (i64 number = first_item(); number < groups; number += item_step()) reduce_group(args, lane, count, number, true, Alone{});
}

struct ArgReduceArgs {
    Launch launch;
    View out, x;
    u32 axis;
    u32 largest;
};
static_assert(sizeof(ArgReduceArgs) == 328, "as in reduce.rs");

// A number as an integer of the same order, with NaN above all and both zeros equal.
__device__ __forceinline__ i64 ordered(float x) {
    const i64 magnitude = __float_as_uint(x) & 0x7fffffffu;
    return __float_as_uint(x) >> 31 ? -magnitude : magnitude;
}

struct Best {
    // The largest is the best; the first of equals.
    i64 key;
    i64 index;
};

__device__ __forceinline__ Best better(Best a, Best b) { return b.key > a.key || (b.key == a.key && b.index < a.index) ? b : a; }

#define NAN_KEY 0x7fffffffffffffffll

// 64 threads to a line. NaN wins; of floats the magnitude of a key is below 2^32.
extern "C" __global__ void arg_reduce(const __grid_constant__ ArgReduceArgs args) {
    __shared__ Best shared[GROUPS][STRANDS];
    const Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    const u32 strand = threadIdx.x % STRANDS, part = threadIdx.x / STRANDS;
    const i64 lines = args.out.count(lane), length = args.x.size(lane, args.axis), stride = args.x.stride(lane, args.axis);
    const X::Element *const data = args.x.data<X>(lane);
    for (i64 first = (i64)blockIdx.x * GROUPS; first < lines; first += (i64)gridDim.x * GROUPS) {
        const i64 number = first + part < lines ? first + part : lines - 1;
        i64 start = 0, rest = number;
        for (u32 axis = args.out.rank; axis-- > 0;) {
            const i64 size = args.out.size(lane, axis), quotient = View::divided(rest, size);
            start += (rest - quotient * size) * args.x.stride(lane, axis);
            rest = quotient;
        }
        // Worse than everything.
        Best best = {(i64)0x8000000000000000ull, 0x7fffffffffffffffll};
        for (i64 i = strand; i < length; i += STRANDS) {
            i64 key;
            if (X::IS_FLOAT) {
                const float x = X::to_float(data[start + i * stride]);
                key = x != x ? NAN_KEY : args.largest ? ordered(x) : -ordered(x);
            } else {
                // `~` reverses the order of all integers.
                key = X::to_int(data[start + i * stride]);
                key = args.largest ? key : ~key;
            }
            best = better(best, {key, i});
        }
        best = combine_strands(best, shared[part], strand, better);
        if (strand == 0 && first + part < lines) args.out.set_int(lane, args.out.at(lane, number), best.index);
    }
}
