"""Makes the conformance corpus from ExecuTorch itself: every configuration of its MLX op suites, a folder each.

    python -m venv .venv
    .venv/bin/pip install executorch==1.5.1 torch==2.13.0 transformers==5.3.0 gguf
    .venv/bin/python conformance/make_corpus.py target/corpus

writes `target/corpus/ops` (895 cases, about 15 minutes on two cores) and `target/corpus/kernels` (143 cases with custom Metal
kernels). `--suite ops` or `--suite kernels` makes one of them; `--jobs N` uses N processes. A case is `model.pte`,
`input.bin`, `expected_output.bin` (eager PyTorch) and `case.json` (tolerances, flags of the runner, node counts).

The wheel for Linux lacks the Python modules that are generated from the schema; they are generated first, inside the
virtual environment, with the flatc that the wheel brings.
"""

import argparse
import concurrent.futures
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types

SUITES = {
    "ops": ["executorch.backends.mlx.test.test_ops"],
    "kernels": [
        "executorch.backends.mlx.custom_kernel_ops.test.test_gated_delta_rule",
        "executorch.backends.mlx.custom_kernel_ops.test.test_tq_norm",
        "executorch.backends.mlx.custom_kernel_ops.test.test_tq4_compress",
        "executorch.backends.mlx.custom_kernel_ops.test.test_tq_dequant",
        "executorch.backends.mlx.custom_kernel_ops.gguf.test.test_linear",
        "executorch.backends.mlx.custom_kernel_ops.gguf.test.test_embedding",
    ],
}


def prepare():
    """Generates the modules that the wheel lacks."""
    import executorch

    root = pathlib.Path(executorch.__path__[0])
    mlx = root / "backends/mlx"
    if (mlx / "serialization/mlx_graph_schema.py").exists():
        return
    (mlx / "runtime").mkdir(exist_ok=True)
    for template in ("MLXLoader.h.tmpl", "MLXLoader.cpp.tmpl"):
        (mlx / "serialization" / template).touch()
    command = [sys.executable, mlx / "serialization/generate.py", "--flatc", root / "data/bin/flatc"]
    subprocess.run(command, check=True, cwd=mlx / "serialization")


class Stub(types.ModuleType):
    """Stands in for torchtune, of which one module of the suite imports classes that no case here needs."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class StubFinder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] == "torchtune":
            return importlib.util.spec_from_loader(name, StubFinder)
        return None

    @staticmethod
    def create_module(spec):
        return Stub(spec.name)

    @staticmethod
    def exec_module(module):
        pass


def load(module):
    if importlib.util.find_spec("torchtune") is None:
        sys.meta_path.append(StubFinder)
    return importlib.import_module(module)


def configurations(suite):
    """Every configuration as (module, class name, index, folder name); names that collide are numbered."""
    from executorch.backends.mlx.test.test_utils import OpTestCase

    seen, found = {}, []
    for module in SUITES[suite]:
        for name, cls in vars(load(module)).items():
            if not (isinstance(cls, type) and issubclass(cls, OpTestCase) and cls.__module__ == module):
                continue
            configs = cls.get_test_configs() if hasattr(cls, "get_test_configs") else []
            for index, config in enumerate(configs):
                seen[config.name] = seen.get(config.name, 0) + 1
                count = seen[config.name]
                found.append((module, name, index, config.name if count == 1 else f"{config.name}__{count}"))
    return found


def make(task):
    module, cls, index, name, folder = task
    from executorch.backends.mlx.test import test_utils

    case = getattr(load(module), cls).get_test_configs()[index]
    with tempfile.TemporaryDirectory() as scratch:
        case.get_test_dir = lambda: pathlib.Path(scratch)
        try:
            files = case.generate_test_files()
        except Exception as error:  # noqa: BLE001 - one case must not stop the others; it is reported by name
            return f"{name}: {type(error).__name__}: {error}"
        counts = test_utils.get_mlx_node_counts(files[0])
        target = pathlib.Path(folder) / name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for file in files:
            shutil.copy(file, target)
    facts = {
        "name": name,
        "rtol": case.rtol,
        "atol": case.atol,
        "kv_cache": case.kv_cache,
        "skip_comparison": case.skip_comparison,
        "node_counts": counts,
    }
    (target / "case.json").write_text(json.dumps(facts, indent=1) + "\n")
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--suite", choices=SUITES, action="append")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    prepare()
    failures = 0
    for suite in args.suite or SUITES:
        tasks = [(*config, args.out / suite) for config in configurations(suite)]
        with concurrent.futures.ProcessPoolExecutor(args.jobs) as pool:
            for done, failure in enumerate(pool.map(make, tasks), start=1):
                print(f"\r{suite}: {done} of {len(tasks)}", end="", file=sys.stderr)
                if failure:
                    failures += 1
                    print(f"\n{failure}", file=sys.stderr)
        print(file=sys.stderr)
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
