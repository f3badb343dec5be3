#include "ptero-mlx/src/shim/values.h"

#include <cstring>

#include "ptero-mlx/src/bridge.rs.h"

namespace ptero {

mx::Dtype dtype_of(Kind kind) {
  switch (kind) {
    case Kind::Bool: return mx::bool_;
    case Kind::U8: return mx::uint8;
    case Kind::I8: return mx::int8;
    case Kind::U16: return mx::uint16;
    case Kind::I16: return mx::int16;
    case Kind::U32: return mx::uint32;
    case Kind::I32: return mx::int32;
    case Kind::I64: return mx::int64;
    case Kind::F16: return mx::float16;
    case Kind::Bf16: return mx::bfloat16;
    case Kind::F32: return mx::float32;
  }
  throw std::invalid_argument("an unknown element type");
}

mx::Shape shape_of(Numbers numbers) { return mx::Shape(numbers.begin(), numbers.end()); }

bool is_float(mx::Dtype dtype) { return mx::issubdtype(dtype, mx::floating); }

bool on_gpu() {
  static const bool is_gpu = mx::default_device() == mx::Device::gpu;
  return is_gpu;
}

Values::Values(std::size_t count) : slots_(count) {}

std::unique_ptr<Values> new_values(std::size_t count) { return std::make_unique<Values>(count); }

std::unique_ptr<Values> Values::copy() const {
  auto values = std::make_unique<Values>(0);
  values->slots_ = slots_;
  return values;
}

void enter() {
  // One stream for all threads: sessions move between threads, and arrays belong to the stream that makes them.
  static const mx::Stream stream = mx::new_thread_unsafe_stream(mx::default_device());
  thread_local bool is_set = false;
  if (!is_set) {
    mx::set_default_stream(stream);
    is_set = true;
  }
}

Device device() {
  const auto& info = mx::device_info(mx::default_device());
  auto text = [&](const char* key) -> std::string {
    auto found = info.find(key);
    if (found == info.end() || !std::holds_alternative<std::string>(found->second)) return "";
    return std::get<std::string>(found->second);
  };
  auto count = [&](const char* key) -> std::uint64_t {
    auto found = info.find(key);
    if (found == info.end() || !std::holds_alternative<std::size_t>(found->second)) return 0;
    return std::get<std::size_t>(found->second);
  };
  return Device{rust::String(mx::version()), on_gpu(), rust::String(text("device_name")), count("memory_size")};
}

Memory take_memory() {
  Memory memory{mx::get_active_memory(), mx::get_peak_memory()};
  mx::reset_peak_memory();
  return memory;
}

const mx::array& Values::at(Slot slot) const {
  if (slot >= slots_.size() || !slots_[slot]) throw std::invalid_argument("a value is read before it is made");
  return *slots_[slot];
}

std::optional<mx::array> Values::maybe(Slot slot) const {
  if (slot == NONE) return std::nullopt;
  return at(slot);
}

void Values::set(Slot slot, mx::array value) {
  if (slot >= slots_.size()) slots_.resize(slot + 1);
  slots_[slot] = std::move(value);
}

void Values::give(Values& to, Slot out, Slot x) const { to.set(out, at(x)); }

void Values::store(Slot out, Bytes bytes, Numbers shape, Kind kind) {
  mx::Dtype dtype = dtype_of(kind);
  auto data = mx::allocator::malloc(bytes.size());
  if (bytes.size() > 0) std::memcpy(data.buffer().raw_ptr(), bytes.data(), bytes.size());
  set(out, mx::array(std::move(data), shape_of(shape), dtype));
}

void Values::borrow(Slot out, rust::Box<Mapped> owner, Bytes bytes, Numbers shape, Kind kind) {
  auto kept = std::make_shared<rust::Box<Mapped>>(std::move(owner));
  auto* data = const_cast<std::uint8_t*>(bytes.data());
  set(out, mx::array(static_cast<void*>(data), shape_of(shape), dtype_of(kind), [kept](void*) mutable { kept.reset(); }));
}

void Values::zeros(Slot out, Numbers shape, Kind kind) { set(out, mx::zeros(shape_of(shape), dtype_of(kind))); }

void Values::alias(Slot out, Slot x) { set(out, at(x)); }

void Values::clear(Slot from, Slot to) {
  for (Slot slot = from; slot < to && slot < slots_.size(); ++slot) slots_[slot].reset();
  rotations_.clear();
}

void Values::clear_each(Slots slots) {
  for (Slot slot : slots)
    if (slot < slots_.size()) slots_[slot].reset();
}

void Values::eval(Slots slots) {
  std::vector<mx::array> arrays;
  for (Slot slot : slots) arrays.push_back(at(slot));
  mx::eval(std::move(arrays));
}

void Values::async_eval(Slots slots) {
  std::vector<mx::array> arrays;
  for (Slot slot : slots) arrays.push_back(at(slot));
  mx::async_eval(std::move(arrays));
}

void Values::read(Slot x, rust::Slice<std::uint8_t> bytes) {
  mx::array dense = mx::contiguous(at(x));
  dense.eval();
  if (dense.nbytes() != bytes.size()) throw std::invalid_argument("a value has another size than it says");
  if (bytes.size() > 0) std::memcpy(bytes.data(), dense.data<std::uint8_t>(), bytes.size());
}

std::int64_t Values::item(Slot x) {
  mx::array number = mx::astype(mx::reshape(at(x), {}), mx::int64);
  return number.item<std::int64_t>();
}

bool Values::has_shape(Slot x, Numbers shape) const {
  const auto& found = at(x).shape();
  return std::equal(found.begin(), found.end(), shape.begin(), shape.end());
}

void Values::reshape(Slot out, Slot x, Numbers shape) { set(out, mx::reshape(at(x), shape_of(shape))); }

void Values::permute(Slot out, Slot x, Numbers order) {
  set(out, mx::transpose(at(x), std::vector<int>(order.begin(), order.end())));
}

void Values::broadcast(Slot out, Slot x, Numbers shape) { set(out, mx::broadcast_to(at(x), shape_of(shape))); }

void Values::slice(Slot out, Slot x, std::int32_t axis, std::int32_t start, std::int32_t count, std::int32_t step) {
  const mx::array& operand = at(x);
  mx::Shape from(operand.ndim(), 0), to = operand.shape(), by(operand.ndim(), 1);
  from[axis] = count > 0 ? start : 0;
  int end = start + count * step;
  // An end before the first element is written as one before all of them: -1 is the last.
  to[axis] = count == 0 ? 0 : step < 0 ? (end < 0 ? -operand.shape(axis) - 1 : end) : start + (count - 1) * step + 1;
  by[axis] = count > 0 ? step : 1;
  set(out, mx::slice(operand, from, to, by));
}

void Values::strided(Slot out, Slot x, Numbers shape, Longs strides, std::int64_t offset) {
  mx::array dense = mx::contiguous(at(x));
  bool is_negative = std::any_of(strides.begin(), strides.end(), [](std::int64_t stride) { return stride < 0; });
  if (!is_negative) {
    mx::Strides steps(strides.begin(), strides.end());
    set(out, mx::as_strided(dense, shape_of(shape), steps, static_cast<std::size_t>(offset)));
    return;
  }
  // MLX counts how far a view reaches with strides that go forwards only, so elements are picked one by one.
  mx::array index = mx::array(offset, mx::int64);
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    mx::Shape along(shape.size(), 1);
    along[axis] = shape[axis];
    mx::array steps = mx::multiply(mx::arange(0.0, double(shape[axis]), 1.0, mx::int64), mx::array(strides[axis], mx::int64));
    index = mx::add(index, mx::reshape(steps, along));
  }
  set(out, mx::take(mx::reshape(dense, {-1}), mx::broadcast_to(index, shape_of(shape)), 0));
}

void Values::concat(Slot out, Slots parts, std::int32_t axis) {
  std::vector<mx::array> arrays;
  for (Slot part : parts) arrays.push_back(at(part));
  set(out, mx::concatenate(std::move(arrays), axis));
}

void Values::stack(Slot out, Slots parts, std::int32_t axis) {
  std::vector<mx::array> arrays;
  for (Slot part : parts) arrays.push_back(at(part));
  set(out, mx::stack(arrays, axis));
}

void Values::update(Slot out, Slot base, Slot part, std::int32_t axis, std::int32_t start, std::int32_t step) {
  const mx::array& whole = at(base);
  const mx::array& piece = at(part);
  mx::Shape from(whole.ndim(), 0), to = whole.shape(), by(whole.ndim(), 1);
  int count = piece.shape(axis);
  if (count == 0) return set(out, whole);
  from[axis] = start;
  to[axis] = start + (count - 1) * step + 1;
  by[axis] = step;
  set(out, mx::slice_update(whole, piece, from, to, by));
}

}  // namespace ptero
