"""Does the `tokenizer.json` that we make of a GGUF file give the tokens that llama.cpp gives?

    pip install llama-cpp-python tokenizers gguf
    cargo build --release -p ptero-checkpoint --example side_file
    python conformance/check_tokenizer.py target/release/examples/side_file model.gguf [--pre NAME …]

Compares the ids of some thousand texts (prose of many scripts, code, numbers, runs of spaces, special tokens, noise), and that
decoding gives the text back. With `--pre`, copies of the file that name another pre-tokenizer are compared too: the vocabulary
is then not the one this pre-tokenizer was made for, but the words are cut the same way or they are not.
"""

import argparse
import random
import shutil
import subprocess
import tempfile
import unicodedata
from pathlib import Path

import gguf
import llama_cpp
from tokenizers import Tokenizer

PROSE = """The quick brown fox jumps over the lazy dog, doesn't it? I'LL see what they've done; we're fine. HE'S here, IT'D be.
Größe, Straße und Übermut: „schön“, sagte er – »ja«. Il était déjà là, n'est-ce pas ? ¿Dónde está el niño? Já não há pão.
Быстрая коричневая лиса прыгает. Η γρήγορη αλεπού. שלום עולם, מה שלומך? مرحبا بالعالم، كيف حالك؟ नमस्ते दुनिया, आप कैसे हैं?
你好，世界！今天天气很好。こんにちは、世界。カタカナとひらがな。안녕하세요 세계, 오늘은 좋은 날입니다. สวัสดีชาวโลก Xin chào thế giới.
👋🌍 🏳️‍🌈 👩‍👩‍👧‍👦 ✈️ e\u0301 a\u0308 \u212b \ufb01 ① ½ Ⅷ ٣٤٥ १२३ 12345678 3.14159 1,000,000 0x1F 1e-9 v2.0.1 2026-11-15T17:00:00Z
def main(argv: list[str]) -> int:\n    for i in range(10):\n\t\tprint(f"{i:>3} {argv[i]!r}")\n    return 0\n
#include <stdio.h>\nint main(void) { printf("%d\\n", a->b[3] << 2); return x != y && !z; } /* done */ // end\n
SELECT * FROM t WHERE a >= 1.5 AND b LIKE '%x_%'; <div class="a b">&nbsp;</div> {"key": [1, null, true], "url": "https://a.b/c?d=e#f"}
$x^2 + \\alpha_{ij} \\le \\frac{1}{2}$ | a | b |\n|---|---|\n- [ ] todo\n* **bold** _it_ `code` ~~no~~ ... !!! ??? --- === ___ $$$ %%% @@@ ^^^ ~~~
CamelCaseWord snake_case_word kebab-case-word SCREAMING_SNAKE iPhone McDonald's O'Neill rock'n'roll don''t 'quoted' ''s 's""".split("\n")

SPACES = [" ", "  ", "   ", " " * 7, " " * 33, "\t", "\t\t ", "\n", "\n\n", "\n\n\n", " \n", "\n ", "\r\n", "\r\n\r\n", "\u00a0", "\u3000", "\u2028", "\x0b", "\x0c", "\u200b", "\ufeff"]


def texts(count, special, seed):
    chance = random.Random(seed)
    lines = [line for line in PROSE if line]
    words = [word for line in lines for word in line.split(" ") if word]
    scalars = [(0x20, 0x7E), (0xA1, 0x24F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0x97F), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0x2000, 0x2BFF), (0x1F300, 0x1FAFF), (1, 0x1F), (0x7F, 0xA0), (0x10000, 0x103FF)]
    yield from ("", " ", "a", " a", "a ", "\n", *PROSE, *SPACES)
    yield from special
    for _ in range(count):
        kind = chance.randrange(5)
        if kind == 0:
            yield "".join(chance.choice(words) + chance.choice([" ", " ", *SPACES]) for _ in range(chance.randrange(1, 12)))
        elif kind == 1:
            yield "".join(chr(chance.randint(*chance.choice(scalars))) for _ in range(chance.randrange(1, 30)))
        elif kind == 2:
            yield "".join(chance.choice("0123456789.,+-eE x%$") for _ in range(chance.randrange(1, 20)))
        elif kind == 3:
            parts = [chance.choice(words), chance.choice(SPACES), chance.choice(special or ["<s>"])]
            yield "".join(chance.choice(parts) for _ in range(chance.randrange(1, 8)))
        else:
            line = chance.choice(lines)
            start = chance.randrange(len(line))
            yield line[start : start + chance.randrange(1, 60)]


class Llama:
    def __init__(self, path):
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, path
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)

    def encode(self, text, add_special):
        data = text.encode()
        room = (llama_cpp.llama_token * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(self.vocab, data, len(data), room, len(room), add_special, True)
        return list(room[:count])


def special_texts(path):
    reader = gguf.GGUFReader(path)
    tokens, types = (reader.fields.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    kinds = types.contents() if types else []
    return [token for token, kind in zip(tokens.contents(), kinds) if kind in (3, 4)][:200]


def with_pre(path, name, folder):
    """A copy with another text under the key; padded with tensors left out, since only the vocabulary is read."""
    reader = gguf.GGUFReader(path)
    out = Path(folder) / f"{name}.gguf"
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind, sub = field.types[0], field.types[-1] if len(field.types) > 1 else None
        value = name if key == "tokenizer.ggml.pre" else field.contents()
        writer.add_key_value(key, value, kind, sub_type=sub)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return out


def compare(program, path, count):
    json = subprocess.run([program, path, "tokenizer.json"], check=True, capture_output=True).stdout
    ours, theirs = Tokenizer.from_str(json.decode()), Llama(path)
    composes = ours.normalizer is not None and "NFC" in str(ours.normalizer)
    compared = differ = lost = 0
    for text in texts(count, special_texts(path), 2026):
        # llama.cpp does not compose characters, where the model's own tokenizer does.
        text = unicodedata.normalize("NFC", text) if composes else text
        for add_special in (False, True):
            mine, wanted = ours.encode(text, add_special_tokens=add_special).ids, theirs.encode(text, add_special)
            compared += 1
            if mine != wanted:
                differ += 1
                if differ <= 5:
                    print(f"  {text!r}\n    ours   {mine}\n    llama  {wanted}")
        lost += ours.decode(ours.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) != text
    print(f"{Path(path).stem}: {compared} compared, {differ} differ, {lost} texts not given back by decoding", flush=True)
    return differ


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("gguf")
    parser.add_argument("--pre", nargs="*", default=[])
    parser.add_argument("--count", type=int, default=2000)
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp()
    try:
        paths = [arguments.gguf, *(with_pre(arguments.gguf, name, folder) for name in arguments.pre)]
        raise SystemExit(sum(compare(arguments.program, path, arguments.count) for path in paths) > 0)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
