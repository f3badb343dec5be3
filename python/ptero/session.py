"""Sessions: tokens in, tokens or logits out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptero import _ptero
from ptero.settings import Settings, prepared

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy
    from numpy.typing import NDArray
    from typing_extensions import Unpack

__all__ = ["Session"]


class Session:
    """The state of one text: tokens in, tokens or logits out. Tokens are sampled greedily unless settings say otherwise.

    >>> import ptero
    >>> model = ptero.Model()
    >>> session = model.session()
    >>> token = session.prefill(model.encode("Once upon a time"))
    >>> fork = session.fork()
    >>> session.decode(token) == fork.decode(token)
    True
    """

    def __init__(self, session: _ptero.Session) -> None:
        self._session = session

    def prefill(self, tokens: Sequence[int], **settings: Unpack[Settings]) -> int:
        """Processes tokens, and returns the one that is sampled after them."""
        return self._session.prefill(list(tokens), prepared(settings))

    def decode(self, token: int, **settings: Unpack[Settings]) -> int:
        """Processes a token, and returns the one that is sampled after it."""
        return self._session.decode(token, prepared(settings))

    @property
    def logits(self) -> NDArray[numpy.float32]:
        """The logits of the last token that was processed: a number for each token of the vocabulary, as the model computed them,
        before temperature, penalties, biases and masks.

        They are read from the device when they are asked for. Programs that sample their own tokens have them, too, unless
        the model was opened with ``full_sampler=False``.

        >>> import ptero
        >>> session = ptero.Model().session()
        >>> token = session.prefill([1, 2, 3])
        >>> int(session.logits.argmax()) == token
        True
        """
        import numpy

        return numpy.frombuffer(self._session.logits(), dtype=numpy.float32)

    @property
    def logprobs(self) -> tuple[float, list[tuple[int, float]]] | None:
        """The log-probability of the last token and the likeliest tokens with theirs, if ``logprobs`` asked for them."""
        return self._session.logprobs()

    @property
    def tokens(self) -> list[int]:
        """The tokens processed so far."""
        return self._session.tokens()

    @property
    def position(self) -> int:
        """The number of tokens processed so far."""
        return self._session.position()

    @property
    def room(self) -> int:
        """The number of tokens that still fit the context."""
        return self._session.room()

    def rewind(self, to: int) -> None:
        """Goes back to an earlier position, if the model's state keeps it."""
        self._session.rewind(to)

    def reset(self) -> None:
        """Starts over."""
        self._session.reset()

    def fork(self) -> Session:
        """Copies the session. From then on the two share nothing that changes."""
        return Session(self._session.fork())
