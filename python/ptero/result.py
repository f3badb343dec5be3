"""Texts, and what is known about them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ptero._ptero import Finish, _PieceTuple

__all__ = ["Piece", "Result", "Timings"]

#: The most tokens whose rivals a notebook lists.
_MOST_ROWS = 500


class Piece(str):
    """What one token adds to a text. It may be empty, as when a character takes several tokens.

    >>> import ptero
    >>> piece = next(ptero.Model().stream("The king", temperature=0, max_tokens=1, logprobs=2))
    >>> isinstance(piece, str), piece.token is not None, len(piece.top_logprobs)
    (True, True, 2)
    """

    __slots__ = ("logprob", "token", "top_logprobs")

    #: The token; ``None`` for what was held back at the end of the text.
    token: int | None
    #: The log-probability of the token, if it was asked for.
    logprob: float | None
    #: The likeliest tokens and their log-probabilities.
    top_logprobs: list[tuple[int, float]]

    def __new__(
        cls,
        text: str,
        token: int | None = None,
        logprob: float | None = None,
        top_logprobs: list[tuple[int, float]] | None = None,
    ) -> Piece:
        piece = super().__new__(cls, text)
        piece.token, piece.logprob, piece.top_logprobs = token, logprob, top_logprobs or []
        return piece

    def __getnewargs__(self) -> tuple[str, int | None, float | None, list[tuple[int, float]]]:  # type: ignore[override]
        return (str(self), self.token, self.logprob, self.top_logprobs)

    @classmethod
    def _of(cls, piece: _PieceTuple) -> Piece:
        token, text, logprob, top = piece
        return cls(text, token, logprob, top)


@dataclass(frozen=True)
class Timings:
    """Tokens and times of a text."""

    #: Tokens of the prompt that were processed.
    prompt_tokens: int
    #: Tokens of the text.
    new_tokens: int
    #: From the prompt to the first token.
    prefill_seconds: float
    #: All steps after it.
    decode_seconds: float
    #: Checking and compiling the program, once for all texts.
    load_seconds: float
    #: Completed steps after the first token.
    decode_steps: int

    @property
    def tokens_per_second(self) -> float:
        """The rate of decoding; 0 if there was no step."""
        return self.decode_steps / self.decode_seconds if self.decode_seconds else 0.0


@dataclass(frozen=True)
class Result:
    """A text and how it ended. ``str(result)`` is the text.

    >>> import ptero
    >>> result = ptero.Model().generate("The king", seed=7, max_tokens=4)
    >>> result.finish_reason, result.seed, len(result.tokens)
    ('length', 7, 4)
    """

    #: The text.
    text: str
    #: Why it ended: ``eos``, ``length``, ``context``, ``stop`` or ``interrupted``, as in ``ptero run --json``.
    finish_reason: str
    #: The seed of its first token; ``None`` if the program takes no seed.
    seed: int | None
    #: What each token adds to the text, with log-probabilities if they were asked for.
    pieces: list[Piece] = field(repr=False)
    #: Tokens and times; not part of what makes two results equal.
    timings: Timings = field(repr=False, compare=False)
    #: The text of each token in ``top_logprobs``.
    token_texts: dict[int, str] = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def _of(cls, pieces: Iterable[Piece], finish: Finish, token_bytes: Callable[[int], bytes]) -> Result:
        timings = Timings(
            finish.prompt_tokens,
            finish.new_tokens,
            finish.prefill_seconds,
            finish.decode_seconds,
            finish.load_seconds,
            finish.decode_steps,
        )
        listed = list(pieces)
        return cls(finish.text, finish.reason, finish.seed, listed, timings, _texts(listed, token_bytes))

    @property
    def tokens(self) -> list[int]:
        """The tokens of the text."""
        return [piece.token for piece in self.pieces if piece.token is not None]

    @property
    def logprobs(self) -> list[float] | None:
        """The log-probability of each token, or ``None`` if they were not asked for."""
        found = [piece.logprob for piece in self.pieces if piece.logprob is not None]
        return found or None

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """Shows the tokens in a notebook, the less likely the redder. Probabilities and rivals are under the pointer, and in a
        table that can be opened: neither needs scripts."""
        spans = "".join(_span(piece, self.token_texts) for piece in self.pieces)
        note = f"{self.finish_reason}, seed {self.seed}, {self.timings.new_tokens} tokens"
        if self.timings.decode_seconds:
            note += f", {self.timings.tokens_per_second:.1f}/s"
        text = f'<div style="white-space: pre-wrap">{spans}</div>'
        return f'{text}<div style="opacity: 0.6; font-size: 85%">{escape(note)}</div>{_table(self.pieces, self.token_texts)}'


def _texts(pieces: Iterable[Piece], token_bytes: Callable[[int], bytes]) -> dict[int, str]:
    """Returns the texts of the likeliest tokens; none if the model has no tokenizer."""
    from ptero.errors import Error

    tokens = {token for piece in pieces for token, _ in piece.top_logprobs}
    try:
        # A token may be a part of a character.
        return {token: token_bytes(token).decode(errors="replace") for token in tokens}
    except Error:
        return {}


def _named(token: int, texts: dict[int, str]) -> str:
    """Shows a token so that white space can be seen."""
    return repr(texts[token]) if token in texts else str(token)


def _table(pieces: Iterable[Piece], texts: dict[int, str]) -> str:
    """The likeliest tokens in the place of each, if they were asked for."""
    asked = [piece for piece in pieces if piece.token is not None and piece.top_logprobs]
    if not asked:
        return ""
    rows = []
    for piece in asked[:_MOST_ROWS]:
        likeliest = ", ".join(f"{_named(token, texts)} {math.exp(logprob):.2%}" for token, logprob in piece.top_logprobs)
        share = "" if piece.logprob is None else f"{math.exp(piece.logprob):.2%}"
        cells = (repr(str(piece)), share, likeliest)
        rows.append("".join(f'<td style="text-align: left">{escape(cell)}</td>' for cell in cells))
    if len(asked) > _MOST_ROWS:
        rows.append(f'<td colspan="3">… and {len(asked) - _MOST_ROWS} more</td>')
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    head = "<tr><th>token</th><th>probability</th><th>likeliest</th></tr>"
    return f"<details><summary>The likeliest tokens</summary><table>{head}{body}</table></details>"


def _span(piece: Piece, texts: dict[int, str]) -> str:
    if piece.token is None:
        return escape(piece)
    title, style = f"token {piece.token}", ""
    if piece.logprob is not None:
        probability = math.exp(piece.logprob)
        # Certain tokens have no colour, and those of one in a million the whole of it.
        surprise = min(1.0, -piece.logprob / math.log(1e6))
        title += f": {probability:.2%}"
        style = f' style="background: rgba(220, 60, 40, {surprise * 0.6:.2f})"'
    for token, logprob in piece.top_logprobs:
        title += f"\n{_named(token, texts)}: {math.exp(logprob):.2%}"
    return f'<span title="{escape(title)}"{style}>{escape(piece)}</span>'
