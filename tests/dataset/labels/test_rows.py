"""Rows of labels from files and tables: what is read, and how what is wrong is named."""

import json
import traceback
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.dataset.labels.batch import ColumnSelection, csv_tables
from loader.dataset.labels.rows import open_rows
from loader.errors import FieldMismatch, FieldNotFound, Forbidden, InvalidField, InvalidSample, ObjectNotFound
from tests.refusals import ABSENT, refusal

CI = settings(max_examples=60, deadline=None, derandomize=True)


def read(rows, key="key", types=None):
    """[(number, row as a dict without nulls)] of all batches, and the types by column."""
    with open_rows(rows, key, types or {}) as source:
        batches = list(source.batches())
        found = [
            (int(number), {name: value for name, value in row.items() if value is not None})
            for batch in batches
            for number, row in zip(batch.numbers, batch.table.to_pylist(), strict=True)
        ]
        return found, {field.name: str(field.type) for batch in batches for field in batch.table.schema}


def jsonl(tmp_path, *lines):
    path = tmp_path / "labels.jsonl"
    path.write_bytes(
        b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
    )
    return path


def csv(tmp_path, text):
    path = tmp_path / "labels.csv"
    path.write_text(text)
    return path


def test_same_rows_in_every_kind_of_file(tmp_path):
    rows = [
        {"key": "a", "n": 1, "x": 1.5, "s": "é", "b": True},
        {"key": "b,c", "n": 2, "x": 2.0, "s": 'q"', "b": False},
    ]
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "labels.parquet")
    text = 'key,n,x,s,b\na,1,1.5,é,true\n"b,c",2,2.0,"q""",false\n'
    expected = (
        [(1, rows[0]), (2, rows[1])],
        {"key": "string", "n": "int64", "x": "double", "s": "string", "b": "bool"},
    )
    assert (
        read(rows)
        == read(table)
        == read(tmp_path / "labels.parquet")
        == read(jsonl(tmp_path, *rows))
        == expected
    )
    found, types = read(str(csv(tmp_path, text)))
    assert ([row for _, row in found], types) == (rows, expected[1])
    assert [number for number, _ in found] == [2, 3]  # lines of the file
    by_key = {row["key"]: {name: value for name, value in row.items() if name != "key"} for row in rows}
    assert [row for _, row in read(by_key)[0]] == rows


def test_file_behind_a_url(tmp_path):
    store = loader.Root("memory://labels-of-a-url").store
    store.put("in/labels.jsonl", b'{"key": "a", "n": 1}\n')
    assert read("memory://labels-of-a-url/in/labels.jsonl")[0] == [(1, {"key": "a", "n": 1})]
    with pytest.raises(ObjectNotFound):
        read("memory://labels-of-a-url/in/other.jsonl")


QUERY = "sv=2024&se=2030-01-01T00%3A00%3A00Z&policy=SECRET1&sig=SECRET2%2B%2F/%3D//x"


@pytest.fixture
def signed_server(shared):
    """A server of the folder /c, whose requests have a query that signs them."""
    files = {
        "/c/labels.csv": b"key,n\na,1\n",
        "/c/labels.jsonl": b'{"key": "a", "n": 1}\n',
        "/c/bad.csv": b"key,n\na,1,2\n",
        "/c/labels.xlsx": b"PK",
    }

    def origin(request):
        if request.query != {
            "sv": "2024",
            "se": "2030-01-01T00:00:00Z",
            "policy": "SECRET1",
            "sig": "SECRET2+//=//x",
        }:
            return 403, b"", {}
        return (200, files[request.path], {"etag": '"e"'}) if request.path in files else (404, b"", {})

    server = shared("servers/http").HttpServer(origin)
    yield server
    server.close()


@pytest.mark.parametrize("name", ["labels.csv", "labels.jsonl"])
def test_file_behind_a_signed_url(signed_server, name):
    """Also where the signature is of GET alone, as S3's are."""
    signed_server.fault_of = lambda request: 403 if request.method == "HEAD" else None
    url = f"{signed_server.endpoint}/c/{name}?{QUERY}"
    for place in (url, f"{url}#page?2"):
        assert [row for _, row in read(place)[0]] == [{"key": "a", "n": 1}]
        with open_rows(place, "key", {}) as source:
            assert (source.name, source.n_rows()) == (name, 2 if name.endswith("csv") else 1)


