// GGUF k-quants: blocks of 256 weights. A lane of a simdgroup decodes eight of them, so that the 32 lanes have them all.
// Rows of blocks start at even addresses and blocks have even sizes, so halves and pairs of bytes are read as they lie.

inline float ptero_float(const device uchar* bytes) {
  return float(*(const device half*)bytes);
}

inline uint ptero_two_bytes(const device uchar* bytes) {
  return uint(*(const device ushort*)bytes);
}

inline uint ptero_four_bytes(const device uchar* bytes) {
  return ptero_two_bytes(bytes) | (ptero_two_bytes(bytes + 2) << 16);
}

// Scales and minima of eight groups, six bits each in twelve bytes: of the first four groups in the low bits of two rows of
// four bytes; of the others, four bits in the third row and two at the top of the first or second.
inline float ptero_scale(const device uchar* packed, uint group) {
  uint code = group < 4 ? packed[group] & 63 : (packed[group + 4] & 15) | ((packed[group - 4] >> 6) << 4);
  return float(code);
}

inline float ptero_minimum(const device uchar* packed, uint group) {
  uint code = group < 4 ? packed[group + 4] & 63 : (packed[group + 4] >> 4) | ((packed[group] >> 6) << 4);
  return float(code);
}
