// Functions that a kernel computes before its own work, `prologue::function`, and of its results, `epilogue::function`: the text of
// `generated.cuh`.

#pragma once

#include "operand.cuh"
#include "scalar.cuh"

namespace prologue {
// The operands of a function, and the element of its result.
struct Point {
    const Stacked *operands;
    u32 matrix, row, column;

    template <typename T> __device__ __forceinline__ typename T::Element element(u32 input) const { return operands[input].get<T>(matrix, row, column); }
};
} // namespace prologue

namespace epilogue {
// A result and its element. It is the first operand of the function; `others` are the rest.
struct Point {
    const Stacked *others;
    u32 matrix, row, column;
    float result;

    template <typename T> __device__ __forceinline__ typename T::Element element(u32 input) const {
        return input == 0 ? T::from_float(result) : others[input - 1].get<T>(matrix, row, column);
    }
};
} // namespace epilogue

#include "generated.cuh"

namespace epilogue {
// What is stored: with HAS_EPILOGUE, the function of a result.
__device__ __forceinline__ OUT::Element stored(const Point &point) {
#if HAS_EPILOGUE
    return function(point);
#else
    return OUT::from_float(point.result);
#endif
}
} // namespace epilogue
