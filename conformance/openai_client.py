"""Asks a running `ptero serve` with OpenAI's own client for Python: texts, streams, choices, formats, functions, thoughts, responses, errors.

    pip install openai
    ptero serve --chat-template conformance/openai_chat.jinja
    python conformance/openai_client.py http://127.0.0.1:8080/v1
"""

import json
import sys
import typing

import openai
import pydantic

MESSAGES = [{"role": "user", "content": "What is the weather in Rome?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"unit": {"enum": ["C", "F"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["unit", "days"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "The weather of the next days", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": WEATHER}]


class Verdict(pydantic.BaseModel):
    ok: bool
    size: typing.Literal["small", "large"]


def check_arguments(text: str) -> None:
    arguments = json.loads(text)
    assert arguments["unit"] in ("C", "F") and 1 <= arguments["days"] <= 9 and len(arguments) == 2, text


def refused(error: type[openai.APIStatusError], param: str | None, ask: typing.Callable[[], object]) -> None:
    try:
        ask()
    except error as refusal:
        assert refusal.body["message"] and refusal.body["param"] == param, refusal.body
        assert refusal.request_id
    else:
        raise AssertionError(f"{param} was not refused")


def completions(client: openai.OpenAI, model: str) -> None:
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
    exact = client.completions.create(**ask, extra_body={"exact_tail": True, "min_p": 0.01, "top_k": 0})
    assert exact.usage.completion_tokens == 12
    refused(openai.NotFoundError, "model", lambda: client.completions.create(**{**ask, "model": "other"}))
    refused(openai.BadRequestError, "echo", lambda: client.completions.create(**ask, echo=True))
    refused(openai.BadRequestError, None, lambda: client.completions.create(**ask, temperature=-1))
    with client.completions.create(**{**ask, "max_tokens": 200}, stream=True) as stream:
        next(iter(stream))  # and leave


def conversations(client: openai.OpenAI, model: str) -> None:
    chat = client.chat.completions
    ask = {"model": model, "messages": MESSAGES, "seed": 1, "max_completion_tokens": 8}
    reply = chat.create(**ask, logprobs=True, top_logprobs=2)
    assert len(reply.choices[0].logprobs.content[0].top_logprobs) == 2
    stream = chat.create(**ask, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in stream if piece.choices) == reply.choices[0].message.content
    parsed = chat.parse(**{**ask, "max_completion_tokens": 100}, response_format=Verdict).choices[0].message.parsed
    assert isinstance(parsed.ok, bool) and parsed.size in ("small", "large")
    thought = chat.create(**ask, extra_body={"enable_thinking": True})
    assert thought.choices[0].message.reasoning_content and thought.choices[0].message.content == ""
    assert thought.usage.completion_tokens_details.reasoning_tokens == 8
    refused(openai.BadRequestError, "messages[0].role", lambda: chat.create(**{**ask, "messages": [{"role": "critic", "content": ""}]}))
    refused(openai.BadRequestError, "functions", lambda: chat.create(**ask, functions=[WEATHER]))


def functions(client: openai.OpenAI, model: str) -> None:
    chat = client.chat.completions
    ask = {"model": model, "messages": MESSAGES, "seed": 2, "max_completion_tokens": 200, "tools": TOOLS}
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        reply = chat.create(**ask, tool_choice=choice, parallel_tool_calls=False).choices[0]
        (call,) = reply.message.tool_calls
        assert reply.finish_reason == "tool_calls" and reply.message.content is None and call.function.name == "weather"
        check_arguments(call.function.arguments)
        with chat.stream(**ask, tool_choice=choice, parallel_tool_calls=False) as stream:
            done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
            streamed = stream.get_final_completion().choices[0]
        assert done[0].arguments == streamed.message.tool_calls[0].function.arguments == call.function.arguments
    answered = [*MESSAGES, reply.message, {"role": "tool", "tool_call_id": call.id, "content": "21"}]
    assert chat.create(**{**ask, "messages": answered, "max_completion_tokens": 4}).usage.completion_tokens <= 4
    assert chat.create(**{**ask, "max_completion_tokens": 4}, tool_choice="none").choices[0].message.tool_calls is None
    wrong = {"type": "function", "function": {"name": "other"}}
    refused(openai.BadRequestError, "tool_choice", lambda: chat.create(**ask, tool_choice=wrong))


def responses(client: openai.OpenAI, model: str) -> None:
    ask = {"model": model, "input": "Once upon a time", "instructions": "Tell a story.", "max_output_tokens": 10}
    seed = {"extra_body": {"seed": 3}}
    whole = client.responses.create(**ask, **seed)
    assert whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage.output_tokens == 10 and whole.output_text
    with client.responses.stream(**ask, **seed) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(pieces) == whole.output_text
    parsed = client.responses.parse(**{**ask, "max_output_tokens": 100}, text_format=Verdict)
    assert isinstance(parsed.output_parsed.ok, bool)
    tool = {"type": "function", **WEATHER}
    call = client.responses.create(**{**ask, "max_output_tokens": 200}, tools=[tool], tool_choice="required", parallel_tool_calls=False).output[0]
    assert call.type == "function_call"
    check_arguments(call.arguments)
    thread = [{"role": "user", "content": "Weather?"}, call, {"type": "function_call_output", "call_id": call.call_id, "output": "21"}]
    assert client.responses.create(**{**ask, "input": thread}, tools=[tool]).usage.output_tokens <= 10
    refused(openai.BadRequestError, "previous_response_id", lambda: client.responses.create(**ask, previous_response_id="resp_1"))
    refused(openai.BadRequestError, "background", lambda: client.responses.create(**ask, background=True))


def main(url: str) -> None:
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
    model = client.models.list().data[0].id
    assert client.models.retrieve(model).id == model
    for part in (completions, conversations, functions, responses):
        part(client, model)
        print(f"{part.__name__}: as OpenAI's client for Python {openai.__version__} expects")


if __name__ == "__main__":
    main(sys.argv[1])
