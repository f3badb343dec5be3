// Rows of weights [V, K], one for each index: of the threads, one to eight weights along the first axis, one to an index along
// the second. Indices count from the end where they are negative, and reach no further than the first and the last row.
uint lane = thread_position_in_grid.x % 32;
uint number = thread_position_in_grid.x / 32;
uint token = thread_position_in_grid.y;
long index = long(indices[token]);
index = index < 0 ? index + V : index;
index = index < 0 ? 0 : index;
index = index < V ? index : V - 1;
const device uchar* block = weight + (size_t(index) * (K / 256) + number) * ptero_block_bytes;
float weights[8];
ptero_decode(block, lane, weights);
for (uint at = 0; at < 8; ++at) {
  out[size_t(token) * K + 256 * number + ptero_column(lane, at)] = OutT(weights[at]);
}
