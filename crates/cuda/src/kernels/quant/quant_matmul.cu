// Products of few rows with quantized weights whose codes are whole numbers, `docs/ARITHMETIC.md`, "QuantMatMul".
//
// `quant_few` multiplies up to ROWS of the rows that `quantize` has left with rows of weights `[..., N, K]`; `quant_long` multiplies
// rows that are too long for that.
//
// Launch of `quant_few`: a warp has 32 cells (a slab of 2048 columns), a cell a thread, and keeps their activations in registers; it
// goes through rows of weights, COLUMNS at a time, whose loads are under way together. The warps of a block are sets of `slabs`
// warps that share a row of weights. Groups of rows of weights are shared out in x, matrices and tiles of rows of `x` in y.
// Launch of `quant_long`: a warp for each element.
// Compiled with the tag OUT, SINGLE, ROWS, and what `quant.cuh` needs.

#include "quant_args.cuh"
#include "strands.cuh"

// Rows of weights that a warp reads at once.
#define COLUMNS 2
#define MOST_WARPS 16

// The sums of chunks of four cells: every fourth thread has one.
__device__ __forceinline__ float chunk_of(float cell) {
    const float second = __shfl_down_sync(WHOLE_WARP, cell, 1), third = __shfl_down_sync(WHOLE_WARP, cell, 2);
    const float fourth = __shfl_down_sync(WHOLE_WARP, cell, 3);
    return ((cell + second) + third) + fourth;
}

extern "C" __global__ void __launch_bounds__(32 * MOST_WARPS, 1) quant_few(const __grid_constant__ QuantMatMulArgs args) {
    Lane &owner = lane_of(args.launch);
    if (is_halted(owner)) return;
    // Sums of chunks of the slabs of a row of weights, by set, column and row of `x`.
    __shared__ float chunks[2][MOST_WARPS][COLUMNS][ROWS][8];
    const u32 outer = args.out.rank - 2, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 columns = args.out.size(owner, outer + 1), out_row = args.out.stride(owner, outer), out_column = args.out.stride(owner, outer + 1);
    const i64 rows = args.x_rows.of(owner), length = args.x_columns.of(owner), whole_rows = SINGLE ? 2 * rows : rows;
    i64 matrices = 1;
    for (u32 axis = 0; axis < outer; ++axis) matrices *= args.out.size(owner, axis);
    const i64 cells = (length + 63) / 64, tiles = (whole_rows + ROWS - 1) / ROWS;
    const u32 slabs = cells > 32 ? (u32)((cells + 31) / 32) : 1, warps = blockDim.x / 32, sets = warps / slabs, slab = warp % slabs, set = warp / slabs;
    const QuantizedRows x_rows = {args.planes, args.steps, cells, length / STEP};
    const i64 cell = slab * 32 + lane;
    const u32 groups = groups_of(length, cell);
    for (i64 item = blockIdx.y; item < matrices * tiles; item += gridDim.y) {
        const i64 matrix = View::divided(item, tiles), row0 = (item - matrix * tiles) * ROWS;
        const Factors factors(args, owner, matrix);
        if (factors.is_outside) continue;
        const WeightMatrix weights(owner, args.weights, factors.right);
        CellActivations x[ROWS];
#pragma unroll
        for (u32 row = 0; row < ROWS; ++row) {
            // A row that does not exist repeats another; its results are dropped.
            const i64 at = row0 + row < whole_rows ? row0 + row : row0;
            if (groups) x_rows.load(x[row], factors.left * whole_rows + at, cell);
        }
        OUT::Element *out = args.out.data<OUT>(owner) + args.out.at(owner, matrix, outer);
        const auto store = [&](i64 row, i64 column, float sum) {
            if (column < columns) out[row * out_row + column * out_column] = OUT::from_float(sum);
        };
        u32 buffer = 0;
        for (i64 base = (i64)blockIdx.x * sets * COLUMNS; base < columns; base += (i64)gridDim.x * sets * COLUMNS) {
            const i64 column0 = base + set * COLUMNS;
            RawCell raw[COLUMNS];
#pragma unroll
            for (u32 i = 0; i < COLUMNS; ++i) {
                const i64 column = column0 + i < columns ? column0 + i : columns - 1;
                if (groups && set < sets) load_cell(raw[i], weights, column, cell);
            }
#pragma unroll
            for (u32 i = 0; i < COLUMNS; ++i) {
                float sums[ROWS];
                Cell decoded;
                if (groups && set < sets) decode(decoded, raw[i], cell);
#pragma unroll
                for (u32 row = 0; row < ROWS; ++row) {
                    const float chunk = chunk_of(groups && set < sets ? cell_sum(decoded, x[row], groups) : 0.0f);
                    if (slabs > 1) {
                        if (lane % 4 == 0 && set < sets) chunks[buffer][warp][i][row][lane / 4] = chunk;
                        continue;
                    }
                    float sum = 0.0f;
#pragma unroll
                    for (u32 at = 0; at < 32; at += 4) sum = sum + __shfl_sync(WHOLE_WARP, chunk, at);
                    sums[row] = sum;
                }
                if (slabs == 1 && lane == 0 && set < sets) {
#pragma unroll
                    for (u32 row = 0; row < ROWS; row += SINGLE ? 2 : 1) {
                        if (row0 + row >= whole_rows) continue;
#if SINGLE
                        store((row0 + row) / 2, column0 + i, sums[row] + sums[row + 1]);
#else
                        store(row0 + row, column0 + i, sums[row]);
#endif
                    }
                }
            }
            if (slabs == 1) continue;
            __syncthreads();
            const u32 results = ROWS / (SINGLE ? 2 : 1);
            for (u32 result = threadIdx.x; result < sets * COLUMNS * results; result += blockDim.x) {
                const u32 row = result % results, i = result / results % COLUMNS, of_set = result / results / COLUMNS;
                const auto sum_of = [&](u32 whole_row) {
                    float sum = 0.0f;
                    for (u32 at = 0; at < slabs * 8; ++at) sum = sum + chunks[buffer][of_set * slabs + at / 8][i][whole_row][at % 8];
                    return sum;
                };
#if SINGLE
                if (row0 + 2 * row < whole_rows) store(row0 / 2 + row, base + of_set * COLUMNS + i, sum_of(2 * row) + sum_of(2 * row + 1));
#else
                if (row0 + row < whole_rows) store(row0 + row, base + of_set * COLUMNS + i, sum_of(row));
#endif
            }
            // The next columns go to the other half, and those after them come after the next barrier.
            buffer ^= 1;
        }
        __syncthreads();
    }
}

