"""Read and verify the bytes of samples; write values that need no decoder into the batch's rows."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...cache.spec import CacheSpec, NodeCache
from ...dataset.reading.sample_places import SamplePlaces
from ...dataset.reading.shard_read import Reading, ReadingOf
from ...dataset.reading.verified_bucket_reads import (
    FieldRead,
    Map,
    OnCorrupt,
    PartsOfField,
    read_fields,
    read_parts,
    read_places,
)
from ...dataset.reading.verified_disk_reads import (
    Gatherable,
    OpenShards,
    RowsOfField,
    UnverifiedSamples,
    gather_bytes,
    gather_rows,
)
from ...dataset.shards.address import SampleAddress
from ...dataset.shards.shard import crc32c
from ...errors import Corrupt, DecodeFailed
from ...modalities import Decoder, array, decode_bytes
from ...native import copy_bytes
from ...order.random.keyed_permutation import I64
from ...order.slots import Slots
from ...storage import RangeReader, is_local
from ...storage.disk.file_handles import FileHandles
from ...storage.store import disk_of
from ..batch.batch import StepMetrics
from ..batch.columns import ArrayPool, Columns
from ..metrics import Metrics
from ..recipe import generators
from ..recipe.decode import ReadyValue
from ..recipe.rank_slots import Locate, LocatedSamples
from ..recipe.recipe import Recipe, window_views
from ..recipe.video_packet_reads import BareClip, Group, Readers, WholeClip, read_samples, with_tables

if TYPE_CHECKING:
    from ...cache.memory import MemoryPages
    from ...cache.node_cache import OpenCache
    from ..ahead.read_ahead import ReadAhead
    from ..recipe.window_reads import WindowSlots
    from .table_columns import TableColumns

logger = logging.getLogger(__name__)


class NodeReads:
    """Readers for a loader's views: local folders directly, other stores through cached pages or ranges."""

    def __init__(
        self,
        cache: CacheSpec,
        recipe: Recipe,
        videos: Sequence[Sequence[Group]],
        metrics: Metrics,
        run: Map,
        end: int | None = None,
    ) -> None:
        self._stores: list[RangeReader] = [view.version.shard_store for view in recipe.views]
        self._cache: OpenCache | MemoryPages | None = None
        self._ahead: ReadAhead[Any] | None = None
        remote = [i for i, store in enumerate(self._stores) if not is_local(store)]
        if not remote:
            if isinstance(cache, NodeCache):
                logger.info("every source lies on this machine: the node cache %s is not used", cache.path)
            return
        if not isinstance(cache, NodeCache) and cache.limit_bytes == 0:
            return
        from ..ahead.remote_reads import open_remote  # 5 ms, only for remote stores

        self._cache, self._ahead = open_remote(cache, recipe, videos, metrics, run, end, self._stores, remote)

    def __getitem__(self, view: int) -> RangeReader:
        return self._stores[view]

    def begin(self, steps: Sequence[int]) -> bool:
        """Read later steps ahead. Return whether these steps are the first after a start or a seek."""
        return self._ahead is not None and self._ahead.begin(steps)

    def waiting_for_no_page(self) -> AbstractContextManager[None]:
        if self._cache is None:
            return nullcontext()
        from ...cache.cached_store import waiting_for_no_page

        return waiting_for_no_page()

    def done(self, step: int) -> None:
        if self._ahead is not None:
            self._ahead.done(step)

    def dismiss(self) -> None:
        if self._ahead is not None:
            self._ahead.dismiss()

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
        if self._cache is not None:
            self._cache.close()


class InRows(NamedTuple):
    """The result of reading one field into rows."""

    field: str
    """Field name."""
    filled: I64
    """int64: numbers of the samples whose rows are filled."""
    others: Sequence[FieldRead]
    """Samples whose rows are not filled: their bytes or error."""
    unread: I64
    """int64: numbers of the samples that were not read."""


