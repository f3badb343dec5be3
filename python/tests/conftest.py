import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import ptero
import pytest

ROOT = Path(__file__).resolve().parents[2]

#: A chat template for the included model, which has none of its own.
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@pytest.fixture(scope="session")
def model() -> ptero.Model:
    return ptero.Model()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "chat.jinja"
    path.write_text(TEMPLATE)
    return path


@pytest.fixture(scope="session")
def chatty(template: Path) -> ptero.Model:
    return ptero.Model(chat_template=template)


@pytest.fixture(scope="session")
def logits_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small program that returns logits."""
    path = tmp_path_factory.mktemp("logits") / "tiny.pte"
    ptero.export(ROOT / "crates/export/tests/tiny/llama", path, dtype="f32", quantize="none", progress=False)
    return path


@pytest.fixture(scope="session")
def command() -> str:
    """The command `ptero`, in `PTERO_COMMAND` or where a release build leaves it."""
    path = os.environ.get("PTERO_COMMAND", str(ROOT / "target/release/ptero"))
    if not Path(path).exists():
        pytest.skip("there is no command `ptero`: cargo build --release, or set PTERO_COMMAND")
    return path


@pytest.fixture(scope="session")
def server(command: str) -> Iterator[str]:
    """The address of a server with the included model."""
    with subprocess.Popen([command, "serve", "--port", "0", "--quiet"], stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr
        lines = (line.strip() for line in child.stderr)
        yield next(line.removeprefix("page: ") for line in lines if line.startswith("page: "))
        child.terminate()


def run(command: str, *arguments: str) -> str:
    done = subprocess.run([command, "run", "--quiet", *arguments], check=True, capture_output=True, text=True)
    return done.stdout
