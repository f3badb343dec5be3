// Products of matrices, `docs/ARITHMETIC.md`, "MatMul": `out[…, m, n]` is the product of row `m` of a and column `n` of b, in 16 strands
// of fused multiply-adds. What is padded has -0 in a and +0 in b, whose product changes no strand.
//
// Launch: `matmul` computes tiles of 32 × 32 elements with 256 threads, 2 × 2 elements a thread, from tiles of 64 columns in shared
// memory. `matmul_few` is for few rows, ROWS at a time: four threads for a column of b, four strands each, and a tile of a in shared memory.
// Tiles are shared out in x. Compiled with the tags A, B and OUT, with ROWS, and with VECTOR = 1 if columns of b are contiguous and
// aligned to four elements. With HAS_EPILOGUE, `matmul_few` passes products through the function in `generated.cuh` before it stores them.

#include "fused.cuh"
#include "strands.cuh"
#include "view.cuh"

struct MatMulArgs {
    Launch launch;
    View out, a, b, lhs, rhs;
    u32 has_lhs, has_rhs;
    // Of the function that follows, from its second operand on; the first is the product.
    Stacked others[MOST_OPERANDS];
};
static_assert(sizeof(MatMulArgs) == 976, "as in matmul.rs");

// The sizes of a product.
struct Product {
    i64 rows, columns, length, matrices;
    u32 outer;

    __device__ __forceinline__ Product(const MatMulArgs &args, const Lane &lane) {
        outer = args.out.rank - 2;
        rows = args.out.size(lane, outer), columns = args.out.size(lane, outer + 1);
        length = args.a.size(lane, args.a.rank - 1);
        matrices = 1;
        for (u32 axis = 0; axis < outer; ++axis) matrices *= args.out.size(lane, axis);
    }
};

// The matrix of a stack that matrix `index` of the product uses, as the distance of its first element; -1 if a choice is out of
// range.
struct Operand {
    i64 distance;
    bool is_outside;

    __device__ __forceinline__ Operand(const Lane &lane, const View &stack, bool is_chosen, const View &choice, i64 index) {
        is_outside = false;
        if (is_chosen) {
            index = choice.get_int(lane, choice.at(lane, index));
            i64 count = 1;
            for (u32 axis = 0; axis + 2 < stack.rank; ++axis) count *= stack.size(lane, axis);
            is_outside = index < 0 || index >= count;
        }
        distance = is_outside ? 0 : stack.at(lane, index, stack.rank - 2);
    }
};

#define TILE 32
#define DEPTH 64
// Rows of a tile start in different banks.
#define PITCH (DEPTH + 4)

// Loads a tile of up to 32 rows and 64 columns, of which `rows` and `depth` exist.
template <typename T>
__device__ __forceinline__ void load_tile(float *tile, const typename T::Element *data, i64 row_stride, i64 stride, i64 rows, i64 depth, float padding) {
    const bool along_rows = stride == 1;
#pragma unroll
    for (u32 i = 0; i < TILE * DEPTH / 256; ++i) {
        const u32 item = threadIdx.x + 256 * i;
        const u32 row = along_rows ? item / DEPTH : item % TILE, k = along_rows ? item % DEPTH : item / TILE;
        tile[row * PITCH + k] = row < rows && k < depth ? T::to_float(data[row * row_stride + k * stride]) : padding;
    }
}

