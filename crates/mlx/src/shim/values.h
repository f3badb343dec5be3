// Arrays by number, and one function for each thing that a graph does with them.
//
// A result goes to slot `out`; operands are slots too, and NONE stands for one that is absent. Nothing runs before `eval`.
// A function throws what MLX throws.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "mlx/mlx.h"
#include "rust/cxx.h"

namespace ptero {

namespace mx = mlx::core;

// The bridge defines these.
enum class Kind : std::uint8_t;
enum class UnaryOp : std::uint8_t;
enum class BinaryOp : std::uint8_t;
enum class CompareOp : std::uint8_t;
enum class FoldOp : std::uint8_t;
enum class QuantKind : std::uint8_t;
struct Weights;
struct Device;
struct Mapped;
struct Kernel;
struct Memory;

using Slot = std::uint32_t;
using Slots = rust::Slice<const Slot>;
using Numbers = rust::Slice<const std::int32_t>;
using Longs = rust::Slice<const std::int64_t>;
using Bytes = rust::Slice<const std::uint8_t>;

constexpr Slot NONE = UINT32_MAX;

// The cosines and sines of a rotary embedding, and what they were computed of.
struct Rotation {
  std::int32_t dims, tokens;
  float scale, base;
  std::int64_t first;
  std::optional<mx::array> position, periods;
  mx::array cosines, sines;
};

class Values {
 public:
  explicit Values(std::size_t count);
  std::unique_ptr<Values> copy() const;

  // Memory.
  void give(Values& to, Slot out, Slot x) const;
  void store(Slot out, Bytes bytes, Numbers shape, Kind kind);
  void borrow(Slot out, rust::Box<Mapped> owner, Bytes bytes, Numbers shape, Kind kind);
  void zeros(Slot out, Numbers shape, Kind kind);
  void alias(Slot out, Slot x);
  void clear(Slot from, Slot to);
  void clear_each(Slots slots);
  void eval(Slots slots);
  void async_eval(Slots slots);
  void read(Slot x, rust::Slice<std::uint8_t> bytes);
  std::int64_t item(Slot x);
  bool has_shape(Slot x, Numbers shape) const;

  // Views and moves.
  void reshape(Slot out, Slot x, Numbers shape);
  void permute(Slot out, Slot x, Numbers order);
  void broadcast(Slot out, Slot x, Numbers shape);
  void slice(Slot out, Slot x, std::int32_t axis, std::int32_t start, std::int32_t count, std::int32_t step);
  void strided(Slot out, Slot x, Numbers shape, Longs strides, std::int64_t offset);
  void concat(Slot out, Slots parts, std::int32_t axis);
  void stack(Slot out, Slots parts, std::int32_t axis);
  void update(Slot out, Slot base, Slot part, std::int32_t axis, std::int32_t start, std::int32_t step);

  // Functions of elements.
  void number(Slot out, double value, Kind kind);
  void integer(Slot out, std::int64_t value, Kind kind);
  void index(Slot out, Numbers shape, std::int32_t axis, Kind kind);
  void cast(Slot out, Slot x, Kind kind);
  void unary(Slot out, UnaryOp op, Slot x);
  void binary(Slot out, BinaryOp op, Slot a, Slot b);
  void compare(Slot out, CompareOp op, Slot a, Slot b);
  void select(Slot out, Slot condition, Slot yes, Slot no);

  // Along axes.
  void reduce(Slot out, Slot x, Numbers axes, FoldOp op, std::int32_t ddof, Kind kind);
  void arg_reduce(Slot out, Slot x, std::int32_t axis, bool largest);
  void softmax(Slot out, Slot x, std::int32_t axis, Kind kind);
  void norm(Slot out, Slot x, Slot weight, Slot bias, float eps, bool is_rms, Kind kind);
  void sort(Slot out, Slot x, std::int32_t axis, bool indices);
  void cumsum(Slot out, Slot x, std::int32_t axis, bool reverse, bool inclusive, Kind kind);
  void random_bits(Slot out, Numbers shape, std::uint32_t high, std::uint32_t low, Kind kind);

  // Matrices.
  void matmul(Slot out, Slot a, Slot b, Slot lhs, Slot rhs, Kind kind);
  void quant_matmul(Slot out, Slot x, const Weights& w, bool transpose, Slot lhs, Slot rhs, Kind kind);
  void dequantize(Slot out, const Weights& w, Kind kind);
  void rope(Slot out, Slot x, std::int32_t dims, bool interleaved, float scale, std::int64_t first, Slot position,
            float base, Slot periods, Kind kind);
  void attention(Slot out, Slot q, Slot k, Slot v, Slot mask, bool causal, std::int64_t window, float scale, Kind kind);
  void conv(Slot out, Slot x, Slot w, Numbers shape, Numbers stride, Numbers padding, Numbers dilation,
            std::int32_t groups, bool transposed, Kind kind);
  void gated_delta(Slot out, Slot state_out, Slots operands, Kind kind, Kind state_kind);

  // A kernel that a program brings; MLX must have Metal.
  void run_kernel(const Kernel& kernel);

  // Indices. Those that a step must check are kept until `take_checks`.
  void take(Slot out, Slot x, Slot index, std::int32_t axis);
  void take_along(Slot out, Slot x, Slot index, std::int32_t axis);
  void gather(Slot out, Slot x, Slots indices);
  void scatter(Slot out, Slot base, Slot updates, Slots indices, bool add);
  void scatter_slice(Slot out, Slot base, Slot updates, Slots indices);
  void check_index(Slot clipped, Slot index, Slot coordinate, std::int64_t size, bool wraps);
  std::size_t take_checks(Slot out);

 private:
  const mx::array& at(Slot slot) const;
  std::optional<mx::array> maybe(Slot slot) const;
  void set(Slot slot, mx::array value);
  const Rotation& rotation(std::int32_t dims, std::int32_t tokens, float scale, std::int64_t first, Slot position,
                           float base, Slot periods);

  std::vector<std::optional<mx::array>> slots_;
  std::vector<mx::array> checks_;
  // Those of the step that is built: all its layers rotate alike.
  std::vector<Rotation> rotations_;
};

std::unique_ptr<Values> new_values(std::size_t count);

// Makes this thread use the one stream that all sessions share. The caller holds the lock.
void enter();

// What MLX runs on.
Device device();
bool has_metal();

// The memory that arrays hold; the most counts from now on.
Memory take_memory();

// What the files of the shim share.
mx::Dtype dtype_of(Kind kind);
mx::Shape shape_of(Numbers numbers);
bool is_float(mx::Dtype dtype);
bool on_gpu();
mx::array to_kind(const mx::array& x, mx::Dtype to);
mx::array widened(const mx::array& x);
mx::array chosen(const mx::array& stack, const mx::array& choice);

}  // namespace ptero
