"""Copy samples that are byte ranges of objects, each byte once; neighbours in a bucket's object share a request."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from loader.dataset.names import key_hash
from loader.dataset.tables.columns import check_metadata, check_source
from loader.dataset.writing.part_writer import SampleBlock, Uint8s, check_case
from loader.native import IN_MEMORY, RIGHT, UNKNOWN_CRC, OpenFile, crc32c, gather
from loader.storage import ObjectInfo, Store
from loader.storage.store import as_disk
from loader.storage.threads import DaemonPool

from ..reading.sample import ForeignShard
from ..registration.parts import key_text
from ..registration.shard_rows import Rows
from ..registration.source_difference import token_of
from .write_parts import RENAMED

Int64s = np.ndarray[Any, np.dtype[np.int64]]

BLOCK_BYTES = 8 * 2**20
"""Largest block or request, in bytes, unless one sample is larger."""
BLOCK_OBJECTS = 64
"""Most objects per block; all are open at once."""
GAP_BYTES = 64 * 2**10
"""Largest gap between fields of a request, in bytes."""
AT_ONCE = 16
"""Concurrent requests per block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanSamples:
    """Samples with equal fields, column by column."""

    keys: Sequence[str]
    """Keys in the version."""
    source_keys: Sequence[str]
    """Keys in the foreign format."""
    fields: tuple[str, ...]
    """Sorted names."""
    metadata: Sequence[Mapping[str, Any]]
    """Column -> value, per sample."""
    sources: Sequence[Mapping[str, str]]
    """Provenance column -> value, per sample."""
    objects: Sequence[str]
    """Object key per sample."""
    infos: Mapping[str, ObjectInfo]
    """Object key -> the object."""
    places: Int64s
    """int64 [samples, fields, 2]: offset in the object, length in bytes."""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def sizes(self) -> Int64s:
        """int64 [samples]: bytes of their fields."""
        sizes: Int64s = self.places[:, :, 1].sum(axis=1)
        return sizes

    def cut(self, start: int, stop: int) -> "SpanSamples":
        return SpanSamples(
            keys=self.keys[start:stop],
            source_keys=self.source_keys[start:stop],
            fields=self.fields,
            metadata=self.metadata[start:stop],
            sources=self.sources[start:stop],
            objects=self.objects[start:stop],
            infos=self.infos,
            places=self.places[start:stop],
        )


@dataclass(frozen=True, slots=True)
class SpanUnit:
    """Samples that become one part."""

    number: int
    """Index in the import."""
    rows: SpanSamples
    """Samples in order."""
    size: int
    """Bytes of the shards, or number of samples."""
    renamed: bool = False
    """True if keys or groups differ from the guess."""

    @property
    def name(self) -> str:
        return f"{self.number:05d}{RENAMED if self.renamed else ''}"


def span_samples(
    walked: Sequence[tuple[ForeignShard, Rows]], keys: Sequence[Sequence[str]]
) -> list[SpanSamples]:
    """Return the samples of each run of rows. keys: sample keys per run."""
    out = []
    for (shard, rows), own_keys in zip(walked, keys, strict=True):
        start_of = {info.key: start for info, start in zip(shard.infos, shard.offsets, strict=True)}
        starts = np.array([start_of[key] for key in rows.objects], np.int64)  # [rows]: of each row's object
        places = rows.spans().copy()  # [rows, fields, 2]: offsets in the shard
        places[:, :, 0] -= starts[:, None]
        out.append(
            SpanSamples(
                keys=own_keys,
                source_keys=rows.source_keys,
                fields=rows.fields,
                metadata=rows.each_metadata(),
                sources=rows.sources,
                objects=rows.objects,
                infos={info.key: info for info in shard.infos},
                places=places,
            )
        )
    return out


def span_units(runs: Sequence[SpanSamples], shard_bytes: int) -> list[SpanUnit]:
    """Return units of about `shard_bytes`, by key hash."""
    kinds: dict[tuple[str, ...], list[SpanSamples]] = {}
    for run in runs:
        kinds.setdefault(run.fields, []).append(run)
    ordered = [_in_hash_order(same_fields) for _, same_fields in sorted(kinds.items())]
    return [SpanUnit(number, rows, len(rows)) for number, rows in enumerate(cut(ordered, shard_bytes))]


def cut(runs: Sequence[SpanSamples], shard_bytes: int) -> Iterator[SpanSamples]:
    """Yield slices of runs; each ends with the sample that reaches `shard_bytes`."""
    for run in runs:
        ends = np.cumsum(run.sizes)  # [samples]: bytes of the run through each sample
        start = 0
        yielded_bytes = 0
        while start < len(run):
            last = int(np.searchsorted(ends, yielded_bytes + shard_bytes))
            stop = min(len(run), last + 1)
            yield run.cut(start, stop)
            start = stop
            yielded_bytes = int(ends[stop - 1])


