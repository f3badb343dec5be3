#!/usr/bin/env python3
"""Two builds of ptero beside each other: benches/turns.py OLD NEW MODEL… [--rounds N] [--threads N] [--ledger]

Each round runs `bench` of both builds, one right after the other, and the other way round in the next one, so that a machine
whose speed drifts treats both alike. Shown are the medians over the rounds, and the median, least and most of the rounds' own
ratios (new over old: above 1 the new build is faster). `--ledger` appends to benches/ledger.jsonl.
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def bench(binary, model, options):
    command = [binary, "bench", model, "--json", "--quiet", "-r", str(options.repeat)]
    command += ["-p", options.prompt_lengths, "-n", str(options.decode), "-d", options.depths, "-t", str(options.threads)]
    run = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["runs"][0]
    # As a rate too, so that one ratio means the same everywhere.
    speeds = {"compile (1/s)": 1000 / run["compile_ms"]}
    for test in run["tests"]:
        name = f"decode at {test['depth']}" if "depth" in test else f"{test['test']} {test['tokens']}"
        speeds[name] = test["tokens_per_s"]["median"]
    return speeds


def spread(values):
    return {"median": round(statistics.median(values), 3), "least": round(min(values), 3), "most": round(max(values), 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--prompt-lengths", default="512")
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--depths", default="16,512")
    parser.add_argument("--ledger", action="store_true")
    options = parser.parse_args()

    speeds = collections.defaultdict(lambda: {"old": [], "new": []})
    for round_number in range(options.rounds):
        builds = [("old", options.old), ("new", options.new)]
        for model in options.models:
            for build, binary in builds if round_number % 2 == 0 else reversed(builds):
                for test, speed in bench(binary, model, options).items():
                    speeds[pathlib.Path(model).name, test][build].append(speed)

    print(f"{'model':24} {'test':16} {'old':>10} {'new':>10}  {'ratio':>6} (least to most)")
    for (model, test), of in speeds.items():
        ratio = spread([new / old for old, new in zip(of["old"], of["new"])])
        old, new = spread(of["old"]), spread(of["new"])
        print(f"{model:24} {test:16} {old['median']:10.1f} {new['median']:10.1f}  {ratio['median']:6.3f} "
              f"({ratio['least']:.3f} to {ratio['most']:.3f})", flush=True)
        if options.ledger:
            row = {"bench": "turns", "date": str(datetime.date.today()), "case": f"{model}: {test}",
                   "machine": f"{os.cpu_count()} threads, {platform.machine()}", "threads": options.threads,
                   "rounds": options.rounds, "per_s": {"old": old, "new": new}, "ratio": ratio}
            with open(ROOT / "benches/ledger.jsonl", "a") as ledger:
                ledger.write(json.dumps(row, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
