"""Models, and the texts and chats that they generate."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ptero import _ptero
from ptero.progress import reporter
from ptero.result import Piece, Result
from ptero.session import Session
from ptero.settings import Settings, prepared

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from typing_extensions import Self, Unpack

    #: A text, the messages of a conversation, or tokens.
    Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]

__all__ = ["Chat", "Model", "Stream"]

#: The texts of a batch that are generated at the same time, if nobody says.
LANES = 16

#: More than this are not more work at once for any device.
MOST_LANES = 1024


class Stream(Iterator[Piece]):
    """A text in the making: an iterator over its pieces, each generated when it is asked for.

    >>> import ptero
    >>> stream = ptero.Model().stream("The king", seed=7, max_tokens=4)
    >>> pieces = list(stream)
    >>> stream.result().text == "".join(pieces)
    True
    """

    def __init__(self, stream: _ptero.Stream, token_bytes: Callable[[int], bytes]) -> None:
        self._stream, self._token_bytes = stream, token_bytes
        self._pieces: list[Piece] = []
        self._result: Result | None = None

    def __next__(self) -> Piece:
        piece = self._stream.next()
        if piece is None:
            raise StopIteration
        self._pieces.append(Piece._of(piece))
        return self._pieces[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def result(self) -> Result:
        """Reads the text to its end, and returns it with everything that was read before."""
        self._pieces.extend(Piece._of(piece) for piece in self._stream.rest())
        return self.close()

    def close(self) -> Result:
        """Ends the text here, and returns it."""
        if self._result is None:
            finish = self._stream.finish()
            if finish is None:
                from ptero.errors import StoppedError

                raise StoppedError("the text failed or was interrupted, and has no result")
            self._result = Result._of(self._pieces, finish, self._token_bytes)
        return self._result

    def stop(self) -> None:
        """Stops the text after the steps in flight, from any thread."""
        self._stream.stop()


class Model:
    """A language model on a device, with its tokenizer and chat template. It can be used from several threads at once.

    >>> import ptero
    >>> model = ptero.Model()                       # the included model; or a path, a checkpoint, `owner/name`
    >>> model.generate("Once upon a time", temperature=0, max_tokens=5).finish_reason
    'length'

    ``source`` is a program (``.pte``), a checkpoint (a Hugging Face folder, a ``.safetensors`` or ``.gguf`` file), which is
    exported into a cache first, or ``owner/name`` of the Hugging Face hub, which is downloaded. ``full_sampler=False`` leaves
    the program's own sampling head, or its logits, in place. ``device="auto"`` takes the best device there is, which
    :attr:`device` then names. ``progress=False`` shows no progress of downloads, exports and weights that a GPU gets; a
    function gets it as ``(kind, text, bytes)``.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | None = None,
        *,
        device: str = "auto",
        threads: int | None = None,
        full_sampler: bool = True,
        huge_pages: bool = False,
        tokenizer: str | os.PathLike[str] | None = None,
        chat_template: str | os.PathLike[str] | None = None,
        progress: bool | Callable[[str, str, int], None] = True,
    ) -> None:
        self._arguments = (source, device, threads, full_sampler, huge_pages, tokenizer, chat_template)
        self._model = _ptero.Model(*self._arguments, reporter(progress))

    def __reduce__(self) -> tuple[Any, ...]:
        # A process that gets a model opens it for itself; weights in a file are shared.
        return (_opened, self._arguments)

    def __repr__(self) -> str:
        return f"<ptero.Model {self.name!r} on {self.device}>"

    @property
    def name(self) -> str:
        """The name of the file or checkpoint."""
        return self._model.name

    @property
    def device(self) -> str:
        """The device that it runs on."""
        return self._model.device

    @property
    def context(self) -> int:
        """The number of positions of a text: prompt and new tokens together."""
        return self._model.context

    @property
    def vocabulary(self) -> int:
        """The number of tokens in the vocabulary."""
        return self._model.vocabulary

    @property
    def samples_itself(self) -> bool:
        """``True`` if the program samples its own tokens, rather than returning logits to the host."""
        return self._model.samples_itself

    @property
    def has_full_sampler(self) -> bool:
        """``True`` if all settings are supported."""
        return self._model.has_full_sampler

    @property
    def has_chat_template(self) -> bool:
        """``True`` if the model has a chat template."""
        return self._model.has_chat_template

    @property
    def end_tokens(self) -> list[int]:
        """The tokens that end a text."""
        return self._model.end_tokens

    def fingerprint(self) -> str:
        """Returns a name for the program, tokenizer, chat template, recommended settings and arithmetic: where it is the same, so
        are the texts of the same prompts, settings and seeds."""
        return self._model.fingerprint()

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text.

        >>> import ptero
        >>> model = ptero.Model()
        >>> model.decode(model.encode("Once upon a time"))
        'Once upon a time'
        """
        return self._model.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens, without special tokens."""
        return self._model.decode(list(tokens))

    def token_bytes(self, token: int) -> bytes:
        """Returns the bytes that a token adds to a text; of a special token, its name."""
        return bytes(self._model.token_bytes(token))

    def generate(
        self,
        prompt: Prompt,
        *,
        system: str | None = None,
        raw: bool = False,
        template_variables: Mapping[str, Any] | None = None,
        **settings: Unpack[Settings],
    ) -> Result:
        """Generates a text, as ``ptero run -p`` does: if the model has a chat template, a text is rendered as the message of a
        user, after ``system``; ``raw=True`` continues it as it is. Messages of a conversation and lists of tokens are prompts,
        too. Settings that are left out are the model's.

        >>> import ptero
        >>> model = ptero.Model()
        >>> str(model.generate("The king", seed=7, max_tokens=8)) == str(model.generate("The king", seed=7, max_tokens=8))
        True
        >>> model.generate("The king", temperature=-1)
        Traceback (most recent call last):
        ptero.errors.SettingError: temperature is -1; it must be 0 (always the most likely token) or above
        """
        return self.stream(
            prompt, system=system, raw=raw, template_variables=template_variables, **settings
        ).result()

    def stream(
        self,
        prompt: Prompt,
        *,
        system: str | None = None,
        raw: bool = False,
        template_variables: Mapping[str, Any] | None = None,
        **settings: Unpack[Settings],
    ) -> Stream:
        """Same as :meth:`generate`, piece by piece. A stream that is dropped or closed ends the text there."""
        tokens, is_reply = self._tokens(prompt, system, raw, template_variables)
        return Stream(self._model.stream(tokens, is_reply, prepared(settings)), self.token_bytes)

    async def astream(
        self,
        prompt: Prompt,
        *,
        system: str | None = None,
        raw: bool = False,
        template_variables: Mapping[str, Any] | None = None,
        **settings: Unpack[Settings],
    ) -> AsyncIterator[Piece]:
        """Same as :meth:`stream`, for asyncio: other tasks go on while a piece is generated. Cancelling ends the text.

        >>> import asyncio, ptero
        >>> async def main():
        ...     return [piece async for piece in ptero.Model().astream("The king", seed=7, max_tokens=4)]
        >>> len(asyncio.run(main()))
        4
        """
        import asyncio

        arguments: dict[str, Any] = {"system": system, "raw": raw, "template_variables": template_variables, **settings}
        stream = await asyncio.to_thread(lambda: self.stream(prompt, **arguments))
        try:
            while (piece := await asyncio.to_thread(next, stream, None)) is not None:
                yield piece
        finally:
            # A step in flight ends first; waiting for it here would hold up the loop.
            stream.stop()

    def chat(
        self,
        *,
        system: str | None = None,
        messages: Iterable[Mapping[str, Any]] = (),
        template_variables: Mapping[str, Any] | None = None,
        **settings: Unpack[Settings],
    ) -> Chat:
        """Starts a conversation; ``messages`` are those of an earlier one. The model needs a chat template."""
        told = _messages(messages)
        if system is not None:
            told.insert(0, {"role": "system", "content": system})
        chat = self._model.chat(_json(told), _json(template_variables or {}), prepared(settings))
        return Chat(chat, self.token_bytes)

    def generate_batch(
        self,
        prompts: Iterable[Prompt],
        *,
        seeds: Iterable[int] | None = None,
        lanes: int = LANES,
        system: str | None = None,
        raw: bool = False,
        template_variables: Mapping[str, Any] | None = None,
        progress: bool | Callable[[int], None] = False,
        **settings: Unpack[Settings],
    ) -> list[Result]:
        """Generates a text for each prompt, ``lanes`` at the same time from one read of the weights, and returns them in
        order. Each is the text that it would be alone. Row ``i`` draws with ``mix(seed, i)``; ``seeds`` gives each its own.
        ``progress=True`` counts on standard error, and a function gets the number of rows that are done.

        >>> import ptero
        >>> model = ptero.Model()
        >>> rows = model.generate_batch(["The king", "The sea"], seed=42, max_tokens=4)
        >>> rows[1] == model.generate("The sea", seed=ptero.mix(42, 1), max_tokens=4)
        True
        """
        rows = self.iterate_batch(
            prompts,
            seeds=seeds,
            lanes=lanes,
            system=system,
            raw=raw,
            template_variables=template_variables,
            **settings,
        )
        from ptero.progress import counter

        results: dict[int, Result] = {}
        with counter(progress) as count:
            for number, result in rows:
                results[number] = result
                count(len(results))
        return [results[number] for number in range(len(results))]

    def iterate_batch(
        self,
        prompts: Iterable[Prompt],
        *,
        seeds: Iterable[int] | None = None,
        lanes: int = LANES,
        system: str | None = None,
        raw: bool = False,
        template_variables: Mapping[str, Any] | None = None,
        **settings: Unpack[Settings],
    ) -> Iterator[tuple[int, Result]]:
        """Same as :meth:`generate_batch`, but returns each row with its number as soon as it is done. Prompts are taken as
        lanes become free, so there may be any number of them."""
        if not 1 <= lanes <= MOST_LANES:
            raise ValueError(f"`lanes` is {lanes}; it must be from 1 to {MOST_LANES}")
        ready = prepared(settings)
        seed = ready.get("seed")
        if seed is not None and seeds is not None:
            raise ValueError("`seed` and `seeds` exclude each other")
        batch = self._model.batch(lanes, ready)
        row_seeds = _row_seeds(seed, seeds)
        source, waiting, is_empty = enumerate(prompts), 0, False
        try:
            while True:
                while not is_empty and waiting < 2 * lanes:
                    row = next(source, None)
                    if row is None:
                        is_empty = True
                        break
                    number, prompt = row
                    tokens, is_reply = self._tokens(prompt, system, raw, template_variables)
                    row_seed = next(row_seeds, None)
                    if row_seed is None:
                        raise ValueError(f"there are more prompts than seeds: {number}")
                    batch.submit(number, tokens, is_reply, row_seed)
                    waiting += 1
                if waiting == 0:
                    return
                number, pieces, finish = batch.next()
                waiting -= 1
                yield number, Result._of((Piece._of(piece) for piece in pieces), finish, self.token_bytes)
        finally:
            batch.stop()

    def session(self) -> Session:
        """Starts a session: tokens in, tokens or logits out."""
        return Session(self._model.session())

    def _tokens(
        self,
        prompt: Prompt,
        system: str | None,
        raw: bool,
        template_variables: Mapping[str, Any] | None,
    ) -> tuple[list[int], bool]:
        """Returns the tokens of a prompt, and ``True`` if what follows is a reply."""
        if isinstance(prompt, str):
            if raw or not self.has_chat_template:
                if system is not None:
                    raise ValueError("`system` needs a chat template, and is not used with `raw`")
                return (self.encode(prompt) if prompt else self._model.beginning()), False
            messages = [{"role": "user", "content": prompt}]
        else:
            items = list(prompt)
            if all(isinstance(item, int) for item in items):
                if system is not None:
                    raise ValueError("`system` is not used with tokens")
                return items, False  # type: ignore[return-value]
            messages = _messages(items)  # type: ignore[arg-type]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        return self._model.encode_chat(_json(messages), _json(template_variables or {})), True


