"""Writes tiny models and the logits that transformers computes for them: what the exporter's families are tested against.

    python -m venv .venv && .venv/bin/pip install torch==2.13.0 transformers==5.3.0 safetensors gguf   # gemma4: 5.22.2
    .venv/bin/python conformance/make_tiny.py llama crates/export/tests/tiny

makes a folder for each variant of the family: `config.json`, `model.safetensors` and `golden.safetensors` (`tokens` i64 [S],
`logits` f32 [S, V], and in its metadata what the variant exercises). A family is a module in `conformance/tiny` with a list
`VARIANTS`; further arguments name the variants to write, all of them by default.
"""

import importlib
import sys
from pathlib import Path

from tiny import common


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    family, out, names = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    variants = importlib.import_module(f"tiny.{family}").VARIANTS
    unknown = set(names) - {variant.name for variant in variants}
    if unknown:
        sys.exit(f"no variant {sorted(unknown)} in family {family}")
    for variant in variants:
        if not names or variant.name in names:
            print(common.write(variant, out / variant.name), flush=True)


main()
