#!/usr/bin/env python3
"""Sampling beside llama.cpp's sampler chain, on the same logits, in one run on one machine.

Needs a C compiler and, in the Python that runs it, `pip install llama-cpp-python numpy` (built for this machine). Prints a
table, or with `--json` lines for `benches/ledger.jsonl`. `--vocabulary N` takes another size than 151936.

llama.cpp is timed twice: its chain alone, and together with filling the array of candidates, which `llama_sampler_sample`
does before every token and which is therefore part of what a token costs. Its sampler runs on one thread; ours is shown on one
thread and on two. Both draw from eight rows in turn, 16 calls per measurement, 21 measurements, of which the median is
shown with the least and the most.
"""

import argparse
import ctypes
import json
import pathlib
import subprocess
import tempfile

import llama_cpp
import numpy as np

ROWS, CALLS, REPEATS = 8, 16, 21
SETTINGS = {
    "greedy": dict(greedy=True),
    "plain": dict(),
    "top-k 40, top-p 0.95, temp 0.8": dict(top_k=40, top_p=0.95, temp=0.8),
    "top-p 0.95": dict(top_p=0.95),
    "top-k 50": dict(top_k=50),
}

# The loop of `llama_sampler_sample`, timed without Python in between.
LOOP = r"""
#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>
#include <time.h>
typedef struct { int32_t id; float logit; float p; } candidate;
typedef struct { candidate * data; size_t size; int64_t selected; bool sorted; } candidates;
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}
double run(void (*apply)(void *, candidates *), void * chain, float ** rows, int count, int calls, int n,
           candidate * data, bool with_fill, int64_t * selected) {
    double seconds = 0;
    for (int call = 0; call < calls; call++) {
        const float * logits = rows[call % count];
        double start = now();
        for (int32_t id = 0; id < n; id++) data[id] = (candidate) { id, logits[id], 0.0f };
        candidates all = { data, (size_t) n, -1, false };
        if (!with_fill) start = now();
        apply(chain, &all);
        seconds += now() - start;
        *selected = all.selected < 0 ? -1 : all.data[all.selected].id;
    }
    return seconds / calls;
}
"""


def logits(vocabulary, seed):
    """The numbers of `crates/cpu/benches/sampling.rs`."""
    with np.errstate(over="ignore"):
        state = np.arange(1, 2 * vocabulary + 41, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
        mixed = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)
    unit = (mixed.astype(np.float64) + 0.5) / 2.0**53
    first, second, peaks = unit[: 2 * vocabulary : 2], unit[1 : 2 * vocabulary : 2], unit[2 * vocabulary :]
    row = np.float32(2.5) * (np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second)).astype(np.float32)
    for rank in range(20):
        height = np.float32(18.0) - np.float32(0.5) * np.float32(rank)
        row[int(peaks[2 * rank] * vocabulary)] = height + np.float32(peaks[2 * rank + 1])
    return np.ascontiguousarray(row)


def chain(greedy=False, top_k=None, top_p=None, temp=None):
    made = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    steps = [llama_cpp.llama_sampler_init_top_k(top_k)] if top_k else []
    steps += [llama_cpp.llama_sampler_init_top_p(top_p, 1)] if top_p else []
    steps += [llama_cpp.llama_sampler_init_temp(temp)] if temp else []
    last = llama_cpp.llama_sampler_init_greedy() if greedy else llama_cpp.llama_sampler_init_dist(1)
    for step in [*steps, last]:
        llama_cpp.llama_sampler_chain_add(made, step)
    return made


def spread(seconds):
    seconds = sorted(1e6 * second for second in seconds)
    return dict(median=seconds[len(seconds) // 2], least=seconds[0], most=seconds[-1])


def theirs(loop, rows, vocabulary):
    pointers = (ctypes.POINTER(ctypes.c_float) * ROWS)(
        *(row.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) for row in rows)
    )
    data = (llama_cpp.llama_token_data * vocabulary)()
    apply = ctypes.cast(llama_cpp.llama_cpp._lib.llama_sampler_apply, ctypes.c_void_p)
    selected = ctypes.c_int64()
    loop.run.restype = ctypes.c_double
    found = {}
    for name, settings in SETTINGS.items():
        sampler = ctypes.cast(chain(**settings), ctypes.c_void_p)

        def measure(with_fill):
            def once():
                fill = ctypes.c_bool(with_fill)
                n = ctypes.c_int(vocabulary)
                seconds = loop.run(apply, sampler, pointers, ROWS, CALLS, n, data, fill, ctypes.byref(selected))
                assert 0 <= selected.value < vocabulary, selected.value
                return seconds

            once()
            return spread(once() for _ in range(REPEATS))

        found[name] = dict(chain=measure(False), with_fill=measure(True))
    return found


def ours(root, threads, vocabulary):
    command = ["cargo", "bench", "-q", "-p", "ptero-cpu", "--bench", "sampling", "--", "--json"]
    lines = subprocess.run(
        [*command, "--threads", str(threads), f", {vocabulary}"], cwd=root, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    cases = [json.loads(line) for line in lines if line.startswith("{")]
    return {case["case"].removesuffix(f", {vocabulary}"): case for case in cases}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--vocabulary", type=int, default=151_936)
    options = parser.parse_args()
    vocabulary, root = options.vocabulary, pathlib.Path(__file__).resolve().parent.parent
    rows = [logits(vocabulary, seed) for seed in range(ROWS)]
    with tempfile.TemporaryDirectory() as folder:
        library = pathlib.Path(folder) / "loop.so"
        command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
        subprocess.run(command, input=LOOP, text=True, check=True)
        llama = theirs(ctypes.CDLL(str(library)), rows, vocabulary)
    one, two = ours(root, 1, vocabulary), ours(root, 2, vocabulary)
    if not options.json:
        print(f"{vocabulary} logits, microseconds per token; llama.cpp of llama-cpp-python {llama_cpp.__version__}")
        print(f"{'':32}{'1 thread':>10}{'2 threads':>10}{'chain':>10}{'+ filling':>10}{'sorting':>10}   ratio to + filling")
    for name in SETTINGS:
        first, second, other = one[name]["us"], two[name]["us"], llama[name]
        sorting = one.get(f"sorted: {name}", {}).get("us")
        if options.json:
            print(json.dumps(dict(
                bench="sampling_llama", case=f"{name}, {vocabulary}", isa=one[name]["isa"],
                one_thread_us=first, two_threads_us=second, sorting_us=sorting,
                llama_cpp_python=llama_cpp.__version__,
                llama_chain_us={key: round(value, 1) for key, value in other["chain"].items()},
                llama_with_filling_us={key: round(value, 1) for key, value in other["with_fill"].items()},
            )))
            continue
        filled = other["with_fill"]["median"]
        numbers = [first["median"], second["median"], other["chain"]["median"], filled]
        columns = "".join(f"{number:10.1f}" for number in numbers)
        last = f"{sorting['median']:10.1f}" if sorting else f"{'':10}"
        print(f"{name:32}{columns}{last}   {filled / first['median']:.1f} x, {filled / second['median']:.1f} x")


if __name__ == "__main__":
    main()
