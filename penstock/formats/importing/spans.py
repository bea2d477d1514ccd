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
from loader.storage.store import disk_of
from loader.storage.threads import DaemonPool

from ..registration.earlier import token_of
from ..registration.parts import text_of
from ..registration.shard_rows import ForeignShard, Rows
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


def samples_in(
    walked: Sequence[tuple[ForeignShard, Rows]], keys: Sequence[Sequence[str]]
) -> list[SpanSamples]:
    """Return the samples of each run of rows. keys: sample keys per run."""
    out = []
    for (shard, rows), own in zip(walked, keys, strict=True):
        start_of = {info.key: start for info, start in zip(shard.infos, shard.offsets, strict=True)}
        starts = np.array([start_of[of] for of in rows.objects], np.int64)
        places = rows.spans()
        out.append(
            SpanSamples(
                keys=own,
                source_keys=rows.source_keys,
                fields=rows.fields,
                metadata=rows.each_metadata(),
                sources=rows.sources,
                objects=rows.objects,
                infos={info.key: info for info in shard.infos},
                places=np.stack([places[:, :, 0] - starts[:, None], places[:, :, 1]], axis=2),
            )
        )
    return out


def units_of(runs: Sequence[SpanSamples], shard_bytes: int) -> list[SpanUnit]:
    """Return units of about `shard_bytes`, by key hash."""
    kinds: dict[tuple[str, ...], list[SpanSamples]] = {}
    for run in runs:
        kinds.setdefault(run.fields, []).append(run)
    ordered = [_in_hash_order(same_fields) for _, same_fields in sorted(kinds.items())]
    return [SpanUnit(number, rows, len(rows)) for number, rows in enumerate(cut(ordered, shard_bytes))]


def cut(runs: Sequence[SpanSamples], shard_bytes: int) -> Iterator[SpanSamples]:
    """Yield slices of runs; each ends with the sample that reaches `shard_bytes`."""
    for run in runs:
        ends, start, done = np.cumsum(run.sizes), 0, 0
        while start < len(run):
            stop = min(len(run), int(np.searchsorted(ends, done + shard_bytes)) + 1)
            yield run.cut(start, stop)
            start, done = stop, int(ends[stop - 1])


def _in_hash_order(runs: Sequence[SpanSamples]) -> SpanSamples:
    keys = [*chain.from_iterable(run.keys for run in runs)]
    hashes = [key_hash(key) for key in keys]
    order = sorted(range(len(keys)), key=hashes.__getitem__)

    def ordered(columns: Iterator[Sequence[Any]]) -> list[Any]:
        return [*map([*chain.from_iterable(columns)].__getitem__, order)]

    return SpanSamples(
        keys=[*map(keys.__getitem__, order)],
        source_keys=ordered(run.source_keys for run in runs),
        fields=runs[0].fields,
        metadata=ordered(run.metadata for run in runs),
        sources=ordered(run.sources for run in runs),
        objects=ordered(run.objects for run in runs),
        infos={key: info for run in runs for key, info in run.infos.items()},
        places=np.concatenate([run.places for run in runs])[order],
    )


def blocks_of(store: Store, unit: SpanUnit) -> Iterator[SampleBlock]:
    """Yield a unit's samples in blocks. `fill` raises Changed if an object changed."""
    check_case(unit.rows.fields, f"sample {unit.rows.keys[0]!r}")
    provenance = _Provenance(store)
    for block in _cut(unit.rows):
        yield _block(store, block, provenance)


def read_fields(store: Store, samples: SpanSamples) -> Iterator[dict[str, bytes]]:
    for block in _cut(samples):
        requests, which = _requests(block)
        data = _fetched(store, requests)
        for places, numbers in zip(block.places.tolist(), which.tolist(), strict=True):
            fields = {}
            for name, (offset, nbytes), number in zip(block.fields, places, numbers, strict=True):
                start = offset - requests[number].offset
                fields[name] = data[number][start : start + nbytes]
            yield fields


def _cut(samples: SpanSamples) -> Iterator[SpanSamples]:
    ends, start, done = np.cumsum(samples.sizes), 0, 0
    while start < len(samples):
        stop = max(start + 1, int(np.searchsorted(ends, done + BLOCK_BYTES, "right")))
        objects = [*dict.fromkeys(samples.objects[start:stop])]
        if len(objects) > BLOCK_OBJECTS:
            stop = start + samples.objects[start:stop].index(objects[BLOCK_OBJECTS])
        yield samples.cut(start, stop)
        start, done = stop, int(ends[stop - 1])


def _block(store: Store, samples: SpanSamples, provenance: "_Provenance") -> SampleBlock:
    return SampleBlock(
        keys=samples.keys,
        fields=samples.fields,
        sizes=samples.places[:, :, 1],
        metadata=[
            check_metadata(key, one) if one else one
            for key, one in zip(samples.keys, samples.metadata, strict=True)
        ],
        sources=[*provenance.of(samples)],
        fill=_BlockBytes(store, samples).fill,
    )


