"""Samples of a registered format, as byte ranges of an object."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
import pyarrow as pa

from loader.dataset.columnar.column_agreement import ColumnAgreement
from loader.dataset.columnar.json_members import JsonMembers
from loader.dataset.columnar.parquet_chunks import Chunks
from loader.storage import ByteRange, ObjectInfo

from .stated_counts import StatedCounts

NO_METADATA: Mapping[str, Any] = {}
RUN_SAMPLES = 2**18
"""Most samples per run; a reader then needs a few MB for its index."""


class ForeignSample(NamedTuple):
    """One sample, named as in its format."""

    key: str
    """Any text; registration escapes it."""
    fields: Mapping[str, ByteRange]
    metadata: Mapping[str, Any] = NO_METADATA
    """Column -> value."""
    source: Mapping[str, str] = NO_METADATA
    """Provenance column -> value, beside the object's own."""
    crcs: Mapping[str, int] = NO_METADATA
    """Field -> CRC-32C, if read."""


class ForeignTable(NamedTuple):
    """Samples of one object with equal fields."""

    keys: list[str]
    """Sample keys."""
    fields: tuple[str, ...]
    """Field names."""
    places: list[int]
    """Offset and length of each field of each sample, flat."""
    crcs: Sequence[int] = ()
    """CRC-32C of each; empty unless all were read."""
    metadata: pa.Table | None = None
    """Columns, one row per sample, or None."""


class ForeignRun(NamedTuple):
    """Consecutive samples with one field, contiguous values, and consecutive numbers as keys."""

    prefix: str
    """Key prefix: "", or text that ends with "/"."""
    first: int
    """First sample's number."""
    field: str
    """Field name."""
    edges: np.ndarray[Any, np.dtype[np.int64]]
    """int64 [samples + 1]: samples' offsets, and the last's end."""
    metadata: Mapping[str, pa.Array] = NO_METADATA
    """Column -> one value per sample."""
    source: Mapping[str, str] = NO_METADATA
    """Provenance column -> shared value."""


class ObjectColumns(Protocol):
    """Columns that follow from an object's key: of partition folders, or labels of files."""

    def joined(self, key: str, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a sample's metadata merged with its object's columns."""


class FoundObjects(NamedTuple):
    """A source's objects of one format."""

    infos: list[ObjectInfo]
    """Objects as listed."""
    samples: Callable[[ObjectInfo], Iterator[ForeignSample | ForeignTable | ForeignRun]]
    """Yields an object's samples. Raises: Corrupt; InvalidSample; Changed; StoreError."""
    chunks: Mapping[str, Chunks] = NO_METADATA
    """Table key -> its chunks; filled by reading the samples."""
    labels: Sequence[str] | None = None
    """Class names that `cls` indexes, or None."""
    stated: StatedCounts | None = None
    """Counts that the source states; None if the format states none itself."""
    columns: ColumnAgreement | None = None
    """Checks that table objects agree on their columns, or None."""
    members: JsonMembers | None = None
    """Reads JSON members into columns, or None."""
    left_out: set[str] | None = None
    """Columns that the reader leaves out, which `reading` fills; None if it reads all."""
    declared_widths: bool = False
    """True if nested lists of numbers become arrays of their declared width."""
    seals: bool = False
    """True if seals hold the checksums, because registration checksums only what it reads."""

    def reading(
        self,
        without: Collection[str],
        reserved: Collection[str] = (),
        into: JsonMembers | None = None,
    ) -> "FoundObjects":
        """Return the objects without some columns and JSON members; see `JsonMembers.leave_out`."""
        if self.left_out is not None:
            self.left_out.update(without)
        if self.members is not None:
            self.members.leave_out(without, reserved, into)
        return self

    def with_columns(self, columns: ObjectColumns) -> "FoundObjects":
        """Return a copy with column values that follow from an object's key."""
        read = self.samples

        def samples(info: ObjectInfo) -> Iterator[ForeignSample]:
            for sample in read(info):
                assert isinstance(sample, ForeignSample), type(sample)  # tables yield no other kind
                yield sample._replace(metadata=columns.joined(info.key, sample.metadata))

        return self._replace(samples=samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignShard:
    """Objects that share one index."""

    name: str
    """First object's key."""
    infos: tuple[ObjectInfo, ...]
    """Objects in key order."""
    offsets: tuple[int, ...]
    """Each object's offset in the shard, which joins all of them."""
    nbytes: int
    """Total bytes."""


def object_shards(infos: Sequence[ObjectInfo], objects_per_shard: int) -> list[ForeignShard]:
    """Return shards of at most `objects_per_shard` objects."""
    out = []
    for start in range(0, len(infos), objects_per_shard):
        objects = tuple(infos[start : start + objects_per_shard])
        ends = np.cumsum([info.nbytes for info in objects]).tolist()
        out.append(ForeignShard(name=objects[0].key, infos=objects, offsets=(0, *ends[:-1]), nbytes=ends[-1]))
    return out


@dataclass(frozen=True, slots=True)
class NumberedKeys(Sequence[str]):
    """The keys `<prefix><first>`, `<prefix><first + 1>` ..."""

    prefix: str
    """Text before each number."""
    first: int
    """First number."""
    n: int
    """Number of keys."""

    def __len__(self) -> int:
        return self.n

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        numbers = range(self.first, self.first + self.n)
        if isinstance(at, slice):
            return [f"{self.prefix}{number}" for number in numbers[at]]
        return f"{self.prefix}{numbers[at]}"


@dataclass(frozen=True, slots=True)
class Repeated(Sequence[Any]):
    """One value, repeated."""

    value: Any
    n: int
    """Number of rows."""

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, at: int | slice) -> Any:
        selected = range(self.n)[at]
        if isinstance(selected, int):
            return self.value
        return [self.value] * len(selected)


def overlap(ranges: Sequence[NumberedKeys]) -> bool:
    """Return whether two ranges share a key. Prefixes are "" or end with "/"."""
    ends: dict[str, int] = {}
    for keys in sorted(ranges, key=lambda keys: (keys.prefix, keys.first)):
        # Sorted by first number, so that only neighbours can overlap.
        if keys.first < ends.get(keys.prefix, 0):
            return True
        ends[keys.prefix] = keys.first + keys.n
    return False
