// Products that choose their matrices of weights, sorted by their choice: products with the same weights become tiles of one launch of
// `quant_many`, which then reads and decodes them once for all.
//
// Launch: one block. Which product comes first within a choice is left to chance, and shows in no result.

#include "choice_tile.cuh"
#include "view.cuh"

#define THREADS 1024
// The most matrices of weights: one for each thread.
#define MOST_MATRICES THREADS

struct ByChoiceArgs {
    Launch launch;
    View choices;
    // The products in the order of their choices.
    u32 *order;
    ChoiceTile *tiles;
    // Products, matrices of weights, products of a tile, and tiles that have room.
    u32 products, matrices, tile_products, most_tiles;
};
static_assert(sizeof(ByChoiceArgs) == 200, "as in by_choice.rs");

extern "C" __global__ void __launch_bounds__(THREADS) by_choice(const __grid_constant__ ByChoiceArgs args) {
    __shared__ u32 counts[MOST_MATRICES];
    // Of tiles in the upper half, of products in the lower one.
    __shared__ u64 sums[2][MOST_MATRICES];
    const Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    const u32 own = threadIdx.x;
    // Choices were checked. `matrices` stands for none.
    const auto choice_of = [&](u32 product) {
        const i64 choice = args.choices.get_int(lane, args.choices.at(lane, product));
        return choice < 0 || choice >= args.matrices ? args.matrices : (u32)choice;
    };
    counts[own] = 0;
    __syncthreads();
    for (u32 product = own; product < args.products; product += THREADS) {
        const u32 choice = choice_of(product);
        if (choice < args.matrices) atomicAdd(&counts[choice], 1u);
    }
    __syncthreads();
    const u32 count = counts[own], tiles = (count + args.tile_products - 1) / args.tile_products;
    u32 from = 0;
    sums[0][own] = (u64)tiles << 32 | count;
    for (u32 width = 1; width < MOST_MATRICES; width *= 2) {
        __syncthreads();
        sums[from ^ 1][own] = sums[from][own] + (own >= width ? sums[from][own - width] : 0);
        from ^= 1;
    }
    __syncthreads();
    const u32 first = (u32)sums[from][own] - count, first_tile = (u32)(sums[from][own] >> 32) - tiles;
    const u32 all_tiles = (u32)(sums[from][MOST_MATRICES - 1] >> 32);
    for (u32 tile = 0; tile < tiles; ++tile) {
        const u32 start = tile * args.tile_products, left = count - start;
        args.tiles[first_tile + tile] = {own, first + start, left < args.tile_products ? left : args.tile_products, 0};
    }
    for (u32 tile = all_tiles + own; tile < args.most_tiles; tile += THREADS) args.tiles[tile] = {0, 0, 0, 0};
    counts[own] = first;
    __syncthreads();
    for (u32 product = own; product < args.products; product += THREADS) {
        const u32 choice = choice_of(product);
        if (choice < args.matrices) args.order[atomicAdd(&counts[choice], 1u)] = product;
    }
}
