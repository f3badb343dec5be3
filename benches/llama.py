#!/usr/bin/env python3
"""Prefill and decode beside llama.cpp: the same model, threads and lengths, in turns in one run on one machine.

LLAMA_BENCH is llama.cpp's own `llama-bench`, built for this machine. MODEL is a GGUF file, which ptero exports, or a config.json,
from which both get random weights of that shape. Each round runs both programs, the other one first in the next round, each after a
run to warm up; shown are the medians over the rounds, with the least and the most. llama.cpp decodes tokens that are given and does
not sample; ptero draws each token. Bytes are those that a step must read: for ptero what its plan says, for llama.cpp its weights
(of experts those that a token uses), its f16 cache and its recurrent states. `--ledger` appends to benches/ledger.jsonl.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

import gguf_format

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPT, DECODED, DEPTHS = 512, 64, [16, 512]
# What is measured: the number of filled positions before decoding, or None for the prompt.
TESTS = [None, *DEPTHS]


def is_older(path, source):
    return not path.exists() or path.stat().st_mtime < source.stat().st_mtime


def prepare(options):
    """The model as a GGUF file and as a program of ptero; makes those that are missing or older than MODEL."""
    model, target = options.model, pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    is_config = model.suffix == ".json"
    layers = ["--layers", str(options.layers)] if is_config and options.layers else []
    name = model.stem + (f".{options.layers}-layers" if layers else "")
    head_type = options.head_type or options.type
    gguf = target / f"{name}.{options.type}-{head_type}.gguf" if is_config else model
    if is_config and is_older(gguf, model):
        types = ["--type", options.type, "--head-type", head_type]
        subprocess.run([sys.executable, ROOT / "benches/make_gguf.py", model, gguf, *types, *layers], check=True)
    program = target / f"{name}.{options.quantize}.pte"
    if is_older(program, model):
        command = [options.ptero, "export", model, "-o", program, "-q", options.quantize, "--sample", "--quiet"]
        random = ["--random", "1", *layers] if is_config else []
        subprocess.run(command + random, check=True, stdout=subprocess.DEVNULL)
    return gguf, program


def decode_bytes(gguf):
    """The bytes that llama.cpp reads to decode a token: always, and for each position that is filled."""
    fields, tensors = gguf_format.read(gguf)
    field = lambda name, default=0: fields.get(f"{fields['general.architecture']}.{name}", default)
    weights = 0
    for name, (kind, shape) in tensors.items():
        size = gguf_format.tensor_bytes(kind, shape)
        if "_exps." in name:
            size = size * field("expert_used_count") // field("expert_count")
        # One row of the embeddings is read; all of them if they are the head too.
        if name != "token_embd.weight" or "output.weight" not in tensors:
            weights += size
    heads = field("attention.head_count")
    head_dim = field("attention.key_length", field("embedding_length") // heads)
    attention_layers = sum(name.endswith(".attn_k.weight") for name in tensors)
    position = attention_layers * 2 * field("attention.head_count_kv", heads) * head_dim * 2
    recurrent_layers = sum(name.endswith(".ssm_conv1d.weight") for name in tensors)
    state = field("ssm.inner_size") * field("ssm.state_size")
    convolution = (field("ssm.conv_kernel") - 1) * (field("ssm.inner_size") + 2 * field("ssm.group_count") * field("ssm.state_size"))
    return weights + recurrent_layers * 4 * (state + convolution), position


def theirs(options, gguf):
    """The tests of one round of llama.cpp: tokens per second, and the commit of its build."""
    command = [options.llama_bench, "-m", gguf, "-t", str(options.threads), "-fa", str(int(not options.no_flash))]
    command += ["-ngl", "0", "-r", "1", "-o", "json"]
    tests = [["-p", str(PROMPT), "-n", "0"], ["-p", "0", "-n", str(DECODED), "-d", ",".join(map(str, DEPTHS))]]
    runs = []
    for test in tests:
        runs += json.loads(subprocess.run(command + test, check=True, capture_output=True, text=True).stdout)
    found = {run["n_depth"] if run["n_gen"] else None: run["avg_ts"] for run in runs}
    return [found[test] for test in TESTS], runs[0]["build_commit"]


def ours(options, program):
    """The tests of one round of ptero, each with tokens_per_s and what it read."""
    command = [options.ptero, "bench", program, "--json", "--quiet", "-r", "1", "-t", str(options.threads)]
    command += ["-p", str(PROMPT), "-n", str(DECODED), "-d", ",".join(map(str, DEPTHS))]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    found = {test.get("depth"): test for test in report["runs"][0]["tests"]}
    return [found[test] for test in TESTS]


def spread(values):
    return {"median": round(statistics.median(values), 1), "least": round(min(values), 1), "most": round(max(values), 1)}


def machine():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_bench", metavar="LLAMA_BENCH", type=pathlib.Path)
    parser.add_argument("model", metavar="MODEL", type=pathlib.Path)
    parser.add_argument("--ptero", default="target/release/ptero")
    parser.add_argument("--quantize", default="int4", help="ptero's weights, as in `ptero export -q`")
    parser.add_argument("--layers", type=int, help="of a config.json, leave the model its first layers")
    parser.add_argument("--type", default="q4_0", help="llama.cpp's weights of a config.json")
    parser.add_argument("--head-type", help="llama.cpp's embeddings and head of a config.json, if they are of another type")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-flash", action="store_true", help="switch llama.cpp's flash attention off")
    parser.add_argument("--json", action="store_true", help="print lines for the ledger")
    parser.add_argument("--ledger", action="store_true", help="append them to it")
    options = parser.parse_args()

    gguf, program = prepare(options)
    always, position = decode_bytes(gguf)
    mine, other, build = [], [], ""
    for number in range(options.rounds):
        if number % 2:
            mine.append(ours(options, program))
        rates, build = theirs(options, gguf)
        other.append(rates)
        if number % 2 == 0:
            mine.append(ours(options, program))

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    lines = []
    if not options.json:
        flash = "off" if options.no_flash else "on"
        print(f"{program.name} and {gguf.name}, {options.threads} threads, medians of {options.rounds} rounds, tokens/s")
        print(f"llama.cpp {build}, flash attention {flash}")
        print(f"{'':20}{'ptero':>9}{'llama.cpp':>11}{'ratio':>8}   share of the memory's bandwidth")
    for at, depth in enumerate(TESTS):
        name = f"prefill {PROMPT}" if depth is None else f"decode {DECODED} at {depth}"
        own = [tests[at] for tests in mine]
        own_rate = spread([test["tokens_per_s"]["median"] for test in own])
        their_rate = spread([rates[at] for rates in other])
        ratio = own_rate["median"] / their_rate["median"]
        line = dict(
            bench="llama", command="just bench-llama-decode LLAMA_BENCH MODEL", commit=commit,
            date=datetime.date.today().isoformat(), machine=f"{options.threads} threads, {machine()}",
            case=f"{program.stem} and {gguf.stem}, {name}", threads=options.threads, rounds=options.rounds,
            tokens_per_s=own_rate, llama_tokens_per_s=their_rate, ratio=round(ratio, 2),
            llama_cpp=f"{build} ({options.llama_bench.name})", flash_attention=not options.no_flash,
        )
        shares = ""
        if depth is not None:
            bandwidth = statistics.median(test["machine_gb_per_s"] for test in own)
            own_share = statistics.median(test["share_of_bandwidth"] for test in own)
            read = always + position * (depth + DECODED / 2)
            their_share = 1e-9 * read * their_rate["median"] / bandwidth
            line |= dict(
                machine_gb_per_s=round(bandwidth, 1), share_of_bandwidth=round(own_share, 3),
                llama_share_of_bandwidth=round(their_share, 3),
            )
            shares = f"{100 * own_share:.0f} % and {100 * their_share:.0f} % of {bandwidth:.1f} GB/s"
        lines.append(json.dumps(line))
        if options.json:
            print(lines[-1])
        else:
            print(f"{name:20}{own_rate['median']:9.1f}{their_rate['median']:11.1f}{ratio:8.2f}   {shares}")
            print(f"{'':20}{own_rate['least']:.0f} – {own_rate['most']:.0f} and {their_rate['least']:.0f} – {their_rate['most']:.0f}")
    if options.ledger:
        with open(ROOT / "benches/ledger.jsonl", "a", encoding="utf-8") as ledger:
            ledger.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()
