"""Compares `ptero serve` with llama-server on the same GGUF file, in turns: tokens per second of several streams at once, the time to the
first token of a short prompt while others decode, and what a shared prefix costs the second time.

    serving.py PTERO LLAMA_SERVER GGUF [--rounds N] [--threads N] [--ledger FILE --commit C --machine M]

Both servers run all the time, and one at a time gets requests. Without LLAMA_SERVER (`-`), ptero is measured alone.
"""

import argparse
import json
import statistics
import subprocess
import threading
import time
import urllib.request
from datetime import date

STORY = "Once upon a time, in a village between two rivers, there lived a clockmaker who could not sleep. "


def wait_for(address: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(address + "/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{address} does not answer")


def stream(address: str, prompt: str, tokens: int, seed: int, started: threading.Event | None = None) -> tuple[float, float, int]:
    """Times to the first piece and to the end of a text, and its number of tokens."""
    body = {"prompt": prompt, "max_tokens": tokens, "seed": seed, "temperature": 0.8, "top_k": 40, "top_p": 0.95}
    body |= {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    request = urllib.request.Request(
        address + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    start, first, count = time.perf_counter(), None, 0
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if first is None and event.get("choices"):
                first = time.perf_counter() - start
                if started:
                    started.set()
            count = (event.get("usage") or {}).get("completion_tokens", count)
    return first or 0.0, time.perf_counter() - start, count


def together(address: str, streams: int, tokens: int, round_number: int) -> float:
    """Tokens per second of several streams with prompts of their own."""
    results: list[tuple[float, float, int]] = []
    prompts = [f"{round_number} {number} {STORY}" for number in range(streams)]
    threads = [
        threading.Thread(target=lambda p=prompt, n=number: results.append(stream(address, p, tokens, n)))
        for number, prompt in enumerate(prompts)
    ]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == streams and all(count == tokens for _, _, count in results), results
    return streams * tokens / (time.perf_counter() - start)


def first_token_among_others(address: str, others: int, round_number: int) -> float:
    """Milliseconds to the first token of a short prompt while others decode."""
    events = [threading.Event() for _ in range(others)]
    prompts = [f"{round_number} {number} others {STORY}" for number in range(others)]
    threads = [
        threading.Thread(target=stream, args=(address, prompt, 160, number, event))
        for number, (prompt, event) in enumerate(zip(prompts, events, strict=True))
    ]
    for thread in threads:
        thread.start()
    for event in events:
        event.wait()
    first, _, _ = stream(address, f"{round_number} The dog", 4, 1)
    for thread in threads:
        thread.join()
    return first * 1000


def prefix(address: str, round_number: int) -> tuple[float, float]:
    """Milliseconds to the first token after a prompt of about 1,000 tokens, the first time and with another end."""
    shared = f"{round_number} " + STORY * 50
    return stream(address, shared + "One night", 2, 1)[0] * 1000, stream(address, shared + "That day", 2, 1)[0] * 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("ptero")
    parser.add_argument("llama_server")
    parser.add_argument("gguf")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ledger")
    parser.add_argument("--commit", default="")
    parser.add_argument("--machine", default="")
    arguments = parser.parse_args()
    threads = str(arguments.threads)
    commands = {
        "ptero": [arguments.ptero, "serve", arguments.gguf, "--port", "18081", "--lanes", "16", "--threads", threads, "--quiet"],
        "llama": [arguments.llama_server, "-m", arguments.gguf, "--port", "18082", "-t", threads, "-np", "16", "-c", "32768"],
    }
    if arguments.llama_server == "-":
        del commands["llama"]
    addresses = {"ptero": "http://127.0.0.1:18081", "llama": "http://127.0.0.1:18082"}
    quiet = subprocess.DEVNULL
    servers = [subprocess.Popen(command, stdout=quiet, stderr=quiet) for command in commands.values()]
    try:
        for name in commands:
            wait_for(addresses[name])
            stream(addresses[name], STORY, 8, 1)
        tests = {f"{count} streams, tokens/s": lambda a, r, n=count: together(a, n, 64, r) for count in (1, 4, 8, 16)}
        tests["first token among 8, ms"] = lambda a, r: first_token_among_others(a, 8, r)
        tests["prompt of 1,000 tokens, ms"] = lambda a, r: prefix(a, 100 + r)[0]
        tests["the same with another end, ms"] = lambda a, r: prefix(a, 200 + r)[1]
        lines = []
        for test, measure in tests.items():
            found: dict[str, list[float]] = {name: [] for name in commands}
            for round_number in range(arguments.rounds):
                for name in commands:
                    found[name].append(measure(addresses[name], round_number))
            medians = {name: statistics.median(values) for name, values in found.items()}
            ranges = {name: f"{min(values):.1f} to {max(values):.1f}" for name, values in found.items()}
            ratio = f", ratio {medians['ptero'] / medians['llama']:.2f}" if "llama" in medians else ""
            print(test + ": " + ", ".join(f"{n} {m:.1f} ({ranges[n]})" for n, m in medians.items()) + ratio, flush=True)
            lines.append({"case": test, "rounds": arguments.rounds} | {n: found[n] for n in found})
    finally:
        for server in servers:
            server.terminate()
            server.wait()
    if arguments.ledger:
        with open(arguments.ledger, "a") as ledger:
            for line in lines:
                head = {"bench": "serving", "command": "just bench-serving LLAMA_SERVER GGUF", "commit": arguments.commit}
                ledger.write(json.dumps(head | {"date": str(date.today()), "machine": arguments.machine} | line) + "\n")


if __name__ == "__main__":
    main()
