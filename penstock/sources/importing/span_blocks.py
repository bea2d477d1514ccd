"""Samples of a unit that are read together: their bytes come from objects to their places in a shard, copied once.

In a folder of this machine they are read where they lie. Of a bucket's objects neighbours share a request.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from contextvars import copy_context
from typing import NamedTuple

import numpy as np

from loader.dataset.shards.shard import Int64s
from loader.dataset.tables.columns import check_metadata, check_source
from loader.dataset.writing.part_writer import SampleBlock, Uint8s, check_case
from loader.foreign.earlier import token_of
from loader.foreign.parts import text_of
from loader.native import IN_MEMORY, RIGHT, UNKNOWN_CRC, OpenFile, crc32c, gather
from loader.storage import ObjectInfo, Store
from loader.storage.shared.threads import DaemonPool
from loader.storage.store import disk_of

from .span_units import Row, Unit

BLOCK_BYTES = 8 * 2**20
"""Bytes of a block, and of a request, unless one sample has more."""
BLOCK_OBJECTS = 64
"""Objects of a block, at most: all are open at once."""
GAP_BYTES = 64 * 2**10
"""Bytes between two fields that are read with them."""
AT_ONCE = 16
"""Requests of a block in flight."""


def blocks_of(store: Store, unit: Unit) -> Iterator[SampleBlock]:
    """Yield the samples of a unit in blocks.

    Raises: InvalidField; as a block's `fill` Changed where an object was written since it was listed, ObjectNotFound
    and Corrupt.
    """
    check_case(unit.rows[0].fields, f"sample {unit.rows[0].key!r}")
    told = _Provenance(store)
    for some in _cut(unit.rows):
        yield _block(store, some, told)


def read_rows(store: Store, rows: Sequence[Row]) -> Iterator[tuple[Row, dict[str, bytes]]]:
    """Yield each sample with its fields. Raises: as a block's `fill`."""
    for some in _cut(rows):
        requests, which = _requests(some)
        data = _fetched(store, requests)
        for row, numbers in zip(some, which.tolist(), strict=True):
            fields = {}
            for name, (offset, nbytes), number in zip(row.fields, row.spans, numbers, strict=True):
                start = offset - requests[number].offset
                fields[name] = data[number][start : start + nbytes]
            yield row, fields


