"""Runs exported language models that sample their own next token: the same seed gives the same text, bit for bit.

>>> import ptero
>>> model = ptero.Model()                           # the included model; or a path, a checkpoint, `owner/name`
>>> text = model.generate("Once upon a time", seed=42, max_tokens=20)
>>> text.finish_reason
'length'
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ptero import errors
from ptero._ptero import __version__, devices, mix
from ptero._ptero import export as _export
from ptero.errors import Error
from ptero.model import Chat, Model, Stream
from ptero.program import Method, Program, TensorInfo
from ptero.progress import reporter as _reporter
from ptero.result import Piece, Result, Timings
from ptero.session import Session
from ptero.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Chat",
    "Error",
    "Method",
    "Model",
    "Piece",
    "Program",
    "Result",
    "Session",
    "Settings",
    "Stream",
    "TensorInfo",
    "Timings",
    "__version__",
    "devices",
    "errors",
    "export",
    "mix",
]


def export(
    checkpoint: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    quantize: str = "keep",
    sample: str | None = None,
    group_size: int | None = None,
    embed: str | None = None,
    dtype: str = "bf16",
    max_context: int | None = None,
    max_prefill: int | None = None,
    files: bool = True,
    progress: bool | Callable[[str, str, int], None] = True,
) -> int:
    """Makes a program from a checkpoint, as ``ptero export`` does, and returns its size in bytes.

    ``quantize`` is ``int4``, ``int4-mixed``, ``int8``, ``none`` or ``keep``; ``sample`` is ``plain``, ``full``, or ``None`` for
    a program that returns logits. ``progress`` is as for :class:`Model`.
    """
    return _export(
        checkpoint,
        output,
        quantize,
        sample,
        group_size,
        embed,
        dtype,
        max_context,
        max_prefill,
        files,
        _reporter(progress),
    )
