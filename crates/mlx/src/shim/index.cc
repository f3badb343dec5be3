// Gathers and scatters. An index is checked when the step has run: until then it is clipped, so that nothing outside is touched.
#include "ptero-mlx/src/bridge.rs.h"
#include "ptero-mlx/src/shim/values.h"

namespace ptero {

// `clipped` is the place along an axis of `size`: the index, from the end if it is negative and that is allowed, plus the
// coordinate. The least index and the greatest place are kept for `take_checks`.
void Values::check_index(Slot clipped, Slot index, Slot coordinate, std::int64_t size, bool wraps) {
  mx::array from = mx::astype(at(index), mx::int64);
  mx::array length = mx::array(size, mx::int64), zero = mx::array(0, mx::int64);
  if (wraps) from = mx::where(mx::less(from, zero), mx::add(from, length), from);
  mx::array place = coordinate == NONE ? from : mx::add(from, at(coordinate));
  checks_.push_back(mx::reshape(mx::min(from), {1}));
  checks_.push_back(mx::reshape(mx::max(place), {1}));
  set(clipped, mx::maximum(mx::minimum(place, mx::array(size - 1, mx::int64)), zero));
}

std::size_t Values::take_checks(Slot out) {
  std::size_t count = checks_.size();
  if (count > 0) set(out, count == 1 ? checks_[0] : mx::concatenate(std::move(checks_), 0));
  checks_.clear();
  return count;
}

mx::array chosen(const mx::array& stack, const mx::array& choice) {
  // MLX infers no size of an empty array.
  int count = 1;
  for (int axis = 0; axis < stack.ndim() - 2; ++axis) count *= stack.shape(axis);
  return mx::take(mx::reshape(stack, {count, stack.shape(-2), stack.shape(-1)}), choice, 0);
}

void Values::take(Slot out, Slot x, Slot index, std::int32_t axis) { set(out, mx::take(at(x), at(index), axis)); }

void Values::take_along(Slot out, Slot x, Slot index, std::int32_t axis) {
  set(out, mx::take_along_axis(at(x), at(index), axis));
}

void Values::gather(Slot out, Slot x, Slots indices) {
  const mx::array& operand = at(x);
  std::vector<mx::array> places;
  std::vector<int> axes;
  for (std::size_t axis = 0; axis < indices.size(); ++axis) {
    places.push_back(at(indices[axis]));
    axes.push_back(static_cast<int>(axis));
  }
  places = mx::broadcast_arrays(places);
  mx::array found = mx::gather(operand, places, axes, mx::Shape(operand.ndim(), 1));
  set(out, mx::reshape(found, places[0].shape()));
}

void Values::scatter(Slot out, Slot base, Slot updates, Slots indices, bool add) {
  const mx::array& parts = at(updates);
  if (indices.empty()) {
    // All updates fall on the one element.
    mx::array place = mx::zeros({static_cast<int>(parts.size())}, mx::int32);
    mx::array whole = mx::reshape(at(base), {1}), single = mx::reshape(parts, {-1, 1});
    mx::array result = add ? mx::scatter_add(whole, place, single, 0) : mx::scatter(whole, place, single, 0);
    return set(out, mx::reshape(result, {}));
  }
  const mx::array& whole = at(base);
  std::vector<mx::array> places;
  std::vector<int> axes;
  for (std::size_t axis = 0; axis < indices.size(); ++axis) {
    places.push_back(mx::broadcast_to(at(indices[axis]), parts.shape()));
    axes.push_back(static_cast<int>(axis));
  }
  mx::Shape shape = parts.shape();
  for (std::size_t axis = 0; axis < indices.size(); ++axis) shape.push_back(1);
  mx::array single = mx::reshape(parts, shape);
  set(out, add ? mx::scatter_add(whole, places, single, axes) : mx::scatter(whole, places, single, axes));
}

void Values::scatter_slice(Slot out, Slot base, Slot updates, Slots indices) {
  const mx::array& whole = at(base);
  std::vector<mx::array> starts;
  std::vector<int> axes;
  for (std::size_t axis = 0; axis < indices.size(); ++axis) {
    if (indices[axis] == NONE) continue;
    starts.push_back(mx::reshape(at(indices[axis]), {1}));
    axes.push_back(static_cast<int>(axis));
  }
  set(out, mx::slice_update(whole, at(updates), mx::astype(mx::concatenate(std::move(starts), 0), mx::int32), axes));
}

}  // namespace ptero
