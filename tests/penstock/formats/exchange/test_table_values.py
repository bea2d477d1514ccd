"""Values, names and folders of tables: healthy ones come in as they are, and what is not taken is not damage."""

import contextlib
import errno
import json
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from io import BytesIO

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loader
from loader.dataset.columnar.arrow_columns import TableRows
from loader.dataset.columnar.arrow_errors import arrow_errors
from loader.dataset.columnar.choices import SchemaFacts
from loader.dataset.columnar.column_names import Partitions, metadata_name
from loader.dataset.columnar.plain_values import value_reader
from loader.dataset.names import escape_name
from loader.errors import Corrupt, FieldMismatch, InvalidSample, NotSupported, ObjectNotFound
from penstock.formats.content_digest import content_digest
from penstock.formats.importer import ColumnarOptions
from penstock.formats.registration.register import register
from penstock.formats.tables import parquet as parquet_rows
from penstock.upkeep.verify.version import verify
from tests.penstock.formats.builders.places import arrow, put, table
from tests.penstock.formats.versions import field_bytes as fields_by_key
from tests.penstock.formats.versions import importing
from tests.refusals import refusal

FINE_NS = 1_700_000_000_000_001_001


def import_table(place, url, format="parquet", **how):
    return importing(format, place, url, workers=1, **how)


def sample_fields(version):
    return list(fields_by_key(version).values())


def only_row(tmp_path, columns, **how):
    """Fields and metadata of the one row of a table."""
    table(tmp_path / "place/a.parquet", {"b": [b"1"], **columns})
    done, root = import_table(tmp_path / "place", tmp_path / "root", **how)
    assert done.failures == []
    (row,) = root.open("d").samples().collect().to_dicts()
    return root.open("d"), row


# Damaged, not supported, and neither


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (pa.ArrowInvalid("x"), Corrupt),
        (pa.ArrowIndexError("x"), Corrupt),
        (OSError("thrift"), Corrupt),
        (EOFError("x"), Corrupt),
        (pa.ArrowNotImplementedError("x"), NotSupported),
        (pa.ArrowMemoryError("malloc of size 281474976710720 failed"), Corrupt),
        (pa.ArrowMemoryError("malloc of size 68719476736 failed"), MemoryError),
        (pa.ArrowMemoryError("x"), MemoryError),
        (MemoryError("x"), MemoryError),
        (OSError(errno.ENOSPC, "x"), OSError),
        (TypeError("of our code"), TypeError),
        (KeyError("of our code"), KeyError),
        (ObjectNotFound("x"), ObjectNotFound),
    ],
    ids=lambda one: getattr(one, "__name__", None) or type(one).__name__,
)
def test_errors_of_arrow_are_damage_where_the_bytes_are_to_blame(raised, expected):
    with pytest.raises(expected) as found, arrow_errors("a.parquet"):
        raise raised
    assert type(found.value) is expected
    assert not issubclass(NotSupported, Corrupt)


@pytest.mark.parametrize("number", [-1, 2])
def test_index_outside_of_a_dictionary_is_damage(number):
    indices, values = pa.array([0, number], pa.int32()), pa.array(["a", "b"])
    batch = pa.record_batch({"t": pa.DictionaryArray.from_arrays(indices, values, safe=False)})
    rows = TableRows(batch.schema, SchemaFacts(), ColumnarOptions(fields={"t": ""}), "a.parquet")
    where = "a.parquet, row 1: column 't'"
    with refusal(Corrupt, what="Arrow data", where=where, given=f"value {number} of a dictionary of 2"):
        list(rows.samples(batch, 0))


