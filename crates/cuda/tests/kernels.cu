// Kernels of the tests. A thread to an element, in blocks of any size.
#include "common.cuh"

struct ScaleArgs {
    const float* x;
    float* out;
    unsigned len;
    float factor;
};
static_assert(sizeof(ScaleArgs) == 24, "as in device.rs");

// out[i] = x[i] * factor
extern "C" __global__ void scale(ScaleArgs args) {
    const unsigned i = thread_index();
    if (i < args.len) {
        args.out[i] = args.x[i] * args.factor;
    }
}

// x * x - 1 without contraction is what two roundings give.
extern "C" __global__ void square_less_one(ScaleArgs args) {
    const unsigned i = thread_index();
    if (i < args.len) {
        args.out[i] = args.x[i] * args.x[i] - 1.0f;
    }
}

struct CountArgs {
    unsigned* count;
};
static_assert(sizeof(CountArgs) == 8, "as in device.rs");

// count[0] += the number of threads
extern "C" __global__ void count(CountArgs args) {
    atomicAdd(args.count, 1u);
}

struct MeetArgs {
    unsigned* arrived;
    unsigned* seen;
    unsigned len;
    unsigned zero;
};
static_assert(sizeof(MeetArgs) == 24, "as in device.rs");

// Every block waits for all others, then notes how many it has seen. Needs a cooperative launch.
extern "C" __global__ void meet(MeetArgs args) {
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(args.arrived, 1u);
        while (*(volatile unsigned*)args.arrived < gridDim.x) {
        }
        if (blockIdx.x < args.len) {
            args.seen[blockIdx.x] = *(volatile unsigned*)args.arrived;
        }
    }
}

// out[i] = x[len - 1 - i] through shared memory, in one block.
extern "C" __global__ void turn(ScaleArgs args) {
    extern __shared__ float held[];
    for (unsigned i = threadIdx.x; i < args.len; i += blockDim.x) {
        held[i] = args.x[i];
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < args.len; i += blockDim.x) {
        args.out[i] = held[args.len - 1 - i] * args.factor;
    }
}

// As `scale`, but may be started before the launch before it is done.
extern "C" __global__ void scale_overlapping(ScaleArgs args) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    const unsigned i = thread_index();
    if (i < args.len) {
        args.out[i] = args.x[i] * args.factor;
    }
}

extern "C" __global__ void nothing() {}
