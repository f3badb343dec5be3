"""Inputs that are wrong get an exception that says why, whatever they are."""

from pathlib import Path
from typing import Any

import ptero
import pytest
from ptero import errors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is NaN"),
        ({"top_k": -3}, "top-k is -3"),
        ({"top_p": 0}, "top-p is 0"),
        ({"min_p": 2}, "min-p is 2"),
        ({"repetition_penalty": 0}, "repetition penalty is 0"),
        ({"presence_penalty": float("inf")}, "presence penalty is inf"),
        ({"logit_bias": {10**6: 1.0}}, "outside the vocabulary"),
        ({"logit_bias": {1: float("nan")}}, "must be finite"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"seed": 2**63}, "seed"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"stop": [""]}, "a stop string is empty"),
        ({"logprobs": 21}, "21 is not a number from 0 to 20"),
        ({"json_schema": "{"}, "JSON Schema"),
        ({"json_schema": {"type": "nothing"}}, "JSON Schema"),
        ({"regex": "("}, "regular expression"),
        ({"grammar": "start"}, "grammar"),
        ({"regex": "a", "grammar": 'start: "a"'}, "exclude each other"),
    ],
)
def test_settings_that_are_refused(model: ptero.Model, settings: dict[str, Any], message: str) -> None:
    for generate in (model.generate, model.stream, lambda prompt, **given: model.generate_batch([prompt], **given)):
        with pytest.raises(errors.SettingError, match=message):
            generate("The king", **settings)


@pytest.mark.parametrize(
    "settings",
    [{"temperature": "hot"}, {"top_q": 1}, {"stop": 7}, {"logit_bias": [1]}, {"seed": 1.5}, {"top_q": None}],
)
def test_settings_of_the_wrong_type(model: ptero.Model, settings: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(settings))):
        model.generate("The king", **settings)


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ([], errors.PromptError),
        ([-1], OverflowError),
        ([10**6], errors.PromptError),
        ([1] * 100_000, errors.PromptError),
        ([1, "two"], TypeError),
        (7, TypeError),
        (None, TypeError),
        ("\ud800", UnicodeEncodeError),
        ("x" * 20_000_000, errors.Error),
    ],
)
def test_prompts_that_are_refused(model: ptero.Model, prompt: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        model.generate(prompt, max_tokens=1)


def test_conversations_that_are_refused(model: ptero.Model, chatty: ptero.Model) -> None:
    with pytest.raises(errors.ModelError, match="no chat template"):
        model.chat()
    with pytest.raises(errors.ModelError, match="no chat template"):
        model.generate([{"role": "user", "content": "Hello"}])
    with pytest.raises(ValueError, match="needs a chat template"):
        model.generate("Hello", system="Be brief.")
    for messages in ([{"content": "no role"}], [{"role": 7}]):
        with pytest.raises(errors.PromptError, match="not a list of messages"):
            chatty.generate(messages)
    with pytest.raises(TypeError):
        chatty.generate([{"role": "user", "content": object()}])
    with pytest.raises(errors.PromptError, match="no message to reply to"):
        chatty.chat().retry()


def test_models_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        ptero.Model(tmp_path / "missing.pte")
    assert isinstance(missing.value, errors.NotFoundError) and "missing.pte" in str(missing.value)
    broken = tmp_path / "broken.pte"
    for content in (b"", b"ET12" * 100, bytes(range(256)) * 64):
        broken.write_bytes(content)
        with pytest.raises(errors.ModelError, match="broken.pte"):
            ptero.Model(broken)
    with pytest.raises(errors.Error):
        ptero.Model(tmp_path)
    with pytest.raises(errors.DeviceError, match="there is no device `abacus`"):
        ptero.Model(device="abacus")
    with pytest.raises(TypeError):
        ptero.Model(7)  # type: ignore[arg-type]


def test_what_fails_leaves_a_model_as_it_was(model: ptero.Model) -> None:
    before = model.generate("The king", seed=7, max_tokens=8)
    for settings in ({"top_p": 7.0}, {"regex": "("}, {"logprobs": -1}):
        with pytest.raises(errors.SettingError):
            model.generate("The king", **settings)  # type: ignore[arg-type]
    assert model.generate("The king", seed=7, max_tokens=8) == before
