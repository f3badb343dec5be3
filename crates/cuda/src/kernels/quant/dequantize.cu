// Quantized weights as numbers: `code * scale + bias`, two roundings (`quant.cuh`).
//
// Launch: a thread for each weight, shared out in x. Compiled with the tag OUT and what `quant.cuh` needs.

#include "block.cuh"
#include "quant.cuh"

struct DequantizeArgs {
    Launch launch;
    View out;
    QuantizedViews weights;
};
static_assert(sizeof(DequantizeArgs) == 624, "as in dequantize.rs");

__device__ __forceinline__ void dequantize(const DequantizeArgs &args, const Block &block) {
    Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    const u32 axis = args.out.rank - 2;
    const i64 rows = args.out.size(lane, axis), columns = args.out.size(lane, axis + 1), count = args.out.count(lane);
    OUT::Element *out = args.out.data<OUT>(lane);
    for (i64 item = (i64)block.x * block.threads + threadIdx.x; item < count; item += (i64)block.across * block.threads) {
        const i64 line = View::divided(item, columns), at = item - line * columns;
        const i64 index = View::divided(line, rows), row = line - index * rows;
        out[args.out.at(lane, item)] = OUT::from_float(weight_at(WeightMatrix(lane, args.weights, index), row, at));
    }
}
