#!/usr/bin/env python3
"""Prefill and decode on the device `mlx` beside mlx-lm: the same weights, MLX and lengths, in turns in one run on one machine.

CONFIG is the config.json of a Llama. Both get the same random weights of that shape, quantized to 4 bits in groups of 64; mlx-lm and
ptero sample each token with the same settings. PTERO is built with the feature `mlx`, against the MLX that this Python has. Each round
runs both, the other one first in the next round, each after a run to warm up; shown are the medians over the rounds, with the least
and the most. `--ledger` appends to benches/ledger.jsonl. Needs `mlx-lm`.
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import time

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm.generate import generate_step
from mlx_lm.models.llama import Model, ModelArgs
from mlx_lm.sample_utils import make_sampler

from llama import ROOT, machine, spread

GROUP, BITS = 64, 4
SETTINGS = {"temp": 0.8, "top_k": 40, "top_p": 0.95}


def prepare(options):
    """The model of mlx-lm, and the program that ptero exports of its weights before they are quantized."""
    config = json.loads(options.config.read_text())
    mx.random.seed(1)
    model = Model(ModelArgs.from_dict(config))
    model.update(tree_map(lambda weight: weight.astype(getattr(mx, options.dtype)), model.parameters()))
    folder = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / f"{options.config.stem}.{options.dtype}.mlx"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    program = folder.with_suffix(".pte")
    export = [options.ptero, "export", folder, "-o", program, "-q", "int4", "--group-size", str(GROUP), "--sample", "--quiet"]
    export += ["--dtype", {"bfloat16": "bf16", "float32": "f32"}[options.dtype]]
    subprocess.run(export, check=True, stdout=subprocess.DEVNULL)
    nn.quantize(model, group_size=GROUP, bits=BITS)
    mx.eval(model.parameters())
    return model, program


def theirs(options, model):
    """Tokens per second of prefill and of decoding after it."""
    prompt = mx.array([(7919 * at) % 40000 for at in range(options.prompt)])
    start = time.perf_counter()
    times = []
    for _ in generate_step(prompt, model, max_tokens=options.tokens + 1, sampler=make_sampler(**SETTINGS)):
        times.append(time.perf_counter())
    return options.prompt / (times[0] - start), options.tokens / (times[-1] - times[0])


def ours(options, program):
    """The same of ptero."""
    command = [options.ptero, "bench", program, "--device", "mlx", "--json", "--quiet", "-r", "1"]
    command += ["-p", str(options.prompt), "-n", str(options.tokens), "-d", str(options.prompt)]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    found = {test.get("depth"): test["tokens_per_s"]["median"] for test in report["runs"][0]["tests"]}
    return found[None], found[options.prompt]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ptero", metavar="PTERO", type=pathlib.Path)
    parser.add_argument("config", metavar="CONFIG", type=pathlib.Path)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="of all that is not 4 bits")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=16, help="tokens to decode")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ledger", action="store_true", help="append lines to the ledger")
    options = parser.parse_args()

    model, program = prepare(options)
    theirs(options, model)
    mine, other = [], []
    for number in range(options.rounds):
        if number % 2:
            mine.append(ours(options, program))
        other.append(theirs(options, model))
        if number % 2 == 0:
            mine.append(ours(options, program))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    device = str(mx.default_device())
    print(f"{options.config.stem}, {options.dtype}, MLX {mx.__version__}, {device}, medians of {options.rounds} rounds, tokens/s")
    for at, name in enumerate([f"prefill {options.prompt}", f"decode {options.tokens} at {options.prompt}"]):
        own, their = spread([rates[at] for rates in mine]), spread([rates[at] for rates in other])
        ratio = round(own["median"] / their["median"], 2)
        print(f"{name:20} ptero {own}  mlx-lm {their}  ratio {ratio}")
        if options.ledger:
            line = dict(
                bench="beside_mlx", command="just bench-mlx PYTHON PTERO CONFIG", commit=commit,
                date=datetime.date.today().isoformat(), machine=f"{machine()}, {device}",
                case=f"{options.config.stem}, int4 in groups of {GROUP}, {options.dtype}, {name}", rounds=options.rounds,
                tokens_per_s=own, mlx_lm_tokens_per_s=their, ratio=ratio,
            )
            with open(ROOT / "benches/ledger.jsonl", "a", encoding="utf-8") as ledger:
                ledger.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
