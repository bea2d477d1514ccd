"""Read tables of texts and numbers from untrusted writers, in bounded memory."""

import io

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import Corrupt, FormatTooNew
from ...modalities.fields import is_machine_fault
from .parquet import UNREADABLE, check_schema_version

MOST_SMALL_ROWS = 200_000
MOST_SMALL_TEXT = 4096
"""Most bytes of a text in a small table."""
MOST_SMALL_BYTES = 2**28
"""Most uncompressed bytes of a small table."""


def parse_small_table(
    data: bytes,
    name: str,
    columns: list[str] | None = None,
    *,
    most_rows: int = MOST_SMALL_ROWS,
    most_bytes: int = MOST_SMALL_BYTES,
) -> pa.Table:
    """Return a table of texts and numbers from an untrusted writer; rows and texts are bounded.

    A file of 710 bytes can hold 200 GB of one repeated text. So texts are read as dictionaries, and checked before they
    are copied for each row. Raises: Corrupt; FormatTooNew.
    """
    try:
        metadata = pq.read_metadata(io.BytesIO(data))
        _check_size(metadata, name, most_rows, most_bytes)  # before any page is decompressed
        schema = metadata.schema.to_arrow_schema()
        _refuse_nested(schema, name)
        text_columns = [field.name for field in schema if not _is_number_or_time(field)]
        reader = pq.ParquetFile(
            io.BytesIO(data),
            metadata=metadata,
            page_checksum_verification=True,
            pre_buffer=False,
            read_dictionary=text_columns,
        )
        check_schema_version(reader.schema_arrow, name)
        table = reader.read(columns=columns, use_threads=False)
        table = _with_plain_texts(table, name, most_bytes)
        table.validate(full=True)
    except (Corrupt, FormatTooNew):
        raise
    except (*UNREADABLE, KeyError) as error:
        if is_machine_fault(error):
            raise
        raise Corrupt(
            f"{name} is not a readable Parquet file: {error}", what="table", where=name, given=str(error)
        ) from error
    return table


def _check_size(
    metadata: pq.FileMetaData,
    name: str,
    most_rows: int,
    most_bytes: int,
) -> None:
    nbytes = 0
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        nbytes += row_group.total_byte_size
    if metadata.num_rows > most_rows or nbytes > most_bytes:
        raise Corrupt(
            f"{name} has {metadata.num_rows:,} rows and {nbytes:,} bytes; accepted: at most "
            f"{most_rows:,} rows and {most_bytes:,} bytes",
            what="table",
            where=name,
            given=[metadata.num_rows, nbytes],
            accepted=[most_rows, most_bytes],
        )


def _refuse_nested(schema: pa.Schema, name: str) -> None:
    for field in schema:
        if pa.types.is_nested(field.type):
            raise _wrong_kind(name, field.type)


def _is_number_or_time(field: pa.Field) -> bool:
    """Return True for numbers, truth values, dates and times: values of a fixed size, which need no check."""
    return bool(pa.types.is_primitive(field.type))


def _wrong_kind(name: str, kind: pa.DataType) -> Corrupt:
    return Corrupt(
        f"{name} has a column of {kind}; accepted: texts and numbers",
        what="column",
        where=name,
        given=str(kind),
        accepted="texts and numbers",
    )


def _with_plain_texts(table: pa.Table, name: str, most_bytes: int) -> pa.Table:
    nbytes = 0
    for position, field in enumerate(table.schema):
        if _is_number_or_time(field):
            continue
        texts = table.column(position)
        nbytes += _text_bytes(texts, name)
        if nbytes > most_bytes:
            raise Corrupt(
                f"{name} has texts of more than {most_bytes:,} bytes in all",
                what="texts",
                where=name,
                accepted=most_bytes,
            )
        plain_texts = texts.cast(pa.string())
        table = table.set_column(position, field.name, plain_texts)
    return table


def _text_bytes(column: pa.ChunkedArray, name: str) -> int:
    """Return how many bytes the texts of a dictionary column have once each row has its own.

    Raises: Corrupt for a column of another type, or a long text.
    """
    import pyarrow.compute as pc  # 40 ms, saved at startup

    kind = column.type
    is_text = pa.types.is_dictionary(kind) and pa.types.is_string(kind.value_type)
    if not is_text:
        raise _wrong_kind(name, kind)
    nbytes = 0
    for chunk in column.chunks:
        # A dictionary has few texts. Their lengths are repeated per row, not the texts themselves.
        lengths = pc.binary_length(chunk.dictionary)
        longest = pc.max(lengths).as_py() or 0
        if longest > MOST_SMALL_TEXT:
            raise Corrupt(
                f"{name} has a text of more than {MOST_SMALL_TEXT:,} bytes",
                what="text",
                where=name,
                accepted=MOST_SMALL_TEXT,
            )
        row_lengths = lengths.take(chunk.indices)
        nbytes += pc.sum(row_lengths).as_py() or 0
    return nbytes
