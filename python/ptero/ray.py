"""Texts for the rows of a Ray dataset, the same for any number of workers, in any order, after any failure.

The class needs nothing of Ray itself: Ray makes an object of it in each worker, and calls it with batches of rows.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from ptero._ptero import mix
from ptero.model import LANES, Model

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Generator"]


class Generator:
    """Generates a text for each row. For ``Dataset.map_batches``:

    .. code-block:: python

        ds.map_batches(
            ptero.ray.Generator,
            fn_constructor_kwargs=dict(model="smol.pte", prompt="question", seed="row_id", max_tokens=200),
            concurrency=4,
            num_cpus=8,
        )

    ``prompt`` and ``seed`` name columns. The seed of a row is ``mix(base_seed, value)``, where the value is an integer from 0 to
    2**32 - 1 that is different for each row, such as its number: so rows with neighbouring numbers do not share their noise,
    and rows 0, 1, 2, … are those of ``model.generate_batch(prompts, seed=base_seed)``.

    All other arguments are settings of :meth:`ptero.Model.generate`. Three columns are added: ``output``, and beside it ``output_seed`` and ``output_finish_reason``. A worker uses as many
    threads as it has CPUs of Ray's. A program in a file is mapped once per machine and shared by its workers.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        prompt: str = "prompt",
        seed: str,
        output: str = "text",
        base_seed: int = 0,
        lanes: int = LANES,
        device: str = "auto",
        threads: int | None = None,
        system: str | None = None,
        raw: bool = False,
        **settings: Any,
    ) -> None:
        self._model = Model(model, device=device, threads=threads or _assigned_threads(), progress=False)
        self._columns = (prompt, seed, output)
        self._base_seed, self._lanes = base_seed, lanes
        self._more: dict[str, Any] = {"system": system, "raw": raw, **settings}

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        import numpy

        prompt, seed, output = self._columns
        for column in (prompt, seed):
            if column not in batch:
                raise KeyError(f"there is no column `{column}` (there are: {', '.join(batch)})")
        seeds = [mix(self._base_seed, int(value)) for value in batch[seed]]
        prompts = [value if isinstance(value, str) else list(value) for value in batch[prompt]]
        rows = self._model.generate_batch(prompts, seeds=seeds, lanes=self._lanes, **self._more)
        return {
            **batch,
            output: numpy.array([row.text for row in rows], dtype=object),
            f"{output}_seed": numpy.array([row.seed for row in rows]),
            f"{output}_finish_reason": numpy.array([row.finish_reason for row in rows], dtype=object),
        }


def _assigned_threads() -> int | None:
    """Returns the number of CPUs that Ray gave this worker; ``None`` outside its actors, or for less than one."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    if context.get_actor_id() is None:
        return None
    return int(context.get_assigned_resources().get("CPU", 0)) or None

