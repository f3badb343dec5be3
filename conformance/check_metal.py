"""Do our Metal kernels compute what GGUF's own Python package says, and does ExecuTorch open programs with them?

There is no Metal here, so a kernel's body is compiled as C++ with `metal/shim.hpp`, in the function that MLX would put round it,
with sanitizers that stop at a byte outside a buffer or a misaligned read. Everything comes from the programs themselves, which
upstream's flatc reads with upstream's schema: sources, names, template arguments, and the grid, whose host values are computed
here. Weights are random blocks; `gguf` decodes them and numpy multiplies.

    pip install executorch==1.5.1 torch==2.13.0 gguf
    cargo run -p ptero-export --example gguf -- target/gguf
    python conformance/check_metal.py target/gguf/*.pte
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy
import torch
from opens_in_executorch import forward_is_known, graph_tables, load

SHIM = pathlib.Path(__file__).parent / "metal/shim.hpp"
SPACES = pathlib.Path(__file__).parent / "metal/spaces.hpp"
# By ExecuTorch's `ScalarType`: the name that MLX gives it in Metal, and PyTorch's.
TYPES = {
    0: ("uint8_t", torch.uint8),
    4: ("int64_t", torch.int64),
    5: ("float16_t", torch.float16),
    6: ("float", torch.float32),
    15: ("bfloat16_t", torch.bfloat16),
}
# Halves that are the factors of a block, and their number.
FACTORS = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208, 1)}


def kernels(graph):
    """The nodes with Metal source, and the host nodes before them."""
    nodes = [(node["op_type"], node["op"]) for chain in graph["instruction_chains"] for node in chain["instructions"]]
    return [op for kind, op in nodes if kind == "MetalKernelNode"], [node for node in nodes if "Int" in node[0] or "Sym" in node[0]]


def number(int_or_value, values):
    return values[int_or_value["vid"]["idx"]] if int_or_value["is_vid"] else int_or_value["literal"]


def host_values(host, sizes):
    """Runs the host nodes; `sizes` are the shapes of tensors by slot."""
    values = {}
    for kind, op in host:
        if kind == "SymSizeNode":
            values[op["out"]["idx"]] = sizes[op["a"]["idx"]][op["dim"]]
            continue
        a, b = number(op["a"], values), number(op["b"], values)
        values[op["out"]["idx"]] = {"AddIntNode": a + b, "MultiplyIntNode": a * b, "FloorDivideIntNode": a // b}[kind]
    return values


def signature(node, dtypes, few):
    """Template and parameters of the function that MLX writes round a body, and what to call it with. Inputs of `few`, those of
    less than eight elements, are in another address space."""
    kinds = {0: "int", 1: "bool", 2: "typename"}
    names, codes = node["template_arg_names"], node["template_arg_kinds"]
    template = ", ".join(f"{kinds[kind]} {name}" for name, kind in zip(names, codes))
    values = zip(codes, node["template_arg_values"])
    given = ", ".join(TYPES[value][0] if kind == 2 else str(value) for kind, value in values)
    parameters, arguments = [], []
    for at, (name, dtype) in enumerate(zip(node["input_names"], dtypes)):
        space = "constant" if name in few else "device"
        parameters.append(f"const {space} {TYPES[dtype][0]}* {name}")
        arguments.append(f"(const {TYPES[dtype][0]}*)inputs[{at}].data()")
        for suffix, type_name, argument in [
            ("_shape", "const constant int*", f"shapes[{at}].data()"),
            ("_ndim", "const constant int&", f"ranks[{at}]"),
        ]:
            if name + suffix in node["source"]:
                parameters.append(f"{type_name} {name}{suffix}")
                arguments.append(argument)
    out = TYPES[node["output_dtypes"][0]][0]
    parameters += [f"device {out}* {node['output_names'][0]}", "uint3 thread_position_in_grid"]
    arguments += [f"({out}*)out.data()", "place"]
    return template, given, ", ".join(parameters), ", ".join(arguments)


def function(index, node, template, parameters):
    return f"""
