// What goes before and after a draw (`sample.cu`): its parameters in the types and the order that it reads, and its results where the
// program wants them.

#include "view.cuh"
#include "threefry.cuh"

#define HAS_SEED 1
#define ADJUSTS 2
#define HAS_WHICH 4
#define PACKS 8
#define HAS_EXACT_TAIL 16

// `Adjustments` of rows.cuh.
struct RowAdjustments {
    u32 history_start, history_length, prompt_end;
    u32 bias_start, bias_count;
    u32 mask_start, mask_words;
    float repetition, presence, frequency;
};
static_assert(sizeof(RowAdjustments) == 40, "as in rows.cuh");

struct PrepareArgs {
    Launch launch;
    View logits, temperature, top_k, top_p, min_p, exact_tail, seed, which;
    View history, last, prompt_end, repetition, presence, frequency, bias_tokens, bias_values, mask;
    char *to_logits;
    float *to_temperature;
    i64 *to_top_k;
    float *to_top_p, *to_min_p;
    i64 *to_exact_tail, *to_seed, *to_which;
    RowAdjustments *to_row;
    i32 *to_history, *to_bias_tokens;
    float *to_bias_values;
    i32 *to_mask;
    u32 *to_sequence;
    u32 flags;
    u32 unused;
};
static_assert(sizeof(PrepareArgs) == 2720, "as in head.rs");

__device__ __forceinline__ void copy_floats(const View &from, const Lane &lane, float *to) {
    const i64 count = from.count(lane);
    for (i64 i = first_item(); i < count; i += item_step()) to[i] = from.get_float(lane, from.at(lane, i));
}
__device__ __forceinline__ void copy_ints(const View &from, const Lane &lane, i64 *to) {
    const i64 count = from.count(lane);
    for (i64 i = first_item(); i < count; i += item_step()) to[i] = from.get_int(lane, from.at(lane, i));
}
__device__ __forceinline__ void copy_small_ints(const View &from, const Lane &lane, i32 *to) {
    const i64 count = from.count(lane);
    for (i64 i = first_item(); i < count; i += item_step()) to[i] = (i32)from.get_int(lane, from.at(lane, i));
}

extern "C" __global__ void head_prepare(const __grid_constant__ PrepareArgs args) {
    const Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    if (args.flags & PACKS) {
        const i64 count = args.logits.count(lane);
        const bool is_wide = args.logits.dtype == F32_CODE;
        for (i64 i = first_item(); i < count; i += item_step()) {
            const i64 at = args.logits.offset.of(lane) + args.logits.at(lane, i);
            if (is_wide) ((u32 *)args.to_logits)[i] = ((const u32 *)args.logits.start(lane))[at];
            else ((u16 *)args.to_logits)[i] = ((const u16 *)args.logits.start(lane))[at];
        }
    }
    copy_floats(args.temperature, lane, args.to_temperature);
    copy_ints(args.top_k, lane, args.to_top_k);
    copy_floats(args.top_p, lane, args.to_top_p);
    copy_floats(args.min_p, lane, args.to_min_p);
    if (args.flags & HAS_EXACT_TAIL) copy_ints(args.exact_tail, lane, args.to_exact_tail);
    if (args.flags & HAS_SEED) copy_ints(args.seed, lane, args.to_seed);
    if (args.flags & HAS_WHICH) copy_ints(args.which, lane, args.to_which);
    if (args.flags & ADJUSTS) {
        copy_small_ints(args.history, lane, args.to_history);
        copy_small_ints(args.bias_tokens, lane, args.to_bias_tokens);
        copy_floats(args.bias_values, lane, args.to_bias_values);
        copy_small_ints(args.mask, lane, args.to_mask);
    }
    if (first_item()) return;
    args.to_sequence[0] = lane.key[0];
    args.to_sequence[1] = lane.key[1];
    if (!(args.flags & ADJUSTS)) return;
    const i64 positions = args.history.count(lane), last = args.last.get_int(lane, 0);
    const i64 prompt_end = args.prompt_end.get_int(lane, 0);
    RowAdjustments row = {};
    row.history_length = (u32)(last < 0 ? 0 : last >= positions ? positions : last + 1);
    row.prompt_end = (u32)(prompt_end < 0 ? 0 : prompt_end > 0xffffffffll ? 0xffffffffll : prompt_end);
    row.bias_count = (u32)args.bias_tokens.count(lane);
    row.mask_words = (u32)args.mask.count(lane);
    row.repetition = args.repetition.get_float(lane, 0);
    row.presence = args.presence.get_float(lane, 0);
    row.frequency = args.frequency.get_float(lane, 0);
    *args.to_row = row;
}

struct PublishArgs {
    Launch launch;
    View out, token, likeliest, of_likeliest;
    const i64 *tokens;
    const float *of_tokens;
    const i64 *found;
    const float *of_found;
    const u32 *sequence;
    u32 flags;
    u32 unused;
};
static_assert(sizeof(PublishArgs) == 672, "as in head.rs");

extern "C" __global__ void head_publish(const __grid_constant__ PublishArgs args) {
    Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    const i64 rows = args.out.count(lane);
    for (i64 i = first_item(); i < rows; i += item_step()) args.out.set_int(lane, args.out.at(lane, i), args.tokens[i]);
    if (args.flags & HAS_WHICH) {
        const i64 count = args.likeliest.count(lane);
        for (i64 i = first_item(); i < rows; i += item_step()) args.token.set_float(lane, args.token.at(lane, i), args.of_tokens[i]);
        for (i64 i = first_item(); i < count; i += item_step()) {
            args.likeliest.set_int(lane, args.likeliest.at(lane, i), args.found[i]);
            args.of_likeliest.set_float(lane, args.of_likeliest.at(lane, i), args.of_found[i]);
        }
    }
    if (first_item() || args.flags & HAS_SEED) return;
    lane.key[0] = args.sequence[0];
    lane.key[1] = args.sequence[1];
}

struct SkipArgs {
    Launch launch;
    View temperature;
};
static_assert(sizeof(SkipArgs) == 168, "as in head.rs");

// A draw of no rows takes the next key if it would have used one.
extern "C" __global__ void head_skip(const __grid_constant__ SkipArgs args) {
    Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    const i64 count = args.temperature.count(lane);
    bool is_used = false;
    for (i64 i = 0; i < count; ++i) is_used |= args.temperature.get_float(lane, args.temperature.at(lane, i)) > 0.0f;
    if (!is_used) return;
    const u32 k0 = lane.key[0], k1 = lane.key[1];
    lane.key[0] = threefry(k0, k1, 0, 2).low;
    lane.key[1] = threefry(k0, k1, 1, 3).low;
}
