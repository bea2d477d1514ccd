"""Places of many samples' bytes, as arrays: shard, offset, size and checksum of each field."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ..shards.address import UNKNOWN_CRC, FieldAddress, SampleAddress
from ..shards.index_rows import IndexRows

if TYPE_CHECKING:
    from ...storage import RangeReader, Store
    from ..shards.parts_table import PartsTable


Int64s = np.ndarray[Any, np.dtype[np.int64]]
Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""The built-in `map`, or a thread pool's."""


class RowStretch(NamedTuple):
    """Index rows of one stretch of a shard: at most `ROW_GROUP_ROWS`."""

    rows: IndexRows
    path: str
    """Shard path."""


class VersionData(Protocol):
    """An open version, for modules below `Version`: see there for what each member returns and raises."""

    dataset: str
    number: int
    id: str
    manifest: dict[str, Any]
    reader: object
    searches: object

    def __len__(self) -> int: ...

    @property
    def store(self) -> "Store": ...

    @property
    def name(self) -> str: ...

    @property
    def fields(self) -> tuple[str, ...]: ...

    @property
    def facts(self) -> dict[str, dict[str, Any]]: ...

    @property
    def parts(self) -> "PartsTable": ...

    @property
    def shard_store(self) -> "RangeReader": ...

    def group_of(self, field: str) -> str: ...

    def address(
        self,
        ordinals: Int64s,
        fields: Sequence[str],
        parallel_map: Map = map,
    ) -> list[SampleAddress]: ...

    def places(
        self,
        ordinals: Int64s,
        fields: Sequence[str],
        parallel_map: Map = map,
    ) -> "SamplePlaces": ...

    def keys(self, ordinals: Int64s) -> list[str]: ...

    def stretch_keys(self, part: int, number: int) -> list[str]: ...

    def cached_stretch(
        self,
        group: str,
        part: int,
        number: int,
    ) -> RowStretch | None: ...

    def stretch(
        self,
        group: str,
        part: int,
        number: int,
    ) -> RowStretch: ...


class Shard(NamedTuple):
    version: int
    """Its version's number in the batch."""
    group: str
    """Group of fields."""
    path: str
    """Path in the root."""


class Share(NamedTuple):
    """One shard's samples, as a range of the sample numbers that `FieldPlaces.shares` returns."""

    shard: Shard
    start: int
    """Position of the first sample."""
    stop: int
    """Position after the last sample."""


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

    def address(
        self,
        field: str,
        number: int,
    ) -> FieldAddress:
        index = self.shard[number]
        shard = self.shards[index]
        return FieldAddress(
            field=field,
            group=shard.group,
            path=shard.path,
            offset=int(self.offset[number]),
            nbytes=int(self.nbytes[number]),
            crc32c=int(self.crc32c[number]),
        )

    def shares(self, numbers: Int64s) -> tuple[Int64s, list[Share]]:
        """Return sample numbers ordered by shard, ascending within each, and each shard's share of them.

        numbers: int64 [n], ascending.
        """
        n = len(numbers)
        if not n:
            return numbers, []
        if len(self.shards) == 1:
            only_share = Share(self.shards[0], 0, n)
            return numbers, [only_share]

        shard_number = self.shard[numbers]  # [n]
        sort_key = shard_number
        if len(self.shards) < 2**16:
            # 16-bit numbers are radix-sorted, in a tenth of the time.
            sort_key = shard_number.astype(np.uint16)
        order = np.argsort(sort_key, kind="stable")
        sorted_number = shard_number[order]

        starts = run_starts(sorted_number)  # [distinct shards]
        distinct_numbers = sorted_number[starts].tolist()
        bounds = starts.tolist()
        bounds.append(n)
        shares: list[Share] = []
        for number, (start, stop) in zip(
            distinct_numbers,
            pairwise(bounds),
            strict=True,
        ):
            shard = self.shards[number]
            shares.append(Share(shard, start, stop))
        return numbers[order], shares

    def by_shard(
        self,
        numbers: Int64s | None = None,
    ) -> Iterator[tuple[Shard, Int64s]]:
        """Yield (shard, ascending numbers of its samples), for all samples or for `numbers` (ascending)."""
        if numbers is None:
            numbers = np.arange(len(self.shard))
        ordered, shares = self.shares(numbers)
        for shard, start, stop in shares:
            yield shard, ordered[start:stop]

    def subset(self, rows: slice) -> "FieldPlaces":
        """Return the places of a range of the samples. The arrays are views: a CRC-32C stored in one is in both."""
        return FieldPlaces(
            shards=self.shards,
            shard=self.shard[rows],
            offset=self.offset[rows],
            nbytes=self.nbytes[rows],
            crc32c=self.crc32c[rows],
        )


