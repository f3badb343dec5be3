// The gated delta rule for one token, as in decoding: `gated_delta.cu`, of which this computes the same.
//
// Launch: as there, 16 threads for a row of a state; each has a row. All tensors lie at regular distances, at addresses that the host
// knows. Compiled with the same tags.

#include "block.cuh"
#include "delta_rule.cuh"
#include "operand.cuh"
#include "view.cuh"

struct GatedDeltaRowArgs {
    Launch launch;
    // Rows are heads; of states matrices are, and of `g` and `beta` columns.
    Stacked out, state_out, q, k, v, g, beta, state;
    // Of values, and how many of them share keys.
    u32 heads, heads_per_group;
    // Elements of a head of values.
    u32 width, unused;
};
static_assert(sizeof(GatedDeltaRowArgs) == 288, "as in gated_delta.rs");

__device__ __forceinline__ void gated_delta_row(const GatedDeltaRowArgs &args, const Block &block) {
    if (is_halted(lane_of(args.launch))) return;
    // All threads of a warp go on together, because they exchange sums.
    const u32 rows = args.heads * args.width, wanted = (block.x * block.threads + threadIdx.x) / 16, row = min(wanted, rows - 1);
    const u32 head = row / args.width, at = row - head * args.width, group = head / args.heads_per_group, strand = threadIdx.x % 16;
    float state[HELD], key[HELD], query[HELD];
    load_strand<STATE>(state, strand, [&](u32 i) { return args.state.get<STATE>(head, at, i); });
    load_strand<K>(key, strand, [&](u32 i) { return args.k.get<K>(0, group, i); });
    load_strand<Q>(query, strand, [&](u32 i) { return args.q.get<Q>(0, group, i); });
    const float decay = G::to_float(args.g.get<G>(0, 0, head)), rate = BETA::to_float(args.beta.get<BETA>(0, 0, head));
    const float result = delta_rule(state, key, query, V::to_float(args.v.get<V>(0, head, at)), decay, rate, strand);
    if (wanted >= rows) return;
    if (strand == 0) ((OUT::Element *)args.out.data)[head * args.out.row + at * args.out.column] = OUT::from_float(result);
    STATE_OUT::Element *const after = (STATE_OUT::Element *)args.state_out.data + head * args.state_out.matrix + at * args.state_out.row;
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) {
        if (strand + 16 * i < DK) after[(strand + 16 * i) * args.state_out.column] = STATE_OUT::from_float(state[i]);
    }
}
