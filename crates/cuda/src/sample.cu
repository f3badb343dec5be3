// Tokens from rows of logits, as the sampling contract has it: one launch, no sort, nothing for the host to wait for.
//
// Launch: THREADS threads, cooperative, with a `BlockState` of shared memory. `blocks` blocks share a row with a filter.

#include "adjust.cuh"
#include "filter.cuh"
#include "likeliest.cuh"
#include "whole.cuh"

// Lets the launch after this one start, and waits for the one before it; only where they overlap does either do anything.
__device__ __forceinline__ void wait_for_launch_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#endif
}

template <class T, bool apart> __device__ __forceinline__ void sample(const SampleArgs &args) {
    wait_for_launch_before();
    extern __shared__ u64 shared[];
    BlockState *local = (BlockState *)shared;
    const u32 group = blockIdx.x / args.blocks;
    const Settings shared_settings = settings_of(args, 0);
    const Noise shared_noise = noise_of(args, 0);
    bool adjusts = false;
    if (args.adjustments)
        for (u32 row = threadIdx.x; row < args.rows; row += THREADS) adjusts |= !args.adjustments[row].neutral();
    if (threadIdx.x == 0) {
        start_race(&local->low_race), start_race(&local->high_race);
        local->is_busy = 0;
        if (group < gridDim.x / args.blocks) local->launches = load_volatile(&args.group_states[group].launches);
    }
    if (__syncthreads_or(adjusts)) adjust_rows<T>(args, local);
    if (args.which) begin_likeliest<T>(args, local);
    const bool filtered = shared_settings.filtered(args.vocabulary), mixed = args.flags & SETTINGS_PER_ROW;
    if (mixed || !filtered) draw_whole_rows<T>(args, shared_settings, shared_noise, local);
    if (mixed || filtered) filter_rows<T, apart>(args, shared_settings, local);
    if (args.which) find_likeliest<T>(args, local);
    if (!args.seed && last_to_arrive(args.arrived + 1, gridDim.x, &local->flag)) advance(args);
}

// LOGITS is the type of the logits. For few rows: registers for all that is live. For many: two blocks on a multiprocessor.
extern "C" __global__ void __launch_bounds__(THREADS, 1) sample_few(const __grid_constant__ SampleArgs args) {
    sample<LOGITS, false>(args);
}
extern "C" __global__ void __launch_bounds__(THREADS, 2) sample_many(const __grid_constant__ SampleArgs args) {
    sample<LOGITS, true>(args);
}