def run_starts(values: Int64s) -> Int64s:
    """Return the start of each run of equal values, in a third of `numpy.diff`'s time."""
    if not len(values):
        return np.zeros(0, np.int64)
    is_change = values[1:] != values[:-1]
    later_starts = np.flatnonzero(is_change) + 1
    return np.concatenate([[0], later_starts])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplePlaces:
    """n samples of several versions, and the place of each requested field."""

    versions: Sequence[VersionData]
    version: Int64s
    """int64 [n]: index into `versions`."""
    part: Int64s
    """int64 [n]: position of the sample's part in the version."""
    row: Int64s
    """int64 [n]: row of the sample in its part."""
    ordinal: Int64s
    """int64 [n]: number of the live sample in its version."""
    index: Sequence[IndexRows]
    """Index rows of the stretches that contain the samples; they have the keys."""
    stretch: Int64s
    """int64 [n]: number of the sample's stretch in `index`."""
    fields: Mapping[str, FieldPlaces]
    """Field name -> places."""

    def __len__(self) -> int:
        return len(self.ordinal)

    def key(self, number: int) -> str:
        stretch = int(self.stretch[number])
        rows = self.index[stretch]
        row_in_stretch = int(self.row[number]) - rows.first_row
        return rows.keys[row_in_stretch]

    def keys(self) -> list[str]:
        stretch_keys = [rows.keys for rows in self.index]
        first_rows = [rows.first_row for rows in self.index]
        first_row = np.array(first_rows, np.int64)  # [stretches]
        row_in_stretch = self.row - first_row[self.stretch]  # [n]
        samples = zip(
            self.stretch.tolist(),
            row_in_stretch.tolist(),
            strict=True,
        )
        return [stretch_keys[stretch][row] for stretch, row in samples]

    def address(self, number: int) -> SampleAddress:
        version_number = int(self.version[number])
        version = self.versions[version_number]
        part = int(self.part[number])
        fields: dict[str, FieldAddress] = {}
        for field, places in self.fields.items():
            fields[field] = places.address(field, number)
        return SampleAddress(
            key=self.key(number),
            version=version.name,
            version_id=version.id,
            part=version.parts.id(part),
            row=int(self.row[number]),
            ordinal=int(self.ordinal[number]),
            fields=fields,
        )

    def addresses(self) -> list[SampleAddress]:
        return [self.address(number) for number in range(len(self))]

    def subset(self, rows: slice) -> "SamplePlaces":
        """Return a range of the samples. The arrays are views of these."""
        fields: dict[str, FieldPlaces] = {}
        for field, places in self.fields.items():
            fields[field] = places.subset(rows)
        return SamplePlaces(
            versions=self.versions,
            version=self.version[rows],
            part=self.part[rows],
            row=self.row[rows],
            ordinal=self.ordinal[rows],
            index=self.index,
            stretch=self.stretch[rows],
            fields=fields,
        )

    def at(self, number: int) -> "SampleAt":
        """Return sample `number`. Its address, which few batches need, is found by its methods."""
        return SampleAt(self, number)


class SampleAt(NamedTuple):
    """One sample of a `SamplePlaces`."""

    places: SamplePlaces
    number: int
    """Number of the sample in `places`."""

    def address(self) -> SampleAddress:
        return self.places.address(self.number)

    def describe(self, field: str | None = None) -> str:
        return self.address().describe(field)
