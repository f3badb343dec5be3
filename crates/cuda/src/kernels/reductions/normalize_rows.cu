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
    stage_row<X>(row, args.size, block.threads, [&](u32 at) { return x[at]; });
    __syncthreads();
    // Every warp computes the same, which is faster than to wait for one.
    const float2 found = center_and_factor(args.size, threadIdx.x % 32, args.is_layer, args.eps, [&](i64 at) { return row[at]; });
    for (u32 first = threadIdx.x; first < args.size; first += ROW_BATCH * block.threads) {
        float y[ROW_BATCH];
#pragma unroll
        for (u32 i = 0; i < ROW_BATCH; ++i) {
            const u32 at = min(first + i * block.threads, args.size - 1);
            y[i] = (row[at] - found.x) * found.y;
#if HAS_WEIGHT
            y[i] = y[i] * WEIGHT::to_float(args.weight[at]);
#endif
#if HAS_BIAS
            y[i] = y[i] + BIAS::to_float(args.bias[at]);
#endif
        }
#pragma unroll
        for (u32 i = 0; i < ROW_BATCH; ++i) {
            if (first + i * block.threads < args.size) out[first + i * block.threads] = OUT::from_float(y[i]);
        }
    }
}
