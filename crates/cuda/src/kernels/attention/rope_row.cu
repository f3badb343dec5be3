// Rotary embeddings of one token, by angles that `rope_angles` has computed.
//
// Launch: a block for each row. Compiled with the tags X and OUT.

#include "block.cuh"
#include "view.cuh"

struct RopeRowArgs {
    Launch launch;
    const X::Element *x;
    OUT::Element *out;
    // In elements: from row to row, and what changes from step to step.
    i64 x_row, out_row;
    Number out_offset;
    const float2 *angles;
    u32 width, dims, interleaved, unused;
};
static_assert(sizeof(RopeRowArgs) == 80, "as in rope.rs");

__device__ __forceinline__ void rope_row(const RopeRowArgs &args, const Block &block) {
    Lane &owner = lane_of(args.launch);
    if (is_halted(owner)) return;
    const X::Element *x = args.x + block.x * args.x_row;
    OUT::Element *out = args.out + args.out_offset.of(owner) + block.x * args.out_row;
    const u32 half = args.dims / 2;
    for (u32 item = threadIdx.x; item < args.width - half; item += block.threads) {
        if (item >= half) {
            out[item + half] = OUT::from_float(X::to_float(x[item + half]));
            continue;
        }
        const u32 first = args.interleaved ? 2 * item : item, second = args.interleaved ? 2 * item + 1 : item + half;
        const float2 angle = args.angles[item];
        const float a = X::to_float(x[first]), b = X::to_float(x[second]);
        out[first] = OUT::from_float(a * angle.y - b * angle.x);
        out[second] = OUT::from_float(a * angle.x + b * angle.y);
    }
}
