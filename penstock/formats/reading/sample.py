"""Samples of a foreign format: the places of their fields in an object, one by one or as arrays."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from loader.dataset.columnar.column_agreement import ColumnAgreement
from loader.dataset.columnar.json_members import JsonMembers
from loader.dataset.columnar.parquet_chunks import Chunks
from loader.dataset.columnar.partitions import Partitions
from loader.storage import ObjectInfo, Span

NO_METADATA: Mapping[str, Any] = {}
RUN_SAMPLES = 2**18
"""Samples of a `ForeignRun`, at most: an index of so many takes a reader some MB."""


class ForeignSample(NamedTuple):
    """A sample as its format names it."""

    key: str
    """Key, any text: what our format forbids is escaped by whoever registers it."""
    fields: Mapping[str, Span]
    """Field -> its bytes in the object."""
    metadata: Mapping[str, Any] = NO_METADATA
    """Metadata column -> value."""
    source: Mapping[str, str] = NO_METADATA
    """Provenance column -> value, of those that a sample's object does not tell."""
    crcs: Mapping[str, int] = NO_METADATA
    """Field -> CRC-32C of its bytes, where they were read."""


class ForeignTable(NamedTuple):
    """Samples of an object that have the same fields."""

    keys: list[str]
    """Key of each."""
    fields: tuple[str, ...]
    """The fields."""
    places: list[int]
    """First byte and bytes of each field of each sample, one behind the other."""
    crcs: Sequence[int] = ()
    """CRC-32C of each field of each sample, where all were read."""
    metadata: pa.Table | None = None
    """Metadata columns, a row for each sample; None where there are none."""


class ForeignRun(NamedTuple):
    """Neighbours of one field, whose values lie one behind the other, and whose keys are consecutive numbers."""

    prefix: str
    """Text in front of each number: "", or a text that ends with "/"."""
    first: int
    """Number of the first sample."""
    field: str
    """The field."""
    edges: np.ndarray[Any, np.dtype[np.int64]]
    """int64 [samples + 1]: first byte of each in the object, and that behind the last."""
    metadata: Mapping[str, pa.Array] = NO_METADATA
    """Metadata column -> a value for each sample."""
    source: Mapping[str, str] = NO_METADATA
    """Provenance column -> the value of all of them."""


class FoundObjects(NamedTuple):
    """The objects of a place that are of a format, and their reader."""

    infos: list[ObjectInfo]
    """The objects, as they were listed."""
    samples: Callable[[ObjectInfo], Iterator[ForeignSample | ForeignTable | ForeignRun]]
    """The samples of an object. Raises: Corrupt; InvalidSample; Changed; StoreError."""
    chunks: Mapping[str, Chunks] = NO_METADATA
    """Key of an object of tables -> the chunks that it decodes to, once all its samples were read."""
    labels: Sequence[str] | None = None
    """Names of the classes that `cls` numbers; None where the format tells none."""
    lacking: Sequence[str] = ()
    """Objects that an index lists and that are not there, in words."""
    columns: ColumnAgreement | None = None
    """Fields and metadata that columns of tables become, of objects that were read; None of other formats."""
    members: JsonMembers | None = None
    """Reading of the members of JSON documents, which become columns; None of other formats."""
    declared_widths: bool = False
    """True where a column holds lists of lists of numbers that become arrays: they have the width of their type."""
    seals: bool = False
    """True where checksums go to seals: a walk knows them of what it read anyway, and an index does not tell how much
    that was."""

    def reading(
        self,
        without: Collection[str],
        reserved: Collection[str] = (),
        into: JsonMembers | None = None,
    ) -> "FoundObjects":
        """Return these objects, without some members of JSON documents. As `JsonMembers.leave_out`."""
        if self.members is not None:
            self.members.leave_out(without, reserved, into)
        return self

    def with_partitions(self, partitions: Partitions) -> "FoundObjects":
        """Return tables, whose samples have the columns of their folders too."""
        read = self.samples

        def samples(info: ObjectInfo) -> Iterator[ForeignSample]:
            for one in read(info):
                assert isinstance(one, ForeignSample), type(one)  # of a table
                yield one._replace(metadata=partitions.joined(info.key, one.metadata))

        return self._replace(samples=samples)
