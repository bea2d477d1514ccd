"""Parquet: each row is a sample, read one row group at a time.

Registering reads all rows once, because footers give no names, sizes and checksums of fields: nulls are absent fields,
and extensions follow from first bytes.

An export writes one file per part, with Hugging Face features. The schema's metadata `penstock` maps columns to fields
for imports.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loader.dataset.columnar.arrow_columns import Row, TableRows
from loader.dataset.columnar.choices import ColumnarOptions, SchemaFacts, check_labels, schema_features
from loader.dataset.columnar.column_agreement import ColumnAgreement
from loader.dataset.columnar.column_names import duplicate_key, without_field
from loader.dataset.columnar.parquet_chunks import Chunks, check_row_group, row_group_reader, rows_at_once
from loader.dataset.columnar.plain_values import inner_dtype, plain_type
from loader.dataset.shards.shard import crc32c
from loader.dataset.tables.columns import SOURCE_COLUMNS, type_named
from loader.dataset.tables.parquet_ranges import footer_nbytes
from loader.errors import InvalidSample
from loader.json_text import canonical_json
from loader.storage import ByteRange, ObjectInfo, Store

from ...class_names import find_class_names
from ..exporter import ExportSample, ExportSelection, HashedFile, Loss, Outbox, WorkUnit
from ..importer import ImportRun, Readable, ReadSample, of_first_readable
from ..reading.object_file import ObjectFile, open_object
from ..reading.sample import ForeignSample, FoundObjects

MOST_CHUNK_BYTES = 256 * 2**20
"""Largest decoded chunk, in bytes; reading one sample decodes all of it."""

SplitOf = Callable[[str], str]
"""Object key -> split, or ""."""


def find_objects(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> FoundObjects:
    """Return the `*.parquet` objects, with the first one's class names."""
    return objects_with_splits(store, infos, options, lambda key: "")


def objects_with_splits(
    store: Store, infos: list[ObjectInfo], options: ColumnarOptions, split_of: SplitOf
) -> FoundObjects:
    tables = [info for info in infos if info.key.lower().endswith(".parquet")]
    labels = None
    has_declared_widths = False
    for info in tables[:1]:
        with open_object(store, info) as file:
            schema = pq.read_metadata(pa.PythonFile(file, "r")).schema.to_arrow_schema()
            labels = schema_features(schema).labels
            arrays = [column for column in schema if options.fields.get(column.name) == "npy"]
            has_declared_widths = any(inner_dtype(plain_type(column.type)) for column in arrays)
    options = options._replace(declared_widths=has_declared_widths)
    chunks: dict[str, Chunks] = {}
    agreed = ColumnAgreement()

    def samples(info: ObjectInfo) -> Iterator[ForeignSample]:
        with open_object(store, info) as file:
            walk = _TableWalk(info, file, options, labels, split_of(info.key))
            agreed.check(info.key, walk.table.columns)
            yield from walk.samples()
            chunks[info.key] = walk.chunks()

    return FoundObjects(tables, samples, chunks, labels, columns=agreed, declared_widths=has_declared_widths)


class _FieldPlace(NamedTuple):
    column: int
    """Index of the field's column."""
    offset: int
    """First byte, from the column's first in its row group."""
    nbytes: int
    """Length in bytes."""
    crc: int
    """CRC-32C of the bytes."""


