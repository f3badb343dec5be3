// Products of one row of activations with quantized weights, as in decoding: `docs/ARITHMETIC.md`, "QuantMatMul". Everything that a
// product needs is one launch: the row may first be normalized or computed by an elementwise function (PROLOGUE), it becomes whole
// numbers, and the product goes through the function of its epilogue.
//
// All tensors are rows of contiguous elements at addresses that the host knows, so that little is computed but the product.
//
// Launch: matrices of the result in y, rows of weights in x. A block turns the row of activations into whole numbers in shared memory
// first: a warp has a cell at a time, a thread two columns. Then four threads have a row of weights, a cell of a chunk each, and a warp
// has eight rows. SPLIT warps share the chunks of eight rows; with more than one, chunks meet in shared memory. The first weights are
// loaded before the block waits for the launch before it: no step writes weights, or the product is another kernel's.
// Compiled with what `quant.cuh` needs (VECTOR is 1), the tags X (what is loaded), ROW (what is multiplied, after the prologue), WEIGHT and
// BIAS_ROW (of a norm), INDEX (of chosen matrices) and OUT, and PROLOGUE, HAS_WEIGHT, HAS_BIAS_ROW, HAS_EPILOGUE, CHOSEN, SINGLE, WARPS,
// SPLIT and DEPTH: the number of chunks whose loads are under way together. Functions come before this file.

#include "block.cuh"
#include "fused.cuh"
#include "normed.cuh"
#include "quant_cell.cuh"
#include "whole_numbers.cuh"

struct QuantRowArgs {
    Launch launch;
    const char *codes, *scales, *biases;
    char *out;
    // Which matrix of the stack each matrix of the result takes.
    const char *chosen;
    i64 chosen_step, stack;
    // From row to row and from matrix to matrix, in elements.
    i64 code_row, code_matrix, scale_row, scale_matrix, bias_row, bias_matrix, out_matrix;
    // Columns of the row of activations and of the result.
    u32 length, columns;
    float eps;
    u32 is_layer;
    // The row; after that the weight and bias of its norm. Or the operands of the function that computes it.
    Stacked row[MOST_OPERANDS];
    // Of the epilogue, from its second operand on; the first is the product.
    Stacked others[MOST_OPERANDS];
};
static_assert(sizeof(QuantRowArgs) == 528, "as in quant_row.rs");

// Rows of whole numbers: of single precision a row and its rounding error.
#define ROWS (SINGLE ? 2 : 1)
// Vectors of 16 bytes from cell to cell: eight, and one so that four cells lie in different banks.
#define CELL_VECTORS 9

struct RowMemory {
    uint4 *planes;
    float2 *steps;
    // The row before its norm; after that, sums of warps that share chunks.
    float *sums;
    u32 cells;

    __device__ __forceinline__ RowMemory(uint4 *memory, u32 cells) : cells(cells) {
        planes = memory;
        steps = (float2 *)(planes + ROWS * cells * CELL_VECTORS);
        sums = (float *)(steps + ROWS * cells * GROUPS);
    }

    __device__ __forceinline__ void load(CellActivations &to, u32 row, u32 cell) const {
        const uint4 *from = planes + (row * cells + cell) * CELL_VECTORS;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const uint4 high = from[i], low = from[i + 4];
            to.high[4 * i] = high.x, to.high[4 * i + 1] = high.y, to.high[4 * i + 2] = high.z, to.high[4 * i + 3] = high.w;
            to.low[4 * i] = low.x, to.low[4 * i + 1] = low.y, to.low[4 * i + 2] = low.z, to.low[4 * i + 3] = low.w;
        }
#pragma unroll
        for (u32 i = 0; i < GROUPS; ++i) to.steps[i] = steps[(row * cells + cell) * GROUPS + i];
    }

    // Stores two columns of a cell as whole numbers, by a warp.
    __device__ __forceinline__ void store(float (&x)[2], u32 cell, u32 lane) const {
        const WholePair whole(x);
        whole.store((u8 *)(planes + cell * CELL_VECTORS), steps + cell * GROUPS, lane, true);
#if SINGLE
        const float rest[2] = {__fmaf_rn(-whole.step, (float)whole.q[0], x[0]), __fmaf_rn(-whole.step, (float)whole.q[1], x[1])};
        const WholePair error(rest);
        error.store((u8 *)(planes + (cells + cell) * CELL_VECTORS), steps + (cells + cell) * GROUPS, lane, true);
#endif
    }
};

