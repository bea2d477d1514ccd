"""Map Arrow columns to fields and metadata by their type, never by their values."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import InvalidSample, NotSupported
from .arrow_errors import arrow_errors
from .choices import ColumnarOptions, ReadSample, SchemaFacts
from .column_names import (
    check_number,
    check_text,
    field_name,
    key_of_value,
    metadata_name,
    row_key,
    sniff_extension,
)
from .plain_values import (
    FLAT_WORDS,
    OutOfRange,
    encode_value,
    inner_dtype,
    is_bytes,
    is_list,
    is_media,
    is_number,
    is_numbers,
    is_text,
    json_bytes,
    plain_array,
    plain_type,
    text_bytes,
    value_reader,
)

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
        into: dict[str, dict[str, Any]] = {
            "field": {},
            "metadata": {},
            "source": {},
        }
        for column, name, value in self.values:
            values = into[column.kind]
            if name in values:
                raise InvalidSample(
                    f"{self.where}: two columns would both be {name!r}; leave one out (--without)"
                )
            values[name] = value
        return ReadSample(
            key=self.key,
            fields=into["field"],
            metadata=into["metadata"],
            source=into["source"],
        )


class TableRows:
    """Converts the rows of tables with one schema to samples."""

    def __init__(
        self,
        schema: pa.Schema,
        features: SchemaFacts,
        options: ColumnarOptions,
        object_key: str,
    ) -> None:
        """Choose what each column becomes. Raises: InvalidSample if a column can be neither, or two share a name."""
        self._options = options
        self._object = object_key
        self._key = options.key or None
        if self._key is None and features.key in schema.names:
            self._key = features.key
        self._check_names(schema)

        self.columns: list[Column] = []
        for field in schema:
            if field.name == self._key or field.name in options.without or pa.types.is_null(field.type):
                continue
            self.columns += _choose(field, features, options, object_key)
        self._check_columns()

    def _check_names(self, schema: pa.Schema) -> None:
        names = ", ".join(schema.names)
        if self._key is not None and self._key not in schema.names:
            raise InvalidSample(
                f"{self._object} has no column {self._key!r}, which --key names; it has {names}",
                what="--key",
                where=self._object,
                given=self._key,
                accepted=list(schema.names),
            )
        if len(set(schema.names)) < len(schema.names):
            message = f"{self._object} has two columns of one name: {names}"
            raise InvalidSample(message, what="columns", where=self._object, given=list(schema.names))
        for name in self._options.fields:
            if name not in schema.names:
                raise InvalidSample(
                    f"{self._object} has no column {name!r}, which --field names; it has {names}"
                )

    def _check_columns(self) -> None:
        sources: dict[tuple[str, str], str] = {}  # what a column becomes -> the column
        for column in self.columns:
            other = sources.setdefault((column.kind, column.name), column.column)
            if other != column.column:
                raise InvalidSample(
                    f"{self._object}: the columns {other!r} and {column.column!r} would both be {column.name!r}; leave "
                    "one of them out (--without)"
                )

    @property
    def columns_read(self) -> list[str]:
        names = [column.column for column in self.columns]
        if self._key is not None:
            names.insert(0, self._key)
        return list(dict.fromkeys(names))  # one column may become a field and metadata

    @property
    def field_columns(self) -> list[str]:
        names = [column.column for column in self.columns if column.kind == "field"]
        return list(dict.fromkeys(names))

    @property
    def has_keys(self) -> bool:
        return self._key is not None

    def samples(self, batch: pa.RecordBatch, first: int) -> Iterator[ReadSample]:
        """Yield a sample per row. first: number of the first row. Raises: InvalidSample; Corrupt."""
        return (row.sample for row in self.rows(batch, first))

    def rows(self, batch: pa.RecordBatch, first: int) -> Iterator[Row]:
        """Yield each row's converted values. first: number of the first row. Raises: InvalidSample; Corrupt."""
        field_columns = set(self.field_columns)
        readers = {}
        for name in self.columns_read:
            readers[name] = value_reader(batch.column(name), as_text=name in field_columns)
        for at in range(batch.num_rows):
            row = first + at
            where = f"{self._object}, row {row}"
            values: list[RowValue] = []
            for column in self.columns:
                value = _read(readers[column.column], at, column.column, where)
                if value is None:
                    continue
                converted = column.convert(value, where)
                if converted is None:
                    continue
                name = column.name
                if column.sniffed:
                    name = field_name(name, sniff_extension(converted))
                values.append(RowValue(column, name, converted))
            if self._key is None:
                key = row_key(self._object, row)
            else:
                key = key_of_value(readers[self._key](at), self._key, where)
            yield Row(key, where, values)


def _read(
    read: Callable[[int], Any],
    at: int,
    column: str,
    where: str,
) -> Any:
    try:
        return read(at)
    except (pa.ArrowException, UnicodeDecodeError):  # no context for each value: that takes a microsecond
        with arrow_errors(f"{where}: column {column!r}", damaged="cannot be read"):
            raise
    except OutOfRange as error:
        instead = ""
        if error.fits_text:
            instead = f"make it a text field (--field {column}=txt), or "
        raise NotSupported(
            f"{where}: column {column!r} holds {error}; {instead}leave it out (--without {column})",
            what=f"column {column!r}",
            where=where,
            given=str(error),
        ) from error


def joined(
    column: Column,
    values: pa.ChunkedArray,
    where: str,
) -> memoryview:
    parts = [_join_array(column, chunk, where) for chunk in values.chunks]
    if len(parts) == 1:
        return parts[0]  # without a copy
    return memoryview(b"".join(parts))