namespace kernel_{index} {{
{node["header"]}
template <{template}>
void body({parameters}) {{
{node["source"]}
}}
"""


def as_cpp(index, node, dtypes):
    """The kernel in a namespace of its own, and a way to start it."""
    template, given, parameters, arguments = signature(node, dtypes, [])
    return function(index, node, template, parameters) + f"""
void run(uint3 grid, const std::vector<std::vector<char>>& inputs, const std::vector<std::vector<int>>& shapes,
         const std::vector<int>& ranks, std::vector<char>& out) {{
  shim::run(grid, [&](uint3 place) {{ body<{given}>({arguments}); }});
}}
}}
"""


MAIN = """
// FOLDER KERNEL GRID BYTES-OF-THE-RESULT SHAPE...
int main(int, char** args) {{
  std::string folder = args[1];
  std::vector<int> grid = shim::ints(args[3]);
  std::vector<std::vector<char>> inputs;
  std::vector<std::vector<int>> shapes;
  std::vector<int> ranks;
  for (char** shape = args + 5; *shape; ++shape) {{
    inputs.push_back(shim::read(folder + "/in" + std::to_string(inputs.size())));
    shapes.push_back(shim::ints(*shape));
    ranks.push_back(int(shapes.back().size()));
  }}
  std::vector<char> out(std::strtoul(args[4], nullptr, 10), char(0xff));
  uint3 size{{uint(grid[0]), uint(grid[1]), uint(grid[2])}};
  switch (std::atoi(args[2])) {{ {cases} }}
  shim::write(folder + "/out", out);
}}
"""


def compiled(nodes, dtypes, folder, compiler):
    text = f'#include "{SHIM}"\n' + "".join(as_cpp(at, node, dtypes(node)) for at, node in enumerate(nodes))
    cases = " ".join(f"case {at}: kernel_{at}::run(size, inputs, shapes, ranks, out); break;" for at in range(len(nodes)))
    (folder / "kernels.cpp").write_text(text + MAIN.format(cases=cases))
    flags = "-std=c++20 -O1 -g -fno-strict-aliasing -fsigned-char -fsanitize=address,undefined -fno-sanitize-recover -pthread"
    # Parentheses and comparisons of signs aside, a warning is a mistake.
    flags += " -Wall -Wextra -Werror -Wno-sign-compare -Wno-unused-parameter -Wno-unused-function"
    subprocess.run([compiler, *flags.split(), "-o", folder / "kernels", folder / "kernels.cpp"], check=True)


def keeps_spaces(nodes, dtypes, folder, clang):
    """Compiles the kernels with Metal's address spaces, as instances that MLX would make: of one token, and of many."""
    text = f'#include "{SPACES}"\n'
    for at, node in enumerate(nodes):
        for few in [[], ["indices"]]:
            template, given, parameters, _ = signature(node, dtypes(node), few)
            text += function(f"{at}_{len(few)}", node, template, parameters) + f"template void body<{given}>({parameters});\n}}\n"
    (folder / "spaces.cpp").write_text(text)
    flags = "-std=c++17 -c -Wall -Wextra -Werror -Wno-sign-compare -Wno-unused-parameter -Wno-unused-function"
    subprocess.run([*clang.split(), *flags.split(), folder / "spaces.cpp", "-o", folder / "spaces.o"], check=True)


