// CUDA on the host, to run kernels without a GPU: included before every kernel source by the emulated NVRTC.
//
// The threads of a block are fibers on one thread of the host. They run until they wait for each other (barriers, shuffles), and blocks run
// one after another, so a kernel whose blocks wait for each other runs with one block only.

#pragma once

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define __device__
#define __host__
#define __global__
#define __constant__ static const
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __grid_constant__
#define __restrict__ __restrict

struct dim3 {
    unsigned x, y, z;
};

namespace emulator {

#define EMULATOR_MOST_THREADS 1024
#define EMULATOR_STACK (256 << 10)

struct Fiber {
    void *stack_pointer;
    dim3 index;
    unsigned lane, warp;
    bool is_done, is_released, is_waiting;
};

struct Warp {
    unsigned arrived, alive;
    uint64_t values[32];
};

static Fiber fibers[EMULATOR_MOST_THREADS];
static Warp warps[EMULATOR_MOST_THREADS / 32];
static char *stacks;
static void *scheduler;
static Fiber *current;
static dim3 grid, block, block_index;
static unsigned threads, alive, arrived, accumulated[2];
static char *dynamic_shared;
static void (*body)(const void *);
static const void *arguments;

// Saves the registers of one fiber and restores those of another.
extern "C" void emulator_switch(void **from, void *to);
asm(R"(
    .text
    .local emulator_switch
    .type emulator_switch, @function
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

static void yield() { emulator_switch(&current->stack_pointer, scheduler); }

static void release_block() {
    arrived = 0;
    for (unsigned i = 0; i < threads; ++i) fibers[i].is_released = true;
}

static void release_warp(Warp &warp, unsigned mask) {
    warp.arrived &= ~mask;
    for (unsigned i = 0; i < threads; ++i)
        if (&warps[fibers[i].warp] == &warp && mask >> fibers[i].lane & 1) fibers[i].is_released = true;
}

static void start() {
    body(arguments);
    current->is_done = true;
    Warp &warp = warps[current->warp];
    warp.alive &= ~(1u << current->lane);
    // Whoever waits for all that are left has waited long enough.
    if (--alive && arrived == alive) release_block();
    if (warp.arrived && (warp.arrived & warp.alive) == warp.alive) release_warp(warp, warp.alive);
    yield();
    abort();
}

static void wait_until_released() {
    while (!current->is_released) yield();
}

static void block_barrier() {
    current->is_released = false;
    if (++arrived == alive) release_block();
    wait_until_released();
}

static void warp_barrier(unsigned mask) {
    Warp &warp = warps[current->warp];
    current->is_released = false;
    warp.arrived |= 1u << current->lane;
    const unsigned wanted = mask & warp.alive;
    if ((warp.arrived & wanted) == wanted) release_warp(warp, wanted);
    wait_until_released();
}

template <typename T> static T exchange(unsigned mask, T value, unsigned source) {
    Warp &warp = warps[current->warp];
    uint64_t wide = 0;
    memcpy(&wide, &value, sizeof(T));
    warp.values[current->lane] = wide;
    warp_barrier(mask);
    T result;
    memcpy(&result, &warp.values[source & 31], sizeof(T));
    warp_barrier(mask);
    return result;
}

static void run_block() {
    alive = threads, arrived = 0;
    memset(warps, 0, sizeof(warps));
    for (unsigned i = 0; i < threads; ++i) {
        Fiber &fiber = fibers[i];
        fiber = {};
        fiber.index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
        fiber.lane = i % 32, fiber.warp = i / 32;
        warps[fiber.warp].alive |= 1u << fiber.lane;
        // A frame as if it had been switched away from just before `start`, with the stack aligned as after a call.
        void **top = (void **)(stacks + (size_t)(i + 1) * EMULATOR_STACK) - 8;
        top[6] = (void *)start;
        fiber.stack_pointer = top;
    }
    unsigned idle = 0;
    for (unsigned i = 0; alive; i = (i + 1) % threads) {
        if (fibers[i].is_done) continue;
        const unsigned before = alive;
        const bool was_released = fibers[i].is_released;
        current = &fibers[i];
        emulator_switch(&scheduler, current->stack_pointer);
        // All fibers wait for something that does not come.
        idle = before == alive && !was_released && !fibers[i].is_released ? idle + 1 : 0;
        if (idle > 4 * threads + 64) {
            __builtin_trap();
        }
    }
}

static void run(void (*kernel)(const void *), const void *args, const unsigned *blocks, const unsigned *sizes, unsigned shared_bytes) {
    if (!stacks) stacks = (char *)aligned_alloc(4096, (size_t)EMULATOR_MOST_THREADS * EMULATOR_STACK);
    grid = {blocks[0], blocks[1], blocks[2]}, block = {sizes[0], sizes[1], sizes[2]};
    threads = block.x * block.y * block.z;
    body = kernel, arguments = args;
    dynamic_shared = (char *)aligned_alloc(256, (shared_bytes + 511) / 256 * 256);
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x; ++x) block_index = {x, y, z}, run_block();
    free(dynamic_shared);
}

} // namespace emulator

