"""Objects that a migration copies, their digests (`sha256:<hex>`, `crc32c:<hex>` or "") and rate limits."""

import ctypes
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any, Protocol

from google_crc32c import extend

from loader.errors import Corrupt, InvalidRuntime
from loader.storage import Store


class Pace:
    """Limits the average requests and bytes per second; None: no limit.

    Thread-safe. Raises: InvalidRuntime unless above 0.
    """

    def __init__(
        self,
        requests_per_s: float | None = None,
        bytes_per_s: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        for name, limit in (("requests_per_s", requests_per_s), ("bytes_per_s", bytes_per_s)):
            # `not >` refuses NaN too.
            if limit is not None and not limit > 0:
                message = f"{name} = {limit:g}: a number above 0 is needed, or leave it out"
                raise InvalidRuntime(message, what=name, given=limit, accepted="a number above 0")
        self.requests_per_s = requests_per_s
        self.bytes_per_s = bytes_per_s
        # Seconds per request and per byte; 0 without a limit.
        self._costs = (1 / requests_per_s if requests_per_s else 0.0, 1 / bytes_per_s if bytes_per_s else 0.0)
        self._lock = Lock()
        self._clock = clock
        self._sleep = sleep
        self._free_s = [clock(), clock()]  # when the next request and the next byte may go

    def take(self, requests: int = 0, nbytes: int = 0) -> None:
        """Wait until the limits allow these requests and bytes."""
        with self._lock:
            now = self._clock()
            wait_s = 0.0
            for which, amount in enumerate((requests, nbytes)):
                # Idle time earns no credit: after a pause, no burst exceeds the limit.
                begin = max(now, self._free_s[which])
                self._free_s[which] = begin + amount * self._costs[which]
                # A caller waits for earlier requests and bytes, not for its own: a large read starts at once.
                wait_s = max(wait_s, begin - now)
        # Outside the lock: other threads reserve their turn meanwhile.
        if wait_s > 0:
            self._sleep(wait_s)


class Hash(Protocol):
    """A hash object with hashlib's interface."""

    def update(self, data: bytes | memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


def _share_memory(data: memoryview) -> Any:
    # ctypes refuses read-only memory, which numpy wraps.
    if not data.readonly:
        return _array(len(data)).from_buffer(data)
    from numpy import frombuffer, uint8  # takes 0.1 s, so only for read-only buffers

    return frombuffer(data, uint8)


@lru_cache(maxsize=16)
def _array(nbytes: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    # Cached: a new type takes 20 us
    return ctypes.c_ubyte * nbytes


class Crc32c:
    """CRC-32C as a hash object, at a seventh of SHA-256's processor time.

    It proves no two objects equal: all files that end with their own CRC-32C share one value.
    """

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes | memoryview, /) -> None:
        """Hash the next bytes."""
        self._value = extend(
            self._value, data if isinstance(data, bytes) else _share_memory(memoryview(data))
        )

    def hexdigest(self) -> str:
        """Return eight hex digits, most significant first, as in a root's tables."""
        return f"{self._value:08x}"


KINDS: dict[str, Callable[[], Hash]] = {"sha256": hashlib.sha256, "crc32c": Crc32c}


class Digest:
    """The digest of streamed bytes. like: digest to compare with. kind: one of `KINDS`, used if `like` is ""."""

    def __init__(self, like: str, kind: str) -> None:
        self._kind = digest_kind(like) or kind
        self._hash = KINDS[self._kind]()
        self.update = self._hash.update

    def __str__(self) -> str:
        return f"{self._kind}:{self._hash.hexdigest()}"


def proves(digest: str) -> bool:
    """Return whether equal digests of this kind prove equal bytes."""
    return digest_kind(digest) == "sha256"


def digest_kind(digest: str) -> str:
    """Return a digest's kind, or "" if it is none of `KINDS`."""
    kind = digest.partition(":")[0]
    return kind if kind in KINDS else ""


def in_words(digest: str) -> str:
    """Return the digest in readable form."""
    return digest.replace(":", " ", 1)


def to_columns(digest: str) -> tuple[str, ...]:
    """Return a digest as table columns, one per kind in `KINDS`: hex for its kind, else ""."""
    return tuple(digest.partition(":")[2] if kind == digest_kind(digest) else "" for kind in KINDS)


def as_columns(key: str, nbytes: int, digest: str, etag: str) -> tuple[str | int, ...]:
    """Return an object's record as a table row."""
    return key, nbytes, *to_columns(digest), etag


def from_columns(*columns: str | None) -> str:
    """Return the digest from such columns. Earlier releases wrote only the first."""
    digests = (f"{kind}:{value}" for kind, value in zip(KINDS, columns, strict=False) if value)
    return next(digests, "")


HELD_BYTES = 64 * 2**20
"""Larger objects pass through a local file: only correct bytes reach the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One object to copy."""

    path: str
    """Key at the source and at the target."""
    nbytes: int | None
    """Size in bytes; None if unknown."""
    digest: str = ""
    """Expected digest; "" if unknown."""
    etag: str = ""
    """ETag that the source listed; "" accepts any."""
    may_exist: bool = False
    """True if the target may already have it."""
    was: str = ""
    """Digest of an earlier copy, if the source object seems to have changed; else ""."""
    replace: bool = False
    """True if the earlier copy may be replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The record of an object in the target."""

    path: str
    """Key."""
    nbytes: int
    """Size in bytes."""
    digest: str
    """Digest of its bytes; "" if they were not read."""
    etag: str = ""
    """ETag of the source object; "" if it is not compared."""
    written: bool = False
    """True if this run wrote it."""


def check(source: Store, item: Item, nbytes: int, digest: str) -> None:
    """Check an object's size and digest. digest: "" while unknown. Raises: Corrupt."""
    # A digest of "" is unknown, and not compared.
    known = [
        (stated, actual)
        for stated, actual in (
            ("" if item.nbytes is None else f"bytes {item.nbytes}", f"bytes {nbytes}"),
            (in_words(item.digest), in_words(digest)),
        )
        if stated and actual
    ]
    if any(stated != actual for stated, actual in known):
        says, has = (", ".join(parts) for parts in zip(*known, strict=True))
        raise Corrupt(
            f"{source.url}/{item.path} has {has}; the root states {says}. It was not copied: run penstock verify on "
            "the source, restore the object, then run this again",
            what="object",
            where=f"{source.url}/{item.path}",
            given=has,
            accepted=says,
        )