def _opened(
    source: str | os.PathLike[str] | None,
    device: str,
    threads: int | None,
    full_sampler: bool,
    huge_pages: bool,
    tokenizer: str | os.PathLike[str] | None,
    chat_template: str | os.PathLike[str] | None,
) -> Model:
    return Model(
        source,
        device=device,
        threads=threads,
        full_sampler=full_sampler,
        huge_pages=huge_pages,
        tokenizer=tokenizer,
        chat_template=chat_template,
    )


def _row_seeds(seed: int | None, seeds: Iterable[int] | None) -> Iterator[int]:
    if seeds is not None:
        yield from seeds
        return
    if seed is None:
        seed = int.from_bytes(os.urandom(4), "little")
    number = 0
    while True:
        yield _ptero.mix(seed, number)
        number += 1


def _messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    listed = []
    for message in messages:
        if not isinstance(message, Mapping):
            raise TypeError(f"a message is a mapping with `role` and `content`, not {type(message).__name__}")
        listed.append(dict(message))
    return listed


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class Chat:
    """A conversation. Each reply continues the state of the last one, so that only what is new is processed."""

    def __init__(self, chat: _ptero.Chat, token_bytes: Callable[[int], bytes]) -> None:
        self._chat, self._token_bytes = chat, token_bytes

    def send(self, message: str) -> Result:
        """Sends a message and returns the reply. Both are part of the conversation then."""
        return self.stream(message).result()

    def stream(self, message: str) -> Stream:
        """Same as :meth:`send`, piece by piece. A reply that is closed early ends there."""
        return Stream(self._chat.send(message), self._token_bytes)

    def retry(self) -> Result:
        """Replaces the last reply by another one, with the seeds that follow."""
        return Stream(self._chat.retry(), self._token_bytes).result()

    def fork(self) -> Chat:
        """Copies the conversation and its state. From then on the two share nothing that changes."""
        return Chat(self._chat.fork(), self._token_bytes)

    def clear(self) -> None:
        """Forgets the conversation, except what the model was told before it began."""
        self._chat.clear()

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages so far, without forgotten ones."""
        messages: list[dict[str, Any]] = json.loads(self._chat.messages())
        return messages

    @property
    def forgotten(self) -> int:
        """The number of messages that were forgotten because they did not fit the context."""
        return self._chat.forgotten()

    @property
    def seed(self) -> int | None:
        """The seed of the next reply."""
        return self._chat.seed()