// What is loaded of an element of the row, before it is computed.
struct RowElement {
#if PROLOGUE == PLAIN_ROW
    X::Element x;
#elif PROLOGUE == NORM_ROW
    NormFactors factors;
#else
    prologue::Point operands;
#endif

    __device__ __forceinline__ void load(const QuantRowArgs &args, u32 matrix, u32 at) {
#if PROLOGUE == PLAIN_ROW
        x = args.row[0].get<X>(matrix, 0, at);
#elif PROLOGUE == NORM_ROW
        factors.load(args.row, matrix, at);
#else
        operands = prologue::loaded({args.row, matrix, 0, at});
#endif
    }
};

// Cells whose elements a warp loads together: waiting for each alone would take most of the time.
#define CELLS_AT_ONCE 4

// Elements of some cells of a warp, two columns a thread.
struct RowElements {
    RowElement of[CELLS_AT_ONCE][2];

    __device__ __forceinline__ void load(const QuantRowArgs &args, u32 matrix, u32 first, u32 lane) {
#pragma unroll
        for (u32 i = 0; i < CELLS_AT_ONCE; ++i) {
            // Beyond the last column, that one again.
            const u32 column = min((first + i * WARPS) * 64 + 2 * lane, args.length - 2);
            of[i][0].load(args, matrix, column);
            of[i][1].load(args, matrix, column + 1);
        }
    }
};

// Leaves the row of activations in shared memory, as whole numbers.
__device__ __forceinline__ void prepare_row(const QuantRowArgs &args, const RowMemory &memory, u32 matrix, u32 warp, u32 lane) {
    RowElements elements;
    elements.load(args, matrix, warp, lane);
#if PROLOGUE == NORM_ROW
    stage_row<X>(memory.sums, args.length, 32 * WARPS, [&](u32 at) { return args.row[0].get<X>(matrix, 0, at); });
    __syncthreads();
    const float2 found = center_and_factor(args.length, lane, args.is_layer, args.eps, [&](i64 at) { return memory.sums[at]; });
#endif
    for (u32 first = warp; first < memory.cells; first += CELLS_AT_ONCE * WARPS) {
        if (first > warp) elements.load(args, matrix, first, lane);
#pragma unroll
        for (u32 i = 0; i < CELLS_AT_ONCE; ++i) {
            const u32 cell = first + i * WARPS, column = cell * 64 + 2 * lane;
            if (cell >= memory.cells) continue;
            float x[2] = {0.0f, 0.0f};
            if (column < args.length) {
#pragma unroll
                for (u32 j = 0; j < 2; ++j) {
#if PROLOGUE == PLAIN_ROW
                    x[j] = X::to_float(elements.of[i][j].x);
#elif PROLOGUE == NORM_ROW
                    x[j] = elements.of[i][j].factors.normed(memory.sums[column + j], found);
#else
                    x[j] = ROW::to_float(prologue::function(elements.of[i][j].operands));
#endif
                }
            }
            memory.store(x, cell, lane);
        }
    }
    __syncthreads();
}

// The sum of a chunk of four cells: of four threads, the first has it.
__device__ __forceinline__ float chunk_of(float cell) {
    const float second = __shfl_down_sync(WHOLE_WARP, cell, 1), third = __shfl_down_sync(WHOLE_WARP, cell, 2);
    const float fourth = __shfl_down_sync(WHOLE_WARP, cell, 3);
    return ((cell + second) + third) + fourth;
}

__device__ __forceinline__ void store_product(const QuantRowArgs &args, u32 matrix, u32 column, float product) {
    ((OUT::Element *)args.out)[matrix * args.out_matrix + column] = epilogue::stored({args.others, matrix, 0, column, product});
}

__device__ __forceinline__ WeightMatrix weights_of(const QuantRowArgs &args, i64 index) {
    WeightMatrix weights;
    weights.row = args.code_row, weights.step = 1, weights.length = args.length;
#if IS_BLOCKS
    weights.codes = (const u8 *)args.codes + index * args.code_matrix;
#else
    weights.codes = (const u32 *)args.codes + index * args.code_matrix;
    weights.scales = (const SCALE::Element *)args.scales + index * args.scale_matrix;
    weights.scale_row = args.scale_row, weights.scale_step = 1;
#if HAS_BIAS
    weights.biases = (const BIAS::Element *)args.biases + index * args.bias_matrix;
    weights.bias_row = args.bias_row, weights.bias_step = 1;
#endif
#endif
    return weights;
}

