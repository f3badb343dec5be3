"""Does MLX itself compute what transformers does from the programs that ptero exports?

Runs the nodes of a program one by one with MLX's Python package, as upstream's interpreter would, and compares the logits
with a golden of `make_tiny.py`: prompts of several lengths and then token by token, each after another text on the same state.

    python -m venv .venv && .venv/bin/pip install 'mlx[cpu]' numpy
    .venv/bin/python conformance/run_in_mlx.py --ptero target/release/ptero crates/export/tests/tiny/llama …

MLX multiplies matrices that indices choose only in f32 on a CPU, so programs are exported in f32.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import mlx.core as mx
import numpy as np

FARTHEST = 1e-4
TYPES = dict(
    f32=mx.float32, bf16=mx.bfloat16, f16=mx.float16, i64=mx.int64, i32=mx.int32, u32=mx.uint32, u8=mx.uint8, bool=mx.bool_
)
PLAIN = dict(f32="<f4", f16="<f2", i64="<i8", i32="<i4", u32="<u4", u8="u1", bool="?")

UNARY = dict(
    Silu=lambda x: x * mx.sigmoid(x), Sigmoid=mx.sigmoid, Exp=mx.exp, Tanh=mx.tanh, Neg=mx.negative, IdCopy=lambda x: x
)
BINARY = dict(
    Add=mx.add, Multiply=mx.multiply, Divide=mx.divide, Subtract=mx.subtract, LogAddExp=mx.logaddexp, Minimum=mx.minimum,
    Equal=mx.equal, NotEqual=mx.not_equal, Less=mx.less, LessEqual=mx.less_equal, Greater=mx.greater,
    GreaterEqual=mx.greater_equal, BitwiseAnd=mx.bitwise_and, LogicalAnd=mx.logical_and, LogicalOr=mx.logical_or,
    Remainder=mx.remainder, FloorDivide=mx.floor_divide,
)  # fmt: skip
INTEGERS = dict(
    AddInt=lambda a, b: a + b, SubtractInt=lambda a, b: a - b, MultiplyInt=lambda a, b: a * b,
    FloorDivideInt=lambda a, b: a // b, ModInt=lambda a, b: a % b,
)  # fmt: skip


def affine(f):
    return dict(group_size=f["group_size"], bits=f["bits"])


def along(f, x):
    """The part of an axis that `Slice` and `SliceUpdate` mean."""
    part = [slice(None)] * x.ndim
    part[f["axis"] % x.ndim] = slice(f["start"], min(f["stop"], 2**31 - 1), f["step"])
    return tuple(part)


def update(f):
    whole = f["dst"] + 0
    whole[along(f, whole)] = f["update"].astype(whole.dtype)
    return whole


def product(f):
    result = f["alpha"] * (f["mat1"] @ f["mat2"])
    return result if f["bias"] is None else result + f["beta"] * f["bias"]


def attention(f):
    mask = "causal" if f["causal"] else f["mask"]
    return mx.fast.scaled_dot_product_attention(f["q"], f["k"], f["v"], scale=f["scale"], mask=mask)


def rope(f):
    how = dict(traditional=f["traditional"], scale=f["scale"], offset=f["offset"], freqs=f["freqs"])
    return mx.fast.rope(f["x"], f["dims"], base=None if f["freqs"] is not None else f["base"], **how)


def gelu(f):
    x = f["x"]
    if f["approximate"] == "tanh":
        return 0.5 * x * (1 + mx.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + mx.erf(x / 2**0.5))


NODES = dict(
    Gelu=gelu,
    SymSize=lambda f: f["a"].shape[f["dim"]],
    ItemInt=lambda f: int(f["x"].item()),
    Take=lambda f: mx.take(f["x"], f["index"], axis=f["axis"]),
    TakeAlongAxis=lambda f: mx.take_along_axis(f["x"], f["indices"], axis=f["axis"]),
    ARange=lambda f: mx.arange(f["start"], f["stop"], f["step"], dtype=TYPES[f["scalar_type"] or "i32"]),
    AsType=lambda f: f["x"].astype(TYPES[f["scalar_type"]]),
    Where=lambda f: mx.where(f["condition"], f["x"], f["y"]),
    Reshape=lambda f: f["x"].reshape(f["shape"]),
    Transpose=lambda f: mx.transpose(f["x"], f["perm"]),
    ExpandDims=lambda f: mx.expand_dims(f["x"], f["axis"]),
    Squeeze=lambda f: mx.squeeze(f["x"], f["dims"]),
    Concatenate=lambda f: mx.concatenate(f["tensors"], axis=f["axis"]),
    Repeat=lambda f: mx.repeat(f["x"], f["repeats"], axis=f["axis"]),
    Slice=lambda f: f["x"][along(f, f["x"])],
    SliceUpdate=update,
    RMSNorm=lambda f: mx.fast.rms_norm(f["x"], f["weight"], f["eps"]),
    Rope=rope,
    Sdpa=attention,
    Softmax=lambda f: mx.softmax(f["x"], axis=f["axis"], precise=f["precise"]),
    Sum=lambda f: mx.sum(f["x"], axis=f["axes"], keepdims=f["keepdims"]),
    ArgPartition=lambda f: mx.argpartition(f["x"], f["kth"], axis=f["axis"]),
    Addmm=product,
    Conv1D=lambda f: mx.conv1d(f["x"], f["w"], f["stride"], f["padding"], f["dilation"], f["groups"]),
    GatherMm=lambda f: mx.gather_mm(f["a"], f["b"], f["lhs_indices"], f["rhs_indices"]),
    Dequantize=lambda f: mx.dequantize(f["w"], f["scales"], f["biases"], **affine(f)),
    QuantizedMatmul=lambda f: mx.quantized_matmul(f["x"], f["w"], f["scales"], f["biases"], f["transpose"], **affine(f)),
    GatherQmm=lambda f: mx.gather_qmm(
        f["x"], f["w"], f["scales"], f["biases"], f["lhs_indices"], f["rhs_indices"], f["transpose"], **affine(f)
    ),
)


class Program:
    def __init__(self, ptero, path):
        described = json.loads(subprocess.check_output([ptero, "inspect", path, "--json"]))
        self.graph = described["methods"][0]["graph"]
        self.slots, self.state, self.inputs, self.outputs = {}, {}, [], []
        data = pathlib.Path(path).read_bytes()
        for tensor in self.graph["tensors"]:
            slot, shape, kind = tensor["slot"], tensor["shape"], tensor["dtype"]
            if tensor["role"] == "constant":
                numbers = np.frombuffer(data, PLAIN[kind], int(np.prod(shape)), tensor["offset"])
                self.slots[slot] = mx.array(numbers.reshape(shape))
            elif tensor["role"] == "state":
                self.state[slot] = mx.zeros(shape, TYPES[kind])
            elif tensor["role"] in ("input", "output"):
                (self.inputs if tensor["role"] == "input" else self.outputs).append(slot)

    def call(self, tokens, positions):
        self.held = self.slots | self.state
        for slot, numbers in zip(self.inputs, (tokens[None], positions)):
            self.held[slot] = mx.array(numbers.astype(np.int64))
        self.chain(self.graph["main_chain"])
        self.state = {slot: self.held[slot] for slot in self.state}
        mx.eval(self.state, self.held[self.outputs[0]])
        return np.array(self.held[self.outputs[0]].astype(mx.float32)).reshape(-1)

    def chain(self, index):
        for node in self.graph["chains"][index]:
            name, fields = node["op"].removesuffix("Node"), node["fields"]
            if name == "Scan":
                self.scan(fields, node["chains"][0])
                continue
            f = {key: self.value(field) for key, field in fields.items() if key != "out"}
            if name in UNARY:
                result = UNARY[name](f["x"])
            elif name in BINARY or name in INTEGERS:
                result = (BINARY | INTEGERS)[name](f["a"], f["b"])
            elif name in NODES:
                result = NODES[name](Fields(f))
            else:
                sys.exit(f"{node['text']}: no such node here yet")
            self.held[fields["out"]] = result

    def value(self, field):
        if isinstance(field, list):
            return [self.value(one) for one in field]
        is_slot = isinstance(field, str) and field[:1] in ("t", "v") and field[1:].isdigit()
        return self.held[field] if is_slot else field

    def scan(self, fields, body):
        axis, originals = fields["scan_axis"], self.value(fields["originals"])
        collected = {output: [] for output in fields["outputs"]}
        for step in range(originals[0].shape[axis]):
            for original, slot in zip(originals, fields["sliced"]):
                self.held[slot] = mx.take(original, step, axis=axis)
            self.chain(body)
            for output, parts in collected.items():
                parts.append(self.held[output])
        for output, parts in collected.items():
            self.held[output] = mx.stack(parts, axis=axis)


class Fields(dict):
    """A field that is not there has no value."""

    def __missing__(self, key):
        return None


def farthest(program, golden):
    tokens, logits = np.array(golden["tokens"]), np.array(golden["logits"])
    most = 0.0
    for prompt in (1, 2, len(tokens) // 2, len(tokens)):
        program.call(tokens[::-1].copy(), np.arange(len(tokens)))
        start = 0
        for end in range(prompt, len(tokens) + 1):
            wanted = logits[end - 1]
            got = program.call(tokens[start:end], np.arange(start, end))
            most, start = max(most, np.abs(got - wanted).max() / np.abs(wanted).max()), end
    return most


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ptero", required=True)
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    mx.set_default_device(mx.cpu)
    is_wrong = False
    for folder in arguments.folders:
        with tempfile.TemporaryDirectory() as temporary:
            path = f"{temporary}/model.pte"
            gguf = folder / "model.gguf"
            how = ["-o", path, "--dtype", "f32", "--quantize", "none"]
            command = [arguments.ptero, "export", gguf if gguf.exists() else folder, *how]
            subprocess.run(command, check=True, capture_output=True)
            distance = farthest(Program(arguments.ptero, path), mx.load(str(folder / "golden.safetensors")))
        is_wrong |= bool(distance > FARTHEST)
        print(f"{folder.name}: {distance:.1e} of the largest logit away", flush=True)
    sys.exit(is_wrong)


main()
