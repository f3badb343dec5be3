"""How much memory does a server take for states of earlier prompts, beside what `--prefix-memory` counts?

    ptero export config-or-checkpoint -o program.pte --sample=full
    python conformance/check_prefix_memory.py target/release/ptero program.pte --length 1000 --bytes-per-token 9216

Different prompts of random tokens are sent one after the other, and the anonymous memory of the process is read after each (Linux). The bytes
of a token are those of its keys and values: layers, times 2, times heads for them, times their size, times the bytes of a number.
"""

import argparse
import json
import random
import re
import subprocess
import urllib.request


def anonymous(process):
    with open(f"/proc/{process}/smaps_rollup") as rollup:
        return next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Anonymous:"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ptero")
    parser.add_argument("program")
    parser.add_argument("--length", type=int, default=1000)
    parser.add_argument("--prompts", type=int, default=22)
    parser.add_argument("--prefix-memory", type=int, default=2048, metavar="MIB")
    parser.add_argument("--bytes-per-token", type=int, required=True)
    options = parser.parse_args()
    command = [options.ptero, "serve", options.program, "--port", "0", "--lanes", "1", "--prefix-memory", str(options.prefix_memory)]
    numbers, grown = random.Random(1), []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        address = next(found[1] for line in server.stderr if (found := re.search(r"(http://[\d.:]+)", line)))
        for _ in range(options.prompts):
            prompt = [numbers.randrange(3, 900) for _ in range(options.length)]
            body = json.dumps({"prompt": prompt, "max_tokens": 1, "ignore_eos": True}).encode()
            request = urllib.request.Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
            urllib.request.urlopen(request).read()
            grown.append(anonymous(server.pid))
        server.terminate()
    half = options.prompts // 2
    measured = (grown[-1] - grown[half]) / (options.prompts - 1 - half)
    counted = options.length * options.bytes_per_token
    print(f"counted {counted / 2**20:.2f} MiB a state, measured {measured / 2**20:.2f} ({measured / counted - 1:+.1%})")
    print(f"anonymous memory at the end: {grown[-1] / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