def test_first_object_that_is_not_supported_stops_no_other(tmp_path):
    """Its schema has integers of another width than Arrow reads."""
    arrow(tmp_path / "place/b.arrow", {"b": [b"1"]})
    arrow(tmp_path / "whole.arrow", {"b": [b"1"], "n": pa.array([1], pa.int64())})
    data = (tmp_path / "whole.arrow").read_bytes()
    for at in (found.start() for found in re.finditer(re.escape((64).to_bytes(4, "little")), data)):
        odd = data[:at] + (65).to_bytes(4, "little") + data[at + 4 :]
        with contextlib.suppress(pa.ArrowInvalid, OSError):
            try:
                pa.ipc.open_stream(odd).read_all()
            except pa.ArrowNotImplementedError:
                put(tmp_path / "place/a.arrow", odd)
    done, _ = import_table(tmp_path / "place", tmp_path / "root", "arrow")
    (why,) = done.failures
    assert "a.arrow uses a feature that Arrow does not read" in why


def test_time_finer_than_microseconds_is_not_supported_as_metadata_and_exact_as_text(tmp_path):
    times = {"t": pa.array([FINE_NS], pa.timestamp("ns"))}
    table(tmp_path / "place/a.parquet", {"b": [b"1"], **times})
    (why,) = import_table(tmp_path / "place", tmp_path / "refused")[0].failures
    assert "row 0: column 't' holds the time 2023-11-14T22:13:20.000001001+00:00, finer than" in why
    assert "damaged" not in why
    with refusal(NotSupported, what="column 't'", where="a.parquet, row 0"):
        register(loader.Root(tmp_path / "registered"), "parquet", tmp_path / "place", "d")
    version, _ = only_row(tmp_path, times, fields=[("t", "txt")])
    assert sample_fields(version)[0]["t.txt"] == b"2023-11-14T22:13:20.000001001+00:00"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (pa.array([2**49], pa.timestamp("ms")), "outside of the years 1 to 9999"),
        (pa.array([10**7], pa.date32()), "outside of the years 1 to 9999"),
        (pa.array([{"x": b"1"}]), "bytes inside of a list or struct"),
        (pa.array([{"x": float("nan")}]), "a number that is not finite"),
    ],
    ids=lambda one: str(one.type) if isinstance(one, pa.Array) else None,
)
def test_values_that_nothing_holds_are_not_supported(tmp_path, value, said):
    table(tmp_path / "place/a.parquet", {"b": [b"1"], "x": value})
    table(tmp_path / "place/b.parquet", {"b": [b"1"]})
    done, _ = import_table(tmp_path / "place", tmp_path / "root")
    (why,) = done.failures
    assert f"a.parquet, row 0: column 'x' holds {said}" in why or said in why
    assert "--without x" in why
    assert "damaged" not in why
    with pytest.raises(NotSupported):
        register(loader.Root(tmp_path / "registered"), "parquet", tmp_path / "place", "d")


# One converter for every depth

