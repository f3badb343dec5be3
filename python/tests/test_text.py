"""Texts, streams and chats, and that they are those of the command."""

import asyncio
import json
import math
import pickle
import urllib.request
from html import escape
from pathlib import Path

import ptero
import pytest
from conftest import ROOT, run


def test_the_same_seed_gives_the_same_text_and_another_seed_another(model: ptero.Model) -> None:
    first, same, other = (model.generate("The king", seed=seed, max_tokens=24) for seed in (7, 7, 8))
    assert first == same
    assert first.text != other.text
    assert (first.finish_reason, first.seed, len(first.tokens)) == ("length", 7, 24)
    assert first.timings.new_tokens == 24 and first.timings.decode_seconds > 0
    assert model.decode(first.tokens) == first.text


def test_a_random_seed_is_told_and_repeats_the_text(model: ptero.Model) -> None:
    text = model.generate("The king", max_tokens=12)
    assert text.seed is not None
    assert model.generate("The king", max_tokens=12, seed=text.seed) == text


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({"seed": 42}, ["-s", "42"]),
        ({"temperature": 0}, ["--temp", "0"]),
        (
            {"seed": 3, "temperature": 1.3, "top_k": 12, "top_p": 0.8, "min_p": 0.05, "exact_tail": True},
            ["-s", "3", "--temp", "1.3", "--top-k", "12", "--top-p", "0.8", "--min-p", "0.05", "--exact-tail"],
        ),
        (
            {"seed": -9, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.25},
            ["-s=-9", "--repetition-penalty", "1.3", "--presence-penalty", "0.5", "--frequency-penalty", "0.25"],
        ),
        ({"seed": 5, "logit_bias": {312: -100.0}}, ["-s", "5", "--logit-bias", "312=-100"]),
        ({"seed": 5, "regex": "[a-z ]{20}"}, ["-s", "5", "--regex", "[a-z ]{20}"]),
        ({"seed": 5, "stop": ["the", "."]}, ["-s", "5", "--stop", "the", "--stop", "."]),
    ],
)
def test_texts_are_those_of_the_command_and_the_server(
    model: ptero.Model, command: str, server: str, settings: dict[str, object], flags: list[str]
) -> None:
    prompt = "Once upon a time"
    expected = run(command, "-p", prompt, "-n", "32", *flags)
    text = model.generate(prompt, max_tokens=32, **settings).text  # type: ignore[arg-type]
    # The command repeats the prompt of a text that it continues.
    assert prompt + text == expected.removesuffix("\n") or text == expected.removesuffix("\n")
    assert "".join(model.stream(prompt, max_tokens=32, **settings)) == text  # type: ignore[arg-type]
    # Requests have no regular expressions.
    if "regex" not in settings:
        body = json.dumps({"prompt": prompt, "max_tokens": 32, **settings}).encode()
        request = urllib.request.Request(server + "v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["choices"][0]["text"] == text


def test_a_recorded_text_is_that_of_the_rust_library(model: ptero.Model, command: str, server: str) -> None:
    # The Rust library is held to this file by crates/ptero/tests/text.rs.
    prompt, recorded = "Once upon a time", (ROOT / "crates/ptero/tests/story.txt").read_text()
    assert model.generate(prompt, temperature=0.8, seed=42, max_tokens=100).text == recorded
    assert run(command, "-p", prompt, "-n", "100", "-s", "42", "--temp", "0.8").removesuffix("\n") == recorded
    body = json.dumps({"prompt": prompt, "max_tokens": 100, "temperature": 0.8, "seed": 42}).encode()
    request = urllib.request.Request(server + "v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        assert json.load(answer)["choices"][0]["text"] == recorded


def test_replies_are_those_of_the_command(chatty: ptero.Model, command: str, template: Path) -> None:
    flags = ["--chat-template", str(template), "--system", "Be brief.", "-s", "11", "-n", "24"]
    expected = run(command, "-p", "Who is there?", *flags)
    settings = {"seed": 11, "max_tokens": 24}
    replies = [
        chatty.generate("Who is there?", system="Be brief.", **settings),  # type: ignore[arg-type]
        chatty.chat(system="Be brief.", **settings).send("Who is there?"),  # type: ignore[arg-type]
        chatty.generate(
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who is there?"}],
            **settings,  # type: ignore[arg-type]
        ),
    ]
    assert {reply.text for reply in replies} == {expected.removesuffix("\n")}


def test_a_stream_that_is_closed_ends_there(model: ptero.Model) -> None:
    whole = model.generate("The king", seed=7, max_tokens=20)
    with model.stream("The king", seed=7, max_tokens=20) as stream:
        read = [next(stream) for _ in range(5)]
    assert read == whole.pieces[:5]
    result = stream.close()
    assert (result.text, result.finish_reason) == ("".join(read), "interrupted")
    assert list(stream) == []


def test_a_stream_goes_on_where_reading_stopped(model: ptero.Model) -> None:
    stream = model.stream("The king", seed=7, max_tokens=20)
    next(stream)
    assert stream.result() == model.generate("The king", seed=7, max_tokens=20)


def test_log_probabilities_are_those_of_the_tokens(model: ptero.Model) -> None:
    text = model.generate("The king", temperature=0, max_tokens=6, logprobs=5)
    assert text.logprobs is not None and len(text.logprobs) == 6
    for piece in text.pieces:
        assert piece.logprob is not None and len(piece.top_logprobs) == 5
        assert piece.top_logprobs[0] == (piece.token, piece.logprob), "greedy takes the likeliest"
    processed = model.generate("The king", seed=1, top_k=1, max_tokens=4, logprobs=1, processed_logprobs=True)
    assert processed.logprobs == [0.0] * 4, "only one token is left"
    assert model.generate("The king", max_tokens=2).logprobs is None


def test_structured_output_follows_its_grammar(model: ptero.Model) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["king", "queen"]}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    for given in (schema, json.dumps(schema)):
        person = json.loads(model.generate("The king", seed=1, max_tokens=60, json_schema=given).text)
        assert person["name"] in ("king", "queen") and 1 <= person["age"] <= 99

    class Person:
        """Like a model of Pydantic's."""

        @staticmethod
        def model_json_schema() -> dict[str, object]:
            return schema

    assert json.loads(model.generate("The king", seed=1, max_tokens=60, json_schema=Person).text) == person
    text = model.generate("It is", seed=2, regex="[0-9]{4}-[0-9]{2}", max_tokens=30)
    assert text.finish_reason == "eos" and len(text.text) == 7
    assert model.generate("It is", seed=2, grammar='start: "yes" | "no"', max_tokens=9).text in ("yes", "no")


def test_chats_continue_and_fork(chatty: ptero.Model) -> None:
    chat = chatty.chat(system="Be brief.", seed=4, max_tokens=10)
    first = chat.send("Hello")
    fork = chat.fork()
    second = chat.send("And then?")
    assert fork.send("And then?") == second, "a fork has the same seeds"
    assert [message["role"] for message in chat.messages] == ["system"] + ["user", "assistant"] * 2
    assert chat.messages[2]["content"] == first.text
    retried = chat.retry()
    assert len(chat.messages) == 5 and chat.messages[-1]["content"] == retried.text
    chat.clear()
    assert [message["content"] for message in chat.messages] == ["Be brief."]


def test_a_chat_has_one_reply_at_a_time(chatty: ptero.Model) -> None:
    chat = chatty.chat(seed=4, max_tokens=10)
    stream = chat.stream("Hello")
    next(stream)
    with pytest.raises(ptero.errors.CallError, match="a reply is being generated"):
        chat.send("Again")
    reply = stream.close()
    assert chat.messages[-1] == {"role": "assistant", "content": reply.text}
    dropped = chat.stream("Again")
    next(dropped)
    del dropped
    assert len(chat.messages) == 4, "a reply that is dropped ends there"


def test_asyncio_gets_the_same_pieces_while_other_tasks_go_on(model: ptero.Model) -> None:
    async def main() -> tuple[list[ptero.Piece], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticker = asyncio.create_task(tick())
        pieces = [piece async for piece in model.astream("The king", seed=7, max_tokens=20)]
        ticker.cancel()
        return pieces, ticks

    pieces, ticks = asyncio.run(main())
    assert pieces == model.generate("The king", seed=7, max_tokens=20).pieces
    assert ticks > 20


def test_results_and_models_can_be_pickled(model: ptero.Model) -> None:
    text = model.generate("The king", seed=7, max_tokens=4, logprobs=2)
    copy = pickle.loads(pickle.dumps(text))
    assert copy == text and [piece.logprob for piece in copy.pieces] == text.logprobs
    assert copy.pieces[0].top_logprobs == text.pieces[0].top_logprobs
    assert pickle.loads(pickle.dumps(model)).generate("The king", seed=7, max_tokens=4).text == text.text


def test_a_result_shows_its_tokens_with_their_probabilities(model: ptero.Model) -> None:
    text = model.generate("The king", seed=7, max_tokens=6, logprobs=2)
    html = text._repr_html_()
    assert html.count("<span") == 6 and "rgba" in html and "seed 7" in html
    assert f"{math.exp(text.pieces[0].logprob or 0):.2%}" in html
    assert html.count("<tr>") == 1 + 6 and "<details>" in html, "rivals can be read without a pointer"
    for piece in text.pieces:
        for token, logprob in piece.top_logprobs:
            assert text.token_texts[token] == model.token_bytes(token).decode(errors="replace")
            assert escape(f"{text.token_texts[token]!r} {math.exp(logprob):.2%}") in html
    assert "<details>" not in model.generate("The king", seed=7, max_tokens=6)._repr_html_()
    pieces = [ptero.Piece("<script>", 1, -1.0, [(2, -1.0), (3, -2.0)])] * 600
    hostile = ptero.Result("<script>", "eos", 1, pieces, text.timings, {2: "<script>"})._repr_html_()
    assert "<script>" not in hostile and escape("'<script>' 36.79%, 3 13.53%") in hostile
    assert hostile.count("<tr>") == 502 and "and 100 more" in hostile
    assert pickle.loads(pickle.dumps(text)).token_texts == text.token_texts
