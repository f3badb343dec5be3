"""Any method of any program, on NumPy arrays."""

from __future__ import annotations

import os
from collections import Counter
from html import escape
from typing import TYPE_CHECKING, Any

from ptero import _ptero
from ptero.drawing import drawing
from ptero.errors import CallError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["Method", "Program", "TensorInfo"]

#: Element types of programs, and NumPy's. bf16, which NumPy lacks, is exchanged as float32: exactly, unless an input is rounded.
_NUMPY = {
    "u8": "u1",
    "i8": "i1",
    "i16": "<i2",
    "i32": "<i4",
    "i64": "<i8",
    "f16": "<f2",
    "f32": "<f4",
    "f64": "<f8",
    "bool": "?",
}


class TensorInfo:
    """The name, the element type and the sizes of a tensor, at most."""

    def __init__(self, name: str | None, dtype: str, shape: list[int]) -> None:
        self.name, self.dtype, self.shape = name, dtype, shape

    def __repr__(self) -> str:
        return f"{self.name or '?'}: {self.dtype} {self.shape}"


class Program:
    """A program. ``source`` is as for :class:`ptero.Model`.

    >>> import ptero
    >>> program = ptero.Program()                   # that of the included model
    >>> program.methods
    ['forward']
    >>> forward = program.method("forward")
    >>> forward.inputs[0]
    tokens: i64 [1, 512]
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | None = None,
        *,
        device: str = "auto",
        threads: int | None = None,
    ) -> None:
        self._program = _ptero.Program(source, device, threads)

    @property
    def name(self) -> str:
        """The name of the file or checkpoint."""
        return self._program.name

    @property
    def methods(self) -> list[str]:
        """The names of the methods, without those that only return metadata."""
        return self._program.methods

    def method(self, name: str = "forward") -> Method:
        """Compiles a method, with a state of its own that all its calls share."""
        return Method(self._program.method(name), name)

    def graph(self, method: str = "forward") -> list[list[str]]:
        """Returns the nodes of a method as text, chain by chain."""
        return [[text for _, text in chain] for chain in self._program.graph(method)]

    def __repr__(self) -> str:
        return f"<ptero.Program {self.name!r}: {', '.join(self.methods)}>"

    def _repr_html_(self) -> str:
        """Shows the methods in a notebook: a drawing of the graph, how many nodes of which kind, and all of them in order."""
        parts = [f"<b>{escape(self.name)}</b>"]
        for name in self.methods:
            chains = self._program.graph(name)
            kinds = Counter(kind for chain in chains for kind, _ in chain).most_common()
            most = max((count for _, count in kinds), default=1)
            bars = "".join(
                f"<tr><td>{escape(kind)}</td><td>{count}</td><td><div style='background: #58a; height: 0.8em;"
                f" width: {max(1, 200 * count // most)}px'></div></td></tr>"
                for kind, count in kinds
            )
            drawings = "".join(f"<p>chain {at}</p>{drawing(chain)}" for at, chain in enumerate(chains))
            lines = (f"{at}.{index}  {text}" for at, chain in enumerate(chains) for index, (_, text) in enumerate(chain))
            nodes = escape("\n".join(lines))
            parts.append(
                f"<details open><summary>{escape(name)}: {sum(count for _, count in kinds)} nodes</summary>"
                f"<div style='max-height: 30em; overflow: auto'>{drawings}</div>"
                f"<details><summary>kinds of nodes</summary><table>{bars}</table></details><details><summary>every node</summary>"
                f"<pre style='max-height: 30em; overflow: auto'>{nodes}</pre></details></details>"
            )
        return "".join(parts)


class Method:
    """A compiled method and the state that its calls share."""

    def __init__(self, method: _ptero.Method, name: str) -> None:
        self._method, self.name = method, name

    @property
    def inputs(self) -> list[TensorInfo]:
        """The inputs that are tensors, in order."""
        return [TensorInfo(*info) for info in self._method.inputs]

    @property
    def outputs(self) -> list[TensorInfo]:
        """The outputs that are tensors, in order."""
        return [TensorInfo(*info) for info in self._method.outputs]

    def run(self, *arrays: ArrayLike, **named: ArrayLike) -> list[NDArray[Any]]:
        """Calls the method on the state that earlier calls left. Inputs are given in order or by name, as for a function;
        integers and floats take the types of the inputs."""
        infos = self.inputs
        if len(arrays) > len(infos):
            raise CallError(f"{len(arrays)} inputs were given, but the method takes {len(infos)}")
        given: dict[int, ArrayLike] = dict(enumerate(arrays))
        names = {info.name: at for at, info in enumerate(infos) if info.name is not None}
        for name, array in named.items():
            if name not in names:
                raise CallError(f"the method has no input `{name}` (it has: {', '.join(names)})")
            if names[name] in given:
                raise CallError(f"input `{name}` is given twice")
            given[names[name]] = array
        missing = [info.name or str(at) for at, info in enumerate(infos) if at not in given]
        if missing:
            raise CallError(f"inputs are missing: {', '.join(missing)}")
        tensors = [_tensor(given[at], info) for at, info in enumerate(infos)]
        return [_array(*output) for output in self._method.run(tensors)]

    def __repr__(self) -> str:
        return f"<ptero.Method {self.name!r}({', '.join(map(repr, self.inputs))})>"


def _tensor(value: ArrayLike, info: TensorInfo) -> tuple[str, list[int], bytes]:
    import numpy

    array = numpy.asarray(value)
    wanted = numpy.dtype(_NUMPY["f32" if info.dtype == "bf16" else info.dtype])
    if not numpy.can_cast(array.dtype, wanted, casting="same_kind"):
        raise CallError(f"input `{info.name}` has type {array.dtype}; {info.dtype} is wanted")
    cast = array.astype(wanted)
    if info.dtype == "bf16":
        bits = cast.view("<u4")
        # To the nearest, of two to the even one; NaN stays NaN.
        rounded = ((bits.astype("<u8") + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
        cast = numpy.where(numpy.isnan(cast), numpy.uint16(0x7FC0), rounded)
    return (info.dtype, list(array.shape), numpy.ascontiguousarray(cast).tobytes())


def _array(dtype: str, shape: list[int], data: bytes) -> NDArray[Any]:
    import numpy

    if dtype == "bf16":
        wide = numpy.frombuffer(data, dtype="<u2").astype("<u4") << 16
        return wide.view("<f4").reshape(shape)
    return numpy.frombuffer(data, dtype=_NUMPY[dtype]).reshape(shape)
