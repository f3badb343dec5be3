"""Asks a running `ptero serve` with OpenAI's own client: whole texts, streams, choices, formats, log-probabilities, errors.

    python conformance/openai_client.py http://127.0.0.1:8080/v1
"""

import json
import sys

import openai


def main(url: str) -> None:
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
    model = client.models.list().data[0].id
    assert client.models.retrieve(model).id == model

    ask = {"model": model, "prompt": "Once upon a time", "seed": 7, "max_tokens": 12}
    whole = client.completions.create(**ask)
    assert whole.usage.completion_tokens == 12 and whole.choices[0].finish_reason == "length"
    pieces = list(client.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == whole.choices[0].text
    assert pieces[-1].usage.total_tokens == whole.usage.total_tokens
    assert client.completions.create(**ask).system_fingerprint == whole.system_fingerprint

    several = client.completions.create(**ask, n=3, logprobs=2, stop=["\n"], temperature=1.1, presence_penalty=0.5)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert len(several.choices[0].logprobs.top_logprobs[0]) <= 2

    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    shaped = client.completions.create(**{**ask, "max_tokens": 60}, extra_body={"response_format": form})
    assert isinstance(json.loads(shaped.choices[0].text)["ok"], bool)

    for wrong, error in [({"model": "other"}, openai.NotFoundError), ({"temperature": -1}, openai.BadRequestError),
                         ({"echo": True}, openai.BadRequestError)]:
        try:
            client.completions.create(**{**ask, **wrong})
        except error as refused:
            assert refused.body["message"], wrong
        else:
            raise AssertionError(f"{wrong} was not refused")

    try:
        messages = [{"role": "user", "content": "Say yes."}]
        reply = client.chat.completions.create(model=model, messages=messages, seed=1, max_completion_tokens=8, logprobs=True, top_logprobs=2)
    except openai.BadRequestError as refused:
        assert "chat template" in refused.body["message"]
        print("completions: as OpenAI's client expects; the model has no chat template")
        return
    stream = client.chat.completions.create(model=model, messages=messages, seed=1, max_completion_tokens=8, stream=True)
    text = "".join(piece.choices[0].delta.content or "" for piece in stream if piece.choices)
    assert text == reply.choices[0].message.content
    assert len(reply.choices[0].logprobs.content[0].top_logprobs) == 2
    print("completions and conversations: as OpenAI's client expects")


if __name__ == "__main__":
    main(sys.argv[1])
