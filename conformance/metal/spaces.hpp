// Metal's address spaces as clang's own, to compile a kernel without running it: a pointer that loses its space is an error.
#pragma once

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned char uint8_t;
typedef long int64_t;
typedef unsigned long size_t;
typedef _Float16 half;
typedef half float16_t;
typedef __bf16 bfloat16_t;
struct uint3 {
  uint x, y, z;
};
float simd_sum(float part);

#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2)))
#define thread
