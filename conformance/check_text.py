"""Does `ptero-text` give llama.cpp's tokens for a GGUF file, and llama.cpp's text of them?

    pip install llama-cpp-python tokenizers gguf
    cargo build --release -p ptero-checkpoint --example side_file
    cargo build --release -p ptero-text --example tokens
    python conformance/check_text.py target/release/examples model.gguf

As `check_tokenizer.py`, whose texts these are, but through our own crate instead of Python's tokenizers.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import llama_cpp
from check_tokenizer import Llama, special_texts, texts


def decode(llama, ids):
    """llama.cpp's text of tokens, special ones too."""
    tokens = (llama_cpp.llama_token * len(ids))(*ids)
    room = bytes(64 * len(ids) + 64)
    count = llama_cpp.llama_detokenize(llama.vocab, tokens, len(ids), room, len(room), False, True)
    return room[:count].decode(errors="replace")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("examples", type=pathlib.Path)
    parser.add_argument("gguf")
    parser.add_argument("--count", type=int, default=600)
    options = parser.parse_args()
    samples = list(texts(options.count, special_texts(options.gguf), 7))
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder) / name for name in ("tokenizer.json", "tokenizer_config.json")]
        for file in files:
            file.write_bytes(subprocess.run([options.examples / "side_file", options.gguf, file.name], check=True, stdout=subprocess.PIPE).stdout)
        lines = "".join(json.dumps(text) + "\n" for text in samples)
        done = subprocess.run([options.examples / "tokens", *files], check=True, input=lines, text=True, stdout=subprocess.PIPE)
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(answers) == len(samples)
    llama = Llama(options.gguf)
    wrong = differ = back = 0
    for text, answer in zip(samples, answers):
        expected = llama.encode(text, False), llama.encode(text, True)
        if expected != (answer["plain"], answer["special"]):
            wrong += 1
            print("tokens", repr(text), expected, answer)
        theirs = decode(llama, answer["plain"])
        if answer["text"] != theirs:
            differ += 1
            print("text", repr(theirs), repr(answer["text"]))
        # A vocabulary may lack bytes; llama.cpp leaves them out too.
        back += answer["text"] != text
    print(f"{len(samples)} texts: {wrong} with other tokens, {differ} decoded otherwise, {back} not themselves again")


if __name__ == "__main__":
    main()
