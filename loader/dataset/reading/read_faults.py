"""Wrong reads of this process, the newest 1,000: a hint at the node's memory, network or disk. All loaders share it."""

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

NEWEST = 1_000
"""Faults to remember."""


class ReadFault(NamedTuple):
    """Bytes that differ from their checksum, and were read again."""

    address: str
    """Key of the object, or name of the page."""
    begin: int
    """First byte."""
    end: int
    """Byte after the last one."""
    expected: str
    """CRC-32C of the stored bytes, 8 hex digits; "" if unknown."""
    actual: str
    """CRC-32C of the bytes that came; "" if unknown."""
    store: str
    """URL of the store, or folder of the cache."""
    kind: Literal["read", "cache page"]
    at_us: int
    """UTC microseconds since 1970."""

    def to_json(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "begin": self.begin,
            "end": self.end,
            "wanted": self.expected,  # records of earlier runs have these two names
            "found": self.actual,
            "store": self.store,
            "kind": self.kind,
            "at_us": self.at_us,
        }

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> "ReadFault":
        kind: Literal["read", "cache page"] = "read"
        if body["kind"] == "cache page":
            kind = "cache page"
        return ReadFault(
            address=str(body["address"]),
            begin=int(body["begin"]),
            end=int(body["end"]),
            expected=str(body["wanted"]),
            actual=str(body["found"]),
            store=str(body["store"]),
            kind=kind,
            at_us=int(body["at_us"]),
        )


class ReadFaults:
    """Faults in order; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: deque[ReadFault] = deque(maxlen=NEWEST)
        self.count = 0
        """Faults so far, forgotten ones included."""

    def extend(self, faults: Iterable[ReadFault]) -> None:
        with self._lock:
            for fault in faults:
                self._newest.append(fault)
                self.count += 1

    def after(self, count: int) -> tuple[int, list[ReadFault]]:
        """Return the count, and the faults after the first `count`, as far as they are remembered."""
        with self._lock:
            newest = list(self._newest)
            n_new = min(self.count - count, len(newest))
            return self.count, newest[len(newest) - n_new :]

    def drain(self) -> list[ReadFault]:
        """Return the remembered faults, and forget them."""
        with self._lock:
            faults = list(self._newest)
            self._newest.clear()
            return faults


FAULTS = ReadFaults()
"""Faults of this process and its workers."""


def add_fault(
    kind: Literal["read", "cache page"],
    store: str,
    address: str,
    extent: tuple[int, int],
    expected: int | None,
    actual: int | None,
) -> None:
    """Remember a fault. extent: first byte, number of bytes. expected, actual: CRC-32C; None if unknown."""
    begin, nbytes = extent
    fault = ReadFault(
        address=address,
        begin=begin,
        end=begin + nbytes,
        expected=_crc_text(expected),
        actual=_crc_text(actual),
        store=store,
        kind=kind,
        at_us=time.time_ns() // 1000,
    )
    FAULTS.extend([fault])


def _crc_text(crc: int | None) -> str:
    if crc is None:
        return ""
    return f"{crc:08x}"
