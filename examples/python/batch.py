"""A text for each line of standard input: python batch.py [MODEL] < prompts.txt"""

import sys

import ptero

model = ptero.Model(*sys.argv[1:2])
prompts = [line.strip() for line in sys.stdin if line.strip()] or ["The king", "The sea", "Once upon a time"]
for prompt, result in zip(prompts, model.generate_batch(prompts, seed=42, max_tokens=24, progress=True)):
    print(f"{prompt!r} -> {result.text!r} (seed {result.seed})")