def _cut(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield the rows of each block."""
    some, nbytes, objects = list[Row](), 0, set[str]()
    for row in rows:
        one_more = row.info.key not in objects and len(objects) == BLOCK_OBJECTS
        if some and (one_more or nbytes + row.nbytes > BLOCK_BYTES):
            yield some
            some, nbytes, objects = [], 0, set()
        some.append(row)
        nbytes += row.nbytes
        objects.add(row.info.key)
    yield some


def _block(store: Store, rows: Sequence[Row], told: "_Provenance") -> SampleBlock:
    places = np.array([row.spans for row in rows], np.int64).reshape(len(rows), len(rows[0].fields), 2)
    return SampleBlock(
        keys=[row.key for row in rows],
        fields=rows[0].fields,
        sizes=places[:, :, 1],
        metadata=[check_metadata(row.key, row.metadata) if row.metadata else row.metadata for row in rows],
        sources=[told.of(row) for row in rows],
        fill=_Bytes(store, rows, places).fill,
    )


class _Provenance:
    """Provenance of samples. Those of one object that have no more than its name share a mapping."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shared: dict[str, Mapping[str, str]] = {}

    def of(self, row: Row) -> Mapping[str, str]:
        info = row.info
        if info.key not in self._shared:
            of = {"raw_key": info.key, "raw_etag": token_of(self._store, info)}
            self._shared[info.key] = check_source(row.key, of)
        shared = self._shared[info.key]
        if row.source_key == row.key:
            return check_source(row.key, {**row.source, **shared}) if row.source else shared
        return check_source(row.key, {**row.source, **shared, "source_key": text_of(row.source_key)})


class _Request(NamedTuple):
    """Bytes of an object that are read at once."""

    info: ObjectInfo
    offset: int
    nbytes: int


class _Bytes:
    """The bytes of a block's samples."""

    def __init__(self, store: Store, rows: Sequence[Row], places: Int64s) -> None:
        """places: int64 [samples, fields, 2]: offset in the object, nbytes."""
        self._store, self._rows, self._places = store, rows, places
        self._read: tuple[list[OpenFile], Int64s, Int64s] | None = None

    def fill(self, columns: Sequence[int], memory: Uint8s, at: Int64s) -> Int64s:
        """Put the bytes of these fields into memory, as `SampleBlock.fill` says."""
        with ExitStack() as stack:
            found = self._opened(stack) or self._requested()
            files, which, begin = found[0], found[1][:, columns], found[2][:, columns]
            crcs, status = np.full(at.shape, UNKNOWN_CRC), np.empty(at.size, np.uint8)
            sizes = self._places[:, columns, 1]
            flat = [np.ascontiguousarray(array).reshape(-1) for array in (which, begin, sizes)]
            crcs = crcs.reshape(-1)
            gather(files, *flat, b"", memory, at.reshape(-1), crcs, status)
        for i in np.flatnonzero(status != RIGHT).tolist():  # the store says why, or can read it
            row, start, nbytes = self._rows[i // len(columns)], int(at.reshape(-1)[i]), int(flat[2][i])
            offset = int(self._places[i // len(columns), columns[i % len(columns)], 0])
            data = _get(self._store, _Request(row.info, offset, nbytes))
            memory[start : start + nbytes] = np.frombuffer(data, np.uint8)
            crcs[i] = crc32c(data)
        return crcs.reshape(at.shape)

    def _opened(self, stack: ExitStack) -> tuple[list[OpenFile], Int64s, Int64s] | None:
        """Return the objects as open files, and which file each field is in, and its first byte; None of a bucket."""
        if (disk := disk_of(self._store)) is None:
            return None
        numbers = dict[str, int]()
        files = list[OpenFile]()
        for row in self._rows:
            if row.info.key not in numbers:
                file = disk.open_same(row.info.key, row.info.etag)
                if file is None:
                    return None  # a read says why
                stack.callback(os.close, file)
                numbers[row.info.key] = len(files)
                files.append((file, None))
        which = np.array([numbers[row.info.key] for row in self._rows], np.int64)
        begin = self._places[:, :, 0]
        return files, np.broadcast_to(which[:, None], begin.shape), begin

    def _requested(self) -> tuple[list[OpenFile], Int64s, Int64s]:
        """Return as `_opened` the bytes of requests, which are made once. Raises: as `Store.get_range`."""
        if self._read is None:
            requests, which = _requests(self._rows)
            files: list[OpenFile] = [(IN_MEMORY, data) for data in _fetched(self._store, requests)]
            starts = np.array([one.offset for one in requests], np.int64)
            self._read = files, which, self._places[:, :, 0] - starts[which]
        return self._read


def _fetched(store: Store, requests: Sequence[_Request]) -> list[bytes]:
    """Return the bytes of requests. Raises: as `Store.get_range`."""
    pool = DaemonPool(AT_ONCE, "penstock-spans")
    try:
        coming = [pool.submit(copy_context().run, _get, store, one) for one in requests]
        return [future.result() for future in coming]
    finally:
        pool.dismiss()


def _get(store: Store, one: _Request) -> bytes:
    if not one.nbytes:
        return b""
    return bytes(store.get_range(one.info.key, one.offset, one.nbytes, one.info.etag or None).data)


def _requests(rows: Sequence[Row]) -> tuple[list[_Request], Int64s]:
    """Return the requests for the fields of rows, and which one each field is in, int64 [rows, fields]."""
    requests, which = list[_Request](), list[list[int]]()
    at = 0
    while at < len(rows):
        info = rows[at].info
        low, high = _extent(rows[at])
        stop = at + 1
        while stop < len(rows) and rows[stop].info is info:
            start, end = _extent(rows[stop])
            if not (high <= start <= high + GAP_BYTES and end - low <= BLOCK_BYTES):
                break
            high, stop = end, stop + 1
        together = rows[at:stop]
        if high - low > BLOCK_BYTES + 2 * sum(row.nbytes for row in together):
            for row in together:  # members of one sample that lie far apart
                which.append([*range(len(requests), len(requests) + len(row.spans))])
                requests += (_Request(info, *span) for span in row.spans)
        else:
            which += [[len(requests)] * len(row.spans) for row in together]
            requests.append(_Request(info, low, high - low))
        at = stop
    return requests, np.array(which, np.int64)


def _extent(row: Row) -> tuple[int, int]:
    """Return first byte and end of a sample's fields in the object."""
    return min(offset for offset, _ in row.spans), max(offset + nbytes for offset, nbytes in row.spans)
