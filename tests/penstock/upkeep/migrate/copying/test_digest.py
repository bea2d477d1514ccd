"""What a migration notes of bytes: as the libraries say, whatever they lie in, and as tables have it."""

import hashlib
from random import Random

import pytest
from google_crc32c import python, value

from penstock.upkeep.copying.items import KINDS, Digest, from_columns, in_words, to_columns

DATA = Random(5).randbytes(10_000)
RIGHT = {
    "sha256": lambda data: f"sha256:{hashlib.sha256(data).hexdigest()}",
    "crc32c": lambda data: f"crc32c:{value(data):08x}",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("held", [bytes, memoryview, lambda data: memoryview(bytearray(data))])
@pytest.mark.parametrize("data", [DATA, b""])
def test_bytes_in_pieces_of_any_buffer(kind, held, data):
    digest, pieces = Digest("", kind), held(data)
    for at in range(0, len(data) + 1, 3_000):
        digest.update(pieces[at : at + 3_000])
    assert str(digest) == RIGHT[kind](data)


def test_without_the_extension_in_c(monkeypatch):
    monkeypatch.setattr("penstock.upkeep.copying.items.extend", python.extend)
    for data in (DATA, memoryview(DATA), memoryview(bytearray(DATA)), bytearray(DATA)):
        digest = Digest("", "crc32c")
        digest.update(data)
        assert str(digest) == RIGHT["crc32c"](DATA)


def test_known_value():
    """Of RFC 3720, B.4: 32 bytes of zeros."""
    digest = Digest("", "crc32c")
    digest.update(bytes(32))
    assert str(digest) == "crc32c:8a9136aa"


@pytest.mark.parametrize(
    ("like", "kind", "taken"),
    [
        ("", "crc32c", "crc32c"),
        ("unknown", "sha256", "sha256"),
        ("crc32c:00000000", "sha256", "crc32c"),
        (f"sha256:{'0' * 64}", "crc32c", "sha256"),
    ],
)
def test_what_it_is_compared_with_says_which_hash_is_taken(like, kind, taken):
    assert str(Digest(like, kind)) == RIGHT[taken](b"")


@pytest.mark.parametrize("digest", ["", *(right(DATA) for right in RIGHT.values())])
def test_there_and_back(digest):
    assert from_columns(*to_columns(digest)) == digest


def test_what_former_releases_wrote_had_one_column():
    assert from_columns("ab") == from_columns("ab", None) == "sha256:ab"
    assert from_columns("") == from_columns(None, None) == ""


def test_for_people():
    assert in_words("crc32c:8a9136aa") == "crc32c 8a9136aa"