class _TableWalk:
    def __init__(
        self,
        info: ObjectInfo,
        file: ObjectFile,
        options: ColumnarOptions,
        labels: list[str] | None,
        split: str,
    ) -> None:
        self._info = info
        self._file = file
        self._options = options
        self._footer = pq.read_metadata(pa.PythonFile(file, "r"))
        schema = self._footer.schema.to_arrow_schema()
        features = schema_features(schema)
        check_labels(info.key, features.labels, labels)
        self.table = TableRows(schema, features, options, info.key)
        self._columns = self.table.field_columns
        self._starts = [0]  # in the object's decoded bytes: each group's columns, one after the other
        self._keys: set[str] = set()
        self._source: Mapping[str, str] = {"split": split} if split else {}
        self._reader = row_group_reader(pa.PythonFile(file, "r"), self._footer, schema, info.key)

    def samples(self) -> Iterator[ForeignSample]:
        row = 0
        for at in range(self._footer.num_row_groups):
            group = check_row_group(self._footer, at, self._info)
            nbytes = [0] * len(self._columns)
            group_rows: list[tuple[Row, dict[str, _FieldPlace]]] = []
            batches = self._reader.iter_batches(
                rows_at_once(group), row_groups=[at], columns=self.table.columns_read, use_threads=False
            )
            for batch in batches:
                for table_row in self.table.rows(batch, row):
                    others = [value for value in table_row.values if value.column.kind != "field"]
                    # The group's rows wait for its end, so they do not keep their fields' bytes.
                    group_rows.append((table_row._replace(values=others), self._values(table_row, nbytes)))
                row += batch.num_rows
            first = self._end_group(at, nbytes)
            for table_row, values in group_rows:
                yield self._sample(table_row, values, first)

    def chunks(self) -> Chunks:
        size = self._info.nbytes
        # The last eight bytes have the footer's length.
        self._file.seek(size - 8)
        nbytes = footer_nbytes(self._file.read(8))
        self._file.seek(size - nbytes)
        return Chunks(nbytes, crc32c(self._file.read(nbytes)), tuple(self._columns), tuple(self._starts))

    def _values(self, row: Row, nbytes: list[int]) -> dict[str, _FieldPlace]:
        """Return the places of a row's fields. nbytes: each column's bytes in the group, which grow."""
        fields: dict[str, _FieldPlace] = {}
        for value in row.values:
            if value.column.kind == "field":
                at = self._columns.index(value.column.column)
                fields[value.name] = _FieldPlace(at, nbytes[at], len(value.value), crc32c(value.value))
                nbytes[at] += len(value.value)
        if not any(name not in self._options.without for name in fields):
            raise without_field(self._info.key, row.key, row.sample.metadata)
        if self.table.has_keys:
            if row.key in self._keys:
                raise duplicate_key(row.key, self._info.key)
            self._keys.add(row.key)
        return fields

    def _end_group(self, at: int, nbytes: list[int]) -> list[int]:
        """Add the chunks of row group `at`, and return their first decoded bytes. nbytes: of each column."""
        first = []
        for column, size in zip(self._columns, nbytes, strict=True):
            if size > MOST_CHUNK_BYTES:
                raise InvalidSample(
                    f"{self._info.key}, row group {at}: column {column!r} decodes to {size:,} bytes, and a chunk is "
                    f"decoded whole; at most {MOST_CHUNK_BYTES:,} are read in place. Write the table again with fewer "
                    "rows in a row group, or import it: penstock import",
                    what=f"column {column!r}",
                    where=f"{self._info.key}, row group {at}",
                    given=size,
                    accepted=MOST_CHUNK_BYTES,
                )
            first.append(self._starts[-1])
            self._starts.append(self._starts[-1] + size)
        return first

    def _sample(self, row: Row, places: Mapping[str, _FieldPlace], first: list[int]) -> ForeignSample:
        """Return a row's sample. first: offsets of the group's columns in the object's decoded bytes."""
        fields: dict[str, ByteRange] = {}
        crcs: dict[str, Any] = {}
        for name, place in places.items():
            fields[name] = ByteRange(first[place.column] + place.offset, place.nbytes)
            crcs[name] = place.crc
        source = {**self._source, **row.sample.source}
        return ForeignSample(row.key, fields, row.sample.metadata, source, crcs)


OPTIONS = frozenset({"key", "fields"})
RUN_BYTES = 64 * 2**20
"""Approximate bytes of a run, unless one row group is larger."""


