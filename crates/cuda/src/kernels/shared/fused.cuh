// Functions that a kernel computes before its own work, `prologue::function`, and of its results, `epilogue::function`. Their text is
// generated: in a launch of several steps it comes before this file, else it is in `generated.cuh`.

#include "operand.cuh"
#include "scalar.cuh"

#if !IN_PART
#include "generated.cuh"
#endif

namespace epilogue {
// What is stored: with HAS_EPILOGUE, the function of a result.
template <typename Point = EpiloguePoint> __device__ __forceinline__ OUT::Element stored(const Point &point) {
#if HAS_EPILOGUE
    return function(point);
#else
    return OUT::from_float(point.result);
#endif
}
} // namespace epilogue
