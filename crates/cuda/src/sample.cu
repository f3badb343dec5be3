// Tokens from rows of logits, as the sampling contract has it: one launch, no sort, nothing for the host to wait for.
//
// Launch: THREADS threads, cooperative, with a `Desk` of shared memory. `blocks` blocks share a row with top-k or top-p.

#include "filter.cuh"
#include "whole.cuh"

template <class T> __device__ void sample(const SampleArgs &args) {
    extern __shared__ u64 shared[];
    Desk *desk = (Desk *)shared;
    bool whole = args.flags & 7;
    if (!whole) whole = !settings_of(args, 0).filtered(args.vocabulary);
    if (whole) draw_whole_rows<T>(args, desk);
    if (args.flags & 7 || !whole) filter_rows<T>(args, desk);
    if (!args.seed && last_to_arrive(args.arrived + 1, gridDim.x, &desk->flag)) advance(args);
}

extern "C" __global__ void __launch_bounds__(THREADS) sample_f32(const __grid_constant__ SampleArgs args) { sample<F32>(args); }
extern "C" __global__ void __launch_bounds__(THREADS) sample_f16(const __grid_constant__ SampleArgs args) { sample<F16>(args); }
extern "C" __global__ void __launch_bounds__(THREADS) sample_bf16(const __grid_constant__ SampleArgs args) { sample<Bf16>(args); }
