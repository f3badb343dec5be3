// Kernels that programs bring as Metal source. Experimental: compiled everywhere, and run only where MLX has Metal.
#include "ptero-mlx/src/bridge.rs.h"
#include "ptero-mlx/src/shim/values.h"

namespace ptero {

bool has_metal() { return mx::metal::is_available(); }

void Values::run_kernel(const Kernel& kernel) {
  auto strings = [](const rust::Vec<rust::String>& names) { return std::vector<std::string>(names.begin(), names.end()); };
  std::vector<mx::array> inputs;
  for (Slot slot : kernel.inputs) inputs.push_back(at(slot));
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (const KernelResult& result : kernel.results) {
    shapes.emplace_back(result.shape.begin(), result.shape.end());
    dtypes.push_back(dtype_of(result.kind));
  }
  std::vector<std::pair<std::string, mx::fast::TemplateArg>> arguments;
  for (const KernelArgument& argument : kernel.arguments) {
    mx::fast::TemplateArg value = argument.value;
    if (argument.code == 1) value = argument.value != 0;
    if (argument.code == 2) value = dtype_of(argument.kind);
    arguments.emplace_back(std::string(argument.name), value);
  }
  auto run = mx::fast::metal_kernel(std::string(kernel.name), strings(kernel.input_names), strings(kernel.output_names),
                                    std::string(kernel.source), std::string(kernel.header), kernel.is_row_contiguous,
                                    kernel.is_atomic);
  const auto& sizes = kernel.launch;
  auto init = kernel.has_init ? std::optional<float>(kernel.init) : std::nullopt;
  auto results = run(inputs, shapes, dtypes, {sizes[0], sizes[1], sizes[2]}, {sizes[3], sizes[4], sizes[5]}, arguments,
                     init, false, {});
  if (results.size() != kernel.results.size()) throw std::invalid_argument("a kernel has another number of results");
  for (std::size_t index = 0; index < results.size(); ++index) set(kernel.results[index].out, results[index]);
}

}  // namespace ptero
