// The choice of experts, which takes five primitives one by one: a softmax of a row, its order, the probabilities of the last CHOSEN in
// that order, and these divided by their sum. `docs/ARITHMETIC.md` has all of them; what is computed is the same.
//
// Launch: a block for each row, with a thread for each element. Compiled with the tags X and INDEX; probabilities are f32.

#include "block.cuh"
#include "strands.cuh"
#include "view.cuh"

#define MOST_SHORT 1024

struct RouteArgs {
    Launch launch;
    const X::Element *x;
    // All indices, those with the smallest probabilities first; and what the chosen ones weigh.
    INDEX::Element *order;
    float *weights;
    // From row to row, in elements.
    i64 x_row, order_row, weights_row;
    u32 size, chosen;
};
static_assert(sizeof(RouteArgs) == 72, "as in route.rs");

__device__ __forceinline__ void route(const RouteArgs &args, const Block &block) {
    __shared__ __align__(16) float row[MOST_SHORT];
    __shared__ __align__(16) u32 keys[MOST_SHORT];
    __shared__ float kept[MOST_SHORT];
    if (is_halted(lane_of(args.launch))) return;
    const u32 at = threadIdx.x, lane = at % 32, first_chosen = args.size - args.chosen;
    if (at < args.size) row[at] = X::to_float(args.x[block.x * args.x_row + at]);
    __syncthreads();
    // Every warp computes the same, which is faster than to wait for one.
    const float largest = strand_max(args.size, lane, [&](i64 i) { return row[i]; });
    __syncthreads();
    if (at < args.size) row[at] = arithmetic::exp(row[at] - largest);
    __syncthreads();
    const float factor = 1.0f / strand_sum(args.size, lane, [&](i64 i) { return row[i]; });
    const float probability = at < args.size ? row[at] * factor : 0.0f;
    // No probability is below zero, so that their bits have their order; NaN is above all.
    const u32 key = probability != probability ? ~0u : __float_as_uint(probability);
    if (at < args.size) keys[at] = key;
    __syncthreads();
    u32 before = 0;
#pragma unroll 16
    for (u32 other = 0; other < args.size; ++other) before += keys[other] < key || (keys[other] == key && other < at);
    if (at < args.size) {
        args.order[block.x * args.order_row + before] = (INDEX::Element)at;
        if (before >= first_chosen) kept[before - first_chosen] = probability;
    }
    __syncthreads();
    const float sum = strand_sum(args.chosen, lane, [&](i64 i) { return kept[i]; });
    if (at < args.chosen) args.weights[block.x * args.weights_row + at] = kept[at] / sum;
}