def test_signature_is_in_no_message(signed_server):
    def read_error(error, name, what, given):
        with refusal(error, what=what, given=given) as caught:
            read(f"{signed_server.endpoint}/c/{name}?{QUERY}")
        shown = "".join(traceback.format_exception(caught.value))
        assert name in str(caught.value)
        assert not [part for part in ("SECRET", "policy", "2030") if part in shown], shown

    read_error(InvalidSample, "labels.xlsx", "rows", ".xlsx")
    read_error(InvalidSample, "bad.csv", "cells", 3)
    read_error(ObjectNotFound, "other.csv", "object", "FileNotFoundError")
    signed_server.fault_of = lambda request: 403 if request.method == "GET" else None
    read_error(Forbidden, "labels.csv", "object", "ClientResponseError")


@pytest.mark.parametrize("place", ["s3://c/labels.csv", "az://c/labels.csv", "memory://c/labels.csv"])
def test_query_of_what_is_not_signed_so_is_refused(place):
    with refusal(InvalidSample, what="rows", where=place, given="a query") as caught:
        read(f"{place}?{QUERY}")
    assert "SECRET" not in str(caught.value)


def test_names_of_files_with_marks_of_a_url(tmp_path):
    path = tmp_path / "what? #2.csv"
    path.write_text("key,n\na,1\n")
    for place in (path, str(path), f"file://{tmp_path}/what? #2.csv"):
        assert [row for _, row in read(place)[0]] == [{"key": "a", "n": 1}]


def test_blank_lines_are_counted_and_skipped(tmp_path):
    path = jsonl(tmp_path, b"\n", {"key": "a", "n": 1}, b"  \n", {"key": "b"})
    assert [number for number, _ in read(path)[0]] == [2, 4]
    assert [number for number, _ in read(csv(tmp_path, "key,n\n\na,1\n\nb,2\n"))[0]] == [3, 5]


def test_keys_that_are_numbers(tmp_path):
    assert read([{"key": 7, "n": 1}])[0] == [(1, {"key": "7", "n": 1})]
    assert read(pa.table({"key": [7], "n": [1]}))[0] == [(1, {"key": "7", "n": 1})]
    assert read(csv(tmp_path, "key,n\n007,1\n"))[0] == [(2, {"key": "007", "n": 1})]


def test_kinds_of_arrow_become_those_of_a_table():
    at = datetime(2026, 1, 2, tzinfo=UTC)
    table = pa.table(
        {
            "key": pa.array(["a"]).dictionary_encode(),
            "u": pa.array([1], pa.uint16()),
            "h": pa.array([1.5], pa.float16()),
            "s": pa.array(["x"], pa.large_string()),
            "t": pa.array([at], pa.timestamp("ms", "Asia/Tokyo")),
            "l": pa.array([[1]], pa.large_list(pa.int8())),
            "e": pa.array([[0.5, 1.5]], pa.list_(pa.float32(), 2)),
            "z": pa.nulls(1),
        }
    )
    ((_, row),) = read(table)[0]
    assert row == {"key": "a", "u": 1, "h": 1.5, "s": "x", "t": at, "l": [1], "e": [0.5, 1.5]}
    assert read(table)[1] == {
        "key": "string",
        "u": "int64",
        "h": "double",
        "s": "string",
        "t": "timestamp[us, tz=UTC]",
        "l": "list<element: int64>",
        "e": "list<element: double>",
        "z": "null",
    }


@pytest.mark.parametrize(
    "values",
    [
        pa.array([2**63], pa.uint64()),
        pa.array([datetime(2026, 1, 2)], pa.timestamp("us")),
        pa.array([b"x"]),
        pa.array([{"a": 1}]),
        pa.array([1], pa.date32()),
        pa.array([1], pa.timestamp("ns", "UTC")),
    ],
    ids=lambda values: str(values.type),
)
def test_other_kinds_are_refused(values):
    with refusal(InvalidField, what="v", where="the rows given"):
        read(pa.table({"key": ["a"], "v": values}))


def test_bad_lines_are_named(tmp_path):
    line_2 = "line 2 of labels.jsonl"
    good = {"key": "a", "n": 1}
    broken = b'{"key": "b", \n'
    not_text = b'{"key": "\xff"}\n'
    for line, error, what, where, value in (
        (broken, InvalidSample, "line", line_2, repr(broken)),
        (not_text, InvalidSample, "line", line_2, repr(not_text)),
        ([1], InvalidSample, "row", line_2, "[1]"),
        ({"n": 1}, InvalidSample, "key", line_2, None),
        ({"key": 1.5}, InvalidSample, "key", line_2, 1.5),
        ({"key": True}, InvalidSample, "key", line_2, True),
        ({"key": "b", "n": {"a": 1}}, InvalidField, "n", "sample 'b'", {"a": 1}),
        ({"key": "b", "no name": 1}, InvalidField, "column", ABSENT, "no name"),
        ({"key": "b", "n": "x"}, FieldMismatch, "n", ABSENT, [("int", "a"), ("str", "b")]),
        ({"key": "b", "n": 2**63}, InvalidField, "n", "sample 'b'", 2**63),
    ):
        with refusal(error, what=what, where=where, given=value) as caught:
            read(jsonl(tmp_path, good, line))
        notes = getattr(caught.value, "__notes__", [])
        assert "line 2 of" in str(caught.value) or notes in (
            ["in line 2 of labels.jsonl"],
            ["in line 1 to 2 of labels.jsonl"],
        )


