"""Measures the Python package: overhead per token beside the Rust loop, import, batches beside a loop, memory.

    python benches/python.py [MODEL.pte]

What is compared runs in turns in the same minutes; the median of the ratios is printed with their range.
"""

import os
import statistics
import subprocess
import sys
import time


def rust_seconds(model: "ptero.Model", prompt: str, tokens: int) -> float:
    """Returns the seconds per step of the Rust loop, as it measures them itself: `generate` does not come back before the end."""
    timings = model.generate(prompt, raw=True, max_tokens=tokens, ignore_eos=True, seed=1).timings
    return timings.decode_seconds / timings.decode_steps


def python_seconds(model: "ptero.Model", prompt: str, tokens: int) -> float:
    """Returns the seconds per step of a stream, as its reader sees them."""
    stream = model.stream(prompt, raw=True, max_tokens=tokens, ignore_eos=True, seed=1)
    next(stream)
    start = time.perf_counter()
    count = sum(1 for _ in stream)
    return (time.perf_counter() - start) / count


def shown(name: str, ratios: list[float]) -> None:
    print(f"{name}: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} turns)")


def main() -> None:
    path = sys.argv[1] if len(sys.argv) > 1 else None
    program = "import time; s = time.perf_counter(); import ptero; print(time.perf_counter() - s)"
    imports = [float(subprocess.check_output([sys.executable, "-c", program])) for _ in range(7)]
    print(f"import: {statistics.median(imports) * 1e3:.0f} ms (largest {max(imports) * 1e3:.0f} ms)")

    global ptero
    import ptero

    model = ptero.Model(path)
    prompt, tokens = "Once upon a time", 64
    python_seconds(model, prompt, tokens)
    ratios = []
    for _ in range(int(os.environ.get("TURNS", "21"))):
        rust = rust_seconds(model, prompt, tokens)
        ratios.append(python_seconds(model, prompt, tokens) / rust)
    shown("time per token, stream / Rust loop", ratios)

    prompts = [f"Chapter {number}. The" for number in range(64)]
    settings = {"max_tokens": 32, "ignore_eos": True, "raw": True}
    for lanes in (16, 32):
        ratios = []
        for _ in range(int(os.environ.get("BATCH_TURNS", "3"))):
            start = time.perf_counter()
            alone = [model.generate(text, seed=ptero.mix(42, row), **settings) for row, text in enumerate(prompts)]
            middle = time.perf_counter()
            together = model.generate_batch(prompts, seed=42, lanes=lanes, **settings)
            ratios.append((middle - start) / (time.perf_counter() - middle))
            assert alone == together
        shown(f"64 prompts, loop / batch of {lanes} lanes", ratios)

    def resident() -> float:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    small, sizes = ptero.Model(), []
    for _ in range(11):
        for seed in range(int(os.environ.get("CALLS", "10000")) // 10):
            small.generate("The king", seed=seed, max_tokens=1)
        sizes.append(resident())
    print(f"memory over 11 rounds of calls: {', '.join(f'{size:.0f}' for size in sizes)} MB")


main()
