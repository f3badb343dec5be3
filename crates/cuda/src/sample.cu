// Tokens from rows of logits, as the sampling contract has it: one launch, no sort, nothing for the host to wait for.
//
// Launch: THREADS threads, cooperative, with a `BlockState` of shared memory. `blocks` blocks share a row with a filter.

#include "adjust.cuh"
#include "filter.cuh"
#include "likeliest.cuh"
#include "whole.cuh"

template <class T, bool apart> __device__ __forceinline__ void sample(const SampleArgs &args) {
    extern __shared__ u64 shared[];
    BlockState *local = (BlockState *)shared;
    const u32 group = blockIdx.x / args.blocks;
    const Settings shared_settings = settings_of(args, 0);
    const Noise shared_noise = noise_of(args, 0, false);
    // Options that change nothing in any row cost no more than this.
    bool adjusts = false, explains = false;
    for (u32 row = threadIdx.x; row < args.rows; row += THREADS) {
        adjusts |= args.adjustments && !args.adjustments[row].neutral();
        explains |= which_of(args, row) > 0;
    }
    if (threadIdx.x == 0) {
        start_race(&local->low_race), start_race(&local->high_race);
        if (group < gridDim.x / args.blocks) local->launches = load_volatile(&args.group_states[group].launches);
    }
    if (__syncthreads_or(adjusts)) adjust_rows<T>(args, local);
    explains = args.which && __syncthreads_or(explains);
    if (explains) begin_likeliest<T>(args, local);
    else if (args.which) put_none(args);
    const bool filtered = shared_settings.filtered(args.vocabulary), mixed = args.flags & SETTINGS_PER_ROW;
    if (mixed || !filtered) draw_whole_rows<T>(args, shared_settings, shared_noise, local);
    if (mixed || filtered) filter_rows<T, apart>(args, shared_settings, local);
    if (explains) find_likeliest<T>(args, local);
    if (!args.seed && last_to_arrive(args.arrived + 1, gridDim.x, &local->flag)) advance(args);
}

// LOGITS is the type of the logits. For few rows: registers for all that is live. For many: two blocks on a multiprocessor.
extern "C" __global__ void __launch_bounds__(THREADS, 1) sample_few(const __grid_constant__ SampleArgs args) {
    sample<LOGITS, false>(args);
}
extern "C" __global__ void __launch_bounds__(THREADS, 2) sample_many(const __grid_constant__ SampleArgs args) {
    sample<LOGITS, true>(args);
}
