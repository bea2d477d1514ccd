"""Find the bytes of a batch's samples. Samples of several versions are looked up together.

`Lookup.places` takes four steps:

1. `_JoinedParts.locate`: version and ordinal -> part and row of each sample.
2. `_find_stretches`: the distinct stretches, or row groups of the parts' indexes, that contain these rows.
3. `Lookup._row_stretches`: the index rows of the stretches, from memory or from the store.
4. `Lookup._places_in_group`: from the index rows, the shard, offset, size and checksum of each field.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np

from ...storage.threads import lock
from ..shards.bitmap import Bools, SelectTable
from ..shards.index import ROW_GROUP_ROWS
from ..shards.index_rows import IndexRows
from ..shards.parts_table import PartsTable, locate
from .sample_places import FieldPlaces, Int64s, Map, RowStretch, SamplePlaces, Shard, VersionData, run_starts


class GroupLayout(NamedTuple):
    requested: tuple[str, ...]
    """Requested fields of the group."""
    columns: tuple[str, ...]
    """All fields of the group, in the order of its index rows."""


Layout = tuple[GroupLayout, ...]
"""Layout of each group that holds a requested field."""


def group_fields(
    version: VersionData,
    fields: Sequence[str],
) -> dict[str, list[str]]:
    """Return group -> the requested fields that it holds, groups sorted. Raises: FieldNotFound."""
    requested: dict[str, list[str]] = {}
    for field in fields:
        group = version.group_of(field)
        requested.setdefault(group, []).append(field)
    return dict(sorted(requested.items()))


def field_layout(
    version: VersionData,
    fields: Sequence[str],
) -> Layout:
    """Return the layout of requested fields. A `Lookup` reads versions together if theirs are equal."""
    stored_groups = version.manifest["groups"]
    layout: list[GroupLayout] = []
    for group, requested in group_fields(version, fields).items():
        columns = sorted(stored_groups[group]["field_nbytes"])
        group_layout = GroupLayout(
            requested=tuple(requested),
            columns=tuple(columns),
        )
        layout.append(group_layout)
    return tuple(layout)


class Lookup:
    """Finds one or more fields of samples, in versions that share a layout. `versions[i]` is version number i.

    The same version may have several numbers: sources of a plan are numbered, too.

    Reads a version's parts table at the first request for one of its samples. Thread-safe.
    """

    def __init__(
        self,
        versions: Sequence[VersionData],
        fields: Sequence[str],
    ) -> None:
        self._versions = versions
        self._fields = tuple(fields)
        self._layout = field_layout(versions[0], fields)
        self._groups: list[list[str]] = []  # names of the layout's groups, which differ between versions
        for version in versions:
            groups = group_fields(version, fields)
            self._groups.append(list(groups))
        self._lock = lock()
        self._parts = _join_parts([None] * len(versions))  # no parts table is read yet

    def places(
        self,
        version: Int64s,
        ordinals: Int64s,
        parallel_map: Map = map,
    ) -> SamplePlaces:
        """Return the places of the fields for live ordinals, in their order.

        Costs one index row group per distinct (group, 2,048-row stretch) that is not in memory, and O(n log n) time.

        version: int64 [n], version number of each sample. parallel_map: a thread pool's map reads several at once.

        Raises: Corrupt; ObjectNotFound; FieldNotFound if a sample lacks one of the fields; InvalidRuntime for an
        ordinal out of range.
        """
        places = self._places(version, ordinals, parallel_map)
        assert places is not None  # everything missing was read
        return places

    def find_cached_places(
        self,
        version: Int64s,
        ordinals: Int64s,
    ) -> SamplePlaces | None:
        """Return what `places` returns; None if a parts table or an index row is not in memory."""
        return self._places(version, ordinals, parallel_map=None)

    def _places(
        self,
        version: Int64s,
        ordinals: Int64s,
        parallel_map: Map | None,
    ) -> SamplePlaces | None:
        """Return the places; None if parallel_map is None and something has to be read."""
        parts = self._load_parts(version, parallel_map)
        if parts is None:
            return None
        part, row = parts.locate(version, ordinals)  # [n] each

        part_number = parts.first_part_number[version] + part
        stretches = _find_stretches(
            version=version,
            part_number=part_number,
            part=part,
            row=row,
        )
        fields: dict[str, FieldPlaces] = {}
        index: list[IndexRows] = []
        for group in range(len(self._layout)):
            row_stretches = self._row_stretches(group, stretches.names, parallel_map)
            if row_stretches is None:
                return None
            if not index:  # the index of any group has the keys
                index = [stretch.rows for stretch in row_stretches]
            places = self._places_in_group(
                group=group,
                row=row,
                stretches=stretches,
                row_stretches=row_stretches,
            )
            fields.update(places)

        return SamplePlaces(
            versions=self._versions,
            version=version,
            part=part,
            row=row,
            ordinal=ordinals,
            index=index,
            stretch=stretches.stretch_of_sample,
            fields={field: fields[field] for field in self._fields},
        )

    def _load_parts(
        self,
        version: Int64s,
        parallel_map: Map | None,
    ) -> "_JoinedParts | None":
        """Return the parts of these and earlier requested versions.

        None if some are missing and parallel_map is None.
        """
        parts = self._parts
        is_unknown = ~parts.known[version]  # [n]
        unknown = sorted(set(version[is_unknown].tolist()))
        if not unknown:
            return parts
        if parallel_map is None:
            return None

        new_tables = parallel_map(lambda number: self._versions[number].parts, unknown)
        new_by_version = dict(zip(unknown, new_tables, strict=True))
        with self._lock:
            # Another thread may have joined versions in the meantime: their tables stay.
            tables = list(self._parts.tables)
            for number, table in new_by_version.items():
                tables[number] = table
            self._parts = _join_parts(tables)
            return self._parts

    def _row_stretches(
        self,
        group: int,
        names: Sequence["_StretchName"],
        parallel_map: Map | None,
    ) -> list[RowStretch] | None:
        """Return the index rows of each stretch; None if some are missing and parallel_map is None."""
        versions = self._versions
        groups = self._groups
        stretches: list[RowStretch | None] = []
        missing: list[int] = []
        for number, (version, part, stretch) in enumerate(names):
            group_name = groups[version][group]
            cached = versions[version].cached_stretch(group_name, part, stretch)
            stretches.append(cached)
            if cached is None:
                if parallel_map is None:
                    return None
                missing.append(number)

        if missing:
            assert parallel_map is not None  # for mypy: without it, the loop has returned

            def read(name: _StretchName) -> RowStretch:
                version, part, stretch = name
                group_name = groups[version][group]
                return versions[version].stretch(group_name, part, stretch)

            missing_names = [names[number] for number in missing]
            new_stretches = parallel_map(read, missing_names)
            for number, new in zip(missing, new_stretches, strict=True):
                stretches[number] = new
        return cast(list[RowStretch], stretches)

    def _places_in_group(
        self,
        group: int,
        row: Int64s,
        stretches: "_Stretches",
        row_stretches: Sequence[RowStretch],
    ) -> dict[str, FieldPlaces]:
        """Return requested field of a group -> places.

        row: int64 [n], row of each sample in its part. row_stretches: the group's index rows of each stretch.
        """
        layout = self._layout[group]
        # int64 [n, columns, 3]: offset, size and checksum of all fields of the group
        field_rows = stretches.gather(
            row=row,
            row_stretches=row_stretches,
            n_fields=len(layout.columns),
        )
        # Many stretches may lie in one shard.
        shard_numbers: dict[Shard, int] = {}
        shard_of_stretch: list[int] = []
        for name, stretch in zip(stretches.names, row_stretches, strict=True):
            version = name[0]
            shard = Shard(version, self._groups[version][group], stretch.path)
            number = shard_numbers.setdefault(shard, len(shard_numbers))
            shard_of_stretch.append(number)
        shards = list(shard_numbers)
        shard_of_sample = np.array(shard_of_stretch, np.int64)[stretches.stretch_of_sample]

        places: dict[str, FieldPlaces] = {}
        for field in layout.requested:
            column = layout.columns.index(field)
            offset, nbytes, crc = field_rows[:, column].T  # [n] each
            places[field] = FieldPlaces(
                shards=shards,
                shard=shard_of_sample,
                offset=offset,
                nbytes=nbytes,
                crc32c=crc,
            )
        return places


_StretchName = tuple[int, int, int]
"""(version number, position of the part in the version, number of the stretch in the part)."""


class _Stretches(NamedTuple):
    """The distinct stretches around n samples' rows, and the samples ordered by stretch."""

    names: list[_StretchName]
    stretch_of_sample: Int64s
    """int64 [n]: index into `names` for each sample."""
    order: Int64s
    """int64 [n]: sample numbers; those in one stretch are adjacent."""
    bounds: list[tuple[int, int]]
    """First and last position (exclusive) of each stretch's samples in `order`."""

    def gather(
        self,
        row: Int64s,
        row_stretches: Sequence[RowStretch],
        n_fields: int,
    ) -> Int64s:
        """Return int64 [n, n_fields, 3]: offset, size and checksum of each field of each sample."""
        first_rows = [stretch.rows.first_row for stretch in row_stretches]
        first_row = np.array(first_rows, np.int64)[self.stretch_of_sample]  # [n]
        row_in_stretch = row - first_row
        ordered_rows = row_in_stretch[self.order]

        # Each stretch fills a slice, and one scatter undoes the order: a third faster than a scatter for each stretch.
        ordered = np.empty((len(row), n_fields, 3), np.int64)
        for stretch, (start, stop) in zip(
            row_stretches,
            self.bounds,
            strict=True,
        ):
            rows = ordered_rows[start:stop]
            ordered[start:stop] = stretch.rows.places[rows]
        gathered = np.empty_like(ordered)
        gathered[self.order] = ordered
        return gathered