@pytest.mark.parametrize(
    ("text", "error", "fault"),
    [
        (
            "key,n\na,1\nb,1,2\n",
            InvalidSample,
            {"what": "cells", "where": "line 3 of labels.csv", "given": 3, "accepted": 2},
        ),
        (
            'key,n\na,1\n"b,1\n',
            InvalidSample,
            {"what": "CSV", "where": "line 4 of labels.csv", "given": "Error"},
        ),
        (
            'key,n\na,1\nb,"2\nc,3\n',
            InvalidSample,
            {"what": "CSV", "where": "line 5 of labels.csv", "given": "Error"},
        ),
        (
            'key,n\na,1\n"b"c,2\n',
            InvalidSample,
            {"what": "CSV", "where": "line 4 of labels.csv", "given": "Error"},
        ),
        ("key,n\na,1\n,2\n", InvalidSample, {"what": "key", "where": "line 3 of labels.csv"}),
        (
            "id,n\na,1\n",
            FieldNotFound,
            {"what": "key", "where": "labels.csv", "accepted": ["id", "n"]},
        ),
        ("", FieldNotFound, {"what": "key", "where": "labels.csv", "accepted": []}),
        (
            "key,n,n\na,1,2\n",
            InvalidSample,
            {"what": "columns", "where": "labels.csv", "given": ["key", "n", "n"]},
        ),
        (
            "key,w\na,1\nb,x\n",
            FieldMismatch,
            {"what": "w", "where": "line 3 of labels.csv", "given": "x", "accepted": "int64"},
        ),
        (
            "key,tags\na,1\n",
            FieldMismatch,
            {"what": "tags", "given": "list<element: int64>"},
        ),
    ],
)
def test_bad_csv_is_named(tmp_path, text, error, fault):
    with refusal(error, **fault):
        read(csv(tmp_path, text), types={"w": "int64", "tags": "list<element: int64>"})


def test_csv_that_is_not_utf_8(tmp_path):
    (tmp_path / "labels.csv").write_bytes(b"key,s\na,x\nb,\xff\n")
    with refusal(InvalidSample, what="CSV", where="line 1 of labels.csv", given="UnicodeDecodeError"):
        read(tmp_path / "labels.csv")


@pytest.mark.parametrize(
    ("texts", "kind", "values"),
    [
        (["1", "", "-3"], "int64", [1, None, -3]),
        (["1", "2.5", "1e3"], "double", [1.0, 2.5, 1000.0]),
        (["nan", "-inf", ".5", "5."], "double", ["nan", float("-inf"), 0.5, 5.0]),
        (["True", "false"], "bool", [True, False]),
        (["007", "8"], "string", ["007", "8"]),
        (["+1"], "string", ["+1"]),
        (["1_000"], "string", ["1_000"]),
        (["9223372036854775808"], "string", ["9223372036854775808"]),
        (["9007199254740993", "0.5"], "string", ["9007199254740993", "0.5"]),
        (["1", "true"], "string", ["1", "true"]),
        (["", ""], "null", [None, None]),
    ],
)
def test_what_text_becomes(tmp_path, texts, kind, values):
    path = csv(tmp_path, "key,v\n" + "".join(f"k{i},{text}\n" for i, text in enumerate(texts)))
    for batch_rows in (1, 10):
        tables = [
            one.table for one in csv_tables(str(path), "labels.csv", ColumnSelection("key"), {}, batch_rows)
        ]
        assert {str(table.schema.field("v").type) for table in tables} == {kind}
        found = [value for table in tables for value in table["v"].to_pylist()]
        assert [("nan" if value != value else value) for value in found] == values


def test_text_of_a_column_that_the_dataset_has(tmp_path):
    types = {"s": "string", "x": "double", "t": "timestamp[us, tz=UTC]"}
    path = csv(tmp_path, "key,s,x,t\na,007,1,2026-01-02T00:00:00Z\n")
    assert read(path, types=types)[0][0][1] == {
        "key": "a",
        "s": "007",
        "x": 1.0,
        "t": datetime(2026, 1, 2, tzinfo=UTC),
    }
    with refusal(FieldMismatch, what="t", where="line 2 of labels.csv", given="2026-01-02"):
        read(csv(tmp_path, "key,t\na,2026-01-02\n"), types=types)