def find_readable(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the `*.parquet` objects, with the first readable one's class names."""
    return tables(store, [info for info in infos if info.key.lower().endswith(".parquet")], options)


def tables(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return these Parquet objects, with the first readable one's class names."""
    labels = of_first_readable(infos, partial(_labels, store))
    agreed = ColumnAgreement()
    return Readable(
        infos,
        partial(_runs, store, options, labels, agreed),
        partial(_samples, store, options),
        labels,
        columns=agreed,
    )


def _labels(store: Store, info: ObjectInfo) -> list[str] | None:
    with _file(store, info) as (_, _, features):
        return features.labels


def _runs(
    store: Store,
    options: ColumnarOptions,
    labels: list[str] | None,
    agreed: ColumnAgreement,
    info: ObjectInfo,
) -> list[ImportRun]:
    with _file(store, info) as (metadata, schema, features):
        check_labels(info.key, features.labels, labels)
        agreed.check(info.key, TableRows(schema, features, options, info.key).columns)
        runs: list[ImportRun] = []
        first = 0
        nbytes = 0
        for at in range(metadata.num_row_groups):
            group = check_row_group(metadata, at, info)
            nbytes += group.total_byte_size
            # Whole row groups: one that two runs shared would be decoded twice.
            if nbytes >= RUN_BYTES or at == metadata.num_row_groups - 1:
                runs.append(ImportRun(info, first, at + 1, nbytes))
                first = at + 1
                nbytes = 0
    return runs


def _samples(store: Store, options: ColumnarOptions, run: ImportRun) -> Iterator[ReadSample]:
    with open_object(store, run.info) as file:
        footer = pq.read_metadata(pa.PythonFile(file, "r"))
        schema = footer.schema.to_arrow_schema()
        reader = row_group_reader(pa.PythonFile(file, "r"), footer, schema, run.info.key)
        rows = TableRows(schema, schema_features(schema), options, run.info.key)
        # A key has the row's number in the file, whatever the run.
        row = sum(footer.row_group(at).num_rows for at in range(run.first))
        for at in range(run.first, run.stop):
            batch_rows = rows_at_once(footer.row_group(at))
            batches = reader.iter_batches(
                batch_rows, row_groups=[at], columns=rows.columns_read, use_threads=False
            )
            for batch in batches:
                yield from rows.samples(batch, row)
                row += batch.num_rows


@contextmanager
def _file(store: Store, info: ObjectInfo) -> Iterator[tuple[Any, pa.Schema, SchemaFacts]]:
    with open_object(store, info) as file:
        metadata = pq.read_metadata(pa.PythonFile(file, "r"))
        schema = metadata.schema.to_arrow_schema()
        yield metadata, schema, schema_features(schema)


KEY = "key"
GROUP_BYTES = 32 * 2**20
GROUP_ROWS = 1024
"""Limits on a row group; a sample larger than the first is a group by itself."""
MEDIA = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "img", "gif", "tif"), "Image"),
    **dict.fromkeys(("wav", "flac", "mp3", "ogg", "opus"), "Audio"),
}
"""Field name's last word -> Hugging Face feature that decodes it."""
_FLAT = frozenset({"u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"})
"""Field name's last word, if its bytes are a flat array of numbers."""
_MEDIA_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_NAMES = {"double": "float64", "float": "float32", "halffloat": "float16"}


def losses(selection: ExportSelection) -> list[Loss]:
    """Return none: colliding columns are renamed, and the file records this."""
    return []


def units(selection: ExportSelection) -> list[WorkUnit]:
    return selection.by_part()


