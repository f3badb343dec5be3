// Products of many rows with quantized weights, `docs/ARITHMETIC.md`, "QuantMatMul", on tensor cores: codes of weights times whole
// activations, as bytes, with one product for each plane; then scales in f32.
//
// A block of 128 threads computes 64 columns (rows of weights) for TILE_M rows that `quantize` has left. It goes through the columns
// of `x` two cells at a time: a thread decodes one cell of weights to shared memory, and the planes of activations are copied there,
// while the loads of the next two cells are under way. The four warps share the tile, each with NI × MI pieces of 16 × 8 elements.
// With SORTED, products are single rows that choose their weights, and a tile is some of those with the same choice (`by_choice.cu`).
// Launch: tiles of columns in x, matrices and tiles of rows in y.
// Compiled with the tag OUT, SINGLE, SORTED, HAS_EPILOGUE, TILE_M (8, 16, 32 or 64) and what `quant.cuh` needs. `generated.cuh` has the
// function of the epilogue.

#include "choice_tile.cuh"
#include "fused.cuh"
#include "quant_args.cuh"
#include "strands.cuh"

#define THREADS 128
#define TILE_N 64
#if TILE_M == 64
#define NI 2
#define MI 4
#define WARPS_M 2
#else
#define NI 1
#define MI (TILE_M / 8)
#define WARPS_M 1
#endif
// Two cells, and a gap that spreads rows over the banks.
#define PITCH 144
// Pieces of 16 bytes of the planes of a tile, two cells long, and how many a thread copies.
#define PIECES (TILE_M * 16)
#define COPIES ((PIECES + THREADS - 1) / THREADS)

struct QuantManyArgs {
    QuantMatMulArgs of;
    // If SORTED.
    const u32 *order;
    const ChoiceTile *tiles;
    u64 most_tiles;
    // Of the epilogue, from its second operand on; the first is the product.
    Stacked others[MOST_OPERANDS];
};
static_assert(sizeof(QuantManyArgs) == 1192, "as in quant_many.rs");

// Results of a row of a tile.
#define PARTS (SINGLE ? 2 : 1)

struct Shared {
    // By row of the tile: the row of whole numbers, and, by result, the matrix, its row, and the distance of its first element.
    u32 sources[TILE_M], matrices[TILE_M], rows[TILE_M];
    i64 targets[TILE_M];
    u8 weights[TILE_N * PITCH];
    // The high plane, and the low one.
    u8 planes[2][TILE_M * PITCH];
    // By cell and group.
    float scales[2][GROUPS][TILE_N];
#if WITH_BIAS
    float biases[2][GROUPS][TILE_N];
#endif
    float2 steps[2][GROUPS][TILE_M];
};

