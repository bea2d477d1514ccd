"""Map Arrow columns to fields and metadata by their type, never by their values."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Corrupt, InvalidSample, NotSupported, PenstockError
from ...modalities.fields import MOST_BYTES, stated_bytes
from .choices import ColumnarOptions, ReadSample, SchemaFacts
from .column_names import check_number, check_text, field_name, key_of_value, metadata_name, row_key, word_of
from .plain_values import (
    FLAT_WORDS,
    OutOfRange,
    encoded,
    inner_dtype,
    is_bytes,
    is_list,
    is_media,
    is_numbers,
    is_text,
    json_bytes,
    plain_array,
    plain_type,
    reader_of,
    text_bytes,
)

_DAMAGE = (
    pa.ArrowInvalid,
    pa.ArrowIndexError,
    pa.ArrowKeyError,
    pa.ArrowCapacityError,
    pa.ArrowSerializationError,
    EOFError,
    UnicodeDecodeError,  # column names can be invalid UTF-8 too
)
"""Errors that Arrow raised for 24,000 damaged or truncated Parquet and IPC files."""


@contextmanager
def arrow_errors(name: str, *, damaged: str = "is damaged or cut", hint: str = "") -> Iterator[None]:
    """Raise Arrow's errors with the name of the object. damaged: words after the name. hint: what to do.

    Local errors (out of memory, an OSError with an errno) pass unchanged.

    Raises: Corrupt for damaged bytes; NotSupported.
    """
    try:
        yield
    except PenstockError:  # some are OSErrors
        raise
    except pa.ArrowNotImplementedError as error:
        raise NotSupported(
            f"{name} uses a feature that Arrow does not read ({error}); write it again without it"
        ) from error
    except MemoryError as error:
        if (nbytes := stated_bytes(error)) > MOST_BYTES:
            raise Corrupt(f"{name} {damaged}: it states a size of {nbytes:,} bytes{hint}") from error
        raise MemoryError(f"{name}: there is no memory to read it: {error}") from error
    except _DAMAGE as error:
        raise Corrupt(f"{name} {damaged}: {error}{hint}") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise Corrupt(f"{name} {damaged}: {error}{hint}") from error


Convert = Callable[[Any, str], Any]
"""(non-null value, location for messages) -> field bytes, or plain metadata."""


class Column(NamedTuple):
    """A table column, and the field or metadata column that it becomes."""

    column: str
    """Name in the table."""
    kind: str
    """"field", "metadata" or "source"."""
    name: str
    """Field or metadata column; for bytes of unknown type, the name before the extension."""
    convert: Convert
    """Converts a value."""
    sniffed: bool = False
    """True if the bytes determine the extension."""
    word: str = ""
    """Extension of a field that holds neither bytes nor text."""


class RowValue(NamedTuple):
    column: Column
    name: str
    """Field, metadata column or provenance."""
    value: Any
    """Bytes of a field, or plain metadata."""


class Row(NamedTuple):
    """A table row with its converted values."""

    key: str
    """Key, any text."""
    where: str
    """Location in its object, for messages."""
    values: Sequence[RowValue]
    """Values that are not null."""

    @property
    def sample(self) -> ReadSample:
        into: dict[str, dict[str, Any]] = {"field": {}, "metadata": {}, "source": {}}
        for (_, kind, *_), name, value in self.values:
            if name in into[kind]:
                raise InvalidSample(
                    f"{self.where}: two columns would both be {name!r}; leave one out (--without)"
                )
            into[kind][name] = value
        return ReadSample(self.key, into["field"], into["metadata"], into["source"])


class TableRows:
    """Converts the rows of tables with one schema to samples."""

    def __init__(
        self, schema: pa.Schema, features: SchemaFacts, options: ColumnarOptions, object_key: str
    ) -> None:
        """Choose what each column becomes. Raises: InvalidSample if a column can be neither, or two share a name."""
        self._options, self._object = options, object_key
        self._key = options.key or (features.key if features.key in schema.names else None)
        if self._key is not None and self._key not in schema.names:
            raise InvalidSample(
                f"{object_key} has no column {self._key!r}, which --key names; it has {', '.join(schema.names)}"
            )
        if len(set(schema.names)) < len(schema.names):
            raise InvalidSample(f"{object_key} has two columns of one name: {', '.join(schema.names)}")
        for name in options.fields:
            if name not in schema.names:
                raise InvalidSample(
                    f"{object_key} has no column {name!r}, which --field names; it has {', '.join(schema.names)}"
                )
        self.columns: list[Column] = []
        for field in schema:
            if (
                field.name != self._key
                and field.name not in options.without
                and not pa.types.is_null(field.type)
            ):
                self.columns += _choose(field, features, options, object_key)
        sources: dict[tuple[str, str], str] = {}
        for column in self.columns:
            if (other := sources.setdefault((column.kind, column.name), column.column)) != column.column:
                raise InvalidSample(
                    f"{object_key}: the columns {other!r} and {column.column!r} would both be {column.name!r}; leave "
                    "one of them out (--without)"
                )

    @property
    def columns_read(self) -> list[str]:
        keys = [] if self._key is None else [self._key]
        return [*keys, *dict.fromkeys(one.column for one in self.columns)]

    @property
    def field_columns(self) -> list[str]:
        return list(dict.fromkeys(one.column for one in self.columns if one.kind == "field"))

    @property
    def has_keys(self) -> bool:
        return self._key is not None

    def samples(self, batch: pa.RecordBatch, first: int) -> Iterator[ReadSample]:
        """Yield a sample per row. first: number of the first row. Raises: InvalidSample; Corrupt."""
        return (row.sample for row in self.rows(batch, first))

    def rows(self, batch: pa.RecordBatch, first: int) -> Iterator[Row]:
        """Yield each row's converted values. first: number of the first row. Raises: InvalidSample; Corrupt."""
        fields = {*self.field_columns}
        values = {name: reader_of(batch.column(name), as_text=name in fields) for name in self.columns_read}
        for at in range(batch.num_rows):
            row = first + at
            where = f"{self._object}, row {row}"
            rows_out = list[RowValue]()
            for column in self.columns:
                value = _read(values[column.column], at, column.column, where)
                converted = None if value is None else column.convert(value, where)
                if converted is not None:
                    name = field_name(column.name, word_of(converted)) if column.sniffed else column.name
                    rows_out.append(RowValue(column, name, converted))
            key = row_key(self._object, row)
            if self._key is not None:
                key = key_of_value(values[self._key](at), self._key, where)
            yield Row(key, where, rows_out)