#define threadIdx (emulator::current->index)
#define blockIdx (emulator::block_index)
#define blockDim (emulator::block)
#define gridDim (emulator::grid)

template <typename To, typename From> inline To emulator_bits(From from) {
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

// Vectors.
#define EMULATOR_VECTOR(NAME, TYPE, ALIGN)                                                                                            \
    struct alignas(ALIGN) NAME {                                                                                                      \
        TYPE x, y, z, w;                                                                                                              \
    };
#define EMULATOR_PAIR(NAME, TYPE, ALIGN)                                                                                              \
    struct alignas(ALIGN) NAME {                                                                                                      \
        TYPE x, y;                                                                                                                    \
    };
EMULATOR_VECTOR(uint4, unsigned, 16)
EMULATOR_VECTOR(int4, int, 16)
EMULATOR_VECTOR(float4, float, 16)
EMULATOR_VECTOR(ushort4, unsigned short, 8)
EMULATOR_VECTOR(uchar4, unsigned char, 4)
EMULATOR_PAIR(uint2, unsigned, 8)
EMULATOR_PAIR(int2, int, 8)
EMULATOR_PAIR(float2, float, 8)
EMULATOR_PAIR(ulonglong2, unsigned long long, 16)
EMULATOR_PAIR(longlong2, long long, 16)
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

// Bits and arithmetic.
inline unsigned __float_as_uint(float x) { return emulator_bits<unsigned>(x); }
inline int __float_as_int(float x) { return emulator_bits<int>(x); }
inline float __uint_as_float(unsigned x) { return emulator_bits<float>(x); }
inline float __int_as_float(int x) { return emulator_bits<float>(x); }
inline long long __double_as_longlong(double x) { return emulator_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return emulator_bits<double>(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1) << (31 - i);
    return reversed;
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    const uint64_t both = (uint64_t)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= (unsigned)(both >> (s >> 4 * i & 7) * 8 & 255) << 8 * i;
    return result;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) { return (unsigned)(((uint64_t)high << 32 | low) >> (by & 31)); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) { return (unsigned)(((uint64_t)high << 32 | low) << (by & 31) >> 32); }
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; ++i) c += (int)(int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
    return c;
}
inline int __dp2a_lo(int a, int b, int c) { return c + (int16_t)a * (int8_t)b + (int16_t)(a >> 16) * (int8_t)(b >> 8); }
inline int __dp2a_hi(int a, int b, int c) { return c + (int16_t)a * (int8_t)(b >> 16) + (int16_t)(a >> 16) * (int8_t)(b >> 24); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __int2float_rn(int a) { return (float)a; }
inline int __float2int_rn(float a) { return (int)rintf(a); }
inline long long __float2ll_rz(float a) { return (long long)a; }
template <typename T> inline T __ldg(const T *from) { return *from; }
template <typename T> inline T __ldcs(const T *from) { return *from; }
template <typename T> inline T __ldcg(const T *from) { return *from; }
template <typename T> inline void __stcg(T *to, T value) { *to = value; }
#define EMULATOR_MIN_MAX(TYPE)                                                                                                        \
    inline TYPE min(TYPE a, TYPE b) { return b < a ? b : a; }                                                                         \
    inline TYPE max(TYPE a, TYPE b) { return a < b ? b : a; }
EMULATOR_MIN_MAX(int)
EMULATOR_MIN_MAX(unsigned)
EMULATOR_MIN_MAX(long long)
EMULATOR_MIN_MAX(unsigned long long)
inline unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
inline unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
inline unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
inline unsigned max(int a, unsigned b) { return max((unsigned)a, b); }

// Threads that wait for each other.
inline void __syncthreads() { emulator::block_barrier(); }
inline void __syncwarp(unsigned mask = ~0u) { emulator::warp_barrier(mask); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) {}
inline int __syncthreads_count(int is_true) {
    __syncthreads();
    emulator::accumulated[0] = 0;
    __syncthreads();
    emulator::accumulated[0] += is_true != 0;
    __syncthreads();
    const int count = (int)emulator::accumulated[0];
    __syncthreads();
    return count;
}
inline int __syncthreads_or(int is_true) { return __syncthreads_count(is_true) != 0; }
inline int __syncthreads_and(int is_true) { return __syncthreads_count(!is_true) == 0; }
template <typename T> inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    const unsigned lane = emulator::current->lane;
    return emulator::exchange(mask, value, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <typename T> inline T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32) {
    (void)width;
    return emulator::exchange(mask, value, emulator::current->lane ^ by);
}
template <typename T> inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const unsigned lane = emulator::current->lane;
    return emulator::exchange(mask, value, lane % width < by ? lane : lane - by);
}
template <typename T> inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const unsigned lane = emulator::current->lane;
    return emulator::exchange(mask, value, lane % width + by >= (unsigned)width ? lane : lane + by);
}
inline unsigned __ballot_sync(unsigned mask, int is_true) {
    unsigned result = 0;
    emulator::Warp &warp = emulator::warps[emulator::current->warp];
    warp.values[emulator::current->lane] = is_true != 0;
    emulator::warp_barrier(mask);
    for (int i = 0; i < 32; ++i) result |= mask >> i & warp.alive >> i & 1 ? (unsigned)warp.values[i] << i : 0;
    emulator::warp_barrier(mask);
    return result;
}
inline int __any_sync(unsigned mask, int is_true) { return __ballot_sync(mask, is_true) != 0; }
inline int __all_sync(unsigned mask, int is_true) { return __ballot_sync(mask, !is_true) == 0; }
inline unsigned __activemask() { return emulator::warps[emulator::current->warp].alive; }
template <typename T> inline unsigned __match_any_sync(unsigned mask, T value) {
    unsigned result = 0;
    emulator::Warp &warp = emulator::warps[emulator::current->warp];
    uint64_t wide = 0;
    memcpy(&wide, &value, sizeof(T));
    warp.values[emulator::current->lane] = wide;
    emulator::warp_barrier(mask);
    for (int i = 0; i < 32; ++i) result |= mask >> i & 1 && warp.values[i] == wide ? 1u << i : 0;
    emulator::warp_barrier(mask);
    return result;
}
#define EMULATOR_REDUCE(NAME, TYPE, START, COMBINE)                                                                                   \
    inline TYPE NAME(unsigned mask, TYPE value) {                                                                                     \
        emulator::Warp &warp = emulator::warps[emulator::current->warp];                                                              \
        warp.values[emulator::current->lane] = (uint64_t)value;                                                                       \
        emulator::warp_barrier(mask);                                                                                                 \
        TYPE result = START;                                                                                                          \
        for (int i = 0; i < 32; ++i) {                                                                                                \
            if (!(mask >> i & warp.alive >> i & 1)) continue;                                                                         \
            const TYPE other = (TYPE)warp.values[i];                                                                                  \
            result = COMBINE;                                                                                                         \
        }                                                                                                                             \
        emulator::warp_barrier(mask);                                                                                                 \
        return result;                                                                                                                \
    }
