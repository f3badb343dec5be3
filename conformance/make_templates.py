"""What transformers makes of the chat templates in `crates/text/tests/goldens/templates`, for the tests of `crates/text`.

    pip install transformers==5.3.0 jinja2
    python conformance/make_templates.py crates/text/tests/goldens

`smollm2.jinja` is that of SmolLM2-135M-Instruct; the others are written for this test, in the constructs that the templates
of those families use. Every template is rendered for every conversation by transformers' own Jinja environment; where it raises
an exception that is noted, and what `raise_exception` was told. The clock stands at NOW.
"""

import datetime
import json
import pathlib
import sys

import jinja2.exceptions
from transformers.utils import chat_template_utils

NOW = 1_763_215_509
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place, in °C <or> °F & more",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string"},
                "unit": {"enum": ["C", "F"]},
                "days": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["place"],
        },
        "return": {"type": "string"},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "", "parameters": {"type": "object", "properties": {}}}}
HIDDEN = {"type": "function", "function": {"name": "_hidden", "parameters": {"type": "object", "properties": {}}}}


def said(role, content, **more):
    return {"role": role, "content": content, **more}


def called(identifier, name, arguments):
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


CONVERSATIONS = {
    "hello": ([said("user", "Hello!")], {}),
    "no_prompt": ([said("user", "Hello!"), said("assistant", "Hi.")], {"add_generation_prompt": False}),
    "system": ([said("system", "  Be brief.\n"), said("user", " What is 2+2? \n"), said("assistant", "4"), said("user", "Sure?")], {}),
    "unicode": ([said("user", "Größe 你好 👩‍👩‍👧 “quotes” <b>&amp;</b> \\n \"x\" 'y'")], {}),
    "late_system": ([said("user", "a"), said("system", "now in French"), said("user", "b")], {}),
    "two_users": ([said("user", "a"), said("user", "b")], {}),
    "tools": ([said("system", "Use tools."), said("user", "Weather in Rome?")], {"tools": [WEATHER, HIDDEN, CLOCK]}),
    "xml_tools": ([said("user", "Weather in Rome?")], {"xml_tools": [WEATHER["function"], CLOCK["function"]]}),
    "effort": ([said("user", "2+2?")], {"reasoning_effort": "high"}),
    "tool_call": (
        [
            said("user", "Weather in Rome?"),
            said("assistant", "", tool_calls=[called("abcdefghi", "weather", {"place": "Rome", "days": [1, 2], "ratio": 0.5, "é": None})]),
            said("tool", '{"t": 21}', tool_call_id="abcdefghi"),
            said("assistant", "It is 21 °C."),
        ],
        {"tools": [WEATHER]},
    ),
    "two_tool_calls": (
        [
            said("user", "Both?"),
            said("assistant", "Let me see", tool_calls=[called("a", "weather", {"place": "Rome"}), called("b", "clock", {})]),
            said("tool", "21"),
            said("tool", "12:00"),
        ],
        {"tools": [WEATHER, CLOCK]},
    ),
    "reasoned_call": (
        [
            said("user", "Weather in Rome?"),
            said("assistant", "", reasoning_content="I look it up.", tool_calls=[called("abcdefghi", "weather", {"place": "Rome", "days": [1, 2]})]),
            said("tool", '{"t": 21}', tool_call_id="abcdefghi"),
        ],
        {"tools": [WEATHER], "enable_thinking": True},
    ),
    "thoughts": (
        [
            said("user", "2+2?"),
            said("assistant", "<think>\nEasy.\n</think>\n\nIt is 4."),
            said("user", "3+3?"),
            said("assistant", "<think>\nHm.\n</think>\n\nIt is 6."),
        ],
        {"add_generation_prompt": False},
    ),
    "no_thinking": ([said("user", "2+2?")], {"enable_thinking": False}),
    "thinking": ([said("user", "2+2?")], {"enable_thinking": True}),
    "parts": ([said("system", [{"type": "text", "text": "S"}]), said("user", [{"type": "image"}, {"type": "text", "text": " What is this? "}])], {}),
    "no_content": ([said("user", "a"), said("assistant", None)], {}),
    "unknown_role": ([said("narrator", "Once upon a time")], {}),
    "date": ([said("user", "When?")], {"date_string": "02 Feb 2022"}),
    "empty": ([], {}),
}


def render(source, messages, variables):
    now = datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc)
    template = chat_template_utils._compile_jinja_template(source)
    context = {"tools": None, "documents": None, "add_generation_prompt": True, **SPECIAL, **variables}
    try:
        return {"text": template.render(messages=messages, strftime_now=lambda form: now.strftime(form), **context)}
    except jinja2.exceptions.UndefinedError:
        return {"fails": True}
    except jinja2.exceptions.TemplateError as error:
        return {"refused": str(error)}
    except Exception:
        return {"fails": True}


def make(folder):
    """Writes the results of the templates in a folder beside it."""
    conversations = {name: {"messages": messages, "variables": variables} for name, (messages, variables) in CONVERSATIONS.items()}
    results = {
        path.stem: {name: render(path.read_text(), *conversation) for name, conversation in CONVERSATIONS.items()}
        for path in sorted((folder / "templates").glob("*.jinja"))
    }
    goldens = {"now": NOW, "special": SPECIAL, "conversations": conversations, "results": results}
    (folder / "templates.json").write_text(json.dumps(goldens, indent=1, ensure_ascii=False) + "\n")
    counts = [result for by_name in results.values() for result in by_name.values()]
    print(len(counts), "results,", sum("text" in result for result in counts), "texts,", sum("refused" in result for result in counts), "refused")


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]))
