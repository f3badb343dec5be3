"""Texts on a cluster of two nodes on this machine, one of which loses a worker. `just ray` runs it."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import ptero
import ptero.ray
import pytest

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.ray

ROWS = int(os.environ.get("PTERO_RAY_ROWS", "2000"))
SETTINGS: dict[str, Any] = {"max_tokens": 6}


def prompt(row: int) -> str:
    return f"Chapter {row}. The"


@pytest.fixture(scope="module")
def cluster() -> Any:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 200 << 20})
    cluster.add_node(num_cpus=2, object_store_memory=200 << 20)
    ray.init(address=cluster.address, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def serial() -> list[str]:
    """The texts without a cluster."""
    model = ptero.Model(threads=2)
    rows = model.generate_batch((prompt(row) for row in range(ROWS)), seed=42, lanes=32, **SETTINGS)
    # Spot checks that they are those of single texts.
    for row in range(0, ROWS, max(1, ROWS // 20)):
        assert rows[row] == model.generate(prompt(row), seed=ptero.mix(42, row), **SETTINGS)
    return [row.text for row in rows]


def dataset(workers: int, folder: Path | None = None) -> Any:
    rows = ray.data.from_items([{"row_id": row, "question": prompt(row)} for row in range(ROWS)], override_num_blocks=40)
    arguments = {"prompt": "question", "seed": "row_id", "base_seed": 42, "output": "answer", **SETTINGS}
    generator: Any = ptero.ray.Generator
    if folder is not None:

        class Marked(ptero.ray.Generator):
            """Leaves its process id, so that the test can kill it."""

            def __init__(self, **given: Any) -> None:
                super().__init__(**given)
                (folder / str(os.getpid())).touch()

        generator = Marked
    return rows.map_batches(
        generator,
        fn_constructor_kwargs=arguments,
        batch_size=50,
        concurrency=workers,
        num_cpus=1,
    )


def texts(rows: list[dict[str, Any]]) -> list[str]:
    """Returns the texts by row; each row has to be there once."""
    assert sorted(row["row_id"] for row in rows) == list(range(ROWS))
    return [row["answer"] for row in sorted(rows, key=lambda row: row["row_id"])]


def test_the_texts_do_not_depend_on_the_number_of_workers(cluster: Any, serial: list[str]) -> None:
    for workers in (1, 3):
        started = time.monotonic()
        rows = dataset(workers).take_all()
        print(f"{workers} workers: {ROWS / (time.monotonic() - started):.0f} rows/s")
        assert texts(rows) == serial
        assert {row["answer_finish_reason"] for row in rows} <= {"length", "eos"}
        assert all(row["answer_seed"] == ptero.mix(42, row["row_id"]) for row in rows)


def test_a_worker_that_is_killed_halfway_loses_and_doubles_nothing(
    cluster: Any, serial: list[str], tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = []
    killed = 0
    for row in dataset(2, tmp_path).iter_rows():
        rows.append(row)
        if len(rows) == ROWS // 2:
            victim = int(sorted(path.name for path in tmp_path.iterdir())[0])
            os.kill(victim, signal.SIGKILL)
            killed += 1
    assert killed == 1
    assert len(list(tmp_path.iterdir())) > 2, "another worker took its place"
    assert texts(rows) == serial


def test_columns_that_are_missing_are_named() -> None:
    import numpy

    generator = ptero.ray.Generator(prompt="question", seed="row_id")
    with pytest.raises(KeyError, match="question"):
        generator({"row_id": numpy.arange(2)})
    with pytest.raises(OverflowError):
        generator({"row_id": numpy.array([-1]), "question": numpy.array(["The king"], dtype=object)})
