"""Are the chat templates of public models rendered as in transformers, and are the calls that they write read back?

    pip install transformers==5.3.0 jinja2
    python conformance/check_templates.py FOLDER

FOLDER has templates, `*.jinja`: those in `models/templates` of llama.cpp's repository, or that of a model. They are not part of this
repository, since each has the licence of its model. Every one is rendered for the conversations of `make_templates.py`, and the tests
of `crates/text` and `crates/server` compare. Names after FOLDER are those of the templates to check; without them, all are.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import make_templates

#: Results that differ, and why.
KNOWN = {
    ("Reka-Edge", "empty"): "an empty list backwards, on which minijinja panics: an error with us",
    ("meetkai-functionary-medium-v3.1", "tool_call"): "Markup escapes what is added to it",
    ("meetkai-functionary-medium-v3.1", "two_tool_calls"): "as before",
    ("meetkai-functionary-medium-v3.1", "reasoned_call"): "as before",
    ("unsloth-Apriel-1.5", "reasoned_call"): "calls as a list in <tool_calls>, a format that the server does not know",
}

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
        file = pathlib.Path(goldens, "templates.json")
        known = json.loads(file.read_text())
        for (name, conversation), reason in KNOWN.items():
            if known["results"].get(name, {}).pop(conversation, None):
                print(f"known: {name}, {conversation}: {reason}")
        file.write_text(json.dumps(known))
        for test in TESTS:
            command = ["cargo", "test", *test, "--", "--nocapture"]
            failed |= subprocess.run(command, env={**os.environ, "PTERO_TEMPLATES": goldens}).returncode != 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