class Bulk:
    """Fields of a view that need no decoder, and the last layouts of its arrays.

    Thread-safe: a layout is a guess, which every sample's own header confirms.
    """

    def __init__(self, fields: Sequence[str], decoders: Mapping[str, Decoder]) -> None:
        self.plain = frozenset(f for f in fields if decoders.get(f, decode_bytes) is decode_bytes)
        self._arrays = [field for field in fields if decoders.get(field) is array.decode]
        self._layouts: dict[str, array.NpyLayout] = {}

    def learn(self, payloads: Iterable[Mapping[str, object]]) -> None:
        """Keep the layout of each field's first array, if such arrays can be read into rows."""
        payloads = list(payloads)
        for field in self._arrays if payloads else ():
            data = next((payload[field] for payload in payloads if field in payload), None)
            if not isinstance(data, bytes | memoryview):
                continue
            try:
                layout = array.layout_of(bytes(data))
            except DecodeFailed:
                continue
            straight = not layout.fortran or len(layout.shape) < 2
            if straight and layout.nbytes and layout.dtype.isnative:
                self._layouts[field] = layout

    def gathered(self, columns: Columns | None) -> set[str]:
        return set() if columns is None else {*self.plain, *self._layouts}

    def rows(self, gatherable: Gatherable, rows: I64, columns: Columns, bad: Collection[int]) -> list[InRows]:
        """Gather arrays into rows.

        rows: int64, each sample's row. bad: numbers of samples to skip.
        """
        places, of_fields, unfilled = gatherable.places, [], []
        for field in self._arrays:
            layout = self._layouts.get(field)
            memory = None if layout is None else columns.rows(field, layout.shape, layout.dtype)
            if layout is None or memory is None:
                continue
            fits = places.fields[field].nbytes == len(layout.head) + layout.nbytes
            numbers = np.flatnonzero(fits)
            if bad:
                numbers = np.setdiff1d(numbers, list(bad), assume_unique=True)
            values = memory.reshape(len(columns), -1).view(np.uint8)
            of_fields.append(RowsOfField(field, layout.head, numbers, rows[numbers], values))
            unfilled.append(np.flatnonzero(~fits))
        out = []
        for request, rest in zip(of_fields, unfilled, strict=True):
            others, filled = gather_rows(gatherable, request), request.numbers
            if others:
                filled = np.setdiff1d(filled, [number for number, _, _ in others], assume_unique=True)
            out.append(InRows(request.field, filled, others, rest))
        return out


Payload = dict[str, bytes | memoryview | BareClip | WholeClip | ReadyValue]
"""Field -> data to decode. A memoryview shares memory: see `whole`."""


def whole(
    data: bytes | memoryview | BareClip | WholeClip | ReadyValue,
) -> bytes | BareClip | WholeClip | ReadyValue:
    """Return data that a decoder may keep."""
    return copy_bytes(data) if isinstance(data, memoryview) else data


class Fetched(NamedTuple):
    """Fetched samples, by number."""

    payloads: dict[int, Payload]
    """Sample number -> its fields still to decode."""
    bad: dict[int, Corrupt]
    """Sample number -> its error, if it is unreadable."""


