"""Write crates/sampling/tests/processors.json: what the logits processors of Hugging Face transformers keep of random rows.

Needs torch and transformers (5.23.0 made the file). The rows are not stored: they follow from SplitMix64 by the rule in `Row`, which
the test follows too. A line is [seed, vocabulary, history length, temperature, top_k, top_p, min_p, repetition_penalty, kept], where
`kept` has a hexadecimal digit for each four tokens, lowest first.

    python make_processors.py crates/sampling/tests/processors.json
"""

import json
import random
import sys

import torch
import transformers
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

CASES = 10_000
MASK = 2**64 - 1


class SplitMix64:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)


def row(seed, vocabulary, length):
    """Logits from -8 to 8 in steps of 2^-20, and tokens of a history."""
    rng = SplitMix64(seed)
    logits = [(rng.next() >> 40) / 2**20 - 8 for _ in range(vocabulary)]
    return logits, [rng.next() % vocabulary for _ in range(length)]


def single(number):
    """The nearest f32, as a Python number."""
    return torch.tensor(number, dtype=torch.float32).item()


def case(rng, seed):
    vocabulary = rng.choice([1, 2, 7, 33, 64, 100, 200])
    length = rng.choice([0, 1, 10, 50])
    temperature = single(rng.choice([0.3, 0.7, 1.0, 1.3, 2.0]))
    top_k = rng.choice([0, 0, 1, 5, 40])
    top_p = single(rng.choice([1.0, 1.0, 0.5, 0.9, 0.95, rng.uniform(0.05, 0.99)]))
    min_p = single(rng.choice([0.0, 0.0, 0.02, 0.1, 0.5, rng.uniform(0.001, 0.9)]))
    repetition = single(rng.choice([1.0, 1.0, 1.1, 1.5, 0.8]))
    logits, history = row(seed, vocabulary, length)
    scores = torch.tensor([logits], dtype=torch.float32)
    ids = torch.tensor([history], dtype=torch.long)
    processors = []
    if repetition != 1.0 and history:
        processors.append(RepetitionPenaltyLogitsProcessor(repetition))
    processors.append(TemperatureLogitsWarper(temperature))
    if top_k:
        processors.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        processors.append(TopPLogitsWarper(top_p))
    if min_p > 0.0:
        processors.append(MinPLogitsWarper(min_p))
    for processor in processors:
        scores = processor(ids, scores)
    kept = (scores[0] > -float("inf")).tolist()
    digits = [sum(kept[at + bit] << bit for bit in range(4) if at + bit < vocabulary) for at in range(0, vocabulary, 4)]
    kept = "".join(f"{digit:x}" for digit in digits)
    return [seed, vocabulary, length, temperature, top_k, top_p, min_p, repetition, kept]


def main():
    rng = random.Random(7)
    lines = [json.dumps(case(rng, seed)) for seed in range(CASES)]
    with open(sys.argv[1], "w") as file:
        file.write("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"{CASES} cases by transformers {transformers.__version__}, torch {torch.__version__}")


main()
