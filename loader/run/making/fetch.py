"""Read and verify the bytes of samples; write values that need no decoder into the batch's rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...dataset.reading.pinned_reads import FindReading, Reading
from ...dataset.reading.sample_places import Map, SamplePlaces
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
    GatheredBytes,
    OpenShards,
    UnverifiedSamples,
    gather_bytes,
)
from ...dataset.shards.address import SampleAddress
from ...dataset.shards.shard import crc32c
from ...errors import Corrupt
from ...modalities import Decoder
from ...order.random.keyed_permutation import I64
from ...order.slots import Slots
from ...storage.disk.file_handles import FileHandles
from ...storage.store import as_disk
from ..batch.array_pool import ArrayPool
from ..batch.batch import step_metrics
from ..batch.columns import Columns
from ..part_reads.video_packet_reads import Readers, read_samples
from ..recipe import slot_generators
from ..recipe.decode import Payload
from ..recipe.rank_slots import Locate, LocatedSamples
from ..recipe.recipe import Recipe, window_views
from ..recipe.video_clips import BareClip
from ..recipe.video_groups import Group, with_tables
from .bulk_rows import Bulk, gather_plain
from .node_reads import NodeReads

if TYPE_CHECKING:
    from ..part_reads.build_windows import WindowSlots
    from .table_columns import TableColumns


class Fetched(NamedTuple):
    """Fetched samples of a `LocatedSamples`. A sample's number is its index there."""

    payloads: dict[int, Payload]
    """Sample number -> its fields still to decode."""
    bad: dict[int, Corrupt]
    """Sample number -> its error, if it is unreadable."""

    def add(
        self,
        number: int,
        field: str,
        data: bytes | memoryview | Corrupt,
    ) -> None:
        """Add a field of a sample, or its error, unless the sample has one already."""
        if isinstance(data, Corrupt):
            self.bad.setdefault(number, data)
        else:
            payload = self.payloads.setdefault(number, {})
            payload[field] = data


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
        parallel_map: Map,
    ) -> None:
        self._plan = recipe.plan
        self._views = recipe.stored
        self._decoders = decoders
        self._reads = reads
        self._map = parallel_map
        self._videos: dict[int, Sequence[Group]] = {}
        for source, view in self._views.items():
            self._videos[source] = with_tables(view, videos[source])
        self._pins: dict[str, str] = {}  # ETags of shards
        self._scratch = ArrayPool()  # memory of data to decode
        self._files: dict[int, FileHandles | None] = {}  # None: the source is not on a disk
        for source in self._views:
            disk = as_disk(reads[source])
            self._files[source] = None if disk is None else FileHandles(disk)

        windows = window_views(recipe.plan)
        self._windows: list[WindowSlots | None] = [None] * len(windows)
        if any(view is not None for view in windows):
            from ..part_reads.build_windows import window_slots  # only for windows

            self._windows = window_slots(recipe.plan, windows, decoders)

        # Sources with equal keys are read together: they lie in the same kind of store and share their decoders. A
        # source with videos is read by itself: its samples' frames are chosen one by one.
        group_keys: dict[int, tuple[int | None, bool, int]] = {}
        for source, groups in self._videos.items():
            video_source = None
            if groups:
                video_source = source
            is_remote = self._files[source] is None
            group_keys[source] = (video_source, is_remote, id(decoders[source]))
        fields = {source: view.fields for source, view in self._views.items()}
        self.locate = Locate(self._views, fields, group_keys, windows)
        self._bulk = [Bulk(kind.fields, decoders[kind.sources[0]]) for kind in self.locate.kinds]

        self._table_columns: TableColumns | None = None
        if any(view.columns for view in self._views.values()):
            from .table_columns import TableColumns  # 3 ms, only for views with columns

            self._table_columns = TableColumns(self._views, parallel_map)

    def __call__(
        self,
        slots: Slots,
        located: LocatedSamples,
        columns: Columns | None,
    ) -> Fetched:
        """Return the data of samples of one kind, and the errors of corrupt ones. Raises: other errors of reading.

        columns: receives the values that need no decoder, which the result then lacks; None if a transform needs them.
        """
        source = located.kind.sources[0]
        with step_metrics().time_fetch():
            windows = self._windows[source]
            if windows is not None:
                payloads, bad = windows(slots, located, self._readers(source))
                return Fetched(payloads, bad)
            if self._videos[source]:
                fetched = self._by_sample(slots, located)
            else:
                fetched = self._by_field(located, columns)
            if self._table_columns is not None:
                self._table_columns.add(
                    slots,
                    located,
                    fetched.payloads,
                    fetched.bad,
                    columns,
                )
            return fetched

    def fill_unknown_crcs(self, located: LocatedSamples) -> None:
        """Read fields whose CRC-32C is unknown, and store it in `located.places`. Raises: Corrupt."""
        places = located.places
        unknown = _unknown_crcs(places)
        if all(len(numbers) == 0 for numbers in unknown.values()):
            return
        results = read_places(self._reading_finder(located), places, unknown, self._map)
        # read_places stores each CRC-32C in `places`: only errors need a look here.
        for _, _, data in results:
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
        with step_metrics().time_fetch():
            # setdefault keeps a request's first error.
            parts_by_request = self._readers(source).parts(requests, bad.setdefault)
        return [bad.get(number, parts) for number, parts in enumerate(parts_by_request)]

    def together(self, located: LocatedSamples) -> tuple[dict[str, GatheredBytes], Fetched]:
        """Return each field's verified bytes in one buffer, and separately the results of second reads.

        Only for samples without videos and windows. A sample that is unreadable in one field may lack the others.
        """
        places = located.places
        unknown = _unknown_crcs(places)
        fetched = Fetched({}, {})
        gathered: dict[str, GatheredBytes] = {}
        with step_metrics().time_fetch():
            gatherable = self._gatherable(located, places.fields, fetched)
            for field in places.fields:
                numbers = _without_results(fetched, field, np.arange(len(places)))
                data, others = gather_bytes(gatherable, field, numbers, self._scratch)
                gathered[field] = data
                for result in others:
                    fetched.add(*result)
        _count_fetched(places, fetched.bad)
        _count_unverified(places, unknown)
        return gathered, fetched

    def _gatherable(
        self,
        located: LocatedSamples,
        verified_later: Collection[str],
        fetched: Fetched,
    ) -> Gatherable:
        """Return bytes that the caller copies and verifies: of all fields on a disk, else of those `verified_later`.

        From a bucket, reads all fields at once, and adds the other fields' results to `fetched`.
        """
        if self._files[located.kind.sources[0]] is not None:
            return OpenShards(self._reading_finder(located), located.places)
        unverified, results = self._read_bucket(located, verified_later)
        for result in results:
            fetched.add(*result)
        return unverified

    def _by_field(self, located: LocatedSamples, columns: Columns | None) -> Fetched:
        """Fetch samples without videos, field by field. columns: as for `__call__`."""
        places = located.places
        bulk = self._bulk[located.kind.number]
        unknown = _unknown_crcs(places)
        fetched = Fetched({}, {})

        # 1. Bytes that the steps below copy and verify.
        gatherable = self._gatherable(located, bulk.bulk_fields(columns), fetched)
        remaining = dict.fromkeys(places.fields, np.arange(len(places)))  # field -> samples still to gather

        # 2. Arrays of a known layout, straight into the columns' rows.
        if columns is not None:
            for rows in bulk.rows(gatherable, located.rows, columns, fetched.bad):
                remaining[rows.field] = rows.unread
                columns.put_rows(rows.field, located.rows[rows.filled])
                for result in rows.read_again:
                    fetched.add(*result)

        # 3. Everything else: bytes into the columns where no decoder needs them, otherwise into the payloads.
        for field, numbers in remaining.items():
            numbers = _without_results(fetched, field, numbers)
            if not len(numbers):
                continue
            if columns is not None and field in bulk.plain:
                others = gather_plain(gatherable, located, field, numbers, columns)
            else:
                # Decoders get views of one block of memory. The pool lends it again once no view is left.
                data, others = gather_bytes(gatherable, field, numbers, self._scratch)
                _add_views(fetched, field, data)
            for result in others:
                fetched.add(*result)

        if columns is not None:
            # Arrays of this layout go straight into rows from the next batch on.
            bulk.remember_layouts(fetched.payloads.values())
        _count_fetched(places, fetched.bad)
        _count_unverified(places, unknown)
        return fetched

    def _read_bucket(
        self,
        located: LocatedSamples,
        verified_later: Collection[str],
    ) -> tuple[UnverifiedSamples, list[FieldRead]]:
        """Read all fields. Return (bytes of the fields `verified_later`, verified bytes of the others, and errors)."""
        places = located.places
        find_reading = self._reading_finder(located)
        everything = dict.fromkeys(places.fields, np.arange(len(places)))
        reads = read_places(
            find_reading,
            places,
            everything,
            self._map,
            verified_later,
        )
        unverified: dict[str, dict[int, bytes | memoryview]] = {field: {} for field in places.fields}
        results: list[FieldRead] = []
        for number, field, data in reads:
            if field in verified_later and not isinstance(data, Corrupt):
                unverified[field][number] = data
            else:
                results.append((number, field, data))
        report = partial(step_metrics().add_seconds, "verify")
        return UnverifiedSamples(find_reading, places, unverified, report), results

    def _by_sample(self, slots: Slots, located: LocatedSamples) -> Fetched:
        """Fetch samples with videos, one by one: of a video only the packets of its chosen frames."""
        (source,) = located.kind.sources

        def field_rng(number: int, field: str) -> np.random.Generator:
            key = slot_generators.generator_key(self._plan, slots, int(located.rows[number]))
            return slot_generators.decoder_generator(key, field)

        places = located.places
        unknown = _unknown_crcs(places)
        samples = read_samples(
            self._views[source],
            self._videos[source],
            self._decoders[source],
            places.addresses(),
            field_rng,
            self._readers(source),
        )
        # The digest covers these checksums.
        for field, numbers in unknown.items():
            for number in numbers.tolist():
                sample = samples[number]
                if not isinstance(sample, Corrupt):
                    places.fields[field].crc32c[number] = _table_crc(sample[field])
        _count_unverified(places, unknown)
        fetched = Fetched({}, {})
        for number, sample in enumerate(samples):
            if isinstance(sample, Corrupt):
                fetched.bad[number] = sample
            else:
                fetched.payloads[number] = {**sample}
        return fetched

    def _reading_finder(self, located: LocatedSamples) -> FindReading:
        """Return a function from a source's number within the kind to its `Reading`."""
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
            "parallel_map": self._map,
            "on_refetch": reading.on_refetch,
            "on_read": reading.on_read,
        }

        def read_and_count_fields(
            addresses: Sequence[SampleAddress],
            on_corrupt: OnCorrupt,
        ) -> list[dict[str, bytes]]:
            samples = read_fields(
                reading.store,
                addresses,
                on_corrupt=on_corrupt,
                **options,
            )
            nbytes = 0
            for sample in samples:
                nbytes += sum(map(len, sample.values()))
            metrics.count("fetched_bytes", nbytes)
            return samples

        def read_and_count_parts(
            requests: Sequence[PartsOfField],
            on_corrupt: OnCorrupt,
        ) -> list[list[bytes | memoryview]]:
            parts_by_request = read_parts(
                reading.store,
                requests,
                on_corrupt=on_corrupt,
                **options,
            )
            nbytes = 0
            for parts in parts_by_request:
                nbytes += sum(map(len, parts))
            metrics.count("fetched_bytes", nbytes)
            return parts_by_request

        return Readers(
            fields=read_and_count_fields,
            parts=read_and_count_parts,
            run=self._map,
        )