def _read(values: Callable[[int], Any], at: int, column: str, where: str) -> Any:
    try:
        return values(at)
    except (pa.ArrowException, UnicodeDecodeError):  # no context for each value: that takes a microsecond
        with arrow_errors(f"{where}: column {column!r}", damaged="cannot be read"):
            raise
    except OutOfRange as error:
        instead = f"make it a text field (--field {column}=txt), or " if error.fits_text else ""
        raise NotSupported(
            f"{where}: column {column!r} holds {error}; {instead}leave it out (--without {column})"
        ) from error


def joined(column: Column, values: pa.ChunkedArray, where: str) -> memoryview:
    parts = [_joined(column, one, where) for one in values.chunks]
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


def _joined(column: Column, array: pa.Array, where: str) -> memoryview:
    array = plain_array(array)
    if pa.types.is_dictionary(array.type):
        array = plain_array(array.dictionary_decode())
    if is_media(array.type):
        array = plain_array(pc.struct_field(array, "bytes"))
    if is_bytes(array.type) or is_text(array.type):
        return _buffer(array)
    if is_numbers(array.type) and column.word in FLAT_WORDS:
        values = array.flatten()
        if not values.null_count:
            flat = values.to_numpy(zero_copy_only=False).astype(f"<{column.word}")
            return memoryview(flat.tobytes())
    value_of = reader_of(array, as_text=True)
    texts = (value_of(at) for at in range(len(array)))
    each = (None if value is None else column.convert(value, where) for value in texts)
    return memoryview(b"".join(one for one in each if one is not None))


def _buffer(array: pa.Array) -> memoryview:
    array = array.drop_null() if array.null_count else array
    if not len(array):
        return memoryview(b"")
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        return memoryview(array.buffers()[1])[array.offset * width :][: len(array) * width]
    large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64 if large else np.int32)[array.offset :][: len(array) + 1]
    return memoryview(data or b"")[int(ends[0]) : int(ends[-1])]