def _find_stretches(
    *,
    version: Int64s,
    part_number: Int64s,
    part: Int64s,
    row: Int64s,
) -> _Stretches:
    """Return the stretches that contain these rows. All arguments are int64 [n].

    part_number: number of the part among the parts of all versions. part: its position in its own version.
    """
    stretch_in_part = row // ROW_GROUP_ROWS
    # No part has 2**32 stretches: one number sorts by version, part and stretch.
    sort_key = part_number * 2**32 + stretch_in_part
    order = np.argsort(sort_key, kind="stable")
    starts = run_starts(sort_key[order])  # [stretches]: position in `order` of each stretch's first sample
    limits = np.append(starts, len(order))  # [stretches + 1]; [0] without rows
    bounds = pairwise(limits.tolist())

    # Number the stretches in sorted order, then undo the sorting.
    n_samples = np.diff(limits)  # [stretches]
    stretch_of_sample = np.empty(len(order), np.int64)
    stretch_of_sample[order] = np.repeat(np.arange(len(starts)), n_samples)

    first_sample = order[starts]  # [stretches]
    names = zip(
        version[first_sample].tolist(),
        part[first_sample].tolist(),
        stretch_in_part[first_sample].tolist(),
        strict=True,
    )
    return _Stretches(
        names=list(names),
        stretch_of_sample=stretch_of_sample,
        order=order,
        bounds=list(bounds),
    )