def _without_results(
    fetched: Fetched,
    field: str,
    numbers: I64,
) -> I64:
    """Return the samples, by number, that are readable so far, and whose field `fetched` lacks."""
    numbers_with_result = set(fetched.bad)
    for number, payload in fetched.payloads.items():
        if field in payload:
            numbers_with_result.add(number)
    if not numbers_with_result:
        return numbers
    return np.setdiff1d(numbers, list(numbers_with_result), assume_unique=True)


def _add_views(
    fetched: Fetched,
    field: str,
    data: GatheredBytes,
) -> None:
    """Add a view of each sample's bytes to the payloads."""
    memory = data.memory.data
    spans = zip(
        data.numbers.tolist(),
        data.begin.tolist(),
        data.sizes.tolist(),
        strict=True,
    )
    # Not by `Fetched.add`: a call more per sample holds the interpreter's lock.
    for number, begin, size in spans:
        fetched.payloads.setdefault(number, {})[field] = memory[begin : begin + size]


def _unknown_crcs(places: SamplePlaces) -> dict[str, I64]:
    """Return field -> numbers of the samples with unknown CRC-32C."""
    return {field: field_places.unknown for field, field_places in places.fields.items()}


def _table_crc(data: bytes | BareClip) -> int:
    if isinstance(data, BareClip):
        return data.table.facts.crc32c
    return crc32c(data)


def _count_fetched(places: SamplePlaces, bad: Collection[int]) -> None:
    """Count the bytes of all readable samples. bad: numbers of the others."""
    unreadable = list(bad)
    nbytes = 0
    for field_places in places.fields.values():
        nbytes += int(field_places.nbytes.sum() - field_places.nbytes[unreadable].sum())
    step_metrics().count("fetched_bytes", nbytes)


def _count_unverified(places: SamplePlaces, unknown: Mapping[str, I64]) -> None:
    """Count the bytes that had no checksum to verify. unknown: as from `_unknown_crcs`, before the read."""
    nbytes = 0
    for field, numbers in unknown.items():
        if len(numbers):
            nbytes += int(places.fields[field].nbytes[numbers].sum())
    if nbytes:
        step_metrics().count("unverified_bytes", nbytes)
