// Views of tensors, as kernels get them, and the lanes that they belong to.
//
// A launch runs a step of a plan for one lane or several: `blockIdx.z` is the lane. A lane has memory of its own (regions: its
// arena, its states, its inputs) and a table of the numbers that change from step to step. A view in an argument struct never changes
// from launch to launch: what does change is read through the lane.

#pragma once

#include "element.cuh"

// The most axes of a view.
#define MOST_AXES 8
// The region of weights, whose addresses are absolute.
#define SHARED_REGION 0

struct Lane {
    // 0 while the lane runs; else why its launches do nothing: the latched fault (`fail`).
    u32 status;
    u32 unused;
    // The state of the lane's own sequence of keys.
    u32 key[2];
    // The index that the latched fault is about, and the size that it is not below.
    i64 fault[2];
    // Numbers that change from step to step, by slot.
    i64 *numbers;
    // Addresses of its memory; as many as the plan needs.
    u64 regions[1];
};

struct Launch {
    Lane *lanes;
    // From one lane to the next.
    u32 lane_bytes;
    // The number of the step in the plan, for faults.
    u32 step;
};
static_assert(sizeof(Launch) == 16, "as in step.rs");

// The lane of a block. Blocks start before the launch before is done, and wait for it here: a kernel calls this before it touches what
// another launch may write.
__device__ __forceinline__ Lane &lane_of(const Launch &launch) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    return *(Lane *)((char *)launch.lanes + (u64)blockIdx.z * launch.lane_bytes);
}

// True for a lane that has ended or failed: its launches must change nothing.
__device__ __forceinline__ bool is_halted(const Lane &lane) { return lane.status != 0; }

// Why a lane is halted: an index outside its tensor; a token that ends it; an output that is no token.
#define INDEX_OUTSIDE 1
#define ENDED 2
#define NOT_A_TOKEN 3

// Latches the first reason to halt a lane; later launches for it do nothing.
__device__ __forceinline__ void fail(Lane &lane, const Launch &launch, u32 kind, i64 index = 0, i64 size = 0) {
    if (atomicCAS(&lane.status, 0u, (launch.step + 1) << 8 | kind)) return;
    lane.fault[0] = index;
    lane.fault[1] = size;
}

// A number that is known when a launch is prepared, or a slot of the lane's table.
struct Number {
    i64 raw;

    __device__ __forceinline__ i64 of(const Lane &lane) const {
        const u64 slot = (u64)raw - 0x8000000000000000ull;
        return slot >> 32 ? raw : lane.numbers[slot];
    }
};

struct View {
    // The buffer: an address, or the distance from the start of a region.
    u64 buffer;
    u16 region;
    u8 rank;
    // The code of the type of its elements.
    u8 dtype;
    u32 unused;
    // The first element. This and what follows counts elements.
    Number offset;
    // Outermost first. Axes from `rank` on have size 1 and stride 0.
    Number shape[MOST_AXES];
    // May be zero or negative.
    Number strides[MOST_AXES];

    // The address of the first element of the buffer.
    __device__ __forceinline__ char *start(const Lane &lane) const { return (char *)(region == SHARED_REGION ? buffer : lane.regions[region] + buffer); }

    __device__ __forceinline__ i64 size(const Lane &lane, u32 axis) const { return shape[axis].of(lane); }
    __device__ __forceinline__ i64 stride(const Lane &lane, u32 axis) const { return strides[axis].of(lane); }

    // The number of elements.
    __device__ __forceinline__ i64 count(const Lane &lane) const {
        i64 count = 1;
#pragma unroll 1
        for (u32 axis = 0; axis < rank; ++axis) count *= size(lane, axis);
        return count;
    }

    // The first element. `T` is the tag of the type.
    template <typename T> __device__ __forceinline__ typename T::Element *data(const Lane &lane) const {
        return (typename T::Element *)start(lane) + offset.of(lane);
    }

    // The distance from the first element to the one with this index in row-major order, by the first `axes` axes.
    __device__ __forceinline__ i64 at(const Lane &lane, i64 index, u32 axes) const {
        i64 distance = 0;
#pragma unroll 1
        for (u32 axis = axes; axis-- > 0;) {
            const i64 length = size(lane, axis), quotient = divided(index, length);
            distance += (index - quotient * length) * stride(lane, axis);
            index = quotient;
        }
        return distance;
    }

    __device__ __forceinline__ i64 at(const Lane &lane, i64 index) const { return at(lane, index, rank); }

    // Division is slow where 32 bits are too few.
    static __device__ __forceinline__ i64 divided(i64 a, i64 b) { return ((u64)a | (u64)b) >> 32 ? a / b : (i64)((u32)a / (u32)b); }

    // Elements of a type that is known when the kernel runs; `distance` from the first one.
    __device__ __forceinline__ float get_float(const Lane &lane, i64 distance) const { return load_float(dtype, start(lane), offset.of(lane) + distance); }
    __device__ __forceinline__ i64 get_int(const Lane &lane, i64 distance) const { return load_int(dtype, start(lane), offset.of(lane) + distance); }
    __device__ __forceinline__ void set_float(const Lane &lane, i64 distance, float x) const { store_float(dtype, start(lane), offset.of(lane) + distance, x); }
    __device__ __forceinline__ void set_int(const Lane &lane, i64 distance, i64 x) const { store_int(dtype, start(lane), offset.of(lane) + distance, x); }
};
static_assert(sizeof(View) == 152, "as in step.rs");

// Items of a launch are shared out in x: `for (i64 i = first_item(); i < count; i += item_step())`. So any grid is right, also for a
// count that grows from step to step while the grid stays.
__device__ __forceinline__ i64 first_item() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ i64 item_step() { return (i64)gridDim.x * blockDim.x; }
