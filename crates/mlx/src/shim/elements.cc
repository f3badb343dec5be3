// Functions of single elements. A step of a short float type computes in f32 and rounds, as MLX does too.
#include <cmath>
#include <limits>

#include "ptero-mlx/src/bridge.rs.h"
#include "ptero-mlx/src/shim/values.h"

namespace ptero {

namespace {

mx::array same(double value, const mx::array& x) { return mx::array(value, x.dtype()); }

bool is_signed(mx::Dtype dtype) { return mx::issubdtype(dtype, mx::signedinteger); }

// A float as an integer: truncated, NaN gives 0, saturated to 64 bits, then wrapped.
mx::array float_to_int(const mx::array& x, mx::Dtype to) {
  mx::array wide = mx::astype(x, mx::float32);
  mx::array number = mx::where(mx::isnan(wide), mx::array(0.0f), wide);
  mx::array top = mx::array(9223372036854775808.0f);
  mx::array low = mx::maximum(mx::negative(top), mx::minimum(number, mx::array(9223371487098961920.0f)));
  mx::array whole = mx::astype(low, mx::int64);
  whole = mx::where(mx::greater_equal(number, top), mx::array(std::numeric_limits<std::int64_t>::max(), mx::int64), whole);
  return mx::astype(whole, to);
}

// A quotient of integers and its remainder, rounded down. MLX divides as the machine does, which traps on zero and on the one
// quotient that does not fit.
mx::array int_floor_div(const mx::array& a, const mx::array& b) {
  mx::array is_zero = mx::equal(b, same(0, b));
  mx::array divisor = mx::where(is_zero, same(1, b), b);
  if (!is_signed(a.dtype())) return mx::where(is_zero, same(0, a), mx::floor_divide(a, divisor));
  mx::array is_minus_one = mx::equal(b, same(-1, b));
  divisor = mx::where(is_minus_one, same(1, b), divisor);
  mx::array rest = mx::remainder(a, divisor);
  mx::array quotient = mx::floor_divide(mx::subtract(a, rest), divisor);
  quotient = mx::where(is_minus_one, mx::negative(a), quotient);
  return mx::where(is_zero, same(0, a), quotient);
}

mx::array int_remainder(const mx::array& a, const mx::array& b) {
  mx::array is_zero = mx::equal(b, same(0, b));
  mx::array divisor = mx::where(is_zero, same(1, b), b);
  if (is_signed(a.dtype())) divisor = mx::where(mx::equal(b, same(-1, b)), same(1, b), divisor);
  return mx::where(is_zero, same(0, a), mx::remainder(a, divisor));
}

// MLX's loop over the bits of an exponent does not end for negative ones.
mx::array int_power(const mx::array& a, const mx::array& b) {
  if (!is_signed(b.dtype())) return mx::power(a, b);
  mx::array is_negative = mx::less(b, same(0, b));
  mx::array power = mx::power(a, mx::where(is_negative, same(0, b), b));
  mx::array is_odd = mx::not_equal(mx::bitwise_and(b, same(1, b)), same(0, b));
  mx::array of_minus_one = mx::where(is_odd, same(-1, a), same(1, a));
  mx::array inverse = mx::where(mx::equal(a, same(1, a)), same(1, a),
                                mx::where(mx::equal(a, same(-1, a)), of_minus_one, same(0, a)));
  return mx::where(is_negative, inverse, power);
}

mx::array float_remainder(const mx::array& a, const mx::array& b) {
  mx::array rest = mx::remainder(widened(a), widened(b));
  return mx::astype(rest, a.dtype());
}

mx::array int_unary(UnaryOp op, const mx::array& x) {
  switch (op) {
    case UnaryOp::Neg:
      // MLX does not negate bools, and they stay as they are.
      return x.dtype() == mx::bool_ ? x : mx::subtract(same(0, x), x);
    case UnaryOp::Abs: return x.dtype() == mx::bool_ ? x : mx::abs(x);
    case UnaryOp::Sign: return x.dtype() == mx::bool_ ? x : mx::sign(x);
    case UnaryOp::Square: return x.dtype() == mx::bool_ ? x : mx::multiply(x, x);
    case UnaryOp::Not: return mx::astype(mx::equal(x, same(0, x)), x.dtype());
    case UnaryOp::BitNot: return x.dtype() == mx::bool_ ? mx::logical_not(x) : mx::bitwise_invert(x);
    default: throw std::invalid_argument("this function does not exist for integers");
  }
}

mx::array float_unary(UnaryOp op, const mx::array& x) {
  switch (op) {
    case UnaryOp::Neg: return mx::negative(x);
    case UnaryOp::Abs: return mx::abs(x);
    case UnaryOp::Sign: return mx::where(mx::isnan(x), x, mx::sign(x));
    case UnaryOp::Square: return mx::square(x);
    case UnaryOp::Sqrt: return mx::sqrt(x);
    case UnaryOp::Rsqrt: return mx::rsqrt(x);
    case UnaryOp::Reciprocal: return mx::reciprocal(x);
    case UnaryOp::Exp: return mx::exp(x);
    case UnaryOp::Expm1: return mx::expm1(x);
    case UnaryOp::Log: return mx::log(x);
    case UnaryOp::Log2: return mx::log2(x);
    case UnaryOp::Log10: return mx::log10(x);
    case UnaryOp::Log1p: return mx::log1p(x);
    case UnaryOp::Sin: return mx::sin(x);
    case UnaryOp::Cos: return mx::cos(x);
    case UnaryOp::Tan: return mx::tan(x);
    case UnaryOp::Arcsin: return mx::arcsin(x);
    case UnaryOp::Arccos: return mx::arccos(x);
    case UnaryOp::Arctan: return mx::arctan(x);
    case UnaryOp::Sinh: return mx::sinh(x);
    case UnaryOp::Cosh: return mx::cosh(x);
    case UnaryOp::Tanh: return mx::tanh(x);
    case UnaryOp::Arcsinh: return mx::arcsinh(x);
    case UnaryOp::Arccosh: return mx::arccosh(x);
    case UnaryOp::Arctanh: return mx::arctanh(x);
    case UnaryOp::Erf: return mx::erf(x);
    case UnaryOp::Sigmoid: return mx::sigmoid(x);
    case UnaryOp::Floor: return mx::floor(x);
    case UnaryOp::Ceil: return mx::ceil(x);
    case UnaryOp::Round: return mx::round(x);
    case UnaryOp::Trunc: return mx::trunc(x);
    case UnaryOp::Not:
    case UnaryOp::BitNot: break;
  }
  throw std::invalid_argument("this function does not exist for floats");
}

// In f32 and rounded once: MLX composes some functions of operations that round.
mx::array wide_binary(mx::array (*f)(const mx::array&, const mx::array&, mx::StreamOrDevice), const mx::array& a,
                      const mx::array& b) {
  return mx::astype(f(widened(a), widened(b), {}), a.dtype());
}

// Its result may be far smaller than what it adds, so the CPU computes it in f64; GPUs have none.
mx::array log_add_exp(const mx::array& a, const mx::array& b) {
  if (on_gpu()) return wide_binary(mx::logaddexp, a, b);
  mx::array sum = mx::logaddexp(mx::astype(a, mx::float64), mx::astype(b, mx::float64));
  return mx::astype(mx::astype(sum, mx::float32), a.dtype());
}

mx::array float_binary(BinaryOp op, const mx::array& a, const mx::array& b) {
  switch (op) {
    case BinaryOp::Add: return mx::add(a, b);
    case BinaryOp::Sub: return mx::subtract(a, b);
    case BinaryOp::Mul: return mx::multiply(a, b);
    case BinaryOp::Div: return mx::divide(a, b);
    case BinaryOp::FloorDiv: return mx::astype(mx::floor(mx::divide(widened(a), widened(b))), a.dtype());
    case BinaryOp::Remainder: return float_remainder(a, b);
    case BinaryOp::Power: return wide_binary(mx::power, a, b);
    case BinaryOp::Max: return mx::maximum(a, b);
    case BinaryOp::Min: return mx::minimum(a, b);
    case BinaryOp::Atan2: return wide_binary(mx::arctan2, a, b);
    case BinaryOp::LogAddExp: return log_add_exp(a, b);
    default: throw std::invalid_argument("this function does not exist for floats");
  }
}

mx::array int_binary(BinaryOp op, const mx::array& a, const mx::array& b) {
  switch (op) {
    case BinaryOp::Add: return mx::add(a, b);
    case BinaryOp::Sub: return mx::subtract(a, b);
    case BinaryOp::Mul: return mx::multiply(a, b);
    case BinaryOp::FloorDiv: return int_floor_div(a, b);
    case BinaryOp::Remainder: return int_remainder(a, b);
    case BinaryOp::Power: return int_power(a, b);
    case BinaryOp::Max: return mx::maximum(a, b);
    case BinaryOp::Min: return mx::minimum(a, b);
    case BinaryOp::And: return mx::astype(mx::logical_and(a, b), a.dtype());
    case BinaryOp::Or: return mx::astype(mx::logical_or(a, b), a.dtype());
    case BinaryOp::BitAnd: return mx::bitwise_and(a, b);
    case BinaryOp::BitOr: return mx::bitwise_or(a, b);
    case BinaryOp::BitXor: return mx::bitwise_xor(a, b);
    default: throw std::invalid_argument("this function does not exist for integers");
  }
}

}  // namespace

mx::array widened(const mx::array& x) { return x.dtype() == mx::float32 ? x : mx::astype(x, mx::float32); }

mx::array to_kind(const mx::array& x, mx::Dtype to) {
  mx::Dtype from = x.dtype();
  if (from == to) return x;
  if (to == mx::bool_) return mx::not_equal(x, same(0, x));
  if (is_float(from) && !is_float(to)) return float_to_int(x, to);
  // Rounded to f32 first, as elements are computed with.
  if (!is_float(from) && is_float(to) && to != mx::float32) return mx::astype(mx::astype(x, mx::float32), to);
  return mx::astype(x, to);
}

void Values::number(Slot out, double value, Kind kind) {
  mx::Dtype dtype = dtype_of(kind);
  set(out, to_kind(mx::array(static_cast<float>(value)), dtype));
}

void Values::integer(Slot out, std::int64_t value, Kind kind) {
  mx::Dtype dtype = dtype_of(kind);
  set(out, dtype == mx::int32 ? mx::array(static_cast<std::int32_t>(value)) : to_kind(mx::array(value, mx::int64), dtype));
}

void Values::index(Slot out, Numbers shape, std::int32_t axis, Kind kind) {
  mx::Shape along(shape.size(), 1);
  along[axis] = shape[axis];
  set(out, mx::reshape(to_kind(mx::arange(0.0, double(shape[axis]), 1.0, mx::int64), dtype_of(kind)), along));
}

void Values::cast(Slot out, Slot x, Kind kind) { set(out, to_kind(at(x), dtype_of(kind))); }

void Values::unary(Slot out, UnaryOp op, Slot x) {
  const mx::array& operand = at(x);
  set(out, is_float(operand.dtype()) ? float_unary(op, operand) : int_unary(op, operand));
}

void Values::binary(Slot out, BinaryOp op, Slot a, Slot b) {
  const mx::array &left = at(a), &right = at(b);
  if (is_float(left.dtype())) return set(out, float_binary(op, left, right));
  if (left.dtype() == mx::bool_ && op != BinaryOp::And && op != BinaryOp::Or) {
    // As integers that are cut to a bool.
    mx::array wide = int_binary(op, mx::astype(left, mx::int64), mx::astype(right, mx::int64));
    return set(out, to_kind(wide, mx::bool_));
  }
  set(out, int_binary(op, left, right));
}

void Values::compare(Slot out, CompareOp op, Slot a, Slot b) {
  const mx::array &left = at(a), &right = at(b);
  switch (op) {
    case CompareOp::Less: return set(out, mx::less(left, right));
    case CompareOp::LessEqual: return set(out, mx::less_equal(left, right));
    case CompareOp::Greater: return set(out, mx::greater(left, right));
    case CompareOp::GreaterEqual: return set(out, mx::greater_equal(left, right));
    case CompareOp::Equal: return set(out, mx::equal(left, right));
    case CompareOp::NotEqual: return set(out, mx::not_equal(left, right));
  }
}

void Values::select(Slot out, Slot condition, Slot yes, Slot no) { set(out, mx::where(at(condition), at(yes), at(no))); }

}  // namespace ptero