def write(selection: ExportSelection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
    """Write one part's file. Raises: InvalidSample if a field's bytes do not fit its name."""
    columns = _ExportColumns(selection)
    with outbox.file(f"data/train-{unit.number:05d}.parquet") as file:
        sink = pa.PythonFile(_Sink(file), "w")
        # Media do not repeat, so a dictionary would only cost memory.
        with pq.ParquetWriter(sink, columns.schema, compression="zstd", use_dictionary=False) as writer:
            for samples in _groups(selection.samples(unit)):
                writer.write_table(columns.table(samples), row_group_size=len(samples))
    return {}


def finish(selection: ExportSelection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
    """Write nothing."""


class _ExportColumns:
    def __init__(self, selection: ExportSelection) -> None:
        self._fields = {name: name for name in selection.fields}
        # Fields keep their names; the key and other columns give way.
        in_use = set(self._fields)
        self._key = _free(KEY, in_use)
        self._columns = {name: _free(name, in_use) for name in selection.columns}
        self._labels = None
        if "cls" in selection.fields:
            self._labels = find_class_names(selection.version)
        types = {self._key: pa.string()}
        for name, column in self._fields.items():
            types[column] = self._type(name)
        for name, column in self._columns.items():
            types[column] = type_named(selection.columns[name])
        features = {column: _feature(kind) for column, kind in types.items()}
        for name, column in self._fields.items():
            word = _word(name)
            if word in MEDIA:
                features[column] = {"_type": MEDIA[word]}
            elif word == "cls" and self._labels is not None:
                features[column] = {"_type": "ClassLabel", "names": self._labels}
        source: dict[str, str] = {}
        metadata: dict[str, str] = {}
        for name, column in self._columns.items():
            if name in SOURCE_COLUMNS:
                source[column] = name
            else:
                metadata[column] = name
        columns = {
            "key": self._key,
            "fields": {column: name for name, column in self._fields.items()},
            "metadata": metadata,
            "source": source,
        }
        schema_metadata = {
            "huggingface": canonical_json({"info": {"features": features}}),
            "penstock": canonical_json(columns),
        }
        self.schema = pa.schema(list(types.items())).with_metadata(schema_metadata)

    def table(self, samples: Sequence[ExportSample]) -> pa.Table:
        arrays = [pa.array([sample.key for sample in samples], pa.string())]
        for name in self._fields:
            values = [_value(sample, name) for sample in samples]
            arrays.append(pa.array(values, self._type(name)))
        for name, column in self._columns.items():
            values = [sample.columns.get(name) for sample in samples]
            arrays.append(pa.array(values, self.schema.field(column).type))
        return pa.table(arrays, schema=self.schema)

    def _type(self, name: str) -> pa.DataType:
        word = _word(name)
        if word in MEDIA:
            return _MEDIA_TYPE
        if word in _FLAT:
            return pa.list_(pa.from_numpy_dtype(np.dtype(word)))
        if word in ("txt", "json"):
            return pa.string()
        if word == "cls":
            return pa.int64()
        return pa.binary()


def _value(sample: ExportSample, name: str) -> Any:
    data = sample.fields.get(name)
    word = _word(name)
    if data is None:
        return None
    if word in MEDIA:
        return {"bytes": data, "path": f"{sample.key}.{name}"}
    if word in _FLAT:
        if len(data) % int(word[1:]) == 0:
            return np.frombuffer(data, f"<{word}")
        why = f"has {len(data)} bytes, no whole values"
    elif word in ("txt", "json"):
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            why = f"is not UTF-8 ({error})"
    elif word == "cls":
        if data.isdigit() and len(data) < 19:  # 18 digits fit an int64
            number = int(data)
            if str(number).encode() == data:  # an import reads the same bytes
                return number
        if data == b"-1":
            return -1
        why = f"is {data[:20]!r}, no class number"
    else:
        return data
    raise InvalidSample(f"sample {sample.key!r}: {name} {why}; leave it out (--without {name})")


def _groups(samples: Iterable[ExportSample]) -> Iterable[list[ExportSample]]:
    group: list[ExportSample] = []
    nbytes = 0
    for sample in samples:
        group.append(sample)
        nbytes += sum(map(len, sample.fields.values()))
        if nbytes >= GROUP_BYTES or len(group) == GROUP_ROWS:
            yield group
            group = []
            nbytes = 0
    if group:
        yield group


def _feature(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_list(kind):
        return {"_type": "List", "feature": _feature(kind.value_type)}
    return {"_type": "Value", "dtype": _NAMES.get(str(kind), str(kind))}


def _word(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _free(name: str, in_use: set[str]) -> str:
    """Return the name, with "_" appended while in use; add it to `in_use`."""
    while name in in_use:
        name += "_"
    in_use.add(name)
    return name


class _Sink:
    closed = False

    def __init__(self, file: HashedFile) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        return self._file.write(memoryview(data))

    def tell(self) -> int:
        return self._file.nbytes

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: the outbox closes the file."""
