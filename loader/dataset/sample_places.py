"""Where the samples of a batch lie, as arrays: an object per sample is made only when somebody asks for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .address import FieldAddress, SampleAddress
from .index import IndexRows

Int64s = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FieldPlaces:
    """One field of n samples: bytes [offset, offset + nbytes) of `path`, with this CRC-32C; arrays are int64 [n]."""

    group: str
    path: Sequence[str]
    offset: Int64s
    nbytes: Int64s
    crc32c: Int64s

    def address(self, field: str, number: int) -> FieldAddress:
        """Of one sample."""
        return FieldAddress(
            field=field,
            group=self.group,
            path=self.path[number],
            offset=int(self.offset[number]),
            nbytes=int(self.nbytes[number]),
            crc32c=int(self.crc32c[number]),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplePlaces:
    """n samples of one version, and the place of each field asked for. parts: position -> id of the parts that occur;
    part, row, ordinal: n numbers each; index: per sample, index rows around it, which have its key."""

    version: str
    version_id: str
    parts: Mapping[int, str]
    part: Sequence[int]
    row: Sequence[int]
    ordinal: Sequence[int]
    index: Sequence[IndexRows]
    fields: Mapping[str, FieldPlaces]

    def __len__(self) -> int:
        return len(self.ordinal)

    def key(self, number: int) -> str:
        """The key of one sample."""
        rows = self.index[number]
        return rows.keys[self.row[number] - rows.first_row]

    def keys(self) -> list[str]:
        """The keys, in order."""
        return [rows.keys[row - rows.first_row] for rows, row in zip(self.index, self.row, strict=True)]

    def address(self, number: int) -> SampleAddress:
        """One sample's address, with its fields in the order in which they were asked for."""
        return SampleAddress(
            key=self.key(number),
            version=self.version,
            version_id=self.version_id,
            part=self.parts[self.part[number]],
            row=self.row[number],
            ordinal=self.ordinal[number],
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
