"""The settings of texts. ``ptero._ptero.settings()`` is the table that they are read by; a test compares the two."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Settings"]


class Settings(TypedDict, total=False):
    """Keyword arguments of everything that generates texts. What is left out, or ``None``, is the model's choice."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    exact_tail: bool | None
    seed: int | None
    max_tokens: int | None
    stop: str | Sequence[str] | None
    ignore_eos: bool | None
    json_schema: str | Mapping[str, Any] | type | None
    json_object: bool | None
    regex: str | None
    grammar: str | None
    logprobs: int | None
    processed_logprobs: bool | None
    host_sampling: bool | None


def prepared(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings as the extension reads them: schemas as JSON, biases as a ``dict``."""
    ready = dict(settings)
    schema = ready.get("json_schema")
    if schema is not None and not isinstance(schema, str):
        # Pydantic's models know their schemas.
        describe = getattr(schema, "model_json_schema", None)
        ready["json_schema"] = json.dumps(describe() if callable(describe) else schema)
    bias = ready.get("logit_bias")
    if isinstance(bias, Mapping):
        ready["logit_bias"] = dict(bias)
    return ready
