// What combines elements along axes. Sums are in f32 or in 64 bits, whatever the type of the elements.
#include <cmath>
#include <limits>

#include "ptero-mlx/src/bridge.rs.h"
#include "ptero-mlx/src/shim/values.h"

namespace ptero {

namespace {

mx::array wide(const mx::array& x) { return is_float(x.dtype()) ? widened(x) : mx::astype(x, mx::int64); }

// The largest exponent is taken out first. Where it is infinite, so is the result.
mx::array log_sum_exp(const mx::array& x, const std::vector<int>& axes) {
  mx::array largest = mx::max(x, axes, true);
  mx::array is_infinite = mx::isinf(largest);
  mx::array shift = mx::where(is_infinite, mx::array(0.0f), largest);
  mx::array sum = mx::log(mx::sum(mx::exp(mx::subtract(x, shift)), axes, true));
  return mx::where(is_infinite, largest, mx::add(shift, sum));
}

mx::array variance(const mx::array& x, const std::vector<int>& axes, int ddof) {
  std::int64_t count = 1;
  for (int axis : axes) count *= x.shape(axis);
  mx::array mean = mx::mean(x, axes, true);
  mx::array squares = mx::sum(mx::square(mx::subtract(x, mean)), axes, true);
  return mx::divide(squares, mx::array(static_cast<float>(std::max<std::int64_t>(count - ddof, 0))));
}

mx::array fold(const mx::array& x, const std::vector<int>& axes, FoldOp op, int ddof) {
  switch (op) {
    case FoldOp::Sum: return mx::sum(wide(x), axes, true);
    case FoldOp::Prod: return mx::prod(wide(x), axes, true);
    case FoldOp::Max: return mx::max(x, axes, true);
    case FoldOp::Min: return mx::min(x, axes, true);
    case FoldOp::Any: return mx::any(to_kind(x, mx::bool_), axes, true);
    case FoldOp::All: return mx::all(to_kind(x, mx::bool_), axes, true);
    case FoldOp::Mean: return mx::mean(widened(x), axes, true);
    case FoldOp::Var: return variance(widened(x), axes, ddof);
    case FoldOp::LogSumExp: return log_sum_exp(widened(x), axes);
  }
  throw std::invalid_argument("an unknown reduction");
}

}  // namespace

void Values::reduce(Slot out, Slot x, Numbers axes, FoldOp op, std::int32_t ddof, Kind kind) {
  std::vector<int> along(axes.begin(), axes.end());
  const mx::array& operand = at(x);
  if (along.empty() && op != FoldOp::Any && op != FoldOp::All) {
    // Each element by itself: MLX takes no axes as all of them.
    mx::array one = mx::expand_dims(operand, 0);
    return set(out, to_kind(mx::squeeze(fold(one, {0}, op, ddof), 0), dtype_of(kind)));
  }
  if (along.empty()) return set(out, to_kind(to_kind(operand, mx::bool_), dtype_of(kind)));
  set(out, to_kind(fold(operand, along, op, ddof), dtype_of(kind)));
}

void Values::arg_reduce(Slot out, Slot x, std::int32_t axis, bool largest) {
  const mx::array& operand = at(x);
  mx::array index = largest ? mx::argmax(operand, axis, true) : mx::argmin(operand, axis, true);
  if (is_float(operand.dtype())) {
    // A NaN wins over all numbers. MLX's search skips it.
    mx::array nan = mx::astype(mx::isnan(operand), mx::uint8);
    mx::array first = mx::argmax(nan, axis, true);
    index = mx::where(mx::any(mx::isnan(operand), axis, true), first, index);
  }
  set(out, mx::astype(index, mx::uint32));
}

void Values::softmax(Slot out, Slot x, std::int32_t axis, Kind kind) {
  set(out, to_kind(mx::softmax(widened(at(x)), axis, true), dtype_of(kind)));
}

void Values::norm(Slot out, Slot x, Slot weight, Slot bias, float eps, bool is_rms, Kind kind) {
  mx::array operand = at(x);
  auto scale = maybe(weight), offset = maybe(bias);
  mx::Dtype dtype = dtype_of(kind);
  auto differs = [&](const std::optional<mx::array>& a) { return a && a->dtype() != operand.dtype(); };
  // MLX rounds before it multiplies by the weights, so short floats are widened where that is not a kernel of its own.
  if (!on_gpu() || differs(scale) || differs(offset) || operand.dtype() != dtype) {
    operand = widened(operand);
    if (scale) scale = widened(*scale);
    if (offset) offset = widened(*offset);
  }
  if (!is_rms) return set(out, to_kind(mx::fast::layer_norm(operand, scale, offset, eps), dtype));
  mx::array normalized = mx::fast::rms_norm(operand, scale, eps);
  set(out, to_kind(offset ? mx::add(normalized, *offset) : normalized, dtype));
}

void Values::sort(Slot out, Slot x, std::int32_t axis, bool indices) {
  const mx::array& operand = at(x);
  set(out, indices ? mx::astype(mx::argsort(operand, axis), mx::uint32) : mx::sort(operand, axis));
}

void Values::cumsum(Slot out, Slot x, std::int32_t axis, bool reverse, bool inclusive, Kind kind) {
  set(out, to_kind(mx::cumsum(wide(at(x)), axis, reverse, inclusive), dtype_of(kind)));
}

void Values::random_bits(Slot out, Numbers shape, std::uint32_t high, std::uint32_t low, Kind kind) {
  mx::array key = mx::array({high, low});
  mx::Dtype dtype = dtype_of(kind);
  set(out, mx::astype(mx::random::bits(shape_of(shape), static_cast<int>(mx::size_of(dtype)), key), dtype));
}

}  // namespace ptero
