"""Read and verify the bytes of samples; write values that need no decoder into the batch's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...dataset.reading.places import Map
from ...dataset.reading.sample_places import SamplePlaces
from ...dataset.reading.shard_read import FindReading, Reading
from ...dataset.reading.verified_bucket_reads import (
    FieldRead,
    OnCorrupt,
    PartsOfField,
    read_fields,
    read_parts,
    read_places,
)
from ...dataset.reading.verified_gathers import (
    Gatherable,
    OpenShards,
    UnverifiedSamples,
    gather_bytes,
)
from ...dataset.shards.address import SampleAddress
from ...dataset.shards.shard import crc32c
from ...errors import Corrupt
from ...modalities import Decoder
from ...native import copy_bytes
from ...order.random.keyed_permutation import I64
from ...order.slots import Slots
from ...storage.disk.file_handles import FileHandles
from ...storage.store import disk_of
from ..batch.batch import step_metrics
from ..batch.columns import ArrayPool, Columns
from ..recipe import generators
from ..recipe.decode import ReadyValue
from ..recipe.rank_slots import Locate, LocatedSamples
from ..recipe.recipe import Recipe, window_views
from ..recipe.video_packet_reads import BareClip, Group, Readers, WholeClip, read_samples, with_tables
from .bulk_rows import Bulk
from .node_reads import NodeReads

if TYPE_CHECKING:
    from ..recipe.window_reads import WindowSlots
    from .table_columns import TableColumns


Payload = dict[str, bytes | memoryview | BareClip | WholeClip | ReadyValue]
"""Field -> data to decode. A memoryview shares memory: see `owned`."""


def owned(
    data: bytes | memoryview | BareClip | WholeClip | ReadyValue,
) -> bytes | BareClip | WholeClip | ReadyValue:
    """Return data that a decoder may keep."""
    if isinstance(data, memoryview):
        return copy_bytes(data)
    return data


class Fetched(NamedTuple):
    """Fetched samples, by number."""

    payloads: dict[int, Payload]
    """Sample number -> its fields still to decode."""
    bad: dict[int, Corrupt]
    """Sample number -> its error, if it is unreadable."""


class Fetch:
    """Reads samples from a recipe's stored sources. Keeps the ETags of shards already read; thread-safe.

    decoders: per source, decoders by field. videos: source -> groups of video fields. reads: readers of the sources.
    """

    def __init__(
        self,
        recipe: Recipe,
        decoders: Sequence[Mapping[str, Decoder]],
        videos: Mapping[int, Sequence[Group]],
        reads: NodeReads,
        run: Map,
    ) -> None:
        self._plan = recipe.plan
        self._views = recipe.stored
        self._decoders = decoders
        self._reads = reads
        self._run = run
        self._videos: dict[int, Sequence[Group]] = {}
        for source, view in self._views.items():
            self._videos[source] = with_tables(view, videos[source])
        self._pins: dict[str, str] = {}
        self._scratch = ArrayPool()
        self._files: dict[int, FileHandles | None] = {}
        for source in self._views:
            disk = disk_of(reads[source])
            self._files[source] = None if disk is None else FileHandles(disk)

        windows = window_views(recipe.plan)
        self._windows: list[WindowSlots | None] = [None] * len(windows)
        if any(view is not None for view in windows):
            from ..recipe.window_reads import window_slots  # only for windows

            self._windows = window_slots(recipe.plan, windows, decoders)

        # Sources are read together if they lie in the same kind of store and share their decoders. A source with
        # videos is read by itself: its samples' frames are chosen one by one.
        # source -> its key: sources with equal keys are read together
        group_keys: dict[int, tuple[int | None, bool, int]] = {}
        for source, groups in self._videos.items():
            video_source = source if groups else None
            is_remote = self._files[source] is None
            group_keys[source] = (video_source, is_remote, id(decoders[source]))
        fields = {source: view.fields for source, view in self._views.items()}
        self.locate = Locate(self._views, fields, group_keys, windows)
        self._bulk = [Bulk(kind.fields, decoders[kind.sources[0]]) for kind in self.locate.kinds]

        self._columns: TableColumns | None = None
        if any(view.columns for view in self._views.values()):
            from .table_columns import TableColumns  # 3 ms, only for views with columns

            self._columns = TableColumns(self._views, run)

    def __call__(
        self,
        slots: Slots,
        located: LocatedSamples,
        columns: Columns | None,
    ) -> Fetched:
        """Return the data of samples of one kind. Raises: errors of reading, except Corrupt.

        columns: receives the values that need no decoder; None if a transform needs them.
        """
        source = located.kind.sources[0]
        with step_metrics().timed_fetch():
            windows = self._windows[source]
            if windows is not None:
                payloads, bad = windows(slots, located, self._readers(source))
                return Fetched(payloads, bad)
            if self._videos[source]:
                fetched = self._by_sample(slots, located)
            else:
                fetched = self._by_field(located, columns)
            if self._columns is not None:
                self._columns.add(
                    slots,
                    located,
                    fetched.payloads,
                    fetched.bad,
                    columns,
                )
            return fetched

    def fill_unknown_crcs(self, located: LocatedSamples) -> None:
        """Read fields whose CRC-32C is unknown, and store it in the samples' addresses."""
        places = located.places
        unknown = _unknown(places)
        if all(len(numbers) == 0 for numbers in unknown.values()):
            return
        read = read_places(self._reading_finder(located), places, unknown, self._run)
        # read_places stores each CRC-32C in `places`: only errors need a look here.
        for _, _, data in read:
            if isinstance(data, Corrupt):
                raise data

    def close(self) -> None:
        for files in self._files.values():
            if files is not None:
                files.close()

    def parts(
        self, source: int, requests: Sequence[PartsOfField]
    ) -> list[list[bytes | memoryview] | Corrupt]:
        """Return the parts of each of `requests`, all of one source, or its error."""
        bad: dict[int, Corrupt] = {}
        with step_metrics().timed_fetch():
            # setdefault keeps a request's first error.
            read = self._readers(source).parts(requests, bad.setdefault)
        return [bad.get(number, parts) for number, parts in enumerate(read)]

    def _by_field(self, located: LocatedSamples, columns: Columns | None) -> Fetched:
        places = located.places
        bulk = self._bulk[located.kind.number]
        unknown = _unknown(places)
        fetched = Fetched({}, {})
        gatherable = self._gather(located, columns, fetched)
        rest = dict.fromkeys(places.fields, np.arange(len(places)))  # field -> numbers that are not read yet
        if columns is not None:
            for rows in bulk.rows(gatherable, located.rows, columns, fetched.bad):
                rest[rows.field] = rows.unread
                columns.put_rows(rows.field, located.rows[rows.filled])
                for other in rows.others:
                    _add_result(fetched, *other)
        for field, numbers in rest.items():
            others = self._read_remaining(
                gatherable,
                located,
                field,
                numbers,
                columns,
                fetched,
            )
            for number, _, data in others:
                if columns is not None and field in bulk.plain and not isinstance(data, Corrupt):
                    columns.put(int(located.rows[number]), field, data)
                else:
                    _add_result(fetched, number, field, data)
        if columns is not None:
            # Arrays of this layout go straight into rows from the next batch on.
            bulk.remember_layouts(fetched.payloads.values())
        bad = list(fetched.bad)
        nbytes = 0
        for at in places.fields.values():
            nbytes += int(at.nbytes.sum() - at.nbytes[bad].sum())
        step_metrics().count("fetched_bytes", nbytes)
        _count_unverified(places, unknown)
        return fetched

    def _gather(
        self,
        located: LocatedSamples,
        columns: Columns | None,
        fetched: Fetched,
    ) -> Gatherable:
        """Return samples still to verify.

        From a bucket, read all fields, and add to `fetched` what needs no gathering.
        """
        places = located.places
        find_reading = self._reading_finder(located)
        if self._files[located.kind.sources[0]] is not None:
            return OpenShards(find_reading, places)
        verified_later = self._bulk[located.kind.number].gathered(columns)
        data: dict[str, dict[int, bytes | memoryview]] = {field: {} for field in places.fields}
        everything = dict.fromkeys(places.fields, np.arange(len(places)))
        read = read_places(
            find_reading,
            places,
            everything,
            self._run,
            verified_later,
        )
        for number, field, data_or_error in read:
            if field in verified_later and not isinstance(data_or_error, Corrupt):
                data[field][number] = data_or_error
            else:
                _add_result(fetched, number, field, data_or_error)
        return UnverifiedSamples(find_reading, places, data, partial(step_metrics().spent, "verify"))

    def _read_remaining(
        self,
        gatherable: Gatherable,
        located: LocatedSamples,
        field: str,
        numbers: I64,
        columns: Columns | None,
        fetched: Fetched,
    ) -> list[FieldRead]:
        """Read a field of the samples `numbers` into `columns` or `fetched`. Return second reads and errors."""
        if not len(numbers):
            return []
        # Numbers of samples that are unreadable, or whose field a second read has delivered.
        known = set(fetched.bad)
        known.update(number for number, payload in fetched.payloads.items() if field in payload)
        if known:
            numbers = np.setdiff1d(numbers, list(known), assume_unique=True)
        if not len(numbers):
            return []
        if columns is not None and field in self._bulk[located.kind.number].plain:
            read, others = gather_bytes(gatherable, field, numbers, columns.allocate)
            rows = located.rows[read.numbers]
            columns.put_bytes(
                field,
                slots=rows,
                memory=read.memory,
                begin=read.begin,
                sizes=read.sizes,
            )
            return others
        # Decoders get views of one block of memory. The pool lends it again once no view is left.
        read, others = gather_bytes(gatherable, field, numbers, self._scratch)
        data = read.memory.data
        spans = zip(
            read.numbers.tolist(),
            read.begin.tolist(),
            read.sizes.tolist(),
            strict=True,
        )
        for number, begin, size in spans:
            fetched.payloads.setdefault(number, {})[field] = data[begin : begin + size]
        return others

    def _by_sample(self, slots: Slots, located: LocatedSamples) -> Fetched:
        (source,) = located.kind.sources

        def rng_of(number: int, field: str) -> np.random.Generator:
            place = generators.place_of(self._plan, slots, int(located.rows[number]))
            return generators.for_decoder(place, field)

        places = located.places
        unknown = _unknown(places)
        read = read_samples(
            self._views[source],
            self._videos[source],
            self._decoders[source],
            places.addresses(),
            rng_of,
            self._readers(source),
        )
        for field, numbers in unknown.items():
            for number in numbers.tolist():
                payload = read[number]
                if not isinstance(payload, Corrupt):
                    places.fields[field].crc32c[number] = _crc_of(payload[field])
        _count_unverified(places, unknown)
        fetched = Fetched({}, {})
        for number, sample in enumerate(read):
            if isinstance(sample, Corrupt):
                fetched.bad[number] = sample
            else:
                fetched.payloads[number] = {**sample}
        return fetched

    def _reading_finder(self, located: LocatedSamples) -> FindReading:
        sources = located.kind.sources
        return lambda number: self._reading(sources[number])

    def _reading(self, source: int) -> Reading:
        metrics = step_metrics()
        source_name = self._plan.source_names[source]
        return Reading(
            store=self._reads[source],
            pins=self._pins,
            on_refetch=partial(metrics.count, "refetched"),
            on_read=partial(metrics.read, source_name),
            files=self._files[source],
        )

    def _readers(self, source: int) -> Readers:
        metrics = step_metrics()
        reading = self._reading(source)
        options: dict[str, Any] = {
            "pins": reading.pins,
            "parallel_map": self._run,
            "on_refetch": reading.on_refetch,
            "on_read": reading.on_read,
        }

        def fields(addresses: Sequence[SampleAddress], on_corrupt: OnCorrupt) -> list[dict[str, bytes]]:
            read = read_fields(
                reading.store,
                addresses,
                on_corrupt=on_corrupt,
                **options,
            )
            nbytes = 0
            for sample in read:
                nbytes += sum(map(len, sample.values()))
            metrics.count("fetched_bytes", nbytes)
            return read

        def parts(requests: Sequence[PartsOfField], on_corrupt: OnCorrupt) -> list[list[bytes | memoryview]]:
            read = read_parts(
                reading.store,
                requests,
                on_corrupt=on_corrupt,
                **options,
            )
            nbytes = 0
            for parts_of_field in read:
                nbytes += sum(map(len, parts_of_field))
            metrics.count("fetched_bytes", nbytes)
            return read

        return Readers(fields=fields, parts=parts, run=self._run)


def _unknown(places: SamplePlaces) -> dict[str, I64]:
    """Return field -> numbers of the samples with unknown CRC-32C."""
    return {field: at.unknown for field, at in places.fields.items()}


def _crc_of(data: bytes | BareClip) -> int:
    if isinstance(data, BareClip):
        return data.table.facts.crc32c
    return crc32c(data)


def _count_unverified(places: SamplePlaces, unknown: Mapping[str, I64]) -> None:
    nbytes = 0
    for field, numbers in unknown.items():
        if len(numbers):
            nbytes += int(places.fields[field].nbytes[numbers].sum())
    if nbytes:
        step_metrics().count("unverified_bytes", nbytes)


def _add_result(
    fetched: Fetched,
    number: int,
    field: str,
    data: bytes | memoryview | Corrupt,
) -> None:
    if isinstance(data, Corrupt):
        fetched.bad.setdefault(number, data)
    else:
        fetched.payloads.setdefault(number, {})[field] = data
