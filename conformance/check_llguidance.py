"""Does ptero's structured output agree with the tests that llguidance publishes with its source?

Builds the crate `llg_test_utils`, which those tests call, over ptero's grammars and masks (`llguidance/lib.rs`), copies the tests of JSON
schemas, of Lark grammars and of traces (which tokens a mask has, step by step) from the source in Cargo's registry to
`target/llguidance-tests`, and runs them as they are. Fails unless exactly the tests of DIFFERENT fail.

    python3 conformance/check_llguidance.py

Needs crates.io for what the tests depend on (rstest, rand and a few more).
"""

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = ["test_json_*.rs", "test_lark.rs", "test_ll.rs"]
SPECIAL = "special tokens and token numbers are not part of texts: such grammars are refused"
BACKTRACKING = "tokens that were drawn are never taken back"
COUNTS = "`max_tokens` does not count what llguidance moves from the grammar into a prompt; here, all of the grammar is text"
#: The tests that fail, as they should, and why.
DIFFERENT = {
    "test_large_real_substring": "a grammar of 200,000 bytes takes more work than ptero's limits allow",
    "test_lark_syntax_general": SPECIAL,
    "test_ll_backtrack_stop": BACKTRACKING,
    "test_ll_json": COUNTS,
    "test_ll_lexeme_subgrammar_max_tokens": COUNTS,
    "test_ll_numeric_and_text": SPECIAL,
    "test_ll_numeric_bug": SPECIAL,
    "test_ll_numeric_token_for_text": SPECIAL,
    "test_ll_special_capture": SPECIAL,
    "test_ll_special_token": SPECIAL,
    "test_ll_stop_heal": BACKTRACKING,
    "test_ll_subgrammar_max_tokens": COUNTS,
    "test_ll_token_ranges": SPECIAL,
    "test_ll_tool_str_spec": SPECIAL,
}
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
    process = subprocess.run(["cargo", "test", "--no-fail-fast", "--tests"], cwd=folder, text=True, stdout=subprocess.PIPE)
    print(process.stdout)
    results = dict(re.findall(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED)", process.stdout, re.MULTILINE))
    failed = {name for name, result in results.items() if result == "FAILED"}
    for name, reason in DIFFERENT.items():
        print(f"{name}: {'fails as it should' if name in failed else 'DOES NOT FAIL'}: {reason}")
    for name in sorted(failed - DIFFERENT.keys()):
        print(f"{name}: FAILS")
    print(f"{len(results) - len(failed)} of {len(results)} tests pass")
    return 0 if failed == DIFFERENT.keys() and len(results) > len(failed) else 1


if __name__ == "__main__":
    sys.exit(main())