// Adds the products of a group of codes (16 rows of weights, from byte `first` of a row on) and of whole activations (8 rows) to `c`: the
// elements (row g, column 2t), (g, 2t + 1), (g + 8, 2t) and (g + 8, 2t + 1) for thread 4 g + t of a warp.
__device__ __forceinline__ void multiply_group(int (&c)[4], const u8 *weights, const u8 *plane, u32 first) {
    const u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#ifdef __CUDA_ARCH__
#if SIGNED
#define CODE "s8"
#else
#define CODE "u8"
#endif
    const u8 *w = weights + g * PITCH + first + 4 * t, *x = plane + g * PITCH + first + 4 * t;
#if STEP == 16
    asm("mma.sync.aligned.m16n8k16.row.col.s32." CODE ".s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(*(const u32 *)w), "r"(*(const u32 *)(w + 8 * PITCH)), "r"(*(const u32 *)x));
#else
#pragma unroll
    for (u32 k = 0; k < STEP; k += 32) {
        asm("mma.sync.aligned.m16n8k32.row.col.s32." CODE ".s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(*(const u32 *)(w + k)), "r"(*(const u32 *)(w + k + 8 * PITCH)), "r"(*(const u32 *)(w + k + 16)),
              "r"(*(const u32 *)(w + k + 16 + 8 * PITCH)), "r"(*(const u32 *)(x + k)), "r"(*(const u32 *)(x + k + 16)));
    }
#endif
#else
    for (u32 i = 0; i < 4; ++i) {
        const u8 *w = weights + (g + i / 2 * 8) * PITCH + first, *x = plane + (2 * t + i % 2) * PITCH + first;
        for (u32 k = 0; k < STEP; ++k) c[i] += (SIGNED ? (int)(i8)w[k] : (int)w[k]) * (int)(i8)x[k];
    }
#endif
}

// The rows of a tile: what they are multiplied with, and how many there are.
struct Rows {
    i64 right;
    u32 count;
};

// Finds the rows of a tile. All threads of a block must call it.
__device__ __forceinline__ Rows find_rows(const QuantManyArgs &many, const Lane &owner, Shared &shared, i64 item, i64 tiles, i64 whole_rows) {
    const QuantMatMulArgs &args = many.of;
    const u32 outer = args.out.rank - 2;
#if SORTED
    const ChoiceTile tile = many.tiles[item];
    for (u32 result = threadIdx.x; result < tile.count; result += THREADS) {
        const u32 matrix = many.order[tile.first + result];
        const u32 left = args.has_lhs ? (u32)args.lhs.get_int(owner, args.lhs.at(owner, matrix)) : matrix / args.repeats;
        for (u32 part = 0; part < PARTS; ++part) shared.sources[result * PARTS + part] = left * PARTS + part;
        shared.matrices[result] = matrix, shared.rows[result] = 0;
        shared.targets[result] = args.out.at(owner, matrix, outer);
    }
    return {tile.choice, tile.count * PARTS};
#else
    const i64 matrix = View::divided(item, tiles), row0 = (item - matrix * tiles) * TILE_M;
    const Factors factors(args, owner, matrix);
    if (factors.is_outside) return {0, 0};
    const u32 count = whole_rows - row0 < TILE_M ? (u32)(whole_rows - row0) : TILE_M;
    const i64 first = args.out.at(owner, matrix, outer), out_row = args.out.stride(owner, outer);
    for (u32 row = threadIdx.x; row < count; row += THREADS) {
        shared.sources[row] = (u32)(factors.left * whole_rows + row0 + row);
        if (row % PARTS) continue;
        const i64 of_matrix = (row0 + row) / PARTS;
        shared.matrices[row / PARTS] = (u32)matrix, shared.rows[row / PARTS] = (u32)of_matrix;
        shared.targets[row / PARTS] = first + of_matrix * out_row;
    }
    return {factors.right, count};
#endif
}

__device__ __forceinline__ void store_result(const QuantManyArgs &many, const Shared &shared, OUT::Element *out, u32 result, i64 column, i64 out_column, float product) {
    const EpiloguePoint point = {many.others, shared.matrices[result], shared.rows[result], (u32)column, product};
    out[shared.targets[result] + column * out_column] = epilogue::stored(point);
}

extern "C" __global__ void __launch_bounds__(THREADS) quant_many(const __grid_constant__ QuantManyArgs many) {
    const QuantMatMulArgs &args = many.of;
    Lane &owner = lane_of(args.launch);
    if (is_halted(owner)) return;
    __shared__ __align__(16) Shared shared;
    const u32 outer = args.out.rank - 2, lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const u32 n_warp = warp / WARPS_M * (16 * NI), m_warp = warp % WARPS_M * (8 * MI);
    const i64 columns = args.out.size(owner, outer + 1), out_column = args.out.stride(owner, outer + 1);
    const i64 length = args.x_columns.of(owner), whole_rows = args.x_rows.of(owner) * PARTS;
    i64 matrices = 1;
    for (u32 axis = 0; axis < outer; ++axis) matrices *= args.out.size(owner, axis);
    const i64 cells = (length + 63) / 64, groups = length / STEP, tiles = (whole_rows + TILE_M - 1) / TILE_M;
    const i64 items = SORTED ? (i64)many.most_tiles : matrices * tiles;
    OUT::Element *out = args.out.data<OUT>(owner);
    // The cell of weights that a thread decodes.
    const u32 own_row = threadIdx.x % TILE_N, own_cell = threadIdx.x / TILE_N;
    for (i64 item = blockIdx.y; item < items; item += gridDim.y) {
        __syncthreads();
        const Rows rows = find_rows(many, owner, shared, item, tiles, whole_rows);
        __syncthreads();
        if (!rows.count) continue;
        const WeightMatrix weights(owner, args.weights, rows.right);
        for (i64 column0 = (i64)blockIdx.x * TILE_N; column0 < columns; column0 += (i64)gridDim.x * TILE_N) {
            const i64 own_column = column0 + own_row < columns ? column0 + own_row : columns - 1;
            RawCell raw;
            uint4 copied[COPIES];
            // Loads what a thread decodes and copies of the two cells from `cell` on.
            const auto load = [&](i64 cell) {
                if (cell + own_cell < cells) load_cell(raw, weights, own_column, cell + own_cell);
#pragma unroll
                for (u32 i = 0; i < COPIES; ++i) {
                    const u32 piece = threadIdx.x + i * THREADS, row = piece / 16, in_row = piece % 16;
                    if (row < rows.count && cell + in_row / 8 < cells) copied[i] = args.planes[(shared.sources[row] * cells + cell) * 8 + in_row];
                }
            };
            const auto store = [&](i64 cell) {
                if (cell + own_cell < cells) {
                    Cell decoded;
                    decode(decoded, raw, cell + own_cell);
#pragma unroll
                    for (u32 i = 0; i < 4; ++i) {
                        const u32 *from = decoded.codes + 4 * i;
                        *(uint4 *)(shared.weights + own_row * PITCH + own_cell * 64 + 16 * i) = make_uint4(from[0], from[1], from[2], from[3]);
                    }
#pragma unroll
                    for (u32 group = 0; group < GROUPS; ++group) {
                        shared.scales[own_cell][group][own_row] = decoded.scales[group];
#if WITH_BIAS
                        shared.biases[own_cell][group][own_row] = decoded.biases[group];
#endif
                    }
                }
#pragma unroll
                for (u32 i = 0; i < COPIES; ++i) {
                    // 16 pieces a row: four of the high plane and four of the low one, for each cell.
                    const u32 piece = threadIdx.x + i * THREADS, row = piece / 16, in_row = piece % 16;
                    if (piece < PIECES) *(uint4 *)(shared.planes[in_row / 4 % 2] + row * PITCH + in_row / 8 * 64 + in_row % 4 * 16) = copied[i];
                }
                for (u32 pair = threadIdx.x; pair < 2 * GROUPS * TILE_M; pair += THREADS) {
                    const u32 row = pair / (2 * GROUPS), group = pair % (2 * GROUPS);
                    const bool exists = row < rows.count && cell * GROUPS + group < groups;
                    const i64 at = exists ? shared.sources[row] * groups + cell * GROUPS + group : 0;
                    shared.steps[group / GROUPS][group % GROUPS][row] = exists ? args.steps[at] : make_float2(0.0f, 0.0f);
                }
            };
            float chunks[NI][MI][4], totals[NI][MI][4];
#pragma unroll
            for (u32 i = 0; i < NI * MI * 4; ++i) totals[i / 4 / MI][i / 4 % MI][i % 4] = 0.0f;
            load(0);
            for (i64 cell0 = 0; cell0 < cells; cell0 += 2) {
                __syncthreads();
                store(cell0);
                __syncthreads();
                if (cell0 + 2 < cells) load(cell0 + 2);
#pragma unroll 1
                for (u32 half = 0; half < 2; ++half) {
                    const i64 cell = cell0 + half;
                    if (cell >= cells) break;
                    const u32 present = groups_of(length, cell);
                    const bool is_first = cell % 4 == 0, is_last = cell % 4 == 3 || cell + 1 == cells;
#pragma unroll
                    for (u32 ni = 0; ni < NI; ++ni) {
                        float sums[MI][4];
#pragma unroll
                        for (u32 i = 0; i < MI * 4; ++i) sums[i / 4][i % 4] = 0.0f;
#pragma unroll
                        for (u32 group = 0; group < GROUPS; ++group) {
                            if (group >= present) continue;
                            const u32 n = n_warp + 16 * ni, first = half * 64 + group * STEP;
                            const float scale[2] = {shared.scales[half][group][n + g], shared.scales[half][group][n + g + 8]};
#if WITH_BIAS
                            const float bias[2] = {shared.biases[half][group][n + g], shared.biases[half][group][n + g + 8]};
#endif
#pragma unroll
                            for (u32 mi = 0; mi < MI; ++mi) {
                                const u32 m = m_warp + 8 * mi;
                                int high[4] = {0, 0, 0, 0}, low[4] = {0, 0, 0, 0};
                                multiply_group(high, shared.weights + n * PITCH, shared.planes[0] + m * PITCH, first);
                                multiply_group(low, shared.weights + n * PITCH, shared.planes[1] + m * PITCH, first);
                                const float4 step = *(const float4 *)(shared.steps[half][group] + m + 2 * t);
#pragma unroll
                                for (u32 i = 0; i < 4; ++i) {
                                    sums[mi][i] = __fmaf_rn(scale[i / 2] * (i % 2 ? step.z : step.x), (float)(high[i] * 256 + low[i]), sums[mi][i]);
#if WITH_BIAS
                                    sums[mi][i] = __fmaf_rn(bias[i / 2], i % 2 ? step.w : step.y, sums[mi][i]);
#endif
                                }
                            }
                        }
#pragma unroll
                        for (u32 i = 0; i < MI * 4; ++i) {
                            float &chunk = chunks[ni][i / 4][i % 4], &total = totals[ni][i / 4][i % 4];
                            chunk = is_first ? sums[i / 4][i % 4] : chunk + sums[i / 4][i % 4];
                            if (is_last) total = total + chunk;
                        }
                    }
                }
            }
#pragma unroll
            for (u32 i = 0; i < NI * MI * 4; i += SINGLE ? 2 : 1) {
                const float(&total)[4] = totals[i / 4 / MI][i / 4 % MI];
                const i64 column = column0 + n_warp + 16 * (i / 4 / MI) + g + 8 * (i % 4 / 2);
                const u32 row = m_warp + 8 * (i / 4 % MI) + 2 * t + i % 2;
                if (column >= columns || row >= rows.count) continue;
#if SINGLE
                store_result(many, shared, out, row / 2, column, out_column, total[i % 4] + total[i % 4 + 1]);
#else
                store_result(many, shared, out, row, column, out_column, total[i % 4]);
#endif
            }
        }
    }
}
