"""Graphs of programs as pictures for notebooks: SVG without scripts, so that untrusted notebooks show them, too."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

__all__ = ["drawing"]

#: The most nodes of a chain that are drawn. Browsers become slow far above it.
_MOST_NODES = 1000
#: The height of a node, the width of the arcs, of a box and of the whole picture.
_ROW, _ARCS, _BOX, _WIDTH = 18, 84, 132, 880
#: The slot of a tensor. Integers of the host are left out: nearly every node reads the length.
_TENSOR = re.compile(r"\bt\d+")


def drawing(chain: Sequence[tuple[str, str]]) -> str:
    """Draws a chain of nodes, each a pair of kind and text, from top to bottom, with an arc from each tensor to its readers,
    and the text beside each node."""
    made: dict[str, int] = {}
    arcs: list[str] = []
    boxes: list[str] = []
    shown = chain[:_MOST_NODES]
    for row, (kind, text) in enumerate(shown):
        head, _, call = text.partition("(")
        results = head.rpartition(" = ")[0]
        read = dict.fromkeys(_TENSOR.findall(call))
        arcs.extend(_arc(made[tensor], row) for tensor in read if tensor in made)
        boxes.append(_box(row, kind, text))
        made.update((tensor, row) for tensor in _TENSOR.findall(results))
    height = _ROW * len(shown) + 8
    rest = f"<p>… and {len(chain) - len(shown)} more</p>" if len(shown) < len(chain) else ""
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{height}' viewBox='0 0 {_WIDTH} {height}'"
        f" font-family='monospace' font-size='11' fill='currentColor'>"
        f"<g fill='none' stroke='currentColor' stroke-opacity='.45'>{''.join(arcs)}</g>{''.join(boxes)}</svg>{rest}"
    )


def _middle(row: int) -> int:
    return 4 + _ROW * row + _ROW // 2


def _arc(start: int, end: int) -> str:
    """An arc on the left of the boxes: the longer, the wider."""
    x = _ARCS - min(_ARCS - 4, 4 + int(9 * (end - start) ** 0.5))
    return f"<path d='M{_ARCS} {_middle(start) + 3}C{x} {_middle(start) + 3} {x} {_middle(end) - 3} {_ARCS} {_middle(end) - 3}'/>"


def _box(row: int, kind: str, text: str) -> str:
    # Any hue will do, as long as it is that of the kind.
    hue = sum(37 * at * ord(letter) for at, letter in enumerate(kind, 1)) % 360
    y, short = _middle(row), text if len(text) <= 88 else f"{text[:87]}…"
    return (
        f"<g><title>{escape(text)}</title><rect x='{_ARCS}' y='{y - 7}' width='{_BOX}' height='15' rx='4'"
        f" fill='hsl({hue} 60% 50%)' fill-opacity='.3'/><text x='{_ARCS + 6}' y='{y + 4}'>{escape(kind)}</text>"
        f"<text x='{_ARCS + _BOX + 8}' y='{y + 4}' opacity='.7'>{escape(short)}</text></g>"
    )