def _join_array(
    column: Column,
    array: pa.Array,
    where: str,
) -> memoryview:
    array = plain_array(array)
    if pa.types.is_dictionary(array.type):
        array = plain_array(array.dictionary_decode())
    if is_media(array.type):
        array = plain_array(pc.struct_field(array, "bytes"))
    if is_bytes(array.type) or is_text(array.type):
        return _buffer(array)
    if is_numbers(array.type) and column.word in FLAT_WORDS:
        numbers = array.flatten()
        if not numbers.null_count:
            flat = numbers.to_numpy(zero_copy_only=False).astype(f"<{column.word}")
            return memoryview(flat.tobytes())

    read = value_reader(array, as_text=True)
    payloads = []
    for at in range(len(array)):
        value = read(at)
        if value is None:
            continue
        payload = column.convert(value, where)
        if payload is not None:
            payloads.append(payload)
    return memoryview(b"".join(payloads))


def _buffer(array: pa.Array) -> memoryview:
    """Return the bytes of all values, one after the other, without a copy if none is null."""
    if array.null_count:
        array = array.drop_null()
    if not len(array):
        return memoryview(b"")
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        start = array.offset * width
        end = start + len(array) * width
        return memoryview(array.buffers()[1])[start:end]

    is_large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    offset_type = np.int64 if is_large else np.int32
    _, offset_buffer, data = array.buffers()
    offsets = np.frombuffer(offset_buffer, offset_type)
    # A slice of a larger array shares its buffers.
    start = int(offsets[array.offset])
    end = int(offsets[array.offset + len(array)])
    return memoryview(data or b"")[start:end]


def _choose(
    field: pa.Field,
    features: SchemaFacts,
    options: ColumnarOptions,
    of: str,
) -> list[Column]:
    """Return what a column becomes."""
    name = field.name
    kind = plain_type(field.type)
    if pa.types.is_dictionary(kind):
        kind = plain_type(kind.value_type)

    # What penstock exported comes back as it was.
    if name in features.fields:
        convert = _field_convert(name, kind, "")
        return [Column(name, "field", features.fields[name], convert, word=_word(kind))]
    if name in features.source:
        return [Column(name, "source", features.source[name], lambda value, where: str(value))]
    if name in features.metadata:
        return [Column(name, "metadata", features.metadata[name], _plain)]
    if name in features.classes and pa.types.is_integer(kind):
        return _classes(name, features, options)

    word = options.fields.get(name, "")
    if is_media(kind) or is_bytes(kind):
        convert = _field_convert(name, kind, word)
        column = Column(name, "field", field_name(name, word), convert, sniffed=not word)
        if not is_media(kind):
            return [column]
        path_name = metadata_name(f"{name}_path")
        path_column = Column(name, "metadata", path_name, lambda value, where: value["path"])
        return [column, path_column]

    is_texts = is_list(kind) and is_text(kind.value_type)
    is_nested = pa.types.is_nested(kind) and not is_texts
    if is_nested or name in options.fields:
        word = word or _word(kind)
        dtype = None
        if options.declared_widths:
            dtype = inner_dtype(kind)
        convert = _field_convert(name, kind, word, dtype)
        return [Column(name, "field", field_name(name, word), convert, word=word)]
    return [Column(name, "metadata", metadata_name(name), _metadata_convert(name, kind))]


def _word(kind: pa.DataType) -> str:
    """Return the extension of a type's values; "json" for types without one of their own."""
    if is_numbers(kind):
        dtype = np.dtype(kind.value_type.to_pandas_dtype())
        word: str = dtype.str.lstrip("<|")
        if word in FLAT_WORDS:
            return word
    elif is_text(kind) or _is_text_here(kind):
        return "txt"
    return "json"


def _is_text_here(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind) or pa.types.is_decimal(kind))


def _field_convert(
    name: str,
    kind: pa.DataType,
    word: str,
    dtype: np.dtype[Any] | None = None,
) -> Convert:
    if is_media(kind):
        return _media_convert(name)
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
        return encode_value(value, word, name, where, dtype)

    return of_value


def _media_convert(name: str) -> Convert:
    def of_media(value: Any, where: str) -> bytes | None:
        data: bytes | None = value["bytes"]
        path = value["path"]
        if data is None and path is not None:
            raise InvalidSample(
                f"{where}: column {name!r} names the file {path!r}, and does not hold its bytes: save the "
                f"dataset with them, or leave the column out (--without {name})"
            )
        return data

    return of_media


def _classes(
    name: str,
    features: SchemaFacts,
    options: ColumnarOptions,
) -> list[Column]:
    names = features.classes[name]
    no_class = -1  # Hugging Face writes it for a sample without a class

    def check_class(value: int, where: str) -> None:
        if not no_class <= value < len(names):
            raise InvalidSample(f"{where}: class {value} of column {name!r} has no name: it has {len(names)}")

    def text(value: int, where: str) -> str | None:
        check_class(value, where)
        if value == no_class:
            return None
        return names[value]

    def number(value: int, where: str) -> bytes | None:
        check_class(value, where)
        if value == no_class:
            return None
        return str(value).encode()

    columns = [Column(name, "metadata", metadata_name(name), text)]
    if features.labels is not None and "cls" not in options.without:
        columns.append(Column(name, "field", "cls", number))
    return columns


def _metadata_convert(name: str, kind: pa.DataType) -> Convert:
    if is_text(kind):
        return lambda value, where: check_text(value, name, where)
    if is_list(kind):

        def of_texts(value: Any, where: str) -> list[Any]:
            for text in value:
                if text is not None:
                    check_text(text, name, where)
            return list(value)

        return of_texts
    if pa.types.is_uint64(kind):
        return lambda value, where: check_number(value, name, where)
    is_plain = is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_timestamp(kind)
    if is_plain:
        return lambda value, where: value
    return lambda value, where: str(value)


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value
