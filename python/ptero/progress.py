"""Progress on standard error, which notebooks show as well."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__: list[str] = []


class _Line:
    """A line on standard error that is written again and again; without a terminal or a notebook, only messages."""

    def __init__(self) -> None:
        self._name, self._total, self._done, self._shown = "", 0, 0, -1
        self._is_shown = sys.stderr.isatty() or "ipykernel" in sys.modules

    def __call__(self, kind: str, text: str, count: int) -> None:
        if kind == "message":
            print(text, file=sys.stderr)
        elif kind == "begin":
            self._total, self._done, self._shown = count, 0, -1
        elif kind == "file":
            self._name = text
        elif kind in ("bytes", "skipped"):
            self._write(count)
        elif kind == "taken_back":
            self._write(-count)
        elif kind == "end" and self._is_shown and self._shown >= 0:
            print(file=sys.stderr)

    def _write(self, count: int) -> None:
        self._done += count
        percent = 100 * self._done // max(self._total, 1)
        if self._is_shown and percent != self._shown:
            self._shown = percent
            done, total = self._done / 1e6, self._total / 1e6
            print(f"\r{self._name} {percent:3d}% {done:.0f}/{total:.0f} MB", end="", file=sys.stderr, flush=True)


def reporter(progress: bool | Callable[[str, str, int], None]) -> Callable[[str, str, int], None] | None:
    """Returns what is called with the progress of downloads and exports."""
    if callable(progress):
        return progress
    return _Line() if progress else None


@contextmanager
def counter(progress: bool | Callable[[int], None]) -> Iterator[Callable[[int], None]]:
    """Returns what is called with the number of rows that are done."""
    if callable(progress):
        yield progress
    elif progress:
        yield lambda done: print(f"\r{done} texts", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    else:
        yield lambda done: None
