// A convolution over time with a state, for one new row, as in decoding: the state holds the rows before. One launch does what a program
// does in five steps: rows of the state go through a function, the new row follows them, the last of all these rows become the state, and
// the filters are applied (`docs/ARITHMETIC.md`, "Conv"), with a function after them.
//
// Launch: a thread has a channel, so that nothing else reads what it writes. Compiled with the tags X, W and OUT, and TAPS, the length of
// a filter. Both functions come before this file.

// Every convolution with a state has a function after its filters.
#define HAS_EPILOGUE 1
#include "block.cuh"
#include "fused.cuh"
#include "strands.cuh"
#include "view.cuh"

struct ConvStateArgs {
    Launch launch;
    const X::Element *x;
    const W::Element *w;
    OUT::Element *out;
    X::Element *state;
    // From channel to channel, in elements; of the filters also from tap to tap, of the state from row to row.
    i64 x_channel, w_channel, w_tap, out_channel, state_channel, state_row;
    u32 channels;
    u32 unused;
    // Of the function before the filters.
    Stacked kept[MOST_OPERANDS];
};
static_assert(sizeof(ConvStateArgs) == 296, "as in conv_state.rs");

__device__ __forceinline__ void conv_state(const ConvStateArgs &args, const Block &block) {
    if (is_halted(lane_of(args.launch))) return;
    const u32 channel = block.x * block.threads + threadIdx.x;
    if (channel >= args.channels) return;
    X::Element rows[TAPS];
#pragma unroll
    for (u32 i = 0; i + 1 < TAPS; ++i) rows[i] = prologue::function({args.kept, 0, i, channel});
    rows[TAPS - 1] = args.x[channel * args.x_channel];
    float strands[16];
#pragma unroll
    for (u32 i = 0; i < 16; ++i) {
        strands[i] = 0.0f;
        if (i < TAPS) strands[i] = __fmaf_rn(X::to_float(rows[i]), W::to_float(args.w[channel * args.w_channel + i * args.w_tap]), 0.0f);
    }
#pragma unroll
    for (u32 i = 0; i + 1 < TAPS; ++i) args.state[i * args.state_row + channel * args.state_channel] = rows[i + 1];
    args.out[channel * args.out_channel] = epilogue::stored({nullptr, 0, 0, 0, combined(strands)});
}