def _in_hash_order(runs: Sequence[SpanSamples]) -> SpanSamples:
    keys = [*chain.from_iterable(run.keys for run in runs)]
    hashes = [key_hash(key) for key in keys]
    order = sorted(range(len(keys)), key=hashes.__getitem__)
    infos: dict[str, ObjectInfo] = {}
    for run in runs:
        infos.update(run.infos)

    def order_columns(columns: Iterator[Sequence[Any]]) -> list[Any]:
        values = [*chain.from_iterable(columns)]
        return [values[number] for number in order]

    return SpanSamples(
        keys=[keys[number] for number in order],
        source_keys=order_columns(run.source_keys for run in runs),
        fields=runs[0].fields,
        metadata=order_columns(run.metadata for run in runs),
        sources=order_columns(run.sources for run in runs),
        objects=order_columns(run.objects for run in runs),
        infos=infos,
        places=np.concatenate([run.places for run in runs])[order],
    )


def sample_blocks(store: Store, unit: SpanUnit) -> Iterator[SampleBlock]:
    """Yield a unit's samples in blocks. `fill` raises Changed if an object changed."""
    check_case(unit.rows.fields, f"sample {unit.rows.keys[0]!r}")
    provenance = _Provenance(store)
    for block in _cut(unit.rows):
        yield _block(store, block, provenance)


def read_fields(store: Store, samples: SpanSamples) -> Iterator[dict[str, bytes]]:
    """Yield each sample's fields. Holds the bytes of one block."""
    for block in _cut(samples):
        requests, request_of = _requests(block)
        data = _fetch(store, requests)
        for places, numbers in zip(block.places.tolist(), request_of.tolist(), strict=True):
            fields = {}
            for name, (offset, nbytes), number in zip(block.fields, places, numbers, strict=True):
                start = offset - requests[number].offset
                fields[name] = data[number][start : start + nbytes]
            yield fields


def _cut(samples: SpanSamples) -> Iterator[SpanSamples]:
    """Yield blocks of at most `BLOCK_BYTES` and `BLOCK_OBJECTS`; a larger sample is a block by itself."""
    ends = np.cumsum(samples.sizes)  # [samples]: bytes through each sample
    start = 0
    yielded_bytes = 0
    while start < len(samples):
        stop = int(np.searchsorted(ends, yielded_bytes + BLOCK_BYTES, "right"))
        stop = max(start + 1, stop)
        objects = [*dict.fromkeys(samples.objects[start:stop])]
        if len(objects) > BLOCK_OBJECTS:
            stop = start + samples.objects[start:stop].index(objects[BLOCK_OBJECTS])
        yield samples.cut(start, stop)
        start = stop
        yielded_bytes = int(ends[stop - 1])


def _block(store: Store, samples: SpanSamples, provenance: "_Provenance") -> SampleBlock:
    metadata = []
    for key, values in zip(samples.keys, samples.metadata, strict=True):
        # Many formats have none: the check of an empty mapping is a call per sample.
        metadata.append(check_metadata(key, values) if values else values)
    return SampleBlock(
        keys=samples.keys,
        fields=samples.fields,
        sizes=samples.places[:, :, 1],
        metadata=metadata,
        sources=[*provenance.of(samples)],
        fill=_BlockBytes(store, samples).fill,
    )


class _Provenance:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._shared: dict[str, Mapping[str, str]] = {}

    def of(self, samples: SpanSamples) -> Iterator[Mapping[str, str]]:
        """Yield each sample's provenance; the columns of an object are checked once."""
        for object_key in set(samples.objects) - self._shared.keys():
            token = token_of(self._store, samples.infos[object_key])
            columns = {"raw_key": object_key, "raw_etag": token}
            self._shared[object_key] = check_source(samples.keys[0], columns)
        for key, source_key, source, object_key in zip(
            samples.keys, samples.source_keys, samples.sources, samples.objects, strict=True
        ):
            shared = self._shared[object_key]
            if source_key != key:
                yield check_source(key, {**source, **shared, "source_key": key_text(source_key)})
            elif source:
                yield check_source(key, {**source, **shared})
            else:
                yield shared


class _Origin(NamedTuple):
    """Values of a block's samples, as ranges of files."""

    files: list[OpenFile]
    """Open objects, or requests' bytes in memory."""
    which: Int64s
    """int64 [samples, fields]: index in `files`."""
    begin: Int64s
    """int64 [samples, fields]: offset in that file."""


class _Request(NamedTuple):
    info: ObjectInfo
    offset: int
    nbytes: int