def _choose(field: pa.Field, features: SchemaFacts, options: ColumnarOptions, of: str) -> list[Column]:
    name, kind = field.name, plain_type(field.type)
    if pa.types.is_dictionary(kind):
        kind = plain_type(kind.value_type)
    if name in features.fields:
        return [Column(name, "field", features.fields[name], _field_of(name, kind, ""), word=_word(kind))]
    if name in features.source:
        return [Column(name, "source", features.source[name], lambda value, where: str(value))]
    if name in features.metadata:
        return [Column(name, "metadata", features.metadata[name], _plain)]
    if name in features.classes and pa.types.is_integer(kind):
        return _classes(name, features, options)
    word = options.fields.get(name, "")
    if is_media(kind):
        column = Column(name, "field", field_name(name, word), _field_of(name, kind, word), sniffed=not word)
        return [
            column,
            Column(name, "metadata", metadata_name(f"{name}_path"), lambda value, where: value["path"]),
        ]
    if is_bytes(kind):
        return [Column(name, "field", field_name(name, word), _field_of(name, kind, word), sniffed=not word)]
    texts = is_list(kind) and is_text(kind.value_type)
    if name in options.fields or (pa.types.is_nested(kind) and not texts):
        word = word or _word(kind)
        dtype = inner_dtype(kind) if options.declared_widths else None
        return [Column(name, "field", field_name(name, word), _field_of(name, kind, word, dtype), word=word)]
    return [Column(name, "metadata", metadata_name(name), _metadata_of(name, kind))]


def _word(kind: pa.DataType) -> str:
    if is_numbers(kind):
        word = np.dtype(kind.value_type.to_pandas_dtype()).str.lstrip("<|")
        return word if word in FLAT_WORDS else "json"
    return "txt" if is_text(kind) or _is_text_here(kind) else "json"


def _is_text_here(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind) or pa.types.is_decimal(kind))


def _field_of(name: str, kind: pa.DataType, word: str, dtype: np.dtype[Any] | None = None) -> Convert:
    if is_media(kind):

        def of_media(value: Any, where: str) -> bytes | None:
            if value["bytes"] is None and value["path"] is not None:
                raise InvalidSample(
                    f"{where}: column {name!r} names the file {value['path']!r}, and does not hold its bytes: save the "
                    f"dataset with them, or leave the column out (--without {name})"
                )
            data: bytes | None = value["bytes"]
            return data

        return of_media
    word = word or _word(kind)
    if is_text(kind):
        return lambda value, where: text_bytes(value, name, where)
    if pa.types.is_integer(kind) and word != "json":
        return lambda value, where: str(value).encode()

    if _is_text_here(kind) and word == "json":
        return lambda value, where: json_bytes(value, name, where)

    def of_value(value: Any, where: str) -> bytes:
        if isinstance(value, np.ndarray) and word not in (*FLAT_WORDS, "npy"):
            value = value.tolist()
        return encoded(value, word, name, where, dtype)

    return of_value


def _classes(name: str, features: SchemaFacts, options: ColumnarOptions) -> list[Column]:
    names = features.classes[name]

    def checked(value: int, where: str) -> int | None:
        if not -1 <= value < len(names):
            raise InvalidSample(f"{where}: class {value} of column {name!r} has no name: it has {len(names)}")
        return value if value >= 0 else None

    def text(value: int, where: str) -> str | None:
        return None if checked(value, where) is None else names[value]

    def number(value: int, where: str) -> bytes | None:
        return None if checked(value, where) is None else str(value).encode()

    columns = [Column(name, "metadata", metadata_name(name), text)]
    if features.labels is not None and "cls" not in options.without:
        columns.append(Column(name, "field", "cls", number))
    return columns


def _metadata_of(name: str, kind: pa.DataType) -> Convert:
    if is_text(kind):
        return lambda value, where: check_text(value, name, where)
    if is_list(kind):
        return lambda value, where: [check_text(one, name, where) if one else one for one in value]
    if pa.types.is_uint64(kind):
        return lambda value, where: check_number(value, name, where)
    plain = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return (
        (lambda value, where: value)
        if plain or pa.types.is_timestamp(kind)
        else lambda value, where: str(value)
    )


def _plain(value: Any, where: str) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
