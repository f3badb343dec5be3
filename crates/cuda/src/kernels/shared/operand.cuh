// Matrices, rows or elements at regular distances, at an address that the host knows; and what functions see of them.

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

// The operands of a function before a kernel's own work, and the element of its result.
struct ProloguePoint {
    const Stacked *operands;
    u32 matrix, row, column;

    template <typename T> __device__ __forceinline__ typename T::Element element(u32 input) const { return operands[input].get<T>(matrix, row, column); }
};

// An element as a word, and back: what has been loaded before it is used.
__device__ __forceinline__ u64 word_of(float x) { return __float_as_uint(x); }
template <typename E> __device__ __forceinline__ u64 word_of(E x) { return (u64)x; }
template <typename E> struct OfWord {
    static __device__ __forceinline__ E get(u64 word) { return (E)word; }
};
template <> struct OfWord<float> {
    static __device__ __forceinline__ float get(u64 word) { return __uint_as_float((u32)word); }
};

// The operands of a function, loaded.
template <u32 COUNT> struct LoadedPoint {
    u64 words[COUNT];

    template <typename T> __device__ __forceinline__ typename T::Element element(u32 input) const { return OfWord<typename T::Element>::get(words[input]); }
};

// A result and its element. It is operand AT of the function after a kernel's own work; `others` are the rest.
template <u32 AT> struct EpiloguePointAt {
    const Stacked *others;
    u32 matrix, row, column;
    float result;

    template <typename T> __device__ __forceinline__ typename T::Element element(u32 input) const {
        return input == AT ? T::from_float(result) : others[input > AT ? input - 1 : input].get<T>(matrix, row, column);
    }
};
typedef EpiloguePointAt<0> EpiloguePoint;
