// Five bits: [factor, factor of minima, 12 bytes of scales and minima, 32 bytes of fifth bits, 128 bytes of codes]. As with
// four bits; bit g of byte l of the fifth bits belongs to weight l of group g.

enum { ptero_block_bytes = 176 };

// The place in its block of a lane's weight.
inline uint ptero_column(uint lane, uint at) {
  return 64 * (lane / 8) + 32 * (at / 4) + 4 * (lane % 8) + at % 4;
}

inline void ptero_decode(const device uchar* block, uint lane, thread float* weights) {
  float factor = ptero_float(block);
  float minimum_factor = ptero_float(block + 2);
  uint fifths = ptero_four_bytes(block + 16 + 4 * (lane % 8));
  uint codes = ptero_four_bytes(block + 48 + 4 * lane);
  for (uint part = 0; part < 2; ++part) {
    uint group = 2 * (lane / 8) + part;
    float scale = factor * ptero_scale(block + 4, group);
    float minimum = minimum_factor * ptero_minimum(block + 4, group);
    for (uint at = 0; at < 4; ++at) {
      uint code = ((codes >> (8 * at + 4 * part)) & 15) | (((fifths >> (8 * at + group)) & 1) << 4);
      weights[4 * part + at] = scale * float(code) - minimum;
    }
  }
}
