// Launches that do one step or several side by side, which do not depend on each other, for one lane or several.
//
// What is generated (`together.rs`) has a namespace for each part: its macros, its functions, the file of its kernel; and the kernel that
// gives each block its part. Everything that no macro of a part changes is included here, once.

#include "arithmetic.cuh"
#include "block.cuh"
#include "index.cuh"
#include "map.cuh"
#include "norm_row.cuh"
#include "operand.cuh"
#include "scalar.cuh"
#include "strands.cuh"
#include "view.cuh"

// Functions come before the file of a kernel.
#define IN_PART 1

// The blocks of a part.
struct Share {
    // Of all instances, and the number of these.
    u32 blocks, instances;
    // Of an instance: blocks in x, and threads of a block.
    u32 across, threads;
};
static_assert(sizeof(Share) == 16, "as in together.rs");

// Which instance a block belongs to. They take turns, so that those that read the same weights do it at the same time.
__device__ __forceinline__ u32 instance_of(const Share &share, u32 at) { return at % share.instances; }

// Where a block stands in an instance; `at` counts the blocks of the instance.
__device__ __forceinline__ Block block_of(const Share &share, u32 at) {
    const u32 y = at < share.across ? 0 : at / share.across;
    return {at - y * share.across, y, share.across, share.threads};
}

#include "generated.cuh"
