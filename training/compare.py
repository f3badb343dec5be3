"""Checks the training modules against the logits that `transformers` computed for tiny random models.

    python compare.py ../crates/export/tests/tiny/qwen3_5_moe ../crates/export/tests/tiny/gemma4
"""

import json
import sys
from pathlib import Path

import torch
from gemma import Gemma
from qwen import Qwen
from safetensors.torch import load_file

for folder in map(Path, sys.argv[1:]):
    config = json.loads((folder / "config.json").read_text())
    model = (Gemma if config["model_type"].startswith("gemma4") else Qwen)(config)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    golden = load_file(folder / "golden.safetensors")
    with torch.no_grad():
        logits, _ = model.eval()(golden["tokens"][None])
    apart = (logits[0] - golden["logits"]).abs().max().item()
    print(f"{folder.name}: at most {apart:.1e} apart")
    if apart > 1e-4:
        sys.exit(f"`{folder.name}` differs from transformers by more than 1e-4")