// Adds a slab of cells to the sums of the slabs before it, by a warp.
__device__ __forceinline__ float with_slab(float sum, const QuantizedRows &x_rows, i64 row, const WeightMatrix &weights, i64 column, i64 cell, u32 groups) {
    float cell_result = 0.0f;
    if (groups) {
        CellActivations x;
        RawCell raw;
        Cell decoded;
        x_rows.load(x, row, cell);
        load_cell(raw, weights, column, cell);
        decode(decoded, raw, cell);
        cell_result = cell_sum(decoded, x, groups);
    }
    const float chunk = chunk_of(cell_result);
#pragma unroll
    for (u32 at = 0; at < 32; at += 4) sum = sum + __shfl_sync(WHOLE_WARP, chunk, at);
    return sum;
}

extern "C" __global__ void quant_long(const __grid_constant__ QuantMatMulArgs args) {
    Lane &owner = lane_of(args.launch);
    if (is_halted(owner)) return;
    const u32 outer = args.out.rank - 2, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const i64 columns = args.out.size(owner, outer + 1), rows = args.x_rows.of(owner), length = args.x_columns.of(owner);
    const i64 cells = (length + 63) / 64, count = args.out.count(owner);
    const QuantizedRows x_rows = {args.planes, args.steps, cells, length / STEP};
    for (i64 item = (i64)blockIdx.x * warps + threadIdx.x / 32; item < count; item += (i64)gridDim.x * warps) {
        const i64 line = View::divided(item, columns), column = item - line * columns;
        const i64 matrix = View::divided(line, rows), row = line - matrix * rows;
        const Factors factors(args, owner, matrix);
        if (factors.is_outside) continue;
        const WeightMatrix weights(owner, args.weights, factors.right);
        const i64 x_row = factors.left * rows + row;
        float sum = 0.0f, error = 0.0f;
        for (i64 cell = lane; cell - lane < cells; cell += 32) {
            const u32 groups = groups_of(length, cell);
            sum = with_slab(sum, x_rows, SINGLE ? 2 * x_row : x_row, weights, column, cell, groups);
            if (SINGLE) error = with_slab(error, x_rows, 2 * x_row + 1, weights, column, cell, groups);
        }
        if (lane == 0) args.out.data<OUT>(owner)[args.out.at(owner, item)] = OUT::from_float(SINGLE ? sum + error : sum);
    }
}
