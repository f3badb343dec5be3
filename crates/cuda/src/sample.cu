// Tokens from rows of logits, as the sampling contract has it: one launch, no sort, nothing for the host to wait for.
//
// Launch: THREADS threads, cooperative, with a `Desk` of shared memory. `blocks` blocks share a row with top-k or top-p.

#include "filter.cuh"
#include "whole.cuh"

template <class T> __device__ void sample(const SampleArgs &args) {
    extern __shared__ u64 shared[];
    Desk *desk = (Desk *)shared;
    if (threadIdx.x == 0) start_race(&desk->low_race), start_race(&desk->high_race);
    const Settings shared_settings = settings_of(args, 0);
    const Noise shared_noise = noise_of(args, 0);
    __syncthreads();
    const bool filtered = shared_settings.filtered(args.vocabulary), mixed = args.flags & 7;
    if (mixed || !filtered) draw_whole_rows<T>(args, shared_settings, shared_noise, desk);
    if (mixed || filtered) filter_rows<T>(args, shared_settings, desk);
    if (!args.seed && last_to_arrive(args.arrived + 1, gridDim.x, &desk->flag)) advance(args);
}

// For few rows: registers for all that is live. For many: two blocks on a multiprocessor.
#define KERNEL(name, type, blocks)                                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, blocks) name(const __grid_constant__ SampleArgs args) {          \
        sample<type>(args);                                                                                              \
    }
KERNEL(sample_f32, F32, 1)
KERNEL(sample_f16, F16, 1)
KERNEL(sample_bf16, Bf16, 1)
KERNEL(sample_many_f32, F32, 2)
KERNEL(sample_many_f16, F16, 2)
KERNEL(sample_many_bf16, Bf16, 2)
