"""Makes programs with ptero's own exporter from the tiny checkpoints, with the logits that transformers computes for them.

    cargo build --release
    .venv/bin/python conformance/make_exported.py target/release/ptero

writes `conformance/exported`, one folder per case: `model.pte` in f32, and per call `input_I.bin` and `expected_output_I.bin`.
The first calls bring a prompt in chunks, the others one token each. The expected logits are those in `golden.safetensors`
beside each checkpoint (`make_tiny.py`). The programs stay as they are when the exporter changes: files that users have exported
must keep running. Needs Python with numpy and safetensors.
"""

import json
import pathlib
import struct
import subprocess
import sys

import numpy as np
from safetensors.numpy import load_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Caches, caches with a window, recurrent state and experts, inputs per layer.
MODELS = ["llama", "mistral", "qwen3_5_moe", "gemma4_per_layer"]
# Tokens per call: 24 in all.
CHUNKS = [5, 7, 1, 1, 7, 1, 1, 1]
F32, I64 = 0, 3


def save(path, tensors):
    """The count, then for each tensor its type, rank and sizes, then its elements."""
    content = struct.pack("<i", len(tensors))
    for tensor in tensors:
        kind = {"float32": F32, "int64": I64}[tensor.dtype.name]
        content += struct.pack(f"<{2 + tensor.ndim}i", kind, tensor.ndim, *tensor.shape) + tensor.tobytes()
    path.write_bytes(content)


def case(ptero, name):
    source, folder = ROOT / "crates/export/tests/tiny" / name, ROOT / "conformance/exported" / name
    folder.mkdir(parents=True, exist_ok=True)
    command = [ptero, "export", source, "-o", folder / "model.pte", "--dtype", "f32", "--quantize", "none"]
    subprocess.run(command, check=True)
    golden = load_file(source / "golden.safetensors")
    start = 0
    for call, count in enumerate(CHUNKS):
        end = start + count
        save(folder / f"input_{call}.bin", [golden["tokens"][None, start:end], np.arange(start, end)])
        save(folder / f"expected_output_{call}.bin", [golden["logits"][end - 1 : end]])
        start = end
    closeness = 1e-4 * float(abs(golden["logits"]).max())
    facts = {"name": name, "calls": len(CHUNKS), "rtol": 0.0, "atol": closeness}
    (folder / "case.json").write_text(json.dumps(facts, indent=1) + "\n")


for name in MODELS:
    case(sys.argv[1], name)
