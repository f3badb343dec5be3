"""Draws `docs/run.svg`: the terminal while `ptero run` writes, each token at the time it came.

    python docs/make_terminal.py target/release/ptero docs/run.svg -p "Once upon a time" -s 42

What the picture shows is a real run, recorded through `--json`. No package is needed.
"""

import html
import json
import subprocess
import sys
import time

ENDS = {"eos": "the text ended", "length": "as long as asked for", "context": "the context is full", "stop": "a stop string"}
COLUMNS, FONT, ADVANCE, LINE, MARGIN = 112, 14, 8.43, 20, 18


def record(program, args):
    """The events of a run, each with the seconds since its start."""
    started = time.monotonic()
    with subprocess.Popen([program, "run", "--json", *args], stdout=subprocess.PIPE, text=True, bufsize=1) as run:
        events = [(time.monotonic() - started, json.loads(line)) for line in run.stdout]
    if run.returncode != 0:
        sys.exit("the run failed")
    return events


def settings(start):
    words = [f"temperature {start['temperature']}"]
    words += [f"top-k {start['top_k']}"] if start["top_k"] else []
    words += [f"top-p {start['top_p']}"] if (start["top_p"] or 1) < 1 else []
    return f"{start['model']} on {start['device']}: seed {start['seed']}, {', '.join(words)}"


def timings(end):
    return (
        f"load {end['load_seconds'] * 1e3:.0f} ms · "
        f"prompt {end['prompt_tokens']} tokens, {end['prefill_tokens_per_second']:.0f}/s · "
        f"first token after {end['first_token_seconds'] * 1e3:.0f} ms · "
        f"{end['new_tokens']} tokens, {end['decode_tokens_per_second']:.1f}/s · {ENDS[end['reason']]}"
    )


class Screen:
    """Pieces of text where a terminal would put them."""

    def __init__(self):
        self.row, self.column, self.parts = 0, 0, []

    def put(self, text, at, kind):
        for word in split(text):
            if word == "\n":
                self.newline()
                continue
            if self.column + len(word) > COLUMNS and not word.isspace():
                self.newline()
                word = word.lstrip()
            x, y = MARGIN + self.column * ADVANCE, 58 + self.row * LINE
            length = f' textLength="{len(word) * ADVANCE:.1f}" lengthAdjust="spacingAndGlyphs"' if word.strip() else ""
            delay = f' style="animation-delay:{at:.2f}s"' if at else ""
            self.parts.append(f'<text x="{x:.1f}" y="{y}" class="{kind}"{delay}{length}>{html.escape(word)}</text>')
            self.column += len(word)

    def newline(self):
        self.row, self.column = self.row + 1, 0


def split(text):
    """Words with the space before them, and line breaks."""
    word = ""
    for character in text:
        if character == "\n" or (character == " " and word.strip()):
            if word:
                yield word
            word = ""
        if character == "\n":
            yield character
        else:
            word += character
    if word:
        yield word


def draw(command, prompt, events):
    screen, pause = Screen(), 0.6
    screen.put(f"$ {command}", 0, "typed")
    screen.newline()
    screen.put(settings(events[0][1]), pause, "dim new")
    screen.newline()
    screen.put(prompt, pause, "prompt new")
    for at, event in events:
        if event["event"] in ("token", "text"):
            screen.put(event["text"], pause + at, "new")
    screen.newline()
    last = pause + events[-1][0]
    screen.put(timings(events[-1][1]), last, "dim new")
    width, height = 2 * MARGIN + COLUMNS * ADVANCE, 58 + screen.row * LINE + MARGIN
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}">
<title>{html.escape(command)}</title>
<style>
text {{ font: {FONT}px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #e6e1d6; white-space: pre }}
.dim {{ fill: #8b8778 }} .typed {{ fill: #9ccf8a }} .prompt {{ fill: #e9b872; font-weight: 600 }}
@media (prefers-reduced-motion: no-preference) {{ .new {{ opacity: 0; animation: show .01s linear forwards }} }}
@keyframes show {{ to {{ opacity: 1 }} }}
</style>
<rect width="100%" height="100%" rx="10" fill="#1d1f21"/>
<circle cx="22" cy="20" r="6" fill="#e0645c"/><circle cx="42" cy="20" r="6" fill="#e3b341"/><circle cx="62" cy="20" r="6" fill="#57ab5a"/>
{chr(10).join(screen.parts)}
</svg>
"""


def main():
    program, out, *args = sys.argv[1:]
    prompt = args[args.index("-p") + 1]
    quoted = [f'"{arg}"' if " " in arg else arg for arg in args]
    picture = draw(" ".join(["ptero run", *quoted]), prompt, record(program, args))
    with open(out, "w", encoding="utf-8") as file:
        file.write(picture)


main()
