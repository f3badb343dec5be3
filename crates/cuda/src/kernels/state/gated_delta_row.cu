// The gated delta rule for one token, as in decoding: `gated_delta.cu`, of which this computes the same.
//
// Launch: as there, 16 threads for a row of a state; each has a row. All tensors lie at regular distances, at addresses that the host
// knows. Compiled with the same tags.

#include "block.cuh"
#include "operand.cuh"
#include "strands.cuh"
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

#define HELD ((DK + 15) / 16)

// The elements of a row that belong to a strand; those that do not exist are not used.
template <typename T> __device__ __forceinline__ void load_strand(float (&to)[HELD], const Stacked &from, u32 matrix, u32 row, u32 strand) {
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) to[i] = strand + 16 * i < DK ? T::to_float(from.get<T>(matrix, row, strand + 16 * i)) : 0.0f;
}

__device__ __forceinline__ float dot(const float (&a)[HELD], const float (&b)[HELD], u32 strand) {
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) {
        if (strand + 16 * i < DK) sum = __fmaf_rn(a[i], b[i], sum);
    }
    return combined_16(sum);
}

__device__ __forceinline__ void gated_delta_row(const GatedDeltaRowArgs &args, const Block &block) {
    if (is_halted(lane_of(args.launch))) return;
    // All threads of a warp go on together, because they exchange sums.
    const u32 rows = args.heads * args.width, wanted = (block.x * block.threads + threadIdx.x) / 16, row = min(wanted, rows - 1);
    const u32 head = row / args.width, at = row - head * args.width, group = head / args.heads_per_group, strand = threadIdx.x % 16;
    float state[HELD], key[HELD], query[HELD];
    load_strand<STATE>(state, args.state, head, at, strand);
    load_strand<K>(key, args.k, 0, group, strand);
    load_strand<Q>(query, args.q, 0, group, strand);
    const float decay = G::to_float(args.g.get<G>(0, 0, head)), rate = BETA::to_float(args.beta.get<BETA>(0, 0, head));
    const float difference = (V::to_float(args.v.get<V>(0, head, at)) - decay * dot(state, key, strand)) * rate;
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) state[i] = __fmaf_rn(difference, key[i], state[i] * decay);
    const float result = dot(state, query, strand);
    if (wanted >= rows) return;
    if (strand == 0) ((OUT::Element *)args.out.data)[head * args.out.row + at * args.out.column] = OUT::from_float(result);
    STATE_OUT::Element *const after = (STATE_OUT::Element *)args.state_out.data + head * args.state_out.matrix + at * args.state_out.row;
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) {
        if (strand + 16 * i < DK) after[(strand + 16 * i) * args.state_out.column] = STATE_OUT::from_float(state[i]);
    }
}
