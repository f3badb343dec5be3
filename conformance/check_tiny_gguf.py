"""Does llama.cpp compute the logits that stand beside our tiny GGUF files? It must, or the files are not what they say.

    pip install llama-cpp-python numpy
    python conformance/check_tiny_gguf.py crates/export/tests/tiny/*_gguf
"""

import json
import struct
import sys
from pathlib import Path

import llama_cpp
import numpy as np

TOLERANCE = 1e-4
# ggml looks its gelu up in a table of f16, which is worth as many digits.
GELU = "gemma"
GELU_TOLERANCE = 2e-2
F32 = 0


def golden(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    table = json.loads(data[8 : 8 + size])

    def tensor(name, dtype):
        start, end = (8 + size + offset for offset in table[name]["data_offsets"])
        return np.frombuffer(data[start:end], dtype).reshape(table[name]["shape"])

    return tensor("tokens", "<i8"), tensor("logits", "<f4")


def logits(path, tokens, vocabulary):
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    assert model, path
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = 64
    params.n_threads = 1
    # The cache is f16 unless told, which is worth three digits.
    params.type_k = params.type_v = F32
    params.flash_attn_type = 0
    context = llama_cpp.llama_init_from_model(model, params)
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for at, token in enumerate(tokens):
        batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.logits[at] = int(token), at, 1, 1
        batch.seq_id[at][0] = 0
    assert llama_cpp.llama_decode(context, batch) == 0
    rows = [np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, at), (vocabulary,)) for at in range(len(tokens))]
    return np.stack(rows)


failed = False
for folder in map(Path, sys.argv[1:]):
    tokens, wanted = golden(folder / "golden.safetensors")
    difference = np.abs(logits(folder / "model.gguf", tokens, wanted.shape[1]) - wanted).max()
    failed |= not difference < (GELU_TOLERANCE if folder.name.startswith(GELU) else TOLERANCE)
    print(f"{folder.name}: largest difference {difference:.1e}")
sys.exit(failed)