class _JoinedParts(NamedTuple):
    """Parts of several versions, one after the other. A version with two numbers is included once."""

    tables: Sequence[PartsTable | None]
    """Parts table per version number; None for versions not `known`."""
    known: Bools
    """bool [versions]: True if the parts table was read."""
    n_live: Int64s
    """int64 [versions]: live samples of each."""
    first_ordinal: Int64s
    """int64 [versions]: live samples before the version's own."""
    first_part: Int64s
    """int64 [versions]: parts before the version's own."""
    first_part_number: Int64s
    """int64 [versions]: as `first_part`, but a version with two numbers counts twice. So no stretch has samples of two
    version numbers."""
    first: Int64s
    """int64 [parts + 1]: live samples before each part."""
    live_rows: Mapping[int, SelectTable]
    """Part -> live rows, for parts with exclusions."""

    def locate(
        self,
        version: Int64s,
        ordinals: Int64s,
    ) -> tuple[Int64s, Int64s]:
        """Return (part in the version, row in the part) for live ordinals, int64 [n] each. Raises: InvalidRuntime."""
        is_negative = ordinals < 0
        is_too_large = ordinals >= self.n_live[version]
        wrong = np.flatnonzero(is_negative | is_too_large)
        if len(wrong):
            first_wrong = wrong[:1]
            table = self.tables[int(version[first_wrong[0]])]
            assert table is not None
            table.locate(ordinals[first_wrong])  # raises the error, which names the version
        joined_ordinals = ordinals + self.first_ordinal[version]
        joined_part, row = locate(self.first, self.live_rows, joined_ordinals)
        part = joined_part - self.first_part[version]
        return part, row


def _join_parts(tables: Sequence[PartsTable | None]) -> _JoinedParts:
    """Join the parts tables of versions. tables: one per version number; None if it is not known."""
    known_tables = [table for table in tables if table is not None]
    distinct = list(dict.fromkeys(known_tables))
    numbers = {table: number for number, table in enumerate(distinct)}
    # [versions]: number of the version's table; -1 for a version that is not known
    table_number = np.full(len(tables), -1, np.int64)
    for number, table in enumerate(tables):
        if table is not None:
            table_number[number] = numbers[table]

    # [tables + 1]: the zero after the last table, at -1, is for versions that are not known.
    n_live = np.zeros(len(distinct) + 1, np.int64)
    n_parts = np.zeros(len(distinct) + 1, np.int64)
    for number, table in enumerate(distinct):
        n_live[number] = table.first_ordinal[-1]
        n_parts[number] = len(table)
    first_ordinal = np.cumsum(n_live) - n_live
    first_part = np.cumsum(n_parts) - n_parts

    if len(distinct) == 1:
        # No copy: a version may have a million parts.
        first = distinct[0].first_ordinal
        live_rows = distinct[0].live_rows
    else:
        # Each version's ordinals and parts begin where the version before it ends.
        firsts: list[Int64s] = []
        live_rows = {}
        for number, table in enumerate(distinct):
            firsts.append(first_ordinal[number] + table.first_ordinal[:-1])
            parts_before = int(first_part[number])
            for part, rows in table.live_rows.items():
                live_rows[parts_before + part] = rows
        n_joined = n_live.sum(keepdims=True)
        first = np.concatenate([*firsts, n_joined])

    n_parts_of_version = n_parts[table_number]
    return _JoinedParts(
        tables=tables,
        known=table_number >= 0,
        n_live=n_live[table_number],
        first_ordinal=first_ordinal[table_number],
        first_part=first_part[table_number],
        first_part_number=np.cumsum(n_parts_of_version) - n_parts_of_version,
        first=first,
        live_rows=live_rows,
    )