extern "C" __global__ void __launch_bounds__(256) matmul(const __grid_constant__ MatMulArgs args) {
    Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    __shared__ __align__(16) float a_tile[TILE * PITCH], b_tile[TILE * PITCH];
    const Product product(args, lane);
    const u32 a_axis = args.a.rank - 2, b_axis = args.b.rank - 2, outer = product.outer;
    const i64 a_row = args.a.stride(lane, a_axis), a_step = args.a.stride(lane, a_axis + 1);
    const i64 b_step = args.b.stride(lane, b_axis), b_column = args.b.stride(lane, b_axis + 1);
    const i64 out_row = args.out.stride(lane, outer), out_column = args.out.stride(lane, outer + 1);
    const i64 across = (product.columns + TILE - 1) / TILE, down = (product.rows + TILE - 1) / TILE;
    const u32 x = threadIdx.x % 16, y = threadIdx.x / 16;
    for (i64 tile = blockIdx.x; tile < product.matrices * down * across; tile += gridDim.x) {
        const i64 band = View::divided(tile, across), matrix = View::divided(band, down);
        const i64 column0 = (tile - band * across) * TILE, row0 = (band - matrix * down) * TILE;
        const Operand left(lane, args.a, args.has_lhs, args.lhs, matrix), right(lane, args.b, args.has_rhs, args.rhs, matrix);
        if (left.is_outside || right.is_outside) continue;
        const A::Element *a = args.a.data<A>(lane) + left.distance + row0 * a_row;
        const B::Element *b = args.b.data<B>(lane) + right.distance + column0 * b_column;
        float strands[2][2][16];
#pragma unroll
        for (u32 i = 0; i < 64; ++i) strands[i / 32][i / 16 % 2][i % 16] = 0.0f;
        for (i64 k0 = 0; k0 < product.length; k0 += DEPTH) {
            load_tile<A>(a_tile, a + k0 * a_step, a_row, a_step, product.rows - row0, product.length - k0, -0.0f);
            load_tile<B>(b_tile, b + k0 * b_step, b_column, b_step, product.columns - column0, product.length - k0, 0.0f);
            __syncthreads();
#pragma unroll 1
            for (u32 step = 0; step < DEPTH; step += 16) {
#pragma unroll
                for (u32 part = 0; part < 16; part += 4) {
                    float4 left4[2], right4[2];
#pragma unroll
                    for (u32 i = 0; i < 2; ++i) {
                        left4[i] = *(const float4 *)(a_tile + (y + 16 * i) * PITCH + step + part);
                        right4[i] = *(const float4 *)(b_tile + (x + 16 * i) * PITCH + step + part);
                    }
#pragma unroll
                    for (u32 i = 0; i < 4; ++i) {
                        float *strand = strands[i / 2][i % 2] + part;
                        const float4 p = left4[i / 2], q = right4[i % 2];
                        strand[0] = __fmaf_rn(p.x, q.x, strand[0]);
                        strand[1] = __fmaf_rn(p.y, q.y, strand[1]);
                        strand[2] = __fmaf_rn(p.z, q.z, strand[2]);
                        strand[3] = __fmaf_rn(p.w, q.w, strand[3]);
                    }
                }
            }
            __syncthreads();
        }
        OUT::Element *out = args.out.data<OUT>(lane) + args.out.at(lane, matrix, outer);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const i64 row = row0 + y + 16 * (i / 2), column = column0 + x + 16 * (i % 2);
            const float sum = combined(strands[i / 2][i % 2]);
            if (row < product.rows && column < product.columns) out[row * out_row + column * out_column] = OUT::from_float(sum);
        }
    }
}

#define FEW_DEPTH 1024
// Loads of a thread that are under way together: waiting for each alone would take most of the time, but where rows share them.
#define BATCH (ROWS > 2 ? 8 : 32)

// Four neighbours along a column of b.
struct alignas(4 * sizeof(B::Element)) Four {
    B::Element of[4];

    __device__ __forceinline__ void load(const B::Element *b, i64 step) {
#if VECTOR
        *this = *(const Four *)b;
#else
#pragma unroll
        for (u32 i = 0; i < 4; ++i) of[i] = b[i * step];
#endif
    }
};

