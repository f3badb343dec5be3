// What kernels of products with quantized weights get.

#pragma once

#include "quant_cell.cuh"

struct QuantMatMulArgs {
    Launch launch;
    View out;
    QuantizedViews weights;
    View lhs, rhs;
    // What `quantize` has left, and the sizes of `x`: matrices, rows, columns.
    const uint4 *planes;
    const float2 *steps;
    Number x_matrices, x_rows, x_columns;
    // How many products in a row multiply the same matrix of `x`, if none is chosen.
    u32 repeats;
    u16 has_lhs, has_rhs;
};
static_assert(sizeof(QuantMatMulArgs) == 976, "as in quant_matmul.rs");

// What a block multiplies: a tile of rows of a matrix of `x`, and a matrix of weights.
struct Factors {
    i64 left, right;
    bool is_outside;

    __device__ __forceinline__ Factors(const QuantMatMulArgs &args, const Lane &lane, i64 matrix) {
        left = args.has_lhs ? args.lhs.get_int(lane, args.lhs.at(lane, matrix)) : matrix / args.repeats;
        right = args.has_rhs ? args.rhs.get_int(lane, args.rhs.at(lane, matrix)) : matrix;
        i64 stack = 1;
        for (u32 axis = 0; axis + 2 < args.weights.codes.rank; ++axis) stack *= args.weights.codes.size(lane, axis);
        is_outside = left < 0 || left >= args.x_matrices.of(lane) || right < 0 || right >= stack;
    }
};
