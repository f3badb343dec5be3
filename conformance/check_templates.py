"""Are the chat templates of public models rendered as in transformers, and are the calls that they write read back?

    pip install transformers==5.3.0 jinja2
    python conformance/check_templates.py FOLDER

FOLDER has templates, `*.jinja`: those in `models/templates` of llama.cpp's repository, or that of a model. They are not part of this
repository, since each has the licence of its model. Every one is rendered for the conversations of `make_templates.py`, and the tests
of `crates/text` and `crates/server` compare. Names after FOLDER are those of the templates to check; without them, all are.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import make_templates

TESTS = [
    ["-p", "ptero-text", "--test", "templates"],
    ["-p", "ptero-server", "--lib", "calls_are_read_as_templates_write_them"],
]


def main():
    folder, names = pathlib.Path(sys.argv[1]), sys.argv[2:]
    sources = [path for path in sorted(folder.glob("*.jinja")) if not names or path.stem in names]
    failed = False
    with tempfile.TemporaryDirectory() as goldens:
        templates = pathlib.Path(goldens, "templates")
        templates.mkdir()
        for source in sources:
            shutil.copy(source, templates)
        make_templates.make(pathlib.Path(goldens))
        for test in TESTS:
            command = ["cargo", "test", *test, "--", "--nocapture"]
            failed |= subprocess.run(command, env={**os.environ, "PTERO_TEMPLATES": goldens}).returncode != 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
