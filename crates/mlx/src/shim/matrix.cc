// Products: of matrices, plain and quantized, attention, rotary embeddings, convolutions, the gated delta rule.
#include <limits>
#include <string>

#include "ptero-mlx/src/bridge.rs.h"
#include "ptero-mlx/src/shim/values.h"

namespace ptero {

namespace {

const char* mode_name(QuantKind kind) {
  switch (kind) {
    case QuantKind::Affine: return "affine";
    case QuantKind::Mxfp4: return "mxfp4";
    case QuantKind::Nvfp4: return "nvfp4";
    case QuantKind::Mxfp8: return "mxfp8";
  }
  throw std::invalid_argument("an unknown quantization");
}

// Whether MLX has a kernel for this packing.
bool is_native(const Weights& w) {
  switch (w.kind) {
    case QuantKind::Affine:
      return (w.group == 32 || w.group == 64 || w.group == 128) && w.bits >= 2 && w.bits <= 8 && w.bits != 7;
    case QuantKind::Mxfp4: return w.group == 32 && w.bits == 4;
    case QuantKind::Nvfp4: return w.group == 16 && w.bits == 4;
    case QuantKind::Mxfp8: return w.group == 32 && w.bits == 8;
  }
  return false;
}

// Codes of any width: the words are one stream of bits, lowest first.
mx::array unpacked(const mx::array& words, int bits, int count) {
  mx::array places = mx::arange(0.0, 32.0, 1.0, mx::uint32);
  mx::array stream = mx::bitwise_and(mx::right_shift(mx::expand_dims(words, -1), places), mx::array(1u));
  mx::Shape shape = words.shape();
  shape.back() = -1;
  if (words.size() > 0) stream = mx::reshape(stream, shape);
  mx::Shape from(stream.ndim(), 0), to = stream.shape();
  to.back() = count * bits;
  stream = mx::slice(stream, from, to);
  shape.back() = count;
  shape.push_back(bits);
  mx::array powers = mx::left_shift(mx::array(1u), mx::arange(0.0, double(bits), 1.0, mx::uint32));
  return mx::sum(mx::multiply(mx::reshape(stream, shape), powers), -1);
}

mx::array one_per_weight(const mx::array& x, int group) { return mx::repeat(x, group, -1); }

// The weights in f32: `scale * code + bias`, or `scale * table[code]`.
mx::array decoded(const mx::array& codes, const mx::array& scales, const std::optional<mx::array>& biases,
                  const std::optional<mx::array>& code_table, const std::optional<mx::array>& scale_table,
                  const Weights& w) {
  mx::array numbers = unpacked(codes, w.bits, scales.shape(-1) * w.group);
  mx::array weights = code_table ? mx::take(*code_table, numbers, 0) : mx::astype(numbers, mx::float32);
  mx::array steps = scale_table ? mx::take(*scale_table, scales, 0) : widened(scales);
  weights = mx::multiply(one_per_weight(steps, w.group), weights);
  return biases ? mx::add(weights, one_per_weight(widened(*biases), w.group)) : weights;
}

mx::array transposed(const mx::array& x) { return mx::swapaxes(x, -1, -2); }

const float MINUS_INFINITY = -std::numeric_limits<float>::infinity();

// Whether a query attends to a key, masks aside.
mx::array reach(int queries, int keys, bool causal, std::int64_t window) {
  mx::array own = mx::add(mx::arange(0.0, double(queries), 1.0, mx::int64), mx::array(keys - queries, mx::int64));
  mx::array key = mx::arange(0.0, double(keys), 1.0, mx::int64);
  own = mx::reshape(own, {queries, 1});
  mx::array reaches = mx::array(true);
  if (causal) reaches = mx::less_equal(key, own);
  if (window >= 0) reaches = mx::logical_and(reaches, mx::greater(key, mx::subtract(own, mx::array(window, mx::int64))));
  return reaches;
}

// Attention of operations, in f32: where MLX has no kernel for it, it does the same, but scales the queries first and rounds.
// A query that attends to no key gets NaN.
mx::array composed(const mx::array& q, const mx::array& k, const mx::array& v, const std::optional<mx::array>& added,
                   const std::optional<mx::array>& attended, float scale) {
  int batches = q.shape(0), heads = q.shape(1), groups = k.shape(1), queries = q.shape(2), keys = k.shape(2);
  // The heads of a group are more rows of one product.
  mx::array rows = mx::reshape(q, {batches, groups, heads / groups * queries, q.shape(3)});
  mx::array scores = mx::multiply(mx::matmul(rows, transposed(k)), mx::array(scale));
  if (added || attended) {
    scores = mx::reshape(scores, {batches, heads, queries, keys});
    if (added) scores = mx::add(scores, *added);
    if (attended) scores = mx::where(*attended, scores, mx::array(MINUS_INFINITY));
    scores = mx::reshape(scores, {batches, groups, heads / groups * queries, keys});
  }
  mx::array mixed = mx::matmul(mx::softmax(scores, -1, true), v);
  return mx::reshape(mixed, {batches, heads, queries, v.shape(3)});
}

// One token of the gated delta rule: `d = (v - g (s k)) beta; s = g s + d k^T; out = s q`, per head.
struct Rule {
  mx::array out, state;
};

Rule token(const mx::array& q, const mx::array& k, const mx::array& v, const mx::array& g, const mx::array& beta,
           const mx::array& state) {
  mx::array seen = mx::squeeze(mx::matmul(state, mx::expand_dims(k, -1)), -1);
  seen = mx::multiply(seen, mx::expand_dims(g, -1));
  mx::array decayed = mx::multiply(state, mx::expand_dims(g, {-1, -2}));
  mx::array difference = mx::multiply(mx::subtract(v, seen), mx::expand_dims(beta, -1));
  mx::array next = mx::add(decayed, mx::multiply(mx::expand_dims(difference, -1), mx::expand_dims(k, -2)));
  return {mx::squeeze(mx::matmul(next, mx::expand_dims(q, -1)), -1), next};
}

}  // namespace

void Values::matmul(Slot out, Slot a, Slot b, Slot lhs, Slot rhs, Kind kind) {
  mx::array left = at(a), right = at(b);
  mx::Dtype dtype = dtype_of(kind);
  if (left.dtype() != right.dtype() || left.dtype() != dtype || !is_float(left.dtype())) {
    left = widened(left);
    right = widened(right);
  }
  if (lhs == NONE && rhs == NONE) return set(out, to_kind(mx::matmul(left, right), dtype));
  // MLX's product of chosen matrices copies none of them. On the CPU it takes f32 only, and the others are copied before.
  bool is_empty = left.size() == 0 || right.size() == 0;
  if (!is_empty && (on_gpu() || left.dtype() == mx::float32)) {
    auto choice = [&](Slot slot) -> std::optional<mx::array> {
      if (slot == NONE) return std::nullopt;
      return mx::astype(at(slot), mx::uint32);
    };
    return set(out, to_kind(mx::gather_mm(left, right, choice(lhs), choice(rhs)), dtype));
  }
  if (lhs != NONE) left = chosen(left, at(lhs));
  if (rhs != NONE) right = chosen(right, at(rhs));
  set(out, to_kind(mx::matmul(left, right), dtype));
}

void Values::quant_matmul(Slot out, Slot x, const Weights& w, bool transpose, Slot lhs, Slot rhs, Kind kind) {
  mx::array operand = at(x), codes = at(w.codes), scales = at(w.scales);
  auto biases = maybe(w.biases);
  mx::Dtype dtype = dtype_of(kind);
  bool is_affine = w.kind == QuantKind::Affine;
  if (is_affine && !biases) biases = mx::zeros_like(scales);
  if (!is_native(w) || operand.shape(-2) == 0) {
    mx::array weights = decoded(codes, scales, biases, maybe(w.code_table), maybe(w.scale_table), w);
    mx::array left = widened(operand);
    if (lhs != NONE) left = chosen(left, at(lhs));
    if (rhs != NONE) weights = chosen(weights, at(rhs));
    return set(out, to_kind(mx::matmul(left, transpose ? transposed(weights) : weights), dtype));
  }
  // Kernels for the GPU add up in f32; those for the CPU in the type of the operand.
  mx::Dtype common = is_affine ? mx::promote_types(operand.dtype(), scales.dtype()) : operand.dtype();
  if (!on_gpu()) common = mx::float32;
  operand = mx::astype(operand, common);
  if (is_affine) scales = mx::astype(scales, common);
  if (is_affine) biases = mx::astype(*biases, scales.dtype());
  if (lhs == NONE && rhs == NONE) {
    mx::array product =
        mx::quantized_matmul(operand, codes, scales, biases, transpose, w.group, w.bits, mode_name(w.kind));
    return set(out, to_kind(product, dtype));
  }
  auto flat = [](const mx::array& stack) { return mx::reshape(stack, {-1, stack.shape(-2), stack.shape(-1)}); };
  auto choice = [&](Slot slot) -> std::optional<mx::array> {
    if (slot == NONE) return std::nullopt;
    return mx::astype(at(slot), mx::uint32);
  };
  auto left = choice(lhs), right = choice(rhs);
  mx::Shape outer = left ? left->shape() : right->shape();
  int count = 1;
  for (int size : outer) count *= size;
  mx::array each = mx::reshape(mx::arange(0.0, double(count), 1.0, mx::uint32), outer);
  if (!left) left = each;
  if (!right) right = each;
  if (biases) biases = flat(*biases);
  mx::array product = mx::gather_qmm(flat(operand), flat(codes), flat(scales), biases, left, right, transpose, w.group,
                                     w.bits, mode_name(w.kind));
  set(out, to_kind(product, dtype));
}

void Values::dequantize(Slot out, const Weights& w, Kind kind) {
  auto biases = maybe(w.biases);
  bool is_fast = w.kind == QuantKind::Affine && is_native(w) && biases;
  mx::array weights =
      is_fast ? mx::dequantize(at(w.codes), widened(at(w.scales)), widened(*biases), w.group, w.bits, "affine")
              : decoded(at(w.codes), at(w.scales), biases, maybe(w.code_table), maybe(w.scale_table), w);
  set(out, to_kind(weights, dtype_of(kind)));
}

// MLX rotates ones beside zeros: what comes out is its own cosines and sines.
const Rotation& Values::rotation(std::int32_t dims, std::int32_t tokens, float scale, std::int64_t first, Slot position,
                                 float base, Slot periods) {
  auto start = maybe(position), freqs = maybe(periods);
  auto same = [](const std::optional<mx::array>& a, const std::optional<mx::array>& b) {
    return a ? b && a->id() == b->id() : !b;
  };
  for (const Rotation& known : rotations_) {
    if (known.dims == dims && known.tokens == tokens && known.scale == scale && known.base == base &&
        known.first == first && same(known.position, start) && same(known.periods, freqs))
      return known;
  }
  mx::Shape half = {1, 1, tokens, dims / 2};
  mx::array unit = mx::concatenate({mx::ones(half), mx::zeros(half)}, -1);
  std::optional<float> rate = freqs ? std::nullopt : std::optional<float>(base);
  mx::array turned =
      start ? mx::fast::rope(unit, dims, false, rate, scale, mx::reshape(mx::astype(*start, mx::int32), {}), freqs)
            : mx::fast::rope(unit, dims, false, rate, scale, static_cast<int>(first), freqs);
  auto parts = mx::split(turned, 2, -1);
  mx::array cosines = mx::concatenate({parts[0], parts[0]}, -1);
  mx::array sines = mx::concatenate({mx::negative(parts[1]), parts[1]}, -1);
  rotations_.push_back({dims, tokens, scale, base, first, start, freqs, cosines, sines});
  return rotations_.back();
}

void Values::rope(Slot out, Slot x, std::int32_t dims, bool interleaved, float scale, std::int64_t first, Slot position,
                  float base, Slot periods, Kind kind) {
  const mx::array& whole = at(x);
  mx::Shape shape = whole.shape();
  // MLX wants a batch, anything, positions and elements.
  mx::Shape four = {whole.ndim() > 2 ? shape[0] : 1, -1, whole.shape(-2), whole.shape(-1)};
  mx::array operand = mx::reshape(on_gpu() ? whole : widened(whole), four);
  // A GPU has a kernel for it. The CPU composes it of twenty operations, half of which are the same for all layers.
  if (!on_gpu() && !interleaved && dims % 2 == 0 && (position == NONE || at(position).size() == 1)) {
    const Rotation& by = rotation(dims, shape[shape.size() - 2], scale, first, position, base, periods);
    mx::Shape from(4, 0), to = operand.shape();
    auto columns = [&](int start, int end) {
      from[3] = start;
      to[3] = end;
      return mx::slice(operand, from, to);
    };
    int width = operand.shape(3);
    mx::array swapped = mx::concatenate({columns(dims / 2, dims), columns(0, dims / 2)}, -1);
    mx::array turned = mx::multiply(dims == width ? operand : columns(0, dims), by.cosines);
    turned = mx::add(turned, mx::multiply(swapped, by.sines));
    if (dims < width) turned = mx::concatenate({turned, columns(dims, width)}, -1);
    return set(out, to_kind(mx::reshape(turned, shape), dtype_of(kind)));
  }
  auto freqs = maybe(periods);
  std::optional<float> rate = freqs ? std::nullopt : std::optional<float>(base);
  mx::array rotated = operand;
  if (position == NONE) {
    rotated = mx::fast::rope(operand, dims, interleaved, rate, scale, static_cast<int>(first), freqs);
  } else {
    mx::array start = mx::astype(at(position), mx::int32);
    start = start.size() == 1 ? mx::reshape(start, {}) : mx::reshape(start, {-1});
    rotated = mx::fast::rope(operand, dims, interleaved, rate, scale, start, freqs);
  }
  set(out, to_kind(mx::reshape(rotated, shape), dtype_of(kind)));
}

void Values::attention(Slot out, Slot q, Slot k, Slot v, Slot mask, bool causal, std::int64_t window, float scale,
                       Kind kind) {
  mx::array query = at(q), key = at(k), value = at(v);
  int queries = query.shape(2), keys = key.shape(2);
  mx::Dtype dtype = dtype_of(kind);
  if (keys == 0) {
    mx::Shape shape = {query.shape(0), query.shape(1), queries, value.shape(3)};
    return set(out, mx::full(shape, std::numeric_limits<float>::quiet_NaN(), dtype));
  }
  auto given = maybe(mask);
  bool is_one_type = query.dtype() == dtype && key.dtype() == dtype && value.dtype() == dtype;
  if (on_gpu() && is_one_type && window < 0 && (!causal || (!given && queries <= keys))) {
    // Its kernels attend to all keys if a mask allows none, so bools become numbers.
    if (given && given->dtype() == mx::bool_) given = mx::where(*given, mx::array(0.0f), mx::array(MINUS_INFINITY));
    if (given) given = mx::astype(*given, dtype);
    const char* mode = causal && queries > 1 ? "causal" : "";
    return set(out, mx::fast::scaled_dot_product_attention(query, key, value, scale, mode, given));
  }
  std::optional<mx::array> added, attended;
  if (given && given->dtype() != mx::bool_) added = widened(*given);
  if (given && given->dtype() == mx::bool_) attended = given;
  if ((causal && queries > 1) || window >= 0) {
    mx::array reaches = reach(queries, keys, causal, window);
    attended = attended ? mx::logical_and(*attended, reaches) : reaches;
  }
  set(out, to_kind(composed(widened(query), widened(key), widened(value), added, attended, scale), dtype));
}

void Values::conv(Slot out, Slot x, Slot w, Numbers shape, Numbers stride, Numbers padding, Numbers dilation,
                  std::int32_t groups, bool transposed, Kind kind) {
  mx::array operand = at(x), filters = at(w);
  if (!on_gpu() || operand.dtype() != filters.dtype()) {
    operand = widened(operand);
    filters = widened(filters);
  }
  auto list = [](Numbers numbers) { return std::vector<int>(numbers.begin(), numbers.end()); };
  std::size_t axes = stride.size();
  std::vector<int> before = list(padding), after = before, steps = list(stride), gaps(axes, 1);
  if (transposed) {
    gaps = steps;
    steps = std::vector<int>(axes, 1);
    for (std::size_t axis = 0; axis < axes; ++axis) {
      int reach = dilation[axis] * (filters.shape(axis + 1) - 1);
      before[axis] = reach - padding[axis];
      int size = (operand.shape(axis + 1) - 1) * stride[axis] + 1;
      after[axis] = shape[axis + 1] - size - before[axis] + reach;
    }
  }
  auto convolved = [&](const mx::array& x, const mx::array& w, int parts) {
    return mx::conv_general(x, w, steps, before, after, list(dilation), gaps, parts, transposed);
  };
  if (groups == 1 || axes < 3) return set(out, to_kind(convolved(operand, filters, groups), dtype_of(kind)));
  // MLX has groups along one or two axes only.
  std::vector<mx::array> results;
  auto inputs = mx::split(operand, groups, -1), weights = mx::split(filters, groups, 0);
  for (int group = 0; group < groups; ++group) results.push_back(convolved(inputs[group], weights[group], 1));
  set(out, to_kind(mx::concatenate(std::move(results), -1), dtype_of(kind)));
}

void Values::gated_delta(Slot out, Slot state_out, Slots operands, Kind kind, Kind state_kind) {
  mx::array q = widened(at(operands[0])), k = widened(at(operands[1])), v = widened(at(operands[2]));
  mx::array g = widened(at(operands[3])), beta = widened(at(operands[4])), state = widened(at(operands[5]));
  int tokens = v.shape(1), heads = v.shape(2), groups = k.shape(2);
  if (heads != groups && groups > 0) {
    q = mx::repeat(q, heads / groups, 2);
    k = mx::repeat(k, heads / groups, 2);
  }
  std::vector<mx::array> outs;
  mx::Dtype kept = dtype_of(state_kind);
  for (int at = 0; at < tokens; ++at) {
    auto of = [&](const mx::array& x) { return mx::take(x, at, 1); };
    Rule rule = token(of(q), of(k), of(v), of(g), of(beta), state);
    outs.push_back(rule.out);
    // The state is rounded to its type after each token.
    state = widened(mx::astype(rule.state, kept));
  }
  set(out, to_kind(outs.empty() ? mx::zeros_like(v) : mx::stack(outs, 1), dtype_of(kind)));
  set(state_out, to_kind(state, kept));
}

}  // namespace ptero