def blocks(random, kind, rows, columns):
    """Random bytes with small factors: rows of blocks, and what they mean."""
    quant = getattr(gguf.GGMLQuantizationType, kind)
    block, block_bytes = gguf.GGML_QUANT_SIZES[quant]
    raw = random.integers(0, 256, (rows, columns // block, block_bytes), dtype=numpy.uint8)
    first, count = FACTORS[kind]
    factors = random.uniform(-0.01, 0.01, (rows, columns // block, count)).astype(numpy.float16)
    raw[:, :, first : first + 2 * count] = factors.view(numpy.uint8)
    raw = raw.reshape(rows, -1)
    return torch.from_numpy(raw), gguf.quants.dequantize(raw, quant).astype(numpy.float64)


def run(folder, index, node, values, inputs):
    for at, tensor in enumerate(inputs):
        (folder / f"in{at}").write_bytes(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    dtype = TYPES[node["output_dtypes"][0]][1]
    shape = [number(size, values) for size in node["output_shapes_flat"]]
    grid = [number(size, values) for size in node["grid"]]
    group = [number(size, values) for size in node["threadgroup"]]
    assert len(grid) == len(group) == 3 and group[0] % 32 == 0 and group[1:] == [1, 1], (grid, group)
    count = int(numpy.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
    shapes = [",".join(map(str, tensor.shape)) for tensor in inputs]
    command = [folder / "kernels", folder, str(index), ",".join(map(str, grid)), str(count), *shapes]
    subprocess.run(command, check=True, timeout=120)
    raw = bytearray((folder / "out").read_bytes())
    return torch.frombuffer(raw, dtype=dtype).reshape(shape).to(torch.float64).numpy()


def check(path, rows, folder, compilers, random):
    """Every kernel of a program, for a number of rows; the greatest error, in units of the result's rounding."""
    (graph,) = graph_tables(path, folder)
    nodes, host = kernels(graph)
    code = nodes[0]["output_dtypes"][0]
    dtypes = lambda node: [{"weight": 0, "indices": 4}.get(name, code) for name in node["input_names"]]
    compiled(nodes, dtypes, folder, compilers[0])
    if compilers[1]:
        keeps_spaces(nodes, dtypes, folder, compilers[1])
    dtype, epsilon = TYPES[code][1], torch.finfo(TYPES[code][1]).eps
    worst, seen = 0.0, []
    for index, node in enumerate(nodes):
        kind = node["name"].split("_")[2].upper().replace("K", "_K")
        template = dict(zip(node["template_arg_names"], node["template_arg_values"]))
        columns, count = template["K"], template.get("N", template.get("V"))
        seen.append(node["name"])
        for length in rows:
            raw, weights = blocks(random, kind, count, columns)
            rank = node["output_shape_lengths"][0]
            outer = [1] * (rank - 2) + [length]
            given = {"weight": raw, "bias": torch.from_numpy(random.normal(size=count)).to(dtype)}
            given["x"] = torch.from_numpy(random.normal(size=(*outer, columns))).to(dtype)
            # Counted from the end, too, and beyond both.
            indices = random.integers(-count, count, outer)
            indices.flat[0] = (count - 1, -count, count + 5, -count - 5)[length % 4]
            given["indices"] = torch.from_numpy(indices)
            inputs = [given[name] for name in node["input_names"]]
            slots = {slot["idx"]: list(tensor.shape) for slot, tensor in zip(node["inputs"], inputs)}
            sizes = {slot["idx"]: outer + [columns] for slot in graph_inputs(graph)} | slots
            found = run(folder, index, node, host_values(host, sizes), inputs)
            if "indices" in given and "indices" in node["input_names"]:
                wrapped = numpy.where(indices < 0, indices + count, indices).clip(0, count - 1)
                wanted, scale = weights[wrapped], numpy.abs(weights[wrapped])
            else:
                x = given["x"].to(torch.float64).numpy()
                wanted, scale = x @ weights.T, numpy.abs(x) @ numpy.abs(weights).T
                if "bias" in node["input_names"]:
                    wanted = wanted + given["bias"].to(torch.float64).numpy()
            # Of f32, sums of this length lose a few bits more than one rounding.
            slack = numpy.abs(wanted) * epsilon / 2 + scale * 2.0**-20 + 2.0**-24
            worst = max(worst, float((numpy.abs(found - wanted) / slack).max()))
            assert found.shape == wanted.shape, (found.shape, wanted.shape)
    return seen, worst


def graph_inputs(graph):
    return [{"idx": slot["idx"]} for slot in graph["input_map"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", type=pathlib.Path)
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 3, 17])
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--clang", help="compile with address spaces, too: `clang++`, or `python -m ziglang c++`")
    args = parser.parse_args()
    random, failures = numpy.random.default_rng(7), 0
    for path in args.programs:
        with tempfile.TemporaryDirectory() as folder:
            names, worst = check(path, args.rows, pathlib.Path(folder), (args.compiler, args.clang), random)
        opens = forward_is_known(load(path)) and "forward" in load(path).method_names
        failures += worst > 1 or not opens
        print(f"{path.name}: {', '.join(names)}: error {worst:.2f} of what is allowed; ExecuTorch {'opens' if opens else 'REFUSES'} it")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
