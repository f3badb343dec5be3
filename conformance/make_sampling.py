"""Write crates/sampling/tests/mlx_tokens.json: tokens that MLX itself draws.

Needs mlx (0.32.4 made the file) and numpy. Each case runs the operations that the delegate runs for a sampling head, in their
order (`ptero inspect --nodes` on a program with one shows them). The logits are not stored: they follow from random words by the
rule in `logits`, which the test follows too.

    python make_sampling.py crates/sampling/tests/mlx_tokens.json
"""

import json
import sys

import mlx.core as mx
import numpy as np

CASES = 800
VOCABULARIES = [1, 2, 7, 64, 257, 1000, 4096, 32000, 49152]
SEEDS = [0, 1, -1, 42, 2**31, -(2**31), 2**32 + 5, 2**40, 123456789]
FIELDS = "rows vocabulary logits_seed shift power a b temperature top_k top_p seed tokens"


def key(seed):
    """The key of a seed as the delegate passes it: a 32-bit integer, sign-extended."""
    return mx.random.key(((seed + 2**31) % 2**32 - 2**31) % 2**64)


def words(seed, count):
    """An even number of random words; Python has no `random.bits`, but splitting a key gives just these."""
    return mx.random.split(key(seed), count // 2).reshape(-1)


def uniform(seed, shape):
    """The first operations of a sampling head: bits, as f32, divided, kept below 1. MLX calls them `random.uniform`."""
    u = mx.random.uniform(0, 1, shape, key=key(seed))
    if u.size % 2 == 0:
        steps = words(seed, u.size).reshape(shape).astype(mx.float32) / mx.array(4294967295.0)
        assert mx.array_equal(u, mx.minimum(steps, mx.array(0.9999999403953552)))
    return u


def logits(rows, vocabulary, seed, shift, power, a, b):
    """In f32, each operation rounded: `u = (word >> shift) / 2^(32 - shift)`, then `a * u * u ... - b`."""
    count = rows * vocabulary
    u = (np.array(words(seed, count + count % 2))[:count] >> shift).astype(np.float32) / np.float32(2 ** (32 - shift))
    product = np.full(count, a, np.float32)
    for _ in range(power):
        product = product * u
    return mx.array((product - np.float32(b)).reshape(rows, vocabulary))


def sample(logits, temperature, top_k, top_p, seed):
    """What the nodes of a sampling head compute."""
    if temperature == 0:
        return mx.argmax(logits, axis=-1)
    noise = -mx.log(-mx.log(uniform(seed, logits.shape)))
    scaled = logits.astype(mx.float32) / mx.array(temperature)
    top_k = min(top_k, logits.shape[-1])
    kth = mx.expand_dims(mx.take(-mx.sort(-scaled, axis=-1), top_k - 1, axis=-1), -1)
    scaled = mx.where(scaled < kth, mx.array(-mx.inf), scaled)
    p = mx.softmax(scaled, axis=-1, precise=False)
    descending = -mx.sort(-p, axis=-1)
    before = mx.cumsum(descending, axis=-1) - descending
    kept = mx.where(before > mx.array(top_p), mx.array(mx.inf), descending)
    scaled = mx.where(p < mx.min(kept, axis=-1, keepdims=True), mx.array(-mx.inf), scaled)
    return mx.argmax(scaled + noise, axis=-1)


def single(number):
    """The f32 nearest to a number."""
    return float(np.float32(number))


def cases():
    random = np.random.default_rng(2024)
    for at in range(CASES):
        # Large vocabularies are a quarter.
        vocabulary = VOCABULARIES[at % 7] if at % 4 else int(random.choice(VOCABULARIES[-3:]))
        # A third has ties: few different numbers.
        shift, power = (int(random.integers(24, 30)), 1) if at % 3 == 0 else (8, int(random.integers(1, 5)))
        yield {
            "rows": int(random.choice([1, 1, 2, 3, 5])),
            "vocabulary": vocabulary,
            "logits_seed": 1000 + at,
            "shift": shift,
            "power": power,
            "a": single(random.choice([0.5, 5.0, 12.0, 20.0, 40.0])),
            "b": single(random.choice([0.0, 3.0, 10.5])),
            "temperature": single(random.choice([0.0, 0.1, 0.5, 0.7, 0.9, 1.0, 1.3, 2.0, 10.0], p=[0.04] + [0.12] * 8)),
            "top_k": int(random.choice([1, 5, 40, 100, vocabulary, 2**31 - 1, 2**31 - 1, 2**31 - 1])),
            "top_p": single(random.choice([0.1, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0, 1.0, 1.0])),
            "seed": SEEDS[at % 9] if at % 2 else int(random.integers(-(2**63), 2**63)),
        }


def main():
    mx.set_default_device(mx.cpu)
    lines = []
    for case in cases():
        row = logits(*(case[name] for name in ("rows", "vocabulary", "logits_seed", "shift", "power", "a", "b")))
        tokens = sample(row, case["temperature"], case["top_k"], case["top_p"], case["seed"])
        case["tokens"] = tokens.tolist()
        lines.append(json.dumps([case[name] for name in FIELDS.split()]))
    head = json.dumps({"mlx": mx.__version__, "fields": FIELDS.split()})
    with open(sys.argv[1], "w") as file:
        file.write(head[:-1] + ', "cases": [\n' + ",\n".join(lines) + "\n]}\n")


main()
