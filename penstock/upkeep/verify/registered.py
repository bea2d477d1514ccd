"""Check registered bytes: the objects are unchanged, and with `--full` every field."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from loader import Version
from loader.dataset.shards.address import UNKNOWN_CRC
from loader.dataset.shards.index import IndexFile, IndexRows
from loader.dataset.shards.shard import crc32c
from loader.errors import Corrupt, PenstockError
from loader.storage import Span

from .shard import Problem, other_key, too_few_rows

READ_BYTES = 16 * 2**20
"""Bytes of fields read together, or one larger field."""


def check_registered(
    version: Version,
    shard: dict[str, Any],
    address: str,
    index: IndexFile,
    keys: list[str] | None,
    unverified: Callable[[int], None],
) -> Iterator[Problem]:
    """Read every field of a registered shard, and compare it with its known checksum.

    keys: of the part, by the samples table; None if unknown. unverified: receives the bytes of fields without a
    checksum.
    """
    decoded = version.placed.objects(shard["path"])[0].decoded if version.placed else None
    if decoded is not None:
        decoded.forget()  # read the stored bytes, not cached ones
    row = 0
    while row < index.n_rows:
        rows = index.read_group(index.row_group_of(row))
        yield from other_key(address, rows, row, keys)
        yield from _fields(version, shard, rows, unverified, by_chunk=decoded is not None)
        row += len(rows.keys)
    yield from too_few_rows(address, row, keys)


def _fields(
    version: Version,
    shard: dict[str, Any],
    rows: IndexRows,
    unverified: Callable[[int], None],
    *,
    by_chunk: bool,
) -> Iterator[Problem]:
    """Check the fields of these rows, by offset. by_chunk: they are decoded by the chunk."""
    names = sorted(rows.offset)
    order = np.argsort(rows.places[:, :, 0], axis=None, kind="stable")
    nbytes = rows.places[:, :, 1].reshape(-1)[order]
    cuts = np.flatnonzero(np.diff(np.cumsum(nbytes) // READ_BYTES)) + 1
    windows = deque(np.split(order, cuts))
    while windows:
        window = windows.popleft()
        at = [divmod(flat, len(names)) for flat in window.tolist()]
        places = [rows.places[local, number].tolist() for local, number in at]
        try:
            blobs = version.shard_store.get_ranges(shard["path"], [Span(*place[:2]) for place in places])
        except PenstockError as error:
            if by_chunk and len(window) > 1 and isinstance(error, Corrupt):
                windows.extendleft(reversed(np.array_split(window, 2)))
                continue
            yield Problem(
                address=_where(version, shard, rows.keys[at[0][0]], names[at[0][1]], places[0]),
                what=str(error),
            )
            continue
        for (local, number), place, blob in zip(at, places, blobs, strict=True):
            if place[2] == UNKNOWN_CRC:
                unverified(place[1])
            elif (actual := crc32c(blob.data)) != place[2]:
                yield Problem(
                    address=_where(version, shard, rows.keys[local], names[number], place),
                    what=f"its CRC-32C is {actual:08x}, {place[2]:08x} is known of it",
                )


def _where(version: Version, shard: dict[str, Any], key: str, field: str, place: list[int]) -> str:
    span = f"{shard['group']}[{place[0]}:{place[0] + place[1]}]"
    return f"{version.name}/{shard['part']} {span} sample {key!r} field {field!r} ({shard['path']})"
