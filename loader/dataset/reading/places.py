"""Locate a batch's samples in shards, as arrays. Samples of several versions are looked up together."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...storage.threads import lock
from ..shards.address import UNKNOWN_CRC, FieldAddress, SampleAddress
from ..shards.bitmap import Bools, SelectTable
from ..shards.index import ROW_GROUP_ROWS, IndexRows
from ..shards.parts_table import PartsTable, locate

if TYPE_CHECKING:
    from ..versions.version import Version


Int64s = np.ndarray[Any, np.dtype[np.int64]]


class Shard(NamedTuple):
    of: int
    """Its version's number in the batch."""
    group: str
    """Group of fields."""
    path: str
    """Path in the root."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FieldPlaces:
    """Shards, offsets, sizes and checksums of one field for n samples."""

    shards: Sequence[Shard]
    """Shards of the samples, each once."""
    shard: Int64s
    """int64 [n]: index into `shards`."""
    offset: Int64s
    """int64 [n]: first byte."""
    nbytes: Int64s
    """int64 [n]: number of bytes."""
    crc32c: Int64s
    """int64 [n]: CRC-32C; `UNKNOWN_CRC` is replaced after the read."""

    @property
    def unknown(self) -> Int64s:
        """int64: numbers of the samples with unknown CRC-32C."""
        return np.flatnonzero(self.crc32c == UNKNOWN_CRC)

    def address(self, field: str, number: int) -> FieldAddress:
        shard = self.shards[self.shard[number]]
        return FieldAddress(
            field=field,
            group=shard.group,
            path=shard.path,
            offset=int(self.offset[number]),
            nbytes=int(self.nbytes[number]),
            crc32c=int(self.crc32c[number]),
        )

    def shares(self, numbers: Int64s | None = None) -> tuple[Int64s, list["Share"]]:
        """Return the sample numbers (all, or `numbers`, ascending) ordered by shard, and each shard's share of them."""
        shard = self.shard if numbers is None else self.shard[numbers]
        if len(self.shards) == 1:
            ordered = np.arange(len(shard)) if numbers is None else numbers
            return ordered, [Share(self.shards[0], 0, len(ordered))] if len(ordered) else []
        # 16-bit numbers are radix-sorted, in a tenth of the time.
        small = shard.astype(np.uint16) if len(self.shards) < 2**16 else shard
        order = np.argsort(small, kind="stable")
        sorted_shards = shard[order]
        starts = run_starts(sorted_shards)
        stops = [*starts[1:].tolist(), len(order)]
        which = sorted_shards[starts].tolist()
        shares = [
            Share(self.shards[at], *ends) for at, *ends in zip(which, starts.tolist(), stops, strict=False)
        ]
        return order if numbers is None else numbers[order], shares

    def part(self, rows: slice) -> "FieldPlaces":
        return FieldPlaces(
            shards=self.shards,
            shard=self.shard[rows],
            offset=self.offset[rows],
            nbytes=self.nbytes[rows],
            crc32c=self.crc32c[rows],
        )

    def by_shard(self, numbers: Int64s | None = None) -> Iterator[tuple[Shard, Int64s]]:
        """Yield (shard, ascending numbers of its samples), for all samples or for `numbers` (ascending)."""
        ordered, shares = self.shares(numbers)
        for shard, start, stop in shares:
            yield shard, ordered[start:stop]


class Share(NamedTuple):
    """One shard's samples, as a range of the order that `FieldPlaces.shares` returns."""

    shard: Shard
    start: int
    """Position of the first sample."""
    stop: int
    """Position after the last sample."""


def run_starts(values: Int64s) -> Int64s:
    """Return the start of each run of equal values, in a third of `numpy.diff`'s time."""
    if not len(values):
        return np.zeros(0, np.int64)
    return np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1])


def members(which: Int64s, n: int) -> Iterator[tuple[int, Int64s]]:
    """Yield (number, its ascending positions in `which`) for each number in [0, n). O(len(which) log + n)."""
    if n == 1:
        yield 0, np.arange(len(which))
        return
    order = np.argsort(which, kind="stable")
    ends = np.searchsorted(which[order], np.arange(n), side="right").tolist()
    for number, (start, end) in enumerate(pairwise([0, *ends])):
        yield number, order[start:end]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplePlaces:
    """n samples of several versions, and the place of each requested field."""

    versions: Sequence["Version"]
    of: Int64s
    """int64 [n]: number of the sample's version in `versions`."""
    part: Int64s
    """int64 [n]: position of the sample's part in the version."""
    row: Int64s
    """int64 [n]: row of the sample in its part."""
    ordinal: Int64s
    """int64 [n]: number of the live sample in its version."""
    index: Sequence[IndexRows]
    """Index rows around the samples; they contain the keys."""
    stretch: Int64s
    """int64 [n]: index into `index` for each sample."""
    fields: Mapping[str, FieldPlaces]
    """Field name -> places."""

    def __len__(self) -> int:
        return len(self.ordinal)

    def key(self, number: int) -> str:
        rows = self.index[int(self.stretch[number])]
        return rows.keys[int(self.row[number]) - rows.first_row]

    def keys(self) -> list[str]:
        local = self.row - np.array([rows.first_row for rows in self.index], np.int64)[self.stretch]
        keys = [rows.keys for rows in self.index]
        return [keys[which][at] for which, at in zip(self.stretch.tolist(), local.tolist(), strict=True)]

    def address(self, number: int) -> SampleAddress:
        version = self.versions[int(self.of[number])]
        return SampleAddress(
            key=self.key(number),
            version=version.name,
            version_id=version.id,
            part=version.parts.id(int(self.part[number])),
            row=int(self.row[number]),
            ordinal=int(self.ordinal[number]),
            fields={field: places.address(field, number) for field, places in self.fields.items()},
        )

    def span(self, rows: slice) -> "SamplePlaces":
        return SamplePlaces(
            versions=self.versions,
            of=self.of[rows],
            part=self.part[rows],
            row=self.row[rows],
            ordinal=self.ordinal[rows],
            index=self.index,
            stretch=self.stretch[rows],
            fields={field: places.part(rows) for field, places in self.fields.items()},
        )

    def at(self, number: int) -> "SampleAt":
        return SampleAt(self, number)

    def addresses(self) -> list[SampleAddress]:
        return [self.address(number) for number in range(len(self))]


