// The gated delta rule, `docs/ARITHMETIC.md`, "GatedDelta". For each token and each row `s` of the state of a head:
//   d = (v - g (s · k)) beta;   s[i] = fma(d, k[i], s[i] g);   out = s · q;   s rounded to its type
// with products of rows in 16 strands.
//
// `q, k [B, T, Hk, Dk]`, `v, out [B, T, Hv, Dv]`, `g, beta [B, T, Hv]`, states `[B, Hv, Dv, Dk]`.
// Launch: 16 threads for a row of a state, each with the elements of one strand in registers, for all tokens; rows are shared out in
// x. Compiled with the tags Q, K, V, G, BETA, STATE, STATE_OUT and OUT, and with DK, the length of a row.

#include "block.cuh"
#include "delta_rule.cuh"
#include "view.cuh"

struct GatedDeltaArgs {
    Launch launch;
    View out, state_out, q, k, v, g, beta, state;
};
static_assert(sizeof(GatedDeltaArgs) == 1232, "as in gated_delta.rs");

__device__ __forceinline__ void gated_delta(const GatedDeltaArgs &args, const Block &block) {
    Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    const i64 batches = args.v.size(lane, 0), tokens = args.v.size(lane, 1), heads = args.v.size(lane, 2), width = args.v.size(lane, 3);
    const i64 groups = args.k.size(lane, 2), heads_per_group = groups > 0 && heads >= groups ? heads / groups : 1;
    const u32 strand = threadIdx.x % 16, per_block = block.threads / 16;
    const i64 rows = batches * heads * width;
    const i64 q_stride = args.q.stride(lane, 3), k_stride = args.k.stride(lane, 3), state_stride = args.state.stride(lane, 3);
    const i64 q_token = args.q.stride(lane, 1), k_token = args.k.stride(lane, 1), v_token = args.v.stride(lane, 1);
    const i64 g_token = args.g.stride(lane, 1), beta_token = args.beta.stride(lane, 1), out_token = args.out.stride(lane, 1);
    // All threads of a warp go on together, because they exchange sums.
    for (i64 first = (i64)block.x * per_block; first < rows; first += (i64)block.across * per_block) {
        const i64 wanted = first + threadIdx.x / 16, row = wanted < rows ? wanted : rows - 1;
        const i64 head_index = View::divided(row, width), at = row - head_index * width;
        const i64 batch = View::divided(head_index, heads), head = head_index - batch * heads, group = View::divided(head, heads_per_group);
        const Q::Element *q = args.q.data<Q>(lane) + batch * args.q.stride(lane, 0) + group * args.q.stride(lane, 2);
        const K::Element *k = args.k.data<K>(lane) + batch * args.k.stride(lane, 0) + group * args.k.stride(lane, 2);
        const V::Element *v = args.v.data<V>(lane) + batch * args.v.stride(lane, 0) + head * args.v.stride(lane, 2) + at * args.v.stride(lane, 3);
        const G::Element *g = args.g.data<G>(lane) + batch * args.g.stride(lane, 0) + head * args.g.stride(lane, 2);
        const BETA::Element *beta = args.beta.data<BETA>(lane) + batch * args.beta.stride(lane, 0) + head * args.beta.stride(lane, 2);
        OUT::Element *out = args.out.data<OUT>(lane) + batch * args.out.stride(lane, 0) + head * args.out.stride(lane, 2) + at * args.out.stride(lane, 3);
        const STATE::Element *before = args.state.data<STATE>(lane) + batch * args.state.stride(lane, 0) + head * args.state.stride(lane, 1) + at * args.state.stride(lane, 2);
        float state[HELD];
        load_strand<STATE>(state, strand, [&](i64 i) { return before[i * state_stride]; });
        for (i64 token = 0; token < tokens; ++token) {
            float key[HELD], query[HELD];
            load_strand<K>(key, strand, [&](i64 i) { return k[token * k_token + i * k_stride]; });
            load_strand<Q>(query, strand, [&](i64 i) { return q[token * q_token + i * q_stride]; });
            const float decay = G::to_float(g[token * g_token]), rate = BETA::to_float(beta[token * beta_token]);
            const float result = delta_rule(state, key, query, V::to_float(v[token * v_token]), decay, rate, strand);
            if (strand == 0 && wanted < rows) out[token * out_token] = OUT::from_float(result);
#pragma unroll
            for (u32 i = 0; i < HELD; ++i) state[i] = round_to<STATE_OUT>(state[i]);
        }
        if (wanted < rows) {
            STATE_OUT::Element *after = args.state_out.data<STATE_OUT>(lane) + batch * args.state_out.stride(lane, 0) + head * args.state_out.stride(lane, 1) + at * args.state_out.stride(lane, 2);
            const i64 stride = args.state_out.stride(lane, 3);
#pragma unroll
            for (u32 i = 0; i < HELD; ++i) {
                if (strand + 16 * i < DK) after[(strand + 16 * i) * stride] = STATE_OUT::from_float(state[i]);
            }
        }
    }
}