class _BlockBytes:
    def __init__(self, store: Store, samples: SpanSamples) -> None:
        self._store = store
        self._samples = samples
        self._read: _Origin | None = None

    def fill(self, columns: Sequence[int], memory: Uint8s, at: Int64s) -> Int64s:
        """Copy the columns' values to `memory`; return their CRC-32C, shaped as `at`.

        at: int64 [samples, columns]: offset of each value in `memory`.
        """
        starts = at.reshape(-1)
        sizes = _flat(self._samples.places[:, columns, 1])
        crcs = np.full(at.size, UNKNOWN_CRC)
        status = np.empty(at.size, np.uint8)
        with ExitStack() as stack:
            origin = self._open(stack)
            if origin is None:
                origin = self._requested()
            which = _flat(origin.which[:, columns])
            begin = _flat(origin.begin[:, columns])
            gather(origin.files, which, begin, sizes, b"", memory, starts, crcs, status)
        for value in np.flatnonzero(status != RIGHT).tolist():  # the store reads it, or raises the reason
            row, column = divmod(value, len(columns))
            info = self._samples.infos[self._samples.objects[row]]
            offset = int(self._samples.places[row, columns[column], 0])
            nbytes = int(sizes[value])
            data = _get(self._store, _Request(info, offset, nbytes))
            start = int(starts[value])
            memory[start : start + nbytes] = np.frombuffer(data, np.uint8)
            crcs[value] = crc32c(data)
        return crcs.reshape(at.shape)

    def _open(self, stack: ExitStack) -> _Origin | None:
        """Return the objects as files of a disk, which `stack` closes; None for a bucket or a changed object."""
        disk = as_disk(self._store)
        if disk is None:
            return None
        number_of: dict[str, int] = {}
        files: list[OpenFile] = []
        for key in dict.fromkeys(self._samples.objects):
            file = disk.open_same(key, self._samples.infos[key].etag)
            if file is None:
                return None  # a read through the store raises the reason
            stack.callback(os.close, file)
            number_of[key] = len(files)
            files.append((file, None))
        numbers = np.array([number_of[key] for key in self._samples.objects], np.int64)  # [samples]
        begin = self._samples.places[:, :, 0]
        return _Origin(files, np.broadcast_to(numbers[:, None], begin.shape), begin)

    def _requested(self) -> _Origin:
        """Return the objects' ranges, from requests at the first call."""
        if self._read is None:
            requests, which = _requests(self._samples)
            files: list[OpenFile] = [(IN_MEMORY, data) for data in _fetch(self._store, requests)]
            starts = np.array([request.offset for request in requests], np.int64)
            begin = self._samples.places[:, :, 0] - starts[which]
            self._read = _Origin(files, which, begin)
        return self._read


def _flat(values: Int64s) -> Int64s:
    return np.ascontiguousarray(values).reshape(-1)


def _fetch(store: Store, requests: Sequence[_Request]) -> list[bytes]:
    pool = DaemonPool(AT_ONCE, "penstock-spans")
    try:
        futures = [pool.submit(copy_context().run, _get, store, request) for request in requests]
        return [future.result() for future in futures]
    finally:
        pool.dismiss()


def _get(store: Store, request: _Request) -> bytes:
    if not request.nbytes:
        return b""
    info = request.info
    response = store.get_range(info.key, request.offset, request.nbytes, info.etag or None)
    return bytes(response.data)


def _requests(samples: SpanSamples) -> tuple[list[_Request], Int64s]:
    """Return requests, and int64 [samples, fields]: the request of each value."""
    requests: list[_Request] = []
    which: list[list[int]] = []
    offsets = samples.places[:, :, 0]
    ends = offsets + samples.places[:, :, 1]
    lows = offsets.min(axis=1).tolist()  # [samples]: first byte
    highs = ends.max(axis=1).tolist()  # [samples]: byte after the last
    n_fields = len(samples.fields)
    start = 0
    while start < len(samples):
        info = samples.infos[samples.objects[start]]
        low = lows[start]
        stop = _request_stop(samples, lows, highs, start)
        high = highs[stop - 1]
        value_bytes = int(samples.places[start:stop, :, 1].sum())
        if high - low > BLOCK_BYTES + 2 * value_bytes:
            # The fields of a sample are far apart: a request each. Samples that share one are near each other.
            for places in samples.places[start:stop].tolist():
                which.append([*range(len(requests), len(requests) + n_fields)])
                requests += [_Request(info, offset, nbytes) for offset, nbytes in places]
        else:
            which += [[len(requests)] * n_fields] * (stop - start)
            requests.append(_Request(info, low, high - low))
        start = stop
    return requests, np.array(which, np.int64)


def _request_stop(samples: SpanSamples, lows: list[int], highs: list[int], start: int) -> int:
    """Return the sample after the last that shares a request with sample `start`."""
    stop = start + 1
    while stop < len(samples) and samples.objects[stop] == samples.objects[start]:
        end = highs[stop - 1]
        is_near = end <= lows[stop] <= end + GAP_BYTES
        if not is_near or highs[stop] - lows[start] > BLOCK_BYTES:
            break
        stop += 1
    return stop
