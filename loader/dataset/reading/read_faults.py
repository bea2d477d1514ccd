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
    """Kind of bytes."""
    at_us: int
    """UTC microseconds since 1970."""

    def to_json(self) -> dict[str, Any]:
        names = {"expected": "wanted", "actual": "found"}
        return {names.get(name, name): value for name, value in self._asdict().items()}

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> "ReadFault":
        return ReadFault(
            address=str(body["address"]),
            begin=int(body["begin"]),
            end=int(body["end"]),
            expected=str(body["wanted"]),
            actual=str(body["found"]),
            store=str(body["store"]),
            kind="cache page" if body["kind"] == "cache page" else "read",
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
            new = min(self.count - count, len(self._newest))
            return self.count, list(self._newest)[len(self._newest) - new :]

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
    crcs = ["" if crc is None else f"{crc:08x}" for crc in (expected, actual)]
    fault = ReadFault(
        address=address,
        begin=begin,
        end=begin + nbytes,
        expected=crcs[0],
        actual=crcs[1],
        store=store,
        kind=kind,
        at_us=time.time_ns() // 1000,
    )
    FAULTS.extend([fault])