EMULATOR_REDUCE(__reduce_max_sync, unsigned, 0, max(result, other))
EMULATOR_REDUCE(__reduce_min_sync, unsigned, ~0u, min(result, other))
EMULATOR_REDUCE(__reduce_add_sync, unsigned, 0, result + other)
EMULATOR_REDUCE(__reduce_or_sync, unsigned, 0, result | other)
EMULATOR_REDUCE(__reduce_add_sync, int, 0, result + other)
EMULATOR_REDUCE(__reduce_max_sync, int, (-2147483647 - 1), max(result, other))

// One thread of the host runs all: plain operations are atomic.
#define EMULATOR_ATOMIC(NAME, RESULT)                                                                                                 \
    template <typename T, typename V> inline T NAME(T *at, V given) {                                                                 \
        const T old = *at, value = (T)given;                                                                                          \
        (void)value;                                                                                                                  \
        *at = RESULT;                                                                                                                 \
        return old;                                                                                                                   \
    }
EMULATOR_ATOMIC(atomicAdd, old + value)
EMULATOR_ATOMIC(atomicSub, old - value)
EMULATOR_ATOMIC(atomicMax, value > old ? value : old)
EMULATOR_ATOMIC(atomicMin, value < old ? value : old)
EMULATOR_ATOMIC(atomicOr, old | value)
EMULATOR_ATOMIC(atomicAnd, old & value)
EMULATOR_ATOMIC(atomicXor, old ^ value)
EMULATOR_ATOMIC(atomicExch, value)
EMULATOR_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
template <typename T> inline T atomicCAS(T *at, T expected, T value) {
    const T old = *at;
    if (old == expected) *at = value;
    return old;
}
