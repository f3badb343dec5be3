"""Several texts from one prompt, and how likely the model finds each: python seeds.py [MODEL]"""

import sys

import ptero

model = ptero.Model(*sys.argv[1:2])
prompt = "Once upon a time"
for result in model.generate_batch([prompt] * 6, seed=7, max_tokens=16, logprobs=0):
    mean = sum(result.logprobs or [0.0]) / max(len(result.tokens), 1)
    print(f"{mean:6.2f}  seed {result.seed:<10}  {result.text!r}")
    assert model.generate(prompt, seed=result.seed, max_tokens=16).text == result.text, "the seed repeats the text"