@CI
@given(
    st.lists(
        st.one_of(st.integers(), st.floats(), st.text("0123456789.eE+-_ax", max_size=6)).map(str), min_size=1
    )
)
def test_number_gives_its_text_back(texts):
    """What is read as numbers means what stood there; else the text is kept as it is."""
    import tempfile
    from pathlib import Path

    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        path = csv(Path(folder), "key,v\n" + "".join(f"k{i},{text}\n" for i, text in enumerate(texts)))
        (batch,) = csv_tables(str(path), "labels.csv", ColumnSelection("key"), {}, 1000)
        table = batch.table
    for text, value in zip(texts, table["v"].to_pylist(), strict=True):
        if isinstance(value, float):
            assert np.float64(text) == value or value != value
        else:
            assert ("" if value is None else str(value)) == text


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip"])
def test_damaged_parquet_file_is_named(tmp_path, compression):
    """Cut anywhere, or with any byte changed: it is refused by its name, or reads as what it was or other values."""
    table = pa.table({"key": [f"k{i}" for i in range(300)], "s": [f"text {i}" for i in range(300)]})
    path = tmp_path / "labels.parquet"
    pq.write_table(table, path, compression=compression, row_group_size=100)
    whole = path.read_bytes()
    cut = [whole[:size] for size in range(0, len(whole), 97)]
    flipped = [
        whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :]
        for mask in (0x01, 0xFF)
        for at in range(0, len(whole), 61)
    ]
    refused = 0
    for data in (*cut, *flipped):
        path.write_bytes(data)
        try:
            with open_rows(path, "key", {}) as source:
                assert source.n_rows() >= 0
                for batch in source.batches():
                    batch.table.to_pylist()
        except (InvalidSample, FieldNotFound) as error:
            assert "labels.parquet" in str(error)  # noqa: PT017
            refused += 1
    assert refused > len(cut)


def test_page_with_another_checksum_is_refused(tmp_path):
    table = pa.table({"key": ["a", "b"], "s": ["text one", "text two"]})
    path = tmp_path / "labels.parquet"
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(table, path, write_page_checksum=True, **options)
    path.write_bytes(path.read_bytes().replace(b"text one", b"next one", 1))
    with refusal(InvalidSample, what="file", where="labels.parquet", given="OSError"):
        read(path)


@pytest.mark.parametrize("value", [0.5, "cat", None, ["cat"]])
def test_mapping_of_keys_to_values_without_columns(value):
    with pytest.raises(InvalidSample) as caught:
        read({"k0": {"score": 1.5}, "k1": value})
    said = f"row 2 of the rows given is {value!r} for key 'k1'; a mapping of columns to values is needed for each key"
    assert str(caught.value) == f"{said}, such as {{'k1': {{'label': {value!r}}}}}"


def test_lines_that_json_takes_and_nothing_else_does(tmp_path):
    with refusal(InvalidSample, what="key", where="line 2 of labels.jsonl", given="\ud83d"):
        read(jsonl(tmp_path, {"key": "a", "x": 1}, b'{"key": "\\ud83d", "x": 1}\n'))
    with refusal(InvalidSample, what="line", where="line 1 of labels.jsonl"):
        read(jsonl(tmp_path, b"[" * 100_000 + b"\n"))


def test_what_is_no_source_of_rows(tmp_path):
    for rows in (3, b"labels.csv"):
        with refusal(InvalidSample, what="rows", given=type(rows).__name__):
            read(rows)
    for name, kind in (("labels.xlsx", ".xlsx"), ("labels", "")):
        (tmp_path / name).touch()
        with refusal(InvalidSample, what="rows", where=name, given=kind):
            read(tmp_path / name)
    (tmp_path / "labels.parquet").write_bytes(b"PAR1")
    with refusal(InvalidSample, what="file", where="labels.parquet", given="ArrowInvalid"):
        read(tmp_path / "labels.parquet")
    for name in ("no.parquet", "no.jsonl", "no.csv"):
        with refusal(InvalidSample, what="rows", given="no file"):
            read(tmp_path / name)
    with refusal(FieldNotFound, what="key", where="the rows given"):
        read(pa.table({"id": ["a"]}))
    with refusal(InvalidSample, what="columns", where="the rows given", given=["key", "x", "x"]):
        read(pa.table([["a"], [1], [2]], names=["key", "x", "x"]))
    for keys, where, value in (
        (["a", None], "row 2 of the rows given", None),
        ([1.5], "the rows given", "double"),
    ):
        with refusal(InvalidSample, what="key", where=where, given=value):
            read(pa.table({"key": keys}))
