// x [.., K] times the transpose of weights [N, K], summed in f32; what is `added`, a bias or nothing, before the sum is
// rounded, is said by a line before this.
// Eight rows of x to a simdgroup and a row of weights: of the threads, 32 to a row of weights along the first axis, one to
// eight rows of x along the second. A group of threads is a multiple of 32 wide.
uint row = thread_position_in_grid.x / 32;
uint lane = thread_position_in_grid.x % 32;
uint rows = 1;
for (int axis = 0; axis + 1 < x_ndim; ++axis) {
  rows *= uint(x_shape[axis]);
}
uint first = 8 * thread_position_in_grid.y;
uint count = rows - first < 8 ? rows - first : 8;
const device uchar* block = weight + size_t(row) * (K / 256 * ptero_block_bytes);
float sums[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
for (uint start = 0; start < uint(K); start += 256) {
  float weights[8];
  ptero_decode(block, lane, weights);
  block += ptero_block_bytes;
  for (uint at = 0; at < 8; ++at) {
    if (at < count) {
      const device InT* line = x + size_t(first + at) * K + start;
      float sum = 0.0f;
      for (uint column = 0; column < 8; ++column) {
        sum += weights[column] * float(line[ptero_column(lane, column)]);
      }
      sums[at] += sum;
    }
  }
}
for (uint at = 0; at < 8; ++at) {
  if (at < count) {
    float sum = simd_sum(sums[at]);
    if (lane == 0) {
      out[size_t(first + at) * N + row] = OutT(sum + added);
    }
  }
}
