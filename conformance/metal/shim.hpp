// Enough of Metal to run a kernel's body as C++: its words, its types, and the lanes of a simdgroup as threads of the machine.
// It shows that a source computes the right thing within its buffers, not that Apple's compiler takes it.
#pragma once

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef _Float16 half;
typedef half float16_t;
struct uint3 {
  uint x, y, z;
};

// The upper half of a float, rounded to the nearest, halfway to even.
struct bfloat {
  uint16_t bits;
  bfloat() = default;
  explicit bfloat(float number) {
    uint32_t wide;
    std::memcpy(&wide, &number, 4);
    bits = uint16_t((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
  }
  operator float() const {
    uint32_t wide = uint32_t(bits) << 16;
    float number;
    std::memcpy(&number, &wide, 4);
    return number;
  }
};
typedef bfloat bfloat16_t;

namespace shim {

constexpr uint LANES = 32;
inline std::barrier<> all_lanes(LANES);
inline float parts[LANES];
inline thread_local uint lane_of_thread;

// Calls the body once for each place of the grid. Neighbours along the first axis are a simdgroup.
template <typename Body>
void run(uint3 grid, Body body) {
  if (grid.x % LANES != 0) {
    std::fprintf(stderr, "simdgroups would cross the rows of the grid\n");
    std::exit(1);
  }
  auto lane_runs = [&](uint lane) {
    lane_of_thread = lane;
    for (uint z = 0; z < grid.z; ++z)
      for (uint y = 0; y < grid.y; ++y)
        for (uint x = lane; x < grid.x; x += LANES) body(uint3{x, y, z});
  };
  std::vector<std::thread> lanes;
  for (uint lane = 0; lane < LANES; ++lane) lanes.emplace_back(lane_runs, lane);
  for (auto& lane : lanes) lane.join();
}

// What a file holds, in memory of just that size.
inline std::vector<char> read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::vector<char>(std::istreambuf_iterator<char>(file), {});
}

inline void write(const std::string& path, const std::vector<char>& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
}

// "1,2,3" as numbers.
inline std::vector<int> ints(const char* text) {
  std::vector<int> found;
  for (char* end; *text; text = *end ? end + 1 : end) found.push_back(int(std::strtol(text, &end, 10)));
  return found;
}

}  // namespace shim

// All lanes must come here; a kernel where some do not would hang.
inline float simd_sum(float part) {
  shim::parts[shim::lane_of_thread] = part;
  shim::all_lanes.arrive_and_wait();
  float sum = 0;
  for (float other : shim::parts) sum += other;
  shim::all_lanes.arrive_and_wait();
  return sum;
}

#define device
#define constant
#define thread
