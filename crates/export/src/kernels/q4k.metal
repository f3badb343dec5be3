// Four bits: [factor, factor of minima, 12 bytes of scales and minima, 128 bytes of codes]. The j-th 32 bytes of codes hold
// group 2j in their low halves and group 2j + 1 in their high halves. A lane has four bytes.

enum { ptero_block_bytes = 144 };

// The place in its block of a lane's weight.
inline uint ptero_column(uint lane, uint at) {
  return 64 * (lane / 8) + 32 * (at / 4) + 4 * (lane % 8) + at % 4;
}

inline void ptero_decode(const device uchar* block, uint lane, thread float* weights) {
  float factor = ptero_float(block);
  float minimum_factor = ptero_float(block + 2);
  uint codes = ptero_four_bytes(block + 16 + 4 * lane);
  for (uint part = 0; part < 2; ++part) {
    uint group = 2 * (lane / 8) + part;
    float scale = factor * ptero_scale(block + 4, group);
    float minimum = minimum_factor * ptero_minimum(block + 4, group);
    for (uint at = 0; at < 4; ++at) {
      weights[4 * part + at] = scale * float((codes >> (8 * at + 4 * part)) & 15) - minimum;
    }
  }
}
