// Matrices, rows or elements at regular distances, at an address that the host knows.

#pragma once

#include "element.cuh"

struct Stacked {
    const char *data;
    // From one matrix, row or column to the next, in elements.
    i64 matrix, row, column;

    template <typename T> __device__ __forceinline__ typename T::Element get(u32 of_matrix, u32 of_row, u32 of_column) const {
        return ((const typename T::Element *)data)[of_matrix * matrix + of_row * row + of_column * column];
    }
};
static_assert(sizeof(Stacked) == 32, "as in rows.rs");

// The most operands of a function that a kernel computes before or after its own work.
#define MOST_OPERANDS 6
