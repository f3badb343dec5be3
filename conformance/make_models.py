"""Makes tiny whole models with ExecuTorch's own exporters: Qwen3.5 MoE and Gemma 4 31B, plain and with the sampling head.

    .venv/bin/python conformance/make_models.py conformance

writes `conformance/models`, one folder per case: `model.pte`, and per call `input_I.bin` and `expected_output_I.bin`. The first
call is a prefill; three more decode one token each on the same state. The expected outputs come from the eager model (for
programs that sample: its best token, at temperature 0). The models are upstream's tiny test models with smaller layers, so
that they can be committed. The environment is that of `make_corpus.py`.
"""

import argparse
import copy
import dataclasses
import json
import os
import pathlib
import sys
import tempfile

import make_corpus

CALLS = 4
QWEN = dict(
    vocab_size=128,
    hidden_size=64,
    head_dim=32,
    linear_key_head_dim=32,
    linear_value_head_dim=32,
    moe_intermediate_size=64,
    shared_expert_intermediate_size=64,
)
GEMMA = dict(vocab_size=128, hidden_size=64, intermediate_size=64, head_dim=32, global_head_dim=64)


def case(folder, model, tokens, sample):
    """Runs the eager model call by call and writes what went in and what came out."""
    import torch
    from executorch.backends.mlx.test.test_utils import save_tensors_to_bin

    folder.mkdir(parents=True, exist_ok=True)
    position = torch.arange(tokens.shape[1])
    for call in range(CALLS):
        with torch.no_grad():
            logits = model(tokens, position)
        inputs = [tokens, position]
        if sample:
            # Temperature 0, every token kept, seed 0.
            inputs += [torch.tensor(0.0), torch.tensor(2**63 - 1), torch.tensor(1.0), torch.tensor(0)]
        best = logits.argmax(-1)
        save_tensors_to_bin(inputs, folder / f"input_{call}.bin")
        save_tensors_to_bin([best if sample else logits], folder / f"expected_output_{call}.bin")
        tokens, position = best.reshape(1, 1), position[-1:] + 1
    # Eager PyTorch sums bf16 products in another order; a token is a token.
    facts = {"name": folder.name, "calls": CALLS, "rtol": 0.0 if sample else 0.02, "atol": 0.0 if sample else 0.02}
    (folder / "case.json").write_text(json.dumps(facts, indent=1) + "\n")


def qwen(folder, bits, sample):
    import torch
    from executorch.examples.models.qwen3_5_moe import export
    from executorch.examples.models.qwen3_5_moe.model import Qwen35MoEConfig as Config

    names = "prequantized qembedding qembedding_group_size model_id model_dir dense_prefill".split()
    args = argparse.Namespace(**dict.fromkeys(names))
    vars(args).update(tiny_test=True, backend="mlx", max_seq_len=64, output_dir=str(folder), sample=sample)
    vars(args).update(qlinear=bits, qlinear_group_size=32 if bits else None, use_splitk_decode=True, hqq=False)
    vars(args).update(turboquant=False)
    export.Qwen35MoEConfig = lambda **sizes: Config(**sizes | QWEN)
    torch.manual_seed(7)
    model, config = export.load_and_quantize(args)
    eager = copy.deepcopy(model)
    export._strip_sampler_from_forward(eager)
    case(folder, eager, torch.tensor([[5, 9, 17, 3, 44]]), sample)
    export.export_and_lower(model, config, args)


def gemma(folder, sample):
    import torch
    from executorch.examples.models.gemma4_31b import export
    from executorch.examples.models.gemma4_31b.mlx_source_transformations import mlx_source_transformations
    from executorch.examples.models.gemma4_31b.model import materialize_runtime_buffers
    from executorch.examples.models.gemma4_31b.tests import test_pipeline as tiny

    tiny.TINY_CONFIG = dataclasses.replace(tiny.TINY_CONFIG, **GEMMA)
    bytes_per_row = dataclasses.replace(tiny.QUANT_8W_PER_AXIS, group_size=GEMMA["hidden_size"])
    tiny.DEFAULT_RECIPE.rules[0] = dataclasses.replace(tiny.DEFAULT_RECIPE.rules[0], config=bytes_per_row)
    torch.manual_seed(11)
    with tempfile.TemporaryDirectory() as checkpoint:
        tiny.save_checkpoint(checkpoint)
        with open(os.path.join(checkpoint, "config.json"), "w") as file:
            json.dump(tiny.config_dict(), file)
        load = lambda: export.load_prequantized_model(checkpoint, max_seq_len=tiny.TINY_CONFIG.max_seq_len, backend="mlx")
        (model, config), (eager, _) = load(), load()
    mlx_source_transformations(eager, dtype=torch.bfloat16, max_write_len=256)
    materialize_runtime_buffers(eager, dtype=torch.bfloat16)
    # More tokens than the sliding window holds.
    case(folder, eager, torch.randint(0, tiny.TINY_CONFIG.vocab_size, (1, 20)), sample)
    export.export_and_lower(model, config, str(folder), backend="mlx", sample=sample)


def main():
    make_corpus.prepare()
    sys.meta_path.append(make_corpus.StubFinder)
    out = pathlib.Path(sys.argv[1]) / "models"
    qwen(out / "qwen3_5_moe_bf16", None, False)
    qwen(out / "qwen3_5_moe_int4", "4w", False)
    qwen(out / "qwen3_5_moe_int4_sample", "4w", True)
    gemma(out / "gemma4_31b_int4", False)
    gemma(out / "gemma4_31b_int4_sample", True)


if __name__ == "__main__":
    main()
