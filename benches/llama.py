#!/usr/bin/env python3
"""Prefill and decode beside llama.cpp: the same weights, threads and lengths, in turns in one run on one machine.

Needs `pip install llama-cpp-python`, built for this machine. Each round runs llama.cpp and then `ptero bench`, both after a
run to warm up; shown are the medians over the rounds, with the least and the most. llama.cpp decodes tokens that are given and
does not sample; ptero draws each token. Bytes are those that a step must read: for ptero what its plan says, for llama.cpp all
of its tensors (tied embeddings are its head) and an f16 cache. `--ledger` appends to benches/ledger.jsonl.
"""

import argparse
import datetime
import json
import pathlib
import platform
import statistics
import subprocess
import time

import llama_cpp as llama

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = [("prefill", 512, None), ("decode", 64, 16), ("decode", 64, 512)]


class Llama:
    def __init__(self, path, threads, flash):
        llama.llama_backend_init()
        self.silent = llama.llama_log_callback(lambda *_: None)
        llama.llama_log_set(self.silent, None)
        params = llama.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama.llama_model_load_from_file(str(path).encode(), params)
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 2048, 512, 512
        params.n_threads = params.n_threads_batch = threads
        # 1: on, which is its best here; 0: off.
        params.flash_attn_type = int(flash)
        self.context = llama.llama_init_from_model(self.model, params)
        self.bytes = llama.llama_model_size(self.model)
        heads = llama.llama_model_n_head(self.model)
        width = llama.llama_model_n_embd(self.model) // heads * llama.llama_model_n_head_kv(self.model)
        self.cache_bytes = 2 * 2 * width * llama.llama_model_n_layer(self.model)
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))

    def give(self, tokens):
        array = (llama.llama_token * len(tokens))(*tokens)
        start = time.perf_counter()
        failed = llama.llama_decode(self.context, llama.llama_batch_get_one(array, len(tokens)))
        llama.llama_synchronize(self.context)
        assert failed == 0, failed
        return time.perf_counter() - start

    def tokens(self, count):
        return [(7919 * (place + 1)) % (self.vocabulary - 100) + 100 for place in range(count)]

    def run(self, test, count, depth):
        """Seconds."""
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)
        if test == "prefill":
            return self.give(self.tokens(count))
        self.give(self.tokens(depth))
        return sum(self.give([token]) for token in self.tokens(count))


def ours(options):
    """The tests of one round, each with tokens_per_s and what it read."""
    lengths = [str(tokens) for test, tokens, _ in TESTS if test == "prefill"]
    depths = [str(depth) for test, _, depth in TESTS if test == "decode"]
    command = [options.ptero, "bench", options.program, "--json", "--quiet", "-r", "1", "-t", str(options.threads)]
    command += ["-p", ",".join(lengths), "-n", "64", "-d", ",".join(depths)]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    tests = report["runs"][0]["tests"]
    found = {(test["test"], test["tokens"], test.get("depth")): test for test in tests}
    return [found[test] for test in TESTS]


def spread(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def rounded(values):
    return {key: round(value, 1) for key, value in values.items()}


def machine():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return name


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("program", help="the same weights as a program of ptero")
    parser.add_argument("--ptero", default="target/release/ptero")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-flash", action="store_true", help="switch llama.cpp's flash attention off")
    parser.add_argument("--json", action="store_true", help="print lines for the ledger")
    parser.add_argument("--ledger", action="store_true", help="append them to it")
    options = parser.parse_args()
    other = Llama(options.gguf, options.threads, not options.no_flash)
    mine, theirs = [[] for _ in TESTS], [[] for _ in TESTS]
    for test in TESTS:
        other.run(*test)
    for _ in range(options.rounds):
        for at, test in enumerate(TESTS):
            theirs[at].append(test[1] / other.run(*test))
        for at, test in enumerate(ours(options)):
            mine[at].append(test)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    lines = []
    if not options.json:
        flash = "off" if options.no_flash else "on"
        print(f"{options.gguf.name}, {options.threads} threads, medians of {options.rounds} rounds, tokens/s")
        print(f"llama.cpp of llama-cpp-python {llama.__version__}, flash attention {flash}")
        print(f"{'':20}{'ptero':>9}{'llama.cpp':>11}{'ratio':>8}   share of the bandwidth of memory")
    for (test, count, depth), own, other_rates in zip(TESTS, mine, theirs):
        name = f"{test} {count}" if depth is None else f"{test} {count} at {depth}"
        own_rate, their_rate = spread([run["tokens_per_s"]["median"] for run in own]), spread(other_rates)
        ratio = own_rate["median"] / their_rate["median"]
        line = dict(
            bench="llama", command="just bench-llama-decode PYTHON GGUF", commit=commit.strip(),
            date=datetime.date.today().isoformat(), machine=f"{options.threads} threads, {machine()}",
            case=f"{options.gguf.stem}, {name}", threads=options.threads, tokens_per_s=rounded(own_rate),
            llama_tokens_per_s=rounded(their_rate), ratio=round(ratio, 2), llama_cpp_python=llama.__version__,
            flash_attention=not options.no_flash,
        )
        shares = ""
        if test == "decode":
            bandwidth = statistics.median(run["machine_gb_per_s"] for run in own)
            own_share = statistics.median(run["share_of_bandwidth"] for run in own)
            read = other.bytes + other.cache_bytes * (depth + count / 2)
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