AT = datetime(2024, 1, 2, 3, 4, 5, 6, UTC)
TEXTS = {
    "timestamp": (pa.array([AT], pa.timestamp("us", "UTC")), "2024-01-02T03:04:05.000006+00:00"),
    "naive": (pa.array([AT.replace(tzinfo=None)], pa.timestamp("ms")), None),
    "zone": (pa.array([AT], pa.timestamp("us", "Asia/Tokyo")), "2024-01-02T03:04:05.000006+00:00"),
    "ns": (pa.array([FINE_NS], pa.timestamp("ns")), "2023-11-14T22:13:20.000001001+00:00"),
    "date": (pa.array([date(2024, 1, 2)]), "2024-01-02"),
    "date64": (pa.array([date(2024, 1, 2)], pa.date64()), "2024-01-02"),
    "time": (pa.array([time(3, 4, 5, 6)]), "03:04:05.000006"),
    "time ns": (pa.array([1001], pa.time64("ns")), "00:00:00.000001001"),
    "duration": (pa.array([timedelta(1, 2, 3)]), "1 day, 0:00:02.000003"),
    "negative": (pa.array([-1], pa.duration("ns")), "-1 day, 23:59:59.999999999"),
    "decimal": (pa.array([Decimal("1.50")]), "1.50"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_times_and_decimals_are_the_same_text_at_every_depth(name):
    array, text = TEXTS[name]
    array = array if text else pa.array([AT.replace(tzinfo=None, microsecond=0)], pa.timestamp("ms"))
    text = text or "2024-01-02T03:04:05+00:00"
    assert value_reader(array, as_text=True)(0) == text
    one = pa.array([0, 1], pa.int32())
    struct = pa.StructArray.from_arrays([array, pa.array([7])], names=["x", "n"])
    lists = pa.ListArray.from_arrays(one, array)
    maps = pa.MapArray.from_arrays(one, pa.array(["k"]), struct)
    coded = pa.StructArray.from_arrays([array.dictionary_encode()], names=["x"])
    assert value_reader(struct, as_text=True)(0) == {"x": text, "n": 7}
    assert value_reader(lists, as_text=True)(0) == [text]
    assert value_reader(maps, as_text=True)(0) == [["k", {"x": text, "n": 7}]]
    assert value_reader(coded, as_text=True)(0) == {"x": text}
    deep = pa.StructArray.from_arrays([pa.ListArray.from_arrays(one, struct)], names=["d"])
    assert value_reader(deep, as_text=True)(0) == {"d": [{"x": text, "n": 7}]}
    assert value_reader(pa.nulls(1, deep.type), as_text=True)(0) is None


def test_structs_and_lists_with_times_become_json_fields(tmp_path):
    inner = {"at": AT, "on": AT.date(), "price": Decimal("1.50"), "none": None, "in": [[AT.time()]]}
    version, row = only_row(tmp_path, {"s": [inner], "l": [[AT.date()]], "d": [AT.date()]})
    (fields,) = sample_fields(version)
    assert json.loads(fields["s.json"]) == {
        "at": "2024-01-02T03:04:05.000006+00:00",
        "on": "2024-01-02",
        "price": "1.50",
        "none": None,
        "in": [["03:04:05.000006"]],
    }
    assert (json.loads(fields["l.json"]), row["d"]) == (["2024-01-02"], "2024-01-02")
    register(loader.Root(tmp_path / "registered"), "parquet", tmp_path / "place", "d")
    again = loader.Root(tmp_path / "registered").open("d")
    assert content_digest(again, full=True).digest == content_digest(version, full=True).digest


def test_date_that_becomes_a_field_is_text_or_json(tmp_path):
    version, _ = only_row(tmp_path, {"d": [AT.date()], "e": [AT.date()]}, fields=[("d", ""), ("e", "json")])
    (fields,) = sample_fields(version)
    assert (fields["d.txt"], fields["e.json"]) == (b"2024-01-02", b'"2024-01-02"')


def test_views_of_texts_and_bytes_are_texts_and_bytes(tmp_path):
    columns = {"b": pa.array([b"\xff1"], pa.binary_view()), "t": pa.array(["a"], pa.string_view())}
    arrow(tmp_path / "place/a.arrow", columns)
    done, root = import_table(tmp_path / "place", tmp_path / "root", "arrow", fields=[("t", "")])
    assert done.failures == []
    assert sample_fields(root.open("d")) == [{"b": b"\xff1", "t.txt": b"a"}]
    with refusal(
        InvalidSample,
        what="b",
        where="a.arrow, row 0",
        given="b",
        accepted="bytes that are in the file unchanged",
    ):
        register(loader.Root(tmp_path / "other"), "arrow", tmp_path / "place", "d")


# Widths

NESTED = {
    "u1": ([[[1, 2], [3, 4]]], pa.list_(pa.list_(pa.list_(pa.uint8())))),
    "f4": ([[1.5], [2.5]], pa.large_list(pa.list_(pa.float32()))),
    "f2": ([[1.5], [2.5]], pa.list_(pa.list_(pa.float16(), 1))),
    "i2": ([], pa.list_(pa.list_(pa.int16()))),
    "i8": ([[1]], pa.list_(pa.list_(pa.int64()))),
}


@pytest.mark.parametrize("word", NESTED)
def test_numbers_in_lists_of_lists_keep_the_width_that_their_type_declares(tmp_path, word):
    value, kind = NESTED[word]
    how = {"fields": {"x": "npy"}}
    version, _ = only_row(tmp_path, {"x": pa.array([value], kind)}, **how)
    found = np.load(BytesIO(sample_fields(version)[0]["x.npy"]))
    assert (found.dtype, found.tolist()) == (np.dtype(word), value)
    again = register(loader.Root(tmp_path / "registered"), "parquet", tmp_path / "place", "d", **how).version
    assert content_digest(again, full=True).digest == content_digest(version, full=True).digest
    assert verify(loader.Root(tmp_path / "registered"), "d", full=True).problems == []


def test_tables_that_were_registered_with_64_bits_are_read_as_they_were(tmp_path, monkeypatch):
    """Their note says nothing of widths; a table of flat lists has the same note as ever."""
    table(tmp_path / "place/a.parquet", {"x": pa.array([[[1, 2]], [[]], []], NESTED["u1"][1].value_type)})
    with monkeypatch.context() as before:
        before.setattr(parquet_rows, "inner_dtype", lambda kind: None)
        root = loader.Root(tmp_path / "root")
        version = register(root, "parquet", tmp_path / "place", "d", fields={"x": "npy"}).version
    assert [np.load(BytesIO(one["x.npy"])).dtype.name for one in sample_fields(version)] == [
        "int64",
        "float64",
        "float64",
    ]
    assert verify(root, "d", full=True).problems == []
    table(tmp_path / "flat/a.parquet", {"x": pa.array([[1, 2]], pa.list_(pa.uint8()))})
    note = register(root, "parquet", tmp_path / "flat", "f", fields={"x": "npy"}).version.manifest["producer"]
    assert "widths" not in note["registered"]


def test_null_in_a_list_of_lists_is_no_number(tmp_path):
    table(tmp_path / "place/a.parquet", {"x": pa.array([[[1.0, None]]], NESTED["f4"][1])})
    (why,) = import_table(tmp_path / "place", tmp_path / "root", fields=[("x", "npy")])[0].failures
    assert "row 0: column 'x' is not a list of numbers" in why


# One column, one form


def ids(kind, values=((1, 2),)):
    return {"ids": pa.array(values, pa.list_(kind)), "b": [b"1"] * len(values)}


def both_orders(tmp_path, write, extension):
    write(tmp_path / f"place/a{extension}", ids(pa.int32()))
    write(tmp_path / f"place/b{extension}", ids(pa.int64()))
    return tmp_path / "place"


@pytest.mark.parametrize(("format", "write"), [("parquet", table), ("arrow", arrow), ("hf", table)])
def test_column_of_two_widths_is_refused_by_both_files(tmp_path, format, write):
    place = both_orders(tmp_path, write, ".arrow" if format == "arrow" else ".parquet")
    done, root = import_table(place, tmp_path / "root", format)
    said = (
        r"column 'ids' becomes the field ids\.i4 in a\.\w+, and the field ids\.i8 in b\.\w+: .*--field ids=i8"
    )
    (why,) = done.failures
    assert re.search(said, why)
    assert root.datasets() == []
    with refusal(InvalidSample, what="column 'ids'") as caught:
        register(loader.Root(tmp_path / "registered"), format, place, "d")
    assert {caught.value.given, caught.value.accepted} == {"the field ids.i4", "the field ids.i8"}
    done, root = import_table(place, tmp_path / "root", format, fields=[("ids", "i8")])
    assert (done.failures, root.open("d").fields) == ([], ("b", "ids.i8"))


def test_column_of_another_width_than_the_dataset_has_is_refused(tmp_path):
    table(tmp_path / "place/a.parquet", ids(pa.int32()))
    root = import_table(tmp_path / "place", tmp_path / "root")[1]
    other = loader.Root(tmp_path / "registered")
    register(other, "parquet", tmp_path / "place", "d")
    (tmp_path / "place/a.parquet").rename(tmp_path / "a.parquet")
    table(tmp_path / "place/b.parquet", ids(pa.int64()))
    (tmp_path / "a.parquet").rename(tmp_path / "place/c.parquet")
    table(
        tmp_path / "place/a.parquet", ids(pa.int64())
    )  # written again, so that it is the only one to be read
    (tmp_path / "place/c.parquet").unlink()
    widths = {"given": "the field ids.i8", "accepted": "the field ids.i4"}
    with refusal(FieldMismatch, what="column 'ids'", **widths):
        import_table(tmp_path / "place", root.url)
    with refusal(FieldMismatch, what="column 'ids'", **widths):
        register(other, "parquet", tmp_path / "place", "d")


def test_column_that_is_a_number_here_and_a_list_there_is_refused(tmp_path):
    table(tmp_path / "place/a.parquet", {"b": [b"1"], "x": [1]})
    table(tmp_path / "place/b.parquet", ids(pa.int64()) | {"x": [[1]]})
    (why,) = import_table(tmp_path / "place", tmp_path / "root")[0].failures
    assert "becomes the column x in a.parquet, and the field x.i8 in b.parquet" in why


# Names


@given(st.text(min_size=1, max_size=12))
def test_escaped_names_are_ascii_and_give_the_text_back(text):
    escaped = escape_name(text)
    assert escaped.isascii()
    assert text.isascii() <= (escaped == text)
    if not re.search("_u[0-9a-f]{4,6}_", re.sub(r"[^\x00-\x7f]", "é", text)):
        back = re.sub("_u([0-9a-f]{4,6})_", lambda match: chr(int(match[1], 16)), escaped)
        assert back == text or "_u" in text


def test_plain_names_of_columns_stay_as_they_were():
    names = ["w", "my score", "a-b.c", "2d", "split", "_x", "", "key"]
    assert [metadata_name(name) for name in names] == [
        "w",
        "my_score",
        "a_b_c",
        "_2d",
        "table_split",
        "_x",
        "column",
        "table_key",
    ]


@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
def test_names_outside_of_ascii_stay_apart(tmp_path, cli, format):
    rows = [{"标题": "t", "内容": "c", "naïve": "n"}]
    if format == "parquet":
        table(tmp_path / "place/a.parquet", {name: [value] for name, value in rows[0].items()})
    elif format == "jsonl":
        put(tmp_path / "place/a.jsonl", json.dumps(rows[0]).encode())
    else:
        put(tmp_path / "place/a.csv", f"{','.join(rows[0])}\n{','.join(rows[0].values())}\n".encode())
    run = cli("import", format, tmp_path / "place", "d", "--field", "标题=txt", root=tmp_path / "root")
    assert run.code == 0, run.err
    version = loader.Root(tmp_path / "root").open("d")
    assert sample_fields(version) == [{"_u6807__u9898_.txt": b"t"}]
    (row,) = version.samples().collect().to_dicts()
    assert (row["_u5185__u5bb9_"], row["na_u00ef_ve"]) == ("c", "n")
    assert len(version.select("_u6807__u9898_.txt").where("_u5185__u5bb9_ = 'c'")) == 1


def test_name_that_spells_an_escape_is_refused_beside_what_it_spells(tmp_path):
    table(tmp_path / "place/a.parquet", {"b": [b"1"], "é": ["1"], "_u00e9_": ["2"]})
    (why,) = import_table(tmp_path / "place", tmp_path / "root")[0].failures
    assert "the columns 'é' and '_u00e9_' would both be '_u00e9_'" in why


# Folders that name columns


def languages(version):
    return {(row.get("lang"), row.get("year")) for row in version.samples().collect().to_dicts()}


EXPECTED = {("de", 2024), ("pt", 2025), (None, -3)}


@pytest.mark.parametrize(("format", "write"), [("parquet", table), ("arrow", arrow)])
def test_folders_with_names_and_values_are_columns(tmp_path, format, write):
    for name in ("lang=de/year=2024", "lang=p%74/year=2025", "lang=__HIVE_DEFAULT_PARTITION__/year=-3"):
        write(tmp_path / f"place/{name}/a.{format}", {"b": [b"1"], "n": [1]})
    place = tmp_path / "place"
    done, root = import_table(place, tmp_path / "root", format)
    assert done.failures == []
    version = root.open("d")
    assert languages(version) == EXPECTED
    assert version.manifest["columns"]["year"]["type"] == "int64"
    assert len(version.select("b").where("lang = 'de' and year > 2000")) == 1
    registered = register(loader.Root(tmp_path / "registered"), format, place, "d").version
    assert languages(registered) == EXPECTED
    assert content_digest(registered, full=True).digest == content_digest(version, full=True).digest
    bare = import_table(place, tmp_path / "bare", format, without=["lang", "year"])[1].open("d")
    assert "lang" not in bare.manifest["columns"]


@pytest.mark.parametrize("format", ["json", "jsonl"])
def test_lines_in_folders_have_their_columns_too(tmp_path, format):
    put(tmp_path / f"place/lang=de/a.{format}", b'{"id": 1, "x": [1]}\n')
    put(tmp_path / f"place/lang=en/a.{format}", b'{"id": 2, "x": [1]}\n')
    root = import_table(tmp_path / "place", tmp_path / "root", format)[1]
    assert languages(root.open("d")) == {("de", None), ("en", None)}


def test_partition_that_was_text_stays_text(tmp_path):
    table(tmp_path / "place/n=01/a.parquet", {"b": [b"1"]})
    table(tmp_path / "place/n=5/a.parquet", {"b": [b"1"]})
    root = import_table(tmp_path / "place", tmp_path / "root")[1]
    other = loader.Root(tmp_path / "registered")
    register(other, "parquet", tmp_path / "place", "d")
    (tmp_path / "place/n=01/a.parquet").unlink()
    table(tmp_path / "place/n=2/a.parquet", {"b": [b"1"]})
    assert import_table(tmp_path / "place", root.url)[0].failures == []
    register(other, "parquet", tmp_path / "place", "d")
    for one in (root, other):
        assert {row["n"] for row in one.open("d").samples().collect().to_dicts()} >= {"2", "5"}


def test_partition_is_whole_numbers_where_all_its_values_are():
    keys = ["n=1/m=01/a", "n=-2/m=2/a", "n=0/m=3/k=9223372036854775808/a", "a=1"]
    assert [dict(Partitions(keys).columns(key)) for key in keys] == [
        {"n": 1, "m": "01"},
        {"n": -2, "m": "2"},
        {"n": 0, "m": "3", "k": "9223372036854775808"},
        {},
    ]
    assert Partitions(["n=1/a"], texts=["n"]).columns("n=1/a") == {"n": "1"}
    assert Partitions(["split=a/标题=b/x"]).columns("split=a/标题=b/x") == {
        "table_split": "a",
        "_u6807__u9898_": "b",
    }


def test_folder_that_says_another_value_than_the_row_is_named(tmp_path):
    table(tmp_path / "place/lang=de/a.parquet", {"b": [b"1"], "lang": ["de"]})
    done, root = import_table(tmp_path / "place", tmp_path / "same")
    assert done.failures == []
    assert languages(root.open("d")) == {("de", None)}
    table(tmp_path / "place/lang=en/a.parquet", {"b": [b"1"], "lang": ["de"]})
    (why,) = import_table(tmp_path / "place", tmp_path / "root")[0].failures
    assert (
        "lang=en/a.parquet: its folder has lang = 'en', and a row has a column of that name with 'de'" in why
    )
    table(tmp_path / "twice/n=1/n=2/a.parquet", {"b": [b"1"]})
    (why,) = import_table(tmp_path / "twice", tmp_path / "other")[0].failures
    assert "its folders name the column 'n' twice" in why
