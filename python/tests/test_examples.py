"""The examples run."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

EXAMPLES = ROOT / "examples/python"


@pytest.mark.parametrize("name", ["batch.py", "structured.py", "seeds.py"])
def test_examples_run_with_the_included_model(name: str) -> None:
    done = subprocess.run([sys.executable, EXAMPLES / name], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout, done.stderr


def test_the_chat_example_replies(template: Path) -> None:
    arguments = [EXAMPLES / "chat.py", ROOT / "models/little-qwen.pte", template]
    done = subprocess.run([sys.executable, *arguments], input="Hello\n", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and len(done.stdout) > 5, done.stderr


@pytest.mark.ray
def test_the_cluster_example_runs() -> None:
    pytest.importorskip("ray")
    done = subprocess.run([sys.executable, EXAMPLES / "cluster.py"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.startswith("0 "), done.stderr


@pytest.mark.ray
def test_the_replicas_of_ray_serve_give_the_same_text(command: str) -> None:
    pytest.importorskip("ray.serve")
    pytest.importorskip("httpx")
    arguments = [EXAMPLES / "ray_serve.py", command]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300)
    # Ray says on the same stream which of its actors end.
    texts = [line for line in done.stdout.splitlines() if "(raylet)" not in line]
    assert done.returncode == 0 and len(texts) == 4 and len(set(texts)) == 1 and texts[0], done.stderr
