// Products of one row with few columns of floats, as in decoding: `docs/ARITHMETIC.md`, "MatMul". Such a product is too small to be bound
// by anything but waiting, so its weights are on their way to shared memory before the block waits for the launch before it.
//
// Launch: matrices of the result in y, pairs of columns in x. All threads load, and normalize the row if PROLOGUE is NORM_ROW; then a
// thread has a strand of a column, and a warp two columns. All tensors are contiguous along the row, at addresses that the host knows;
// columns are made of whole vectors of 16 bytes.
// Compiled with the tags X (what is loaded), B and OUT, and what `normed.cuh` needs. With HAS_EPILOGUE, products pass through the function
// that comes before this file.

#include "block.cuh"
#include "fused.cuh"
#include "normed.cuh"
#include "strands.cuh"
#include "view.cuh"

struct MatMulRowArgs {
    Launch launch;
    const B::Element *b;
    OUT::Element *out;
    // From matrix to matrix and from column to column, in elements.
    i64 b_matrix, b_column, out_matrix;
    u32 length, columns;
    float eps;
    u32 is_layer;
    // The row; after that the weight and bias of its norm.
    Stacked row[3];
    // Of the function that follows, from its second operand on; the first is the product.
    Stacked others[MOST_OPERANDS];
};
static_assert(sizeof(MatMulRowArgs) == 360, "as in matmul_row.rs");

// Columns of a block: a warp has 16 strands of each.
#define COLUMNS 2
// What follows a column in shared memory, so that both lie in different banks.
#define PADDING 64

// Copies 16 bytes to shared memory; `await_copies` waits for all of them.
__device__ __forceinline__ void copy_vector(void *to, const void *from) {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
#else
    *(uint4 *)to = *(const uint4 *)from;
#endif
}
__device__ __forceinline__ void await_copies() {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

__device__ __forceinline__ void matmul_row(const MatMulRowArgs &args, const Block &block) {
    extern __shared__ uint4 shared[];
    const u32 bytes = args.length * sizeof(B::Element), pitch = bytes + PADDING, matrix = block.y;
    char *const weights = (char *)shared;
    float *const row = (float *)(weights + COLUMNS * pitch);
    const u32 column0 = block.x * COLUMNS;
#pragma unroll
    for (u32 of_block = 0; of_block < COLUMNS; ++of_block) {
        // Beyond the last column, that one again.
        const u32 column = min(column0 + of_block, args.columns - 1);
        const char *const from = (const char *)(args.b + matrix * args.b_matrix + column * args.b_column);
        for (u32 at = 16 * threadIdx.x; at < bytes; at += 16 * block.threads) copy_vector(weights + of_block * pitch + at, from + at);
    }
    Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    stage_row<X>(row, args.length, block.threads, [&](u32 at) { return args.row[0].get<X>(matrix, 0, at); });
#if PROLOGUE == NORM_ROW
    __syncthreads();
    // Every warp computes the same, which is faster than to wait for one.
    const float2 found = center_and_factor(args.length, threadIdx.x % 32, args.is_layer, args.eps, [&](i64 at) { return row[at]; });
    __syncthreads();
    for (u32 first = threadIdx.x; first < args.length; first += ROW_BATCH * block.threads) {
        NormFactors factors[ROW_BATCH];
#pragma unroll
        for (u32 i = 0; i < ROW_BATCH; ++i) factors[i].load(args.row, matrix, min(first + i * block.threads, args.length - 1));
#pragma unroll
        for (u32 i = 0; i < ROW_BATCH; ++i) {
            const u32 at = first + i * block.threads;
            if (at < args.length) row[at] = factors[i].normed(row[at], found);
        }
    }
#endif
    await_copies();
    __syncthreads();
    if (threadIdx.x >= 16 * COLUMNS) return;
    const B::Element *const b = (const B::Element *)(weights + threadIdx.x / 16 * pitch);
    float strand = 0.0f;
#pragma unroll 16
    for (u32 at = threadIdx.x % 16; at < args.length; at += 16) strand = __fmaf_rn(row[at], B::to_float(b[at]), strand);
    const float product = combined_16(strand);
    const u32 column = column0 + threadIdx.x / 16;
    if (threadIdx.x % 16 || column >= args.columns) return;
    args.out[matrix * args.out_matrix + column] = epilogue::stored({args.others, matrix, 0, column, product});
}
