// Norms of rows of contiguous elements at regular distances, `docs/ARITHMETIC.md`, "Norm".
//
// Launch: a block for each row, which it holds in shared memory. Compiled with the tags X, WEIGHT, BIAS and OUT, and HAS_WEIGHT and
// HAS_BIAS.

#include "block.cuh"
#include "norm_row.cuh"
#include "view.cuh"

struct NormRowsArgs {
    Launch launch;
    const X::Element *x;
    OUT::Element *out;
    const WEIGHT::Element *weight;
    const BIAS::Element *bias;
    // From row to row, in elements.
    i64 x_row, out_row;
    u32 size;
    u32 is_layer;
    float eps;
    u32 unused;
};
static_assert(sizeof(NormRowsArgs) == 80, "as in norm.rs");

__device__ __forceinline__ void normalize_rows(const NormRowsArgs &args, const Block &block) {
    extern __shared__ float row[];
    if (is_halted(lane_of(args.launch))) return;
    const X::Element *x = args.x + block.x * args.x_row;
    OUT::Element *out = args.out + block.x * args.out_row;
#pragma unroll 8
    for (u32 at = threadIdx.x; at < args.size; at += block.threads) row[at] = X::to_float(x[at]);
    __syncthreads();
    // Every warp computes the same, which is faster than to wait for one.
    const float2 found = center_and_factor(args.size, threadIdx.x % 32, args.is_layer, args.eps, [&](i64 at) { return row[at]; });
#pragma unroll 4
    for (u32 at = threadIdx.x; at < args.size; at += block.threads) {
        float y = (row[at] - found.x) * found.y;
#if HAS_WEIGHT
        y = y * WEIGHT::to_float(args.weight[at]);
#endif
#if HAS_BIAS
        y = y + BIAS::to_float(args.bias[at]);
#endif
        out[at] = OUT::from_float(y);
    }
}
