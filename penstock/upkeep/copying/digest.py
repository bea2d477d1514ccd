"""The digest of an object's bytes that a migration notes: `sha256:<hex>` or `crc32c:<hex>`, "" where there is none."""

import ctypes
import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

from google_crc32c import extend


class Hash(Protocol):
    """A hash, as hashlib's."""

    def update(self, data: bytes | memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


def _uncopied(data: memoryview) -> Any:
    """Return the same memory as an object that `extend` takes, which takes no view."""
    if not data.readonly:
        return _array(len(data)).from_buffer(data)
    from numpy import frombuffer, uint8  # 0.1 s, where there is no other way

    return frombuffer(data, uint8)


@lru_cache(maxsize=16)
def _array(nbytes: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    """Return the array type of so many bytes. Kept: a type that has no object is made anew, which takes 20 us."""
    return ctypes.c_ubyte * nbytes


class Crc32c:
    """CRC-32C as a hash, for a seventh of SHA-256's processor time or less.

    It finds what broke, and proves no two objects the same: all files that end with their own CRC-32C have one.
    """

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes | memoryview, /) -> None:
        """Hash the next bytes."""
        self._value = extend(self._value, data if isinstance(data, bytes) else _uncopied(memoryview(data)))

    def hexdigest(self) -> str:
        """Return eight digits, the highest first, as in the tables of a root."""
        return f"{self._value:08x}"


KINDS: dict[str, Callable[[], Hash]] = {"sha256": hashlib.sha256, "crc32c": Crc32c}


class Digest:
    """The digest of bytes that come one after the other.

    like: a digest to compare with; gives the kind.
    kind: one of `KINDS`, where `like` is "".
    """

    def __init__(self, like: str, kind: str) -> None:
        self._kind = kind_of(like) or kind
        self._hash = KINDS[self._kind]()
        self.update = self._hash.update

    def __str__(self) -> str:
        return f"{self._kind}:{self._hash.hexdigest()}"


def proves(digest: str) -> bool:
    """Return whether bytes that have the same digest are the same."""
    return kind_of(digest) == "sha256"


def kind_of(digest: str) -> str:
    """Return the hash that a digest is of; "" where it is of none."""
    kind = digest.partition(":")[0]
    return kind if kind in KINDS else ""


def in_words(digest: str) -> str:
    """Return the digest for people."""
    return digest.replace(":", " ", 1)


def to_columns(digest: str) -> tuple[str, ...]:
    """Return a digest as tables have it: a column of hex for each of `KINDS`."""
    return tuple(digest.partition(":")[2] if kind == kind_of(digest) else "" for kind in KINDS)


def as_columns(key: str, nbytes: int, digest: str, etag: str) -> tuple[str | int, ...]:
    """Return the note on an object, as a row of such a table."""
    return key, nbytes, *to_columns(digest), etag


def from_columns(*columns: str | None) -> str:
    """Return the digest of columns that `to_columns` gave, or of a former release's, which had only the first."""
    found = (f"{kind}:{said}" for kind, said in zip(KINDS, columns, strict=False) if said)
    return next(found, "")
