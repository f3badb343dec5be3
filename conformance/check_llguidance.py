"""Does ptero's structured output agree with the tests that llguidance publishes with its source?

Builds the crate `llg_test_utils`, which those tests call, over ptero's grammars and masks (`llguidance/lib.rs`), copies the tests of JSON
schemas and of Lark grammars from the source in Cargo's registry to `target/llguidance-tests`, and runs them as they are.

    python3 conformance/check_llguidance.py

Two tests of `test_lark.rs` fail, as they should: `test_large_real_substring` has a grammar of 200,000 bytes that takes more work than ptero's limits
allow, and `test_lark_syntax_general` names special tokens, which are not part of texts.

Needs crates.io for what the tests depend on (rstest, rand and a few more).
"""

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = ["test_json_*.rs", "test_lark.rs"]
MANIFEST = """
[workspace]

[package]
name = "llg_test_utils"
version = "0.0.0"
edition = "2021"

[lib]
path = "{root}/conformance/llguidance/lib.rs"

[dependencies]
ptero-text = {{ path = "{root}/crates/text" }}
serde_json = "1"

[dev-dependencies]
lazy_static = "1"
llguidance = {{ version = "={version}", default-features = false, features = ["ahash", "lark"] }}
rand = {{ version = "0.9", features = ["small_rng"] }}
rstest = "0.25"
serde-json-fmt = "0.1"

[profile.dev]
opt-level = 1
"""


def main() -> int:
    lock = (ROOT / "Cargo.lock").read_text()
    version = re.search(r'name = "llguidance"\nversion = "([^"]+)"', lock).group(1)
    registry = pathlib.Path.home() / ".cargo/registry/src"
    source = next(registry.glob(f"*/llguidance-{version}/tests"), None)
    if source is None:
        sys.exit(f"the source of llguidance {version} is not in {registry}: build ptero first")
    folder = ROOT / "target/llguidance-tests"
    tests = folder / "tests"
    shutil.rmtree(tests, ignore_errors=True)
    tests.mkdir(parents=True)
    for pattern in TESTS:
        for file in source.glob(pattern):
            # Tests may read files beside them.
            shutil.copy(file, tests)
    shutil.copytree(source / "data", tests / "data", dirs_exist_ok=True)
    (folder / "Cargo.toml").write_text(MANIFEST.format(root=ROOT, version=version))
    shutil.copy(ROOT / "Cargo.lock", folder)
    return subprocess.run(["cargo", "test", "--no-fail-fast"], cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main())
