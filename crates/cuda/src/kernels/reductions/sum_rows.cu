// Sums of few rows that a function computes, in 64 strands of which up to eight hold a row: as experts are added up.
//
// Launch: a thread has a column. Compiled with the tags X, of what the function computes, and OUT, and ROWS. With HAS_EPILOGUE, sums go
// through another function, whose operand AT they are. The functions come before this file.

#include "block.cuh"
#include "fused.cuh"
#include "strands.cuh"
#include "view.cuh"

struct SumRowsArgs {
    Launch launch;
    OUT::Element *out;
    // From matrix to matrix and from column to column, in elements.
    i64 out_matrix, out_column;
    u32 columns, count;
    // Of the function before the sum, and of the one after it, but for the sum.
    Stacked of[MOST_OPERANDS], others[MOST_OPERANDS];
};
static_assert(sizeof(SumRowsArgs) == 432, "as in sum_rows.rs");

__device__ __forceinline__ void sum_rows(const SumRowsArgs &args, const Block &block) {
    if (is_halted(lane_of(args.launch))) return;
    const u32 item = block.x * block.threads + threadIdx.x, matrix = item / args.columns, column = item - matrix * args.columns;
    if (item >= args.count) return;
    // The other strands hold +0, which changes none of these: none is -0, since each is +0 and a row.
    float strands[8];
#pragma unroll
    for (u32 row = 0; row < 8; ++row) {
        strands[row] = 0.0f;
        if (row < ROWS) strands[row] = 0.0f + X::to_float(prologue::function({args.of, matrix, row, column}));
    }
    const EpiloguePointAt<AT> point = {args.others, matrix, 0, column, combined(strands)};
    args.out[matrix * args.out_matrix + column * args.out_column] = epilogue::stored(point);
}
