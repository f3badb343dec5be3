"""Do texts under JSON Schemas validate? Generates texts with the included model under each schema of crates/text/tests/schemas and
validates those that ended by themselves with the package jsonschema. A text that fills the context is cut off, and counted apart.

    check_schemas.py [--seeds N] [--frequency-penalty F]      (needs the package ptero, jsonschema and rfc3339-validator)
"""

import argparse
import collections
import json
import sys
from pathlib import Path

import jsonschema
import ptero

SCHEMAS = Path(__file__).parent.parent / "crates/text/tests/schemas"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=48, help="texts for each schema")
    parser.add_argument("--frequency-penalty", type=float, default=0.0, help="keeps a small model from repeating itself forever")
    arguments = parser.parse_args()
    model = ptero.Model()
    total: collections.Counter[str] = collections.Counter()
    for path in sorted(SCHEMAS.glob("*.json")):
        schema = json.loads(path.read_text())
        results = model.generate_batch(
            ["Here is an example in JSON: "] * arguments.seeds,
            seed=1,
            json_schema=schema,
            frequency_penalty=arguments.frequency_penalty,
            max_tokens=2000,
        )
        counts: collections.Counter[str] = collections.Counter()
        for result in results:
            if result.finish_reason != "eos":
                counts["cut off"] += 1
                continue
            try:
                jsonschema.validate(json.loads(result.text), schema)
                counts["valid"] += 1
            except (ValueError, jsonschema.ValidationError) as error:
                counts["invalid"] += 1
                print(f"{path.stem}, seed {result.seed}: {error}\n{result.text}", file=sys.stderr)
        print(f"{path.stem}: {dict(counts)}", flush=True)
        total += counts
    print(f"all: {dict(total)}")
    return 1 if total["invalid"] else 0


if __name__ == "__main__":
    sys.exit(main())
