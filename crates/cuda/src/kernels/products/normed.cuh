// The row that a product multiplies, if a norm computes it: PROLOGUE is NORM_ROW. Compiled with the tags ROW (of the result), WEIGHT and
// BIAS_ROW, and with HAS_WEIGHT and HAS_BIAS_ROW.

#include "norm_row.cuh"
#include "operand.cuh"

#define PLAIN_ROW 0
#define NORM_ROW 1
#define MAP_ROW 2

// What a norm has of an element: loaded before it is needed.
struct NormFactors {
#if HAS_WEIGHT
    WEIGHT::Element weight;
#endif
#if HAS_BIAS_ROW
    BIAS_ROW::Element bias;
#endif

    // `row` is the row before, and the weight and bias of the norm.
    __device__ __forceinline__ void load(const Stacked *row, u32 matrix, u32 at) {
#if HAS_WEIGHT
        weight = row[1].get<WEIGHT>(matrix, 0, at);
#endif
#if HAS_BIAS_ROW
        bias = row[2].get<BIAS_ROW>(matrix, 0, at);
#endif
    }

    // An element of the row.
    __device__ __forceinline__ float normed(float x, float2 found) const {
        float y = (x - found.x) * found.y;
#if HAS_WEIGHT
        y = y * WEIGHT::to_float(weight);
#endif
#if HAS_BIAS_ROW
        y = y + BIAS_ROW::to_float(bias);
#endif
        return ROW::to_float(ROW::from_float(y));
    }
};