extern "C" __global__ void __launch_bounds__(128) matmul_few(const __grid_constant__ MatMulArgs args) {
    Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    __shared__ __align__(16) float a_tile[ROWS][FEW_DEPTH];
    const Product product(args, lane);
    const u32 a_axis = args.a.rank - 2, b_axis = args.b.rank - 2, outer = product.outer;
    const i64 a_row = args.a.stride(lane, a_axis), a_step = args.a.stride(lane, a_axis + 1);
    const i64 b_step = args.b.stride(lane, b_axis), b_column = args.b.stride(lane, b_axis + 1);
    const i64 out_row = args.out.stride(lane, outer), out_column = args.out.stride(lane, outer + 1);
    const i64 across = (product.columns + 31) / 32, down = (product.rows + ROWS - 1) / ROWS;
    const u32 quad = threadIdx.x / 4, part = threadIdx.x % 4 * 4;
    for (i64 tile = blockIdx.x; tile < product.matrices * down * across; tile += gridDim.x) {
        const i64 band = View::divided(tile, across), matrix = View::divided(band, down);
        const i64 column = (tile - band * across) * 32 + quad, row0 = (band - matrix * down) * ROWS;
        const Operand left(lane, args.a, args.has_lhs, args.lhs, matrix), right(lane, args.b, args.has_rhs, args.rhs, matrix);
        if (left.is_outside || right.is_outside) continue;
        const A::Element *a = args.a.data<A>(lane) + left.distance + row0 * a_row;
        const B::Element *b = args.b.data<B>(lane) + right.distance + (column < product.columns ? column : 0) * b_column;
        float strands[ROWS][4];
#pragma unroll
        for (u32 i = 0; i < ROWS * 4; ++i) strands[i / 4][i % 4] = 0.0f;
        for (i64 k0 = 0; k0 < product.length; k0 += FEW_DEPTH) {
            const i64 depth = product.length - k0 < FEW_DEPTH ? product.length - k0 : FEW_DEPTH;
            for (u32 item = threadIdx.x; item < ROWS * FEW_DEPTH; item += 128) {
                const u32 row = item / FEW_DEPTH, k = item % FEW_DEPTH;
                const bool exists = row0 + row < product.rows && k < depth;
                a_tile[row][k] = exists ? A::to_float(a[row * a_row + (k0 + k) * a_step]) : -0.0f;
            }
            __syncthreads();
            // Fours of this thread: those from `part` on, 16 apart.
            const u32 fours = ((u32)depth + 12 - part) / 16;
            for (u32 first = 0; first < fours; first += BATCH) {
                Four q[BATCH];
#pragma unroll
                for (u32 i = 0; i < BATCH; ++i) {
                    if (first + i < fours) q[i].load(b + (k0 + part + 16 * (first + i)) * b_step, b_step);
                }
#pragma unroll
                for (u32 i = 0; i < BATCH; ++i) {
                    if (first + i >= fours) break;
#pragma unroll
                    for (u32 row = 0; row < ROWS; ++row) {
                        const float4 p = *(const float4 *)(a_tile[row] + part + 16 * (first + i));
                        strands[row][0] = __fmaf_rn(p.x, B::to_float(q[i].of[0]), strands[row][0]);
                        strands[row][1] = __fmaf_rn(p.y, B::to_float(q[i].of[1]), strands[row][1]);
                        strands[row][2] = __fmaf_rn(p.z, B::to_float(q[i].of[2]), strands[row][2]);
                        strands[row][3] = __fmaf_rn(p.w, B::to_float(q[i].of[3]), strands[row][3]);
                    }
                }
            }
            // Fewer than four may be left, for one thread of the four.
            const i64 last = depth - depth % 4;
            if (depth % 4 && last % 16 == part) {
#pragma unroll
                for (u32 i = 0; i < 3; ++i) {
                    if (last + i >= depth) continue;
                    const float q = B::to_float(b[(k0 + last + i) * b_step]);
#pragma unroll
                    for (u32 row = 0; row < ROWS; ++row) strands[row][i] = __fmaf_rn(a_tile[row][last + i], q, strands[row][i]);
                }
            }
            __syncthreads();
        }
        OUT::Element *out = args.out.data<OUT>(lane) + args.out.at(lane, matrix, outer);
#pragma unroll
        for (u32 row = 0; row < ROWS; ++row) {
            float *strand = strands[row];
            // Strand i + 8 is two threads away, strand i + 4 one.
#pragma unroll
            for (u32 width = 2; width > 0; width /= 2) {
#pragma unroll
                for (u32 i = 0; i < 4; ++i) strand[i] = strand[i] + __shfl_xor_sync(WHOLE_WARP, strand[i], width);
            }
            const float sum = (strand[0] + strand[2]) + (strand[1] + strand[3]);
            if (part == 0 && row0 + row < product.rows && column < product.columns) {
                out[(row0 + row) * out_row + column * out_column] = epilogue::stored({args.others, (u32)matrix, (u32)(row0 + row), (u32)column, sum});
            }
        }
    }
}
