// What happens between two steps of a lane, so that the host need not wait for tokens: the token of a step is noted, ends the lane or
// becomes the input of the next step, counted inputs grow by one, and the numbers of the next step replace those of this one.
//
// Launch: one block, after all launches of the step.

#include "block.cuh"
#include "view.cuh"

#define MOST_COUNTED 2
#define MOST_ENDS 16
#define MOST_NUMBERS 64

struct FollowArgs {
    Launch launch;
    // The output that is the token, and the input that gets it.
    View token, feed;
    // Inputs that grow by one.
    View counted[MOST_COUNTED];
    // Where tokens are noted: first their number, then the tokens.
    i64 *taken;
    // The number of this step in its run.
    u32 step;
    u32 counted_count, ends_count, numbers_count;
    // The run goes on after this step.
    u32 goes_on;
    u32 unused;
    u32 ends[MOST_ENDS];
    // The numbers of the next step.
    i64 numbers[MOST_NUMBERS];
};
static_assert(sizeof(FollowArgs) == 1232, "as in follow.rs");

// Takes the token of the step, and returns true if another step follows.
__device__ __forceinline__ bool take(const FollowArgs &args, Lane &lane) {
    if (args.step == 0) args.taken[0] = 0;
    if (is_halted(lane)) return false;
    const i64 token = args.token.get_int(lane, 0);
    if (token < 0 || token > 0xffffffffll) {
        fail(lane, args.launch, NOT_A_TOKEN, token);
        return false;
    }
    args.taken[1 + args.step] = token;
    args.taken[0] = args.step + 1;
    for (u32 i = 0; i < args.ends_count; ++i) {
        if (args.ends[i] != (u32)token) continue;
        // Steps that were launched ahead change nothing.
        fail(lane, args.launch, ENDED);
        return false;
    }
    if (!args.goes_on) return false;
    args.feed.set_int(lane, 0, token);
    for (u32 i = 0; i < args.counted_count; ++i) {
        args.counted[i].set_int(lane, 0, (i64)((u64)args.counted[i].get_int(lane, 0) + 1));
    }
    return true;
}

__device__ __forceinline__ void follow(const FollowArgs &args, const Block &block) {
    Lane &lane = lane_of(args.launch);
    __shared__ bool goes_on;
    if (threadIdx.x == 0) goes_on = take(args, lane);
    __syncthreads();
    if (!goes_on) return;
    for (u32 slot = threadIdx.x; slot < args.numbers_count; slot += block.threads) lane.numbers[slot] = args.numbers[slot];
}
