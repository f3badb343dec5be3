// What `by_choice` leaves for `quant_many`.

#pragma once

#include "arithmetic.cuh"

// Products with the same weights: `count` from `first` of the order on. None in tiles that are not needed.
struct ChoiceTile {
    u32 choice, first, count, unused;
};
static_assert(sizeof(ChoiceTile) == 16, "as in by_choice.rs");
