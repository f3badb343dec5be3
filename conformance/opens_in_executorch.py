"""Does ExecuTorch's own runtime open what ptero writes?

Rewrites programs of the corpus with `ptero rewrite` and loads the results with ExecuTorch's Python runtime. The programs
are chosen so that every node type of the corpus occurs (greedily, the program with most new types first), then filled up
to `--at-least`. For each: the program table is parsed and verified, the methods are those of the original, `forward` is
refused only because the delegate is not registered on this platform, and the delegate's graph, verified and printed by
upstream's flatc with upstream's schema, is that of the original to the last field. With `--metadata FILE …` programs that ptero
wrote are verified by flatc too, and their constant methods are run and compared with what `ptero inspect --json` says; so are,
with `--checkpoints FOLDER …`, the programs that `ptero export` makes of them.

    pip install executorch==1.5.1 torch==2.13.0
    python conformance/opens_in_executorch.py --ptero target/release/ptero --corpus target/corpus/ops
"""

import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import executorch
from executorch.runtime import Runtime, Verification


def choose(corpus, at_least):
    cases = {}
    for path in sorted(corpus.glob("*/case.json")):
        cases[path.parent] = set(json.loads(path.read_text())["node_counts"])
    chosen, seen = [], set()
    while True:
        best = max(cases, key=lambda case: len(cases[case] - seen))
        if not cases[best] - seen and len(chosen) >= at_least:
            return chosen, seen
        seen |= cases.pop(best)
        chosen.append(best)


def load(path):
    return Runtime.get().load_program(path, verification=Verification.InternalConsistency)


def tables(schema, binary, folder):
    """A FlatBuffer as JSON, read and verified by upstream's own flatc with upstream's own schema."""
    data = folder / "table.bin"
    data.write_bytes(binary)
    flatc = pathlib.Path(executorch.__path__[0]) / "data/bin/flatc"
    options = ["--json", "--raw-binary", "--strict-json", "--defaults-json", "-o", folder]
    subprocess.run([flatc, *options, schema, "--", data], check=True, capture_output=True)
    # Infinities and NaNs are written bare.
    text = (folder / "table.json").read_text()
    for bare, word in [("inf", "Infinity"), ("-inf", "-Infinity"), ("nan", "NaN")]:
        text = text.replace(f": {bare}", f": {word}")
    return json.loads(text)


def graph_tables(path, folder):
    root = pathlib.Path(executorch.__path__[0])
    file = path.read_bytes()
    program_bytes, base = struct.unpack_from("<QQ", file, 16)
    program = tables(root / "exir/_serialize/program.fbs", file[:program_bytes], folder)
    graphs = []
    for plan in program["execution_plan"]:
        for delegate in plan["delegates"]:
            segment = program["segments"][delegate["processed"]["index"]]
            blob = file[base + segment["offset"] :][: segment["size"]]
            (end,) = struct.unpack_from("<Q", blob, 8)
            graphs.append(tables(root / "backends/mlx/serialization/schema.fbs", blob[24:end], folder))
    return graphs


def forward_is_known(program):
    """`forward` must fail for the one reason that it needs the MLX delegate (error 0x20), not for a malformed table."""
    try:
        program.load_method("forward")
    except RuntimeError as error:
        return "0x:20" in str(error) or "0x20" in str(error)
    return True


def check_metadata(ptero, path):
    """Runs every constant method in ExecuTorch and compares with ptero's reading."""
    report = json.loads(subprocess.run([ptero, "inspect", "--json", path], check=True, capture_output=True).stdout)
    program, wrong = load(path), []
    for name, wanted in report["metadata"].items():
        if isinstance(wanted, list) and name not in ("get_kv_heads", "get_eos_ids"):
            continue  # lists of integers do not cross ExecuTorch's Python binding
        got = list(program.load_method(name).execute([]))
        got = got if isinstance(wanted, list) and len(got) > 1 else got[0]
        got = got.tolist() if hasattr(got, "tolist") else got
        if got != wanted:
            wrong.append(f"{name}: ExecuTorch says {got!r}, ptero says {wanted!r}")
    return len(report["metadata"]), wrong


def exported(ptero, checkpoints, folder):
    """Every checkpoint as programs of several forms."""
    for checkpoint in checkpoints:
        source = checkpoint / "model.gguf"
        source = source if source.exists() else checkpoint
        for form in [["-q", "none"], ["-q", "int4", "--sample"], ["--sample", "--dtype", "f32"]]:
            out = folder / "-".join([checkpoint.name, *form]).replace("--", "-")
            out = out.with_suffix(".pte")
            subprocess.run([ptero, "export", source, "-o", out, "--quiet", *form], check=True)
            yield out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ptero", required=True)
    parser.add_argument("--corpus", type=pathlib.Path)
    parser.add_argument("--at-least", type=int, default=50)
    parser.add_argument("--metadata", nargs="*", default=[])
    parser.add_argument("--checkpoints", nargs="*", default=[], type=pathlib.Path, help="export these and look at the results")
    args = parser.parse_args()

    chosen, seen = choose(args.corpus, args.at_least) if args.corpus else ([], [])
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "rewritten.pte"
        for case in chosen:
            subprocess.run([args.ptero, "rewrite", case / "model.pte", out], check=True)
            before, after = load(case / "model.pte"), load(out)
            if before.method_names != after.method_names:
                failures.append(f"{case.name}: methods {after.method_names}, not {before.method_names}")
            if not forward_is_known(after):
                failures.append(f"{case.name}: forward is malformed")
            if graph_tables(case / "model.pte", pathlib.Path(folder)) != graph_tables(out, pathlib.Path(folder)):
                failures.append(f"{case.name}: flatc reads another graph")
    print(f"{len(chosen)} programs with {len(seen)} node types rewritten, {len(failures)} faults found")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for path in [*map(pathlib.Path, args.metadata), *exported(args.ptero, args.checkpoints, folder)]:
            graph_tables(path, folder)
            if not forward_is_known(load(path)):
                failures.append(f"{path.name}: forward is malformed")
            count, wrong = check_metadata(args.ptero, path)
            print(f"{path.name}: {count - len(wrong)} of {count} constant methods agree")
            failures += wrong
    for failure in failures:
        print(failure, file=sys.stderr)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