class SampleAt(NamedTuple):
    """One sample of a `SamplePlaces`."""

    places: SamplePlaces
    number: int
    """Number of the sample in `places`."""

    def address(self) -> SampleAddress:
        return self.places.address(self.number)

    def describe(self, field: str | None = None) -> str:
        return self.address().describe(field)


Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""The built-in `map`, or a thread pool's."""

Layout = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
"""Per group: (requested fields, all fields, which are the index columns)."""


class RowStretch(NamedTuple):
    rows: IndexRows
    path: str
    """Shard path."""


def groups_of(version: "Version", fields: Sequence[str]) -> dict[str, list[str]]:
    """Return group -> the requested fields that it holds, groups sorted. Raises: FieldNotFound."""
    out: dict[str, list[str]] = {}
    for field in fields:
        out.setdefault(version.group_of(field), []).append(field)
    return dict(sorted(out.items()))


def layout_of(version: "Version", fields: Sequence[str]) -> Layout:
    return tuple(
        (tuple(asked), tuple(sorted(version.manifest["groups"][group]["field_nbytes"])))
        for group, asked in groups_of(version, fields).items()
    )


class Lookup:
    """Finds one or more fields of samples, in versions that share a layout. `versions[i]` is version number i.

    Reads a version's parts table at the first request for one of its samples. Thread-safe.
    """

    def __init__(self, versions: Sequence["Version"], fields: Sequence[str]) -> None:
        self._versions, self._fields = versions, tuple(fields)
        self._layout = layout_of(versions[0], fields)
        self._groups = [list(groups_of(version, fields)) for version in versions]
        self._lock = lock()
        self._parts = _joined([None] * len(versions))

    def places(self, of: Int64s, ordinals: Int64s, run: Map = map) -> SamplePlaces:
        """Return the places of the fields for live ordinals, in the order given.

        Costs one index row group per distinct (group, 2,048-row stretch) that is not in memory, and O(n log n) time.

            of: int64 [n], version number of each sample.
            run: may be a thread pool's map.

        Raises: Corrupt; ObjectNotFound; FieldNotFound if a sample lacks one of the fields; InvalidRuntime for an
        ordinal out of range.
        """
        resolved = self._places(of, ordinals, run)
        assert resolved is not None  # everything missing was read
        return resolved

    def held_places(self, of: Int64s, ordinals: Int64s) -> SamplePlaces | None:
        return self._places(of, ordinals, None)

    def _places(self, of: Int64s, ordinals: Int64s, run: Map | None) -> SamplePlaces | None:
        parts = self._with_parts_of(of, run)
        if parts is None:
            return None
        part, row = parts.locate(of, ordinals)
        name = (parts.first_name[of] + part) * 2**32 + row // ROW_GROUP_ROWS
        order = np.argsort(name, kind="stable")
        starts = run_starts(name[order])
        sizes = np.diff(starts, append=len(order))
        number = np.repeat(np.arange(len(starts)), sizes)  # stretch number for each of `order`
        stretch = np.empty_like(number)
        stretch[order] = number
        heads = order[starts]
        columns = (of[heads], part[heads], row[heads] // ROW_GROUP_ROWS)
        keys_of_stretches = list(zip(*(column.tolist() for column in columns), strict=True))
        places: dict[str, FieldPlaces] = {}
        index: list[IndexRows] = []
        for group, (asked, fields) in enumerate(self._layout):
            stretches = self._stretches(group, keys_of_stretches, run)
            if stretches is None:
                return None
            local = row[order] - np.array([cached.rows.first_row for cached in stretches], np.int64)[number]
            in_order = np.empty((len(row), len(fields), 3), np.int64)
            for cached, start, size in zip(stretches, starts.tolist(), sizes.tolist(), strict=True):
                rows = slice(start, start + size)
                in_order[rows] = cached.rows.places[local[rows]]
            out = np.empty_like(in_order)
            out[order] = in_order
            shards = [
                Shard(of, self._groups[of][group], cached.path)
                for (of, _, _), cached in zip(keys_of_stretches, stretches, strict=True)
            ]
            numbers = {shard: at for at, shard in enumerate(dict.fromkeys(shards))}
            shard = np.array([numbers[cached] for cached in shards], np.int64)[stretch]
            for field in asked:
                offset, nbytes, crc = out[:, fields.index(field)].T
                places[field] = FieldPlaces(
                    shards=list(numbers), shard=shard, offset=offset, nbytes=nbytes, crc32c=crc
                )
            index = index or [cached.rows for cached in stretches]
        return SamplePlaces(
            versions=self._versions,
            of=of,
            part=part,
            row=row,
            ordinal=ordinals,
            index=index,
            stretch=stretch,
            fields={field: places[field] for field in self._fields},
        )

    def _stretches(
        self, group: int, stretches: Sequence[tuple[int, int, int]], run: Map | None
    ) -> list[RowStretch] | None:
        """Return index rows by (version, part, stretch number); None if some are missing and run is None."""
        versions, groups = self._versions, self._groups
        stretches_found, missing = list[RowStretch | None](), list[int]()
        for at, (of, part, number) in enumerate(stretches):
            stretch = versions[of].held(groups[of][group], part, number)
            stretches_found.append(stretch)
            if stretch is None:
                if run is None:
                    return None
                missing.append(at)
        if missing:
            assert run is not None

            def load(name: tuple[int, int, int]) -> RowStretch:
                of, part, number = name
                return versions[of].stretch(groups[of][group], part, number)

            for at, stretch in zip(missing, run(load, [stretches[at] for at in missing]), strict=True):
                stretches_found[at] = stretch
        return [stretch for stretch in stretches_found if stretch is not None]

    def _with_parts_of(self, of: Int64s, run: Map | None) -> "_Parts | None":
        """Return the parts of these and earlier requested versions; None if some are missing and run is None."""
        parts = self._parts
        new = sorted(set(of[~parts.known[of]].tolist()))
        if new and run is None:
            return None
        if new and run is not None:
            tables = dict(zip(new, run(lambda number: self._versions[number].parts, new), strict=True))
            with self._lock:
                before = enumerate(self._parts.tables)
                parts = self._parts = _joined([tables.get(number, table) for number, table in before])
        return parts


class _Parts(NamedTuple):
    """Concatenated parts of several versions; a version listed twice is included once."""

    tables: Sequence[PartsTable | None]
    """Parts table per version number; None for versions not `known`."""
    known: Bools
    n_live: Int64s
    """int64 [versions]: live samples of each."""
    first_ordinal: Int64s
    """int64 [versions]: live samples before the version's own."""
    first_part: Int64s
    """int64 [versions]: parts before the version's own."""
    first_name: Int64s
    """int64 [versions]: number of the version's first part if repeated versions are numbered separately."""
    first: Int64s
    """int64 [parts + 1]: live samples before each part."""
    live_rows: Mapping[int, SelectTable]
    """Part -> live rows, for parts with exclusions."""

    def locate(self, of: Int64s, ordinals: Int64s) -> tuple[Int64s, Int64s]:
        """Return (part in the version, row in the part) for live ordinals, int64 [n] each. Raises: InvalidRuntime."""
        wrong = np.flatnonzero((ordinals < 0) | (ordinals >= self.n_live[of]))
        if len(wrong):
            table = self.tables[int(of[wrong[0]])]
            assert table is not None  # raises the specific error
            table.locate(ordinals[wrong[:1]])
        part, row = locate(self.first, self.live_rows, ordinals + self.first_ordinal[of])
        return part - self.first_part[of], row


def _joined(tables: Sequence[PartsTable | None]) -> _Parts:
    each = list(dict.fromkeys(table for table in tables if table is not None))
    at = {table: number for number, table in enumerate(each)}
    which = np.array([-1 if table is None else at[table] for table in tables], np.int64)
    n_live = np.array(
        [*(table.first_ordinal[-1] for table in each), 0], np.int64
    )  # the last element: for versions not known
    n_parts = np.array([*map(len, each), 0], np.int64)
    first_ordinal, first_part = np.cumsum(n_live) - n_live, np.cumsum(n_parts) - n_parts
    if len(each) == 1:  # a version may have a million parts
        first, live_rows = each[0].first_ordinal, each[0].live_rows
    else:
        before = zip(each, first_ordinal.tolist(), first_part.tolist(), strict=False)
        parts = [(table.first_ordinal[:-1] + start, table.live_rows, part) for table, start, part in before]
        first = np.concatenate([*(one for one, _, _ in parts), n_live.sum(keepdims=True)])
        live_rows = {part + own: select for _, rows, part in parts for own, select in rows.items()}
    return _Parts(
        tables=tables,
        known=which >= 0,
        n_live=n_live[which],
        first_ordinal=first_ordinal[which],
        first_part=first_part[which],
        first_name=np.cumsum(n_parts[which]) - n_parts[which],
        first=first,
        live_rows=live_rows,
    )
