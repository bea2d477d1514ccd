"""Tables that a foreign hand may have written: memory is bounded, and each other type is refused."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loader.dataset.tables.small_tables import parse_small_table
from loader.errors import Corrupt, FormatTooNew
from tests.refusals import refusal

REPEATED = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2_000, np.int32)), pa.array(["x" * 5_000]))
REFUSED = {
    "long text": ({"key": REPEATED}, "text", None),
    "rows": ({"key": [""] * 200_001}, "table", [200_001, 474]),
    "bytes": ({"key": [b"a"]}, "column", "dictionary<values=binary, indices=int32, ordered=0>"),
    "fixed bytes": ({"key": pa.array([b"a" * 9], pa.binary(9))}, "column", "fixed_size_binary[9]"),
    "list": ({"key": [["a"]]}, "column", "list<element: string>"),
    "no type": ({"key": pa.nulls(2)}, "column", "null"),
}


def table_bytes(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


@pytest.mark.parametrize("has_arrow_schema", [True, False])
def test_small_table_is_as_written(has_arrow_schema: bool) -> None:
    table = pa.table({"key": ["a", None, "é" * 2_000], "n": [1, 2, 3], "s": [0.5, None, 1.5]})
    data = table_bytes(table, store_schema=has_arrow_schema, row_group_size=2)
    assert parse_small_table(data, "x").equals(table)
    assert parse_small_table(data, "x", ["n"]).equals(table.select(["n"]))


@pytest.mark.parametrize(("columns", "what", "given"), REFUSED.values(), ids=REFUSED)
def test_table_that_no_window_is_like_is_refused(
    columns: dict[str, object], what: str, given: object
) -> None:
    with refusal(Corrupt, what=what, where="x", given=given):
        parse_small_table(table_bytes(pa.table(columns)), "x")


def test_repeated_text_is_refused_without_arrows_schema() -> None:
    with refusal(Corrupt, what="text", where="x", accepted=4096):
        parse_small_table(table_bytes(pa.table({"key": REPEATED}), store_schema=False), "x")


def test_uncompressed_bytes_are_bounded() -> None:
    data = table_bytes(pa.table({"key": ["y" * 4_000] * 100}), use_dictionary=False, compression="zstd")
    assert len(parse_small_table(data, "x")) == 100
    with refusal(Corrupt, what="table", where="x", given=[100, 408440], accepted=[200000, 300000]):
        parse_small_table(data, "x", most_bytes=300_000)
    with refusal(Corrupt, what="table", where="x", given=[100, 408440], accepted=[99, 268435456]):
        parse_small_table(data, "x", most_rows=99)


def test_repeated_texts_of_all_columns_are_bounded_before_they_are_copied() -> None:
    """Stored as dictionaries, they take no bytes of the file."""
    data = table_bytes(pa.table({"key": ["y" * 4_000] * 100, "path": ["z" * 4_000] * 100}))
    assert len(parse_small_table(data, "x", most_bytes=800_000)) == 100
    assert len(parse_small_table(data, "x", ["key"], most_bytes=799_999)) == 100
    with refusal(Corrupt, what="texts", where="x", accepted=799999):
        parse_small_table(data, "x", most_bytes=799_999)


def test_two_columns_of_one_name_and_bytes_that_are_no_text_are_refused() -> None:
    twice = pa.table([pa.array(["a"]), pa.array(["b"])], names=["key", "key"])
    no_text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    )
    for table in (twice, pa.table({"key": no_text})):
        with pytest.raises(Corrupt):
            parse_small_table(table_bytes(table), "x")


def test_newer_table_is_no_damage() -> None:
    table = pa.table({"key": ["a"]}).replace_schema_metadata({"penstock.schema": "1000"})
    with pytest.raises(FormatTooNew):
        parse_small_table(table_bytes(table), "x")