// Loads the cells of some chunks, a cell a thread; chunks of a warp are SPLIT apart.
__device__ __forceinline__ void load_chunks(RawCell (&raw)[DEPTH], const WeightMatrix &weights, u32 row, u32 first, u32 part, u32 cells) {
#pragma unroll
    for (u32 i = 0; i < DEPTH; ++i) {
        const u32 cell = (first + i * SPLIT) * 4 + part;
        if (cell < cells) load_cell(raw[i], weights, row, cell);
    }
}

// Rows of weights of a block.
#define BLOCK_ROWS (8 * WARPS / SPLIT)

__device__ __forceinline__ void quant_row(const QuantRowArgs &args, const Block &block) {
    extern __shared__ uint4 shared[];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = lane % 4, first_chunk = warp % SPLIT;
    const u32 cells = (args.length + 63) / 64, chunks = (cells + 3) / 4, matrix = block.y;
    const u32 row_of_block = warp / SPLIT * 8 + lane / 4;
    const auto row_at = [&](u32 base) { return min(base + row_of_block, args.columns - 1); };
    const RowMemory memory(shared, cells);
    RawCell raw[DEPTH];
    u32 base = block.x * BLOCK_ROWS;
#if CHOSEN
    Lane &owner = lane_of(args.launch);
    if (is_halted(owner)) return;
    const i64 index = INDEX::to_int(((const INDEX::Element *)args.chosen)[matrix * args.chosen_step]);
    if (index < 0 || index >= args.stack) {
        fail(owner, args.launch, INDEX_OUTSIDE, index, args.stack);
        return;
    }
    const WeightMatrix weights = weights_of(args, index);
    load_chunks(raw, weights, row_at(base), first_chunk, part, cells);
#else
    const WeightMatrix weights = weights_of(args, args.stack > 1 ? matrix : 0);
    load_chunks(raw, weights, row_at(base), first_chunk, part, cells);
    Lane &owner = lane_of(args.launch);
    if (is_halted(owner)) return;
#endif
    prepare_row(args, memory, matrix, warp, lane);
    for (; base < args.columns; base += block.across * BLOCK_ROWS) {
        const u32 row = row_at(base);
        float total[ROWS] = {};
        for (u32 first = first_chunk; first < chunks; first += DEPTH * SPLIT) {
#pragma unroll
            for (u32 i = 0; i < DEPTH; ++i) {
                const u32 chunk = first + i * SPLIT, cell = chunk * 4 + part, groups = groups_of(args.length, cell);
                if (chunk >= chunks) continue;
                Cell decoded;
                if (groups) decode(decoded, raw[i], cell);
#pragma unroll
                for (u32 of_row = 0; of_row < ROWS; ++of_row) {
                    float sum = 0.0f;
                    if (groups) {
                        CellActivations x;
                        memory.load(x, of_row, cell);
                        sum = cell_sum(decoded, x, groups);
                    }
                    const float of_chunk = chunk_of(sum);
#if SPLIT > 1
                    if (part == 0) memory.sums[(of_row * chunks + chunk) * BLOCK_ROWS + row_of_block] = of_chunk;
#else
                    total[of_row] = total[of_row] + of_chunk;
#endif
                }
            }
            const u32 next = first + DEPTH * SPLIT;
            if (next < chunks) load_chunks(raw, weights, row, next, part, cells);
        }
        const u32 next_base = base + block.across * BLOCK_ROWS;
        if (next_base < args.columns) load_chunks(raw, weights, row_at(next_base), first_chunk, part, cells);
#if SPLIT > 1
        __syncthreads();
        if (threadIdx.x < BLOCK_ROWS && base + threadIdx.x < args.columns) {
            for (u32 of_row = 0; of_row < ROWS; ++of_row) {
                for (u32 chunk = 0; chunk < chunks; ++chunk) total[of_row] = total[of_row] + memory.sums[(of_row * chunks + chunk) * BLOCK_ROWS + threadIdx.x];
            }
            store_product(args, matrix, base + threadIdx.x, SINGLE ? total[0] + total[ROWS - 1] : total[0]);
        }
        __syncthreads();
#else
        if (part == 0 && base + row_of_block < args.columns) {
            store_product(args, matrix, base + row_of_block, SINGLE ? total[0] + total[ROWS - 1] : total[0]);
        }
#endif
    }
}
