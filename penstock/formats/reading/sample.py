"""Samples of a registered format, as spans of an object."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from loader.dataset.columnar.column_agreement import ColumnAgreement
from loader.dataset.columnar.column_names import Partitions
from loader.dataset.columnar.json_members import JsonMembers
from loader.dataset.columnar.parquet_chunks import Chunks
from loader.storage import ObjectInfo, Span

NO_METADATA: Mapping[str, Any] = {}
RUN_SAMPLES = 2**18
"""Limit on a run's samples: such an index costs a reader a few MB."""


class ForeignSample(NamedTuple):
    """A sample, named as in its format."""

    key: str
    """Any text; registration escapes what penstock forbids."""
    fields: Mapping[str, Span]
    """Field -> its bytes in the object."""
    metadata: Mapping[str, Any] = NO_METADATA
    """Metadata column -> value."""
    source: Mapping[str, str] = NO_METADATA
    """Provenance column -> value, beyond the object's."""
    crcs: Mapping[str, int] = NO_METADATA
    """Field -> CRC-32C of its bytes, if they were read."""


class ForeignTable(NamedTuple):
    """Samples of an object that have the same fields."""

    keys: list[str]
    """Key of each sample."""
    fields: tuple[str, ...]
    """Names of the fields."""
    places: list[int]
    """First byte and length of each field of each sample, flat."""
    crcs: Sequence[int] = ()
    """CRC-32C of each field of each sample, if all were read; else empty."""
    metadata: pa.Table | None = None
    """Metadata columns, a row per sample; None without metadata."""


class ForeignRun(NamedTuple):
    """Neighbours with one field, contiguous values and consecutive numbers as keys."""

    prefix: str
    """Prefix of each number: "", or a text that ends with "/"."""
    first: int
    """Number of the first sample."""
    field: str
    """Name of the field."""
    edges: np.ndarray[Any, np.dtype[np.int64]]
    """int64 [samples + 1]: first byte of each in the object, and the end of the last."""
    metadata: Mapping[str, pa.Array] = NO_METADATA
    """Metadata column -> a value per sample."""
    source: Mapping[str, str] = NO_METADATA
    """Provenance column -> the value of all samples."""


class FoundObjects(NamedTuple):
    """The objects of a place that are of a format, and their reader."""

    infos: list[ObjectInfo]
    """The objects, as listed."""
    samples: Callable[[ObjectInfo], Iterator[ForeignSample | ForeignTable | ForeignRun]]
    """Reads the samples of an object. Raises: Corrupt; InvalidSample; Changed; StoreError."""
    chunks: Mapping[str, Chunks] = NO_METADATA
    """Key of a table -> its chunks, known after its samples were read."""
    labels: Sequence[str] | None = None
    """Names of the classes that `cls` numbers; None if the format has none."""
    lacking: Sequence[str] = ()
    """Messages about listed objects that do not exist."""
    columns: ColumnAgreement | None = None
    """Agreement of table columns among the objects read so far; None for other formats."""
    members: JsonMembers | None = None
    """Reader of JSON members that become columns; None for other formats."""
    declared_widths: bool = False
    """True if nested lists of numbers become arrays of their declared width."""
    seals: bool = False
    """True if checksums go to seals: a walk sums only the bytes it read."""

    def reading(
        self,
        without: Collection[str],
        reserved: Collection[str] = (),
        into: JsonMembers | None = None,
    ) -> "FoundObjects":
        """Return these objects without some members of JSON documents, as `JsonMembers.leave_out`."""
        if self.members is not None:
            self.members.leave_out(without, reserved, into)
        return self

    def with_partitions(self, partitions: Partitions) -> "FoundObjects":
        """Return tables whose samples also have the columns of their folders."""
        read = self.samples

        def samples(info: ObjectInfo) -> Iterator[ForeignSample]:
            for sample in read(info):
                assert isinstance(sample, ForeignSample), type(sample)  # tables have no other samples
                yield sample._replace(metadata=partitions.joined(info.key, sample.metadata))

        return self._replace(samples=samples)