class _Provenance:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._shared: dict[str, Mapping[str, str]] = {}

    def of(self, samples: SpanSamples) -> Iterator[Mapping[str, str]]:
        for of in set(samples.objects) - self._shared.keys():
            place = {"raw_key": of, "raw_etag": token_of(self._store, samples.infos[of])}
            self._shared[of] = check_source(samples.keys[0], place)
        for key, theirs, source, of in zip(
            samples.keys, samples.source_keys, samples.sources, samples.objects, strict=True
        ):
            shared = self._shared[of]
            if theirs != key:
                yield check_source(key, {**source, **shared, "source_key": text_of(theirs)})
            else:
                yield check_source(key, {**source, **shared}) if source else shared


class _Request(NamedTuple):
    info: ObjectInfo
    offset: int
    nbytes: int


class _BlockBytes:
    def __init__(self, store: Store, samples: SpanSamples) -> None:
        self._store, self._samples = store, samples
        self._read: tuple[list[OpenFile], Int64s, Int64s] | None = None

    def fill(self, columns: Sequence[int], memory: Uint8s, at: Int64s) -> Int64s:
        with ExitStack() as stack:
            sources = self._opened(stack) or self._requested()
            files, which, begin = sources[0], sources[1][:, columns], sources[2][:, columns]
            crcs, status = np.full(at.shape, UNKNOWN_CRC), np.empty(at.size, np.uint8)
            sizes = self._samples.places[:, columns, 1]
            flat = [np.ascontiguousarray(array).reshape(-1) for array in (which, begin, sizes)]
            crcs = crcs.reshape(-1)
            gather(files, *flat, b"", memory, at.reshape(-1), crcs, status)
        for i in np.flatnonzero(status != RIGHT).tolist():  # the store reads it, or raises the reason
            of, start, nbytes = (
                self._samples.objects[i // len(columns)],
                int(at.reshape(-1)[i]),
                int(flat[2][i]),
            )
            offset = int(self._samples.places[i // len(columns), columns[i % len(columns)], 0])
            data = _get(self._store, _Request(self._samples.infos[of], offset, nbytes))
            memory[start : start + nbytes] = np.frombuffer(data, np.uint8)
            crcs[i] = crc32c(data)
        return crcs.reshape(at.shape)

    def _opened(self, stack: ExitStack) -> tuple[list[OpenFile], Int64s, Int64s] | None:
        if (disk := disk_of(self._store)) is None:
            return None
        numbers = dict[str, int]()
        files = list[OpenFile]()
        for of in dict.fromkeys(self._samples.objects):
            file = disk.open_same(of, self._samples.infos[of].etag)
            if file is None:
                return None  # a read through the store raises the reason
            stack.callback(os.close, file)
            numbers[of] = len(files)
            files.append((file, None))
        which = np.array([*map(numbers.__getitem__, self._samples.objects)], np.int64)
        begin = self._samples.places[:, :, 0]
        return files, np.broadcast_to(which[:, None], begin.shape), begin

    def _requested(self) -> tuple[list[OpenFile], Int64s, Int64s]:
        if self._read is None:
            requests, which = _requests(self._samples)
            files: list[OpenFile] = [(IN_MEMORY, data) for data in _fetched(self._store, requests)]
            starts = np.array([one.offset for one in requests], np.int64)
            self._read = files, which, self._samples.places[:, :, 0] - starts[which]
        return self._read


def _fetched(store: Store, requests: Sequence[_Request]) -> list[bytes]:
    pool = DaemonPool(AT_ONCE, "penstock-spans")
    try:
        coming = [pool.submit(copy_context().run, _get, store, one) for one in requests]
        return [future.result() for future in coming]
    finally:
        pool.dismiss()


def _get(store: Store, request: _Request) -> bytes:
    if not request.nbytes:
        return b""
    return bytes(
        store.get_range(request.info.key, request.offset, request.nbytes, request.info.etag or None).data
    )


def _requests(samples: SpanSamples) -> tuple[list[_Request], Int64s]:
    requests, which = list[_Request](), list[list[int]]()
    offsets, sizes = samples.places[:, :, 0], samples.places[:, :, 1]
    lows, highs = offsets.min(axis=1).tolist(), (offsets + sizes).max(axis=1).tolist()
    objects, n_fields, at = samples.objects, len(samples.fields), 0
    while at < len(samples):
        info, low, high = samples.infos[objects[at]], lows[at], highs[at]
        stop = at + 1
        while stop < len(samples) and objects[stop] == info.key:
            if not (high <= lows[stop] <= high + GAP_BYTES and highs[stop] - low <= BLOCK_BYTES):
                break
            high, stop = highs[stop], stop + 1
        if high - low > BLOCK_BYTES + 2 * int(sizes[at:stop].sum()):
            for places in samples.places[at:stop].tolist():  # fields of a sample that are far apart
                which.append([*range(len(requests), len(requests) + n_fields)])
                requests += (_Request(info, offset, nbytes) for offset, nbytes in places)
        else:
            which += [[len(requests)] * n_fields] * (stop - at)
            requests.append(_Request(info, low, high - low))
        at = stop
    return requests, np.array(which, np.int64)
