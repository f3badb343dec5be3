// Six bits: [128 bytes of low bits, 64 bytes of high bits, 16 signed scales, factor]. Each half of the block, 128 weights, is
// four runs of 32: runs 0 and 1 in the low halves of 64 bytes of low bits, 2 and 3 in the high halves; run r has bits 2r and
// 2r + 1 of 32 bytes of high bits. A lane has two neighbours of each run. A scale is for 16 weights.

enum { ptero_block_bytes = 210 };

// The place in its block of a lane's weight.
inline uint ptero_column(uint lane, uint at) {
  return 128 * (lane / 16) + 32 * (at / 2) + 2 * (lane % 16) + at % 2;
}

inline void ptero_decode(const device uchar* block, uint lane, thread float* weights) {
  uint part = lane / 16;
  uint first = 2 * (lane % 16);
  const device uchar* low = block + 64 * part + first;
  uint lows = ptero_two_bytes(low) | (ptero_two_bytes(low + 32) << 16);
  uint highs = ptero_two_bytes(block + 128 + 32 * part + first);
  const device char* scales = (const device char*)(block + 192 + 8 * part + first / 16);
  float factor = ptero_float(block + 208);
  for (uint run = 0; run < 4; ++run) {
    float scale = factor * float(scales[2 * run]);
    for (uint at = 0; at < 2; ++at) {
      uint code = (lows >> (16 * (run % 2) + 8 * at + 4 * (run / 2))) & 15;
      code |= ((highs >> (8 * at + 2 * run)) & 3) << 4;
      weights[2 * run + at] = scale * (float(code) - 32.0f);
    }
  }
}
