"""Makes the small corpus in `conformance/cases`, which always runs: what `models/bigram.pte` must draw.

The tokens come from an independent implementation of the sampling contract (numpy, no code of ptero): weights are read from
the program file through `ptero inspect --json`, bits follow the published threefry, and everything else is a line of numpy.

    python conformance/make_cases.py target/release/ptero
"""

import json
import pathlib
import struct
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models/bigram.pte"
F32, I64 = 0, 3


def weights(ptero):
    report = json.loads(subprocess.run([ptero, "inspect", "--json", MODEL], check=True, capture_output=True).stdout)
    tensors = report["methods"][0]["graph"]["tensors"]
    weight = next(tensor for tensor in tensors if tensor["name"] == "weight")
    raw = np.frombuffer(MODEL.read_bytes(), "<u2", weight["shape"][0] * weight["shape"][1], weight["offset"])
    return (raw.astype(np.uint32) << 16).view(np.float32).reshape(weight["shape"])


def rotate(x, by):
    return (x << np.uint32(by)) | (x >> np.uint32(32 - by))


def threefry(key, a, b):
    keys = [np.uint32(key[0]), np.uint32(key[1]), np.uint32(key[0] ^ key[1] ^ 0x1BD11BDA)]
    a, b = a + keys[0], b + keys[1]
    for group in range(5):
        for by in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            a = a + b
            b = rotate(b, by) ^ a
        a, b = a + keys[(group + 1) % 3], b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def bits(seed, count):
    # The program passes the seed as a 32-bit integer and extends its sign.
    seed = struct.unpack("<i", struct.pack("<q", seed)[:4])[0] & 0xFFFFFFFFFFFFFFFF
    key, half = (seed >> 32, seed & 0xFFFFFFFF), count // 2
    first = np.arange(half, dtype=np.uint32)
    return np.concatenate(threefry(key, first, first + np.uint32(half)))


def draw(logits, temperature, top_k, top_p, seed):
    if temperature == 0:
        return int(np.argmax(logits))
    scaled = (logits / np.float32(temperature)).astype(np.float32)
    least = np.sort(scaled)[::-1][min(top_k, len(scaled)) - 1]
    scaled = np.where(scaled < least, np.float32(-np.inf), scaled)
    exp = np.exp(scaled - scaled.max(), dtype=np.float32)
    mass = exp / exp.sum(dtype=np.float32)
    ordered = np.sort(mass)[::-1]
    before = np.cumsum(ordered, dtype=np.float32) - ordered
    least = np.where(before > np.float32(top_p), np.float32(np.inf), ordered).min()
    scaled = np.where(mass < least, np.float32(-np.inf), scaled)
    uniform = bits(seed, len(scaled)).astype(np.float32) / np.float32(4294967295.0)
    uniform = np.minimum(uniform, np.float32(0.99999994))
    with np.errstate(divide="ignore"):
        noise = -np.log(-np.log(uniform))
    return int(np.argmax(scaled + noise))


def tensor(code, values, shape):
    kind = "<f4" if code == F32 else "<i8"
    return struct.pack(f"<II{len(shape)}i", code, len(shape), *shape) + np.array(values, kind).tobytes()


def settings():
    rng = np.random.default_rng(2026)
    yield "greedy", "the w", 0.0, 128, 1.0, 0
    yield "one_token", "a", 0.8, 128, 1.0, 7
    yield "seed_minus_one", "of the", 1.0, 128, 1.0, -1
    yield "seed_2_31", "of the", 1.0, 128, 1.0, 2**31
    yield "seed_2_40", "of the", 1.0, 128, 1.0, 2**40
    yield "seed_0", "of the", 1.0, 128, 1.0, 0
    yield "top_k_1", "sha", 5.0, 1, 1.0, 3
    yield "top_k_above_vocabulary", "sha", 5.0, 10**6, 1.0, 3
    yield "top_p_tiny", "win", 3.0, 128, 1e-6, 4
    for index in range(24):
        text = "there was a shadow on the sand"[: int(rng.integers(1, 30))]
        yield (
            f"random_{index}",
            text,
            round(float(rng.uniform(0.2, 4)), 3),
            int(rng.integers(1, 129)),
            round(float(rng.uniform(0.05, 1)), 3),
            int(rng.integers(-(2**31), 2**31)),
        )


def main():
    table = weights(sys.argv[1])
    for name, text, temperature, top_k, top_p, seed in settings():
        folder = ROOT / "conformance/cases" / f"bigram_{name}"
        folder.mkdir(parents=True, exist_ok=True)
        tokens = list(text.encode())
        inputs = [tensor(I64, tokens, [1, len(tokens)]), tensor(F32, temperature, []), tensor(I64, top_k, [])]
        inputs += [tensor(F32, top_p, []), tensor(I64, seed, [])]
        (folder / "input.bin").write_bytes(struct.pack("<I", len(inputs)) + b"".join(inputs))
        token = draw(table[tokens[-1]], temperature, top_k, top_p, seed)
        (folder / "expected_output.bin").write_bytes(struct.pack("<I", 1) + tensor(I64, [token], [1]))
        case = {"name": f"bigram_{name}", "model": "../../../models/bigram.pte", "rtol": 0.0, "atol": 0.0}
        (folder / "case.json").write_text(json.dumps(case, indent=1) + "\n")


if __name__ == "__main__":
    main()
