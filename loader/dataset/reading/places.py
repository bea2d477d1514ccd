"""Where the samples of a batch lie, as arrays: an object per sample is made only when somebody asks for it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..shards.address import FieldAddress, SampleAddress
from ..shards.index import IndexRows

if TYPE_CHECKING:
    from ..versions.version import Version

Int64s = np.ndarray[Any, np.dtype[np.int64]]


class Shard(NamedTuple):
    """One shard of a version."""

    of: int
    """Number of its version among the versions whose samples are at hand."""
    group: str
    """Group of fields."""
    path: str
    """Path relative to the root."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FieldPlaces:
    """Places of one field of n samples."""

    shards: Sequence[Shard]
    """Shards that occur, each once."""
    shard: Int64s
    """int64 [n]: index into `shards`."""
    offset: Int64s
    """int64 [n]: first byte."""
    nbytes: Int64s
    """int64 [n]: number of bytes."""
    crc32c: Int64s
    """int64 [n]: CRC-32C of the bytes."""

    def address(self, field: str, number: int) -> FieldAddress:
        """Of one sample."""
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
        """The numbers of all samples, or of those in `numbers`, ascending too, shard by shard; and the shards'
        shares."""
        shard = self.shard if numbers is None else self.shard[numbers]
        if len(self.shards) == 1:
            ordered = np.arange(len(shard)) if numbers is None else numbers
            return ordered, [Share(self.shards[0], 0, len(ordered))] if len(ordered) else []
        order = np.argsort(shard, kind="stable")
        sorted_shards = shard[order]
        starts = np.flatnonzero(np.diff(sorted_shards, prepend=-1))
        stops = [*starts[1:].tolist(), len(order)]
        which = sorted_shards[starts].tolist()
        shares = [
            Share(self.shards[at], *ends) for at, *ends in zip(which, starts.tolist(), stops, strict=False)
        ]
        return order if numbers is None else numbers[order], shares

    def by_shard(self, numbers: Int64s | None = None) -> Iterator[tuple[Shard, Int64s]]:
        """(shard, the numbers of its samples, ascending), of all samples or of those in `numbers`, ascending too."""
        ordered, shares = self.shares(numbers)
        for shard, start, stop in shares:
            yield shard, ordered[start:stop]


class Share(NamedTuple):
    """Samples [start, stop), in the order of `FieldPlaces.shares`, lie in one shard."""

    shard: Shard
    start: int
    stop: int


def members(which: Int64s, n: int) -> Iterator[tuple[int, Int64s]]:
    """(number, positions in `which` where it is, ascending) of each number in [0, n). O(len(which) log + n)."""
    if n == 1:
        yield 0, np.arange(len(which))
        return
    order = np.argsort(which, kind="stable")
    ends = np.searchsorted(which[order], np.arange(n), side="right").tolist()
    for number, (start, end) in enumerate(pairwise([0, *ends])):
        yield number, order[start:end]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplePlaces:
    """n samples of some versions, and the place of each field asked for."""

    versions: Sequence["Version"]
    """Versions of the samples."""
    of: Int64s
    """int64 [n]: number of the sample's version in `versions`."""
    part: Int64s
    """int64 [n]: position of the sample's part among the version's parts."""
    row: Int64s
    """int64 [n]: row of the sample in its part."""
    ordinal: Int64s
    """int64 [n]: number of the live sample in its version."""
    index: Sequence[IndexRows]
    """Index rows around the samples, which have their keys."""
    stretch: Int64s
    """int64 [n]: number in `index` of the rows around the sample."""
    fields: Mapping[str, FieldPlaces]
    """Field name -> places."""

    def __len__(self) -> int:
        return len(self.ordinal)

    def key(self, number: int) -> str:
        """The key of one sample."""
        rows = self.index[int(self.stretch[number])]
        return rows.keys[int(self.row[number]) - rows.first_row]

    def keys(self) -> list[str]:
        """The keys, in order."""
        local = self.row - np.array([rows.first_row for rows in self.index], np.int64)[self.stretch]
        keys = [rows.keys for rows in self.index]
        return [keys[which][at] for which, at in zip(self.stretch.tolist(), local.tolist(), strict=True)]

    def address(self, number: int) -> SampleAddress:
        """One sample's address, with its fields in the order in which they were asked for."""
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

    def at(self, number: int) -> "SampleAt":
        """One sample, whose address is made when an error or a metric asks for it."""
        return SampleAt(self, number)

    def addresses(self) -> list[SampleAddress]:
        """Every sample's address."""
        return [self.address(number) for number in range(len(self))]


class SampleAt(NamedTuple):
    """One sample of those that `places` has."""

    places: SamplePlaces
    number: int

    def address(self) -> SampleAddress:
        """Its address."""
        return self.places.address(self.number)

    def describe(self, field: str | None = None) -> str:
        """As `SampleAddress.describe`."""
        return self.address().describe(field)
