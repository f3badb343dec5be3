// Where a block stands in its part of a launch: a launch may do several steps side by side (`together.rs`).

#pragma once

#include "element.cuh"

struct Block {
    // As `blockIdx.x`, `blockIdx.y` and `gridDim.x` of a launch of this part alone.
    u32 x, y, across;
    // As `blockDim.x`: the threads that take part.
    u32 threads;
};