class Fetch:
    """Reads samples from a recipe's views. Keeps the ETags of shards already read; thread-safe.

    decoders: per source, decoders by field. videos: per source, groups of video fields. reads: readers of the sources.
    """

    def __init__(
        self,
        recipe: Recipe,
        decoders: Sequence[Mapping[str, Decoder]],
        videos: Sequence[Sequence[Group]],
        reads: NodeReads,
        run: Map,
    ) -> None:
        self._plan, self._views = recipe.plan, recipe.views
        self._decoders, self._reads, self._run = decoders, reads, run
        self._videos = [with_tables(view, groups) for view, groups in zip(self._views, videos, strict=True)]
        self._pins: dict[str, str] = {}
        self._scratch = ArrayPool()
        disks = [disk_of(reads[number]) for number in range(len(self._views))]
        self._files = [None if disk is None else FileHandles(disk) for disk in disks]
        alone = [number if groups else None for number, groups in enumerate(self._videos)]
        apart = zip(alone, self._files, strict=True)
        fields = [view.fields for view in self._views]
        windows = window_views(recipe.plan)
        self._windows: list[WindowSlots | None] = [None] * len(windows)
        if any(view is not None for view in windows):
            from ..recipe.window_reads import window_slots  # only for windows

            self._windows = window_slots(recipe.plan, windows, decoders)
        self.locate = Locate(
            self._views,
            fields,
            [(video, files is None, id(own)) for (video, files), own in zip(apart, decoders, strict=True)],
            windows,
        )
        self._columns: TableColumns | None = None
        if any(view.columns for view in self._views):
            from .table_columns import TableColumns  # 3 ms, only for views with columns

            self._columns = TableColumns(self._views, run)
        self._bulk = [Bulk(kind.fields, decoders[kind.sources[0]]) for kind in self.locate.kinds]

    def __call__(
        self, slots: Slots, located: LocatedSamples, columns: Columns | None, seen: StepMetrics
    ) -> Fetched:
        """Return the data of samples of one kind. Raises: errors of reading, except Corrupt.

        columns: receives the values that need no decoder; None if a transform needs them.
        """
        with seen.timed_fetch():
            if (windows := self._windows[located.kind.sources[0]]) is not None:
                return Fetched(*windows(slots, located, self._readers(located.kind.sources[0], seen)))
            if self._videos[located.kind.sources[0]]:
                fetched = self._by_sample(slots, located, seen)
            else:
                fetched = self._by_field(located, columns, seen)
            if self._columns is not None:
                self._columns.add(slots, located, fetched.payloads, fetched.bad, columns)
            return fetched

    def learn(self, located: LocatedSamples, seen: StepMetrics) -> None:
        """Read fields whose CRC-32C is unknown, and store it in the samples' addresses."""
        numbers = {field: at.unknown for field, at in located.places.fields.items()}
        if not any(map(len, numbers.values())):
            return
        sources = located.kind.sources
        read = read_places(
            lambda number: self._reading(sources[number], seen), located.places, numbers, self._run
        )
        for _, _, data in read:
            if isinstance(data, Corrupt):
                raise data

    def close(self) -> None:
        for files in self._files:
            if files is not None:
                files.close()

    def parts(
        self, source: int, requests: Sequence[PartsOfField], seen: StepMetrics
    ) -> list[list[bytes | memoryview] | Corrupt]:
        """Return the parts of each of `requests`, all of one source, or its error."""
        bad: dict[int, Corrupt] = {}
        with seen.timed_fetch():
            read = self._readers(source, seen).parts(requests, bad.setdefault)
        return [bad.get(number, parts) for number, parts in enumerate(read)]

    def _by_field(self, located: LocatedSamples, columns: Columns | None, seen: StepMetrics) -> Fetched:
        places, bulk, sources = located.places, self._bulk[located.kind.number], located.kind.sources

        def reading_of(number: int) -> Reading:
            return self._reading(sources[number], seen)

        unknown = {field: at.unknown for field, at in places.fields.items()}
        fetched = Fetched({}, {})
        gatherable = self._gather(reading_of, located, columns, fetched, seen)
        rest = dict.fromkeys(places.fields, np.arange(len(places)))
        if columns is not None:
            for rows in bulk.rows(gatherable, located.rows, columns, fetched.bad):
                rest[rows.field] = rows.unread
                columns.put_rows(rows.field, located.rows[rows.filled])
                for other in rows.others:
                    _take(fetched, *other)
        for field, numbers in rest.items():
            for number, _, data in self._rest(gatherable, located, field, numbers, columns, fetched):
                if columns is not None and field in bulk.plain and not isinstance(data, Corrupt):
                    columns.put(int(located.rows[number]), field, data)
                else:
                    _take(fetched, number, field, data)
        if columns is not None:
            bulk.learn(fetched.payloads.values())
        bad = list(fetched.bad)
        nbytes = sum(int(at.nbytes.sum() - at.nbytes[bad].sum()) for at in places.fields.values())
        seen.count("fetched_bytes", nbytes)
        _count_unverified(places, unknown, seen)
        return fetched

    def _gather(
        self,
        reading_of: ReadingOf,
        located: LocatedSamples,
        columns: Columns | None,
        fetched: Fetched,
        seen: StepMetrics,
    ) -> Gatherable:
        places = located.places
        if self._files[located.kind.sources[0]] is not None:
            return OpenShards(reading_of, places)
        later = self._bulk[located.kind.number].gathered(columns)
        data: dict[str, dict[int, bytes | memoryview]] = {field: {} for field in places.fields}
        everything = dict.fromkeys(places.fields, np.arange(len(places)))
        for number, field, data_or_error in read_places(reading_of, places, everything, self._run, later):
            if field in later and not isinstance(data_or_error, Corrupt):
                data[field][number] = data_or_error
            else:
                _take(fetched, number, field, data_or_error)
        return UnverifiedSamples(reading_of, places, data, partial(seen.spent, "verify"))

    def _rest(
        self,
        gatherable: Gatherable,
        located: LocatedSamples,
        field: str,
        numbers: I64,
        columns: Columns | None,
        fetched: Fetched,
    ) -> list[FieldRead]:
        if not len(numbers):
            return []
        known = {*fetched.bad, *(number for number, payload in fetched.payloads.items() if field in payload)}
        if known:
            numbers = np.setdiff1d(numbers, list(known), assume_unique=True)
        if not len(numbers):
            return []
        if columns is not None and field in self._bulk[located.kind.number].plain:
            read, others = gather_bytes(gatherable, field, numbers, columns.allocate)
            columns.put_bytes(field, located.rows[read.numbers], read.memory, read.begin, read.sizes)
            return others
        read, others = gather_bytes(gatherable, field, numbers, self._scratch)
        data = read.memory.data
        places = zip(read.numbers.tolist(), read.begin.tolist(), read.sizes.tolist(), strict=True)
        for number, begin, size in places:
            fetched.payloads.setdefault(number, {})[field] = data[begin : begin + size]
        return others

    def _by_sample(self, slots: Slots, located: LocatedSamples, seen: StepMetrics) -> Fetched:
        (source,) = located.kind.sources

        def rng_of(number: int, field: str) -> np.random.Generator:
            place = generators.place_of(self._plan, slots, int(located.rows[number]))
            return generators.for_decoder(place, field)

        places = located.places
        unknown = {field: at.unknown for field, at in places.fields.items()}
        read = read_samples(
            self._views[source],
            self._videos[source],
            self._decoders[source],
            places.addresses(),
            rng_of,
            self._readers(source, seen),
        )
        for field, numbers in unknown.items():
            for number in numbers.tolist():
                if not isinstance(payload := read[number], Corrupt):
                    places.fields[field].crc32c[number] = _crc_of(payload[field])
        _count_unverified(places, unknown, seen)
        return Fetched(
            {number: {**sample} for number, sample in enumerate(read) if not isinstance(sample, Corrupt)},
            {number: sample for number, sample in enumerate(read) if isinstance(sample, Corrupt)},
        )

    def _reading(self, source: int, seen: StepMetrics) -> Reading:
        name = self._plan.source_names[source]
        return Reading(
            self._reads[source],
            self._pins,
            partial(seen.count, "refetched"),
            partial(seen.read, name),
            self._files[source],
        )

    def _readers(self, source: int, seen: StepMetrics) -> Readers:
        reading = self._reading(source, seen)
        how: dict[str, Any] = {
            "pins": reading.pins,
            "run": self._run,
            "on_refetch": reading.on_refetch,
            "on_read": reading.on_read,
        }

        def fields(addresses: Sequence[SampleAddress], on_corrupt: OnCorrupt) -> list[dict[str, bytes]]:
            read = read_fields(reading.store, addresses, on_corrupt=on_corrupt, **how)
            seen.count("fetched_bytes", sum(len(data) for sample in read for data in sample.values()))
            return read

        def parts(located: Sequence[PartsOfField], on_corrupt: OnCorrupt) -> list[list[bytes | memoryview]]:
            read = read_parts(reading.store, located, on_corrupt=on_corrupt, **how)
            seen.count("fetched_bytes", sum(len(data) for part in read for data in part))
            return read

        return Readers(fields=fields, parts=parts, run=self._run)


def _crc_of(data: bytes | BareClip) -> int:
    return data.table.facts.crc32c if isinstance(data, BareClip) else crc32c(data)


def _count_unverified(places: SamplePlaces, unknown: Mapping[str, I64], seen: StepMetrics) -> None:
    nbytes = sum(
        int(places.fields[field].nbytes[numbers].sum()) for field, numbers in unknown.items() if len(numbers)
    )
    if nbytes:
        seen.count("unverified_bytes", nbytes)


def _take(fetched: Fetched, number: int, field: str, data: bytes | memoryview | Corrupt) -> None:
    if isinstance(data, Corrupt):
        fetched.bad.setdefault(number, data)
    else:
        fetched.payloads.setdefault(number, {})[field] = data
