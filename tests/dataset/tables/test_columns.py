"""Metadata and provenance as columns: what is accepted, what a column's type does over runs."""

import enum
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest

import loader
from loader.dataset.tables.columns import check_metadata, check_source, fits, type_named
from loader.errors import FieldMismatch, InvalidField
from tests.refusals import refusal


class Licence(enum.StrEnum):
    BY = "cc-by"


AT = datetime(2026, 11, 20, 12, tzinfo=timezone(timedelta(hours=2)))

ACCEPTED = [
    (None, None),
    (True, True),
    (np.bool_(True), True),
    (3, 3),
    (np.int8(3), 3),
    (2**63 - 1, 2**63 - 1),
    (-(2**63), -(2**63)),
    (1.5, 1.5),
    (np.float32(1.5), 1.5),
    ("é", "é"),
    (np.str_("a"), "a"),
    (Licence.BY, "cc-by"),
    (AT, datetime(2026, 11, 20, 10, tzinfo=UTC)),
    ([1, 2], [1, 2]),
    ((), []),
    (np.arange(3), [0, 1, 2]),
    (np.array(3), 3),
]


@pytest.mark.parametrize(("value", "expected"), ACCEPTED, ids=repr)
def test_values_become_plain(value, expected):
    found = check_metadata("k", {"c": value})["c"]
    assert found == expected
    assert type(found) is type(expected)


REFUSED = [
    2**63,
    datetime(2026, 1, 1),
    b"bytes",
    {"a": 1},
    object(),
    1j,
    np.datetime64("2026-01-01", "ns"),
    np.timedelta64(1, "s"),
    "\udcff",
    ["\udcff"],
    [{}],
]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: repr(value).partition(" at 0x")[0])
def test_refused_values_name_sample_and_column(value):
    refused = value[0] if isinstance(value, list) else value
    what = "metadata 'c'" if isinstance(refused, str) else "c"
    with refusal(InvalidField, what=what, where="sample 'k'", given=refused):
        check_metadata("k", {"c": value})


@pytest.mark.parametrize("name", ["key", "part", "row", "ordinal", "raw_uri", "a.b", "1a", "", "ä", 3])
def test_refused_column_names(name):
    with refusal(InvalidField, what="column", given=name):
        check_metadata("k", {name: 1})


def test_source_takes_provenance_only():
    assert check_source("k", {"raw_uri": "s3://x", "raw_start": 3, "unit_id": None}) == {
        "raw_uri": "s3://x",
        "raw_start": "3",
    }
    with refusal(InvalidField, what="source", where="sample 'k'", given=["camera"]):
        check_source("k", {"camera": "a"})
    with refusal(
        InvalidField, what="source 'raw_key'", where="sample 'k'", given="\udcff.jpg", accepted="UTF-8 text"
    ):
        check_source("k", {"raw_key": "\udcff.jpg"})


def write(root, rows, part_samples=None):
    with root.write("d", part_samples=part_samples) as writer:
        for key, metadata in rows.items():
            writer.add(key, {"cls": 1}, metadata=metadata)
    return writer.version


def column(version, name):
    frame = version.samples().collect()
    return dict(zip(frame["key"].to_list(), frame[name].to_list(), strict=True))


@pytest.mark.parametrize("part_samples", [None, 1])
def test_int_meets_float_as_float(root, part_samples):
    version = write(root, {"a": {"x": 1}, "b": {"x": 1.5}, "c": {"x": None}, "d": {}}, part_samples)
    assert version.manifest["columns"]["x"]["type"] == "double"
    assert column(version, "x") == {"a": 1.0, "b": 1.5, "c": None, "d": None}


def test_later_run_of_ints_becomes_the_floats_of_the_dataset(root):
    write(root, {"a": {"x": 1.5}})
    version = write(root, {"b": {"x": 2}})
    assert column(version, "x") == {"a": 1.5, "b": 2.0}


@pytest.mark.parametrize("value", [2.0, 2.5])
def test_floats_do_not_fit_an_int_column(root, value):
    """Also when they are whole: whether a run can be published does not depend on its values."""
    write(root, {"a": {"x": 1}})
    with refusal(FieldMismatch, what="type", where="column 'x'", given="double", accepted="int64"):
        write(root, {"c": {"x": value}})
    assert len(root.versions("d")) == 1


def test_int_that_a_float_cannot_hold_is_refused(root):
    write(root, {"a": {"x": 1.5}})
    with refusal(FieldMismatch, what="type", where="column 'x'", given="int64", accepted="double"):
        write(root, {"b": {"x": 2**60 + 1}})


@pytest.mark.parametrize("part_samples", [None, 1])
@pytest.mark.parametrize("big", [2**53 + 1, -(2**53) - 1, 2**63 - 1])
def test_int_beside_floats_that_a_float_cannot_hold_is_refused(root, big, part_samples):
    # The columns of a part are checked by value, parts by Arrow, whose text has the number.
    of_parts = {"what": "types", "where": "the samples table", "given": "ArrowInvalid"}
    one_part = {"what": "x", "where": "sample 'b'", "given": big}
    with refusal(FieldMismatch, **(of_parts if part_samples else one_part)) as caught:
        write(root, {"a": {"x": 1.5}, "b": {"x": big}, "c": {"x": None}}, part_samples)
    assert str(big) in str(caught.value)
    of_lists = {"what": "x", "given": "ArrowInvalid"}
    with refusal(FieldMismatch, **(of_parts if part_samples else of_lists)) as caught:
        write(root, {"a": {"x": [1.5]}, "b": {"x": [big]}}, part_samples)
    assert str(big) in str(caught.value)
    assert not root.datasets()


def test_int_beside_floats_that_a_float_holds_is_taken(root):
    assert column(write(root, {"a": {"x": 2**53}, "b": {"x": 2**60}, "c": {"x": 0.5}}), "x") == {
        "a": float(2**53),
        "b": float(2**60),
        "c": 0.5,
    }


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        ("text", "string"),
        ("5", "string"),
        (True, "bool"),
        ([1], "list<element: int64>"),
        (AT, "timestamp[us, tz=UTC]"),
    ],
)
def test_changed_type_is_refused(root, other, kind):
    write(root, {"a": {"x": 1}})
    with refusal(FieldMismatch, what="type", where="column 'x'", given=kind, accepted="int64"):
        write(root, {"b": {"x": other}})
    with refusal(FieldMismatch, what="x", given=[(type(other).__name__, "b"), ("int", "c")]):
        write(root, {"b": {"x": other}, "c": {"x": 2}})
    assert len(root.versions("d")) == 1


@pytest.mark.parametrize("part_samples", [None, 1])
def test_two_kinds_in_one_run_are_refused(root, part_samples):
    kinds = {"what": "x", "given": [("int", "a"), ("str", "b")]}
    of_parts = {"what": "types", "where": "the samples table", "given": "ArrowTypeError"}
    with refusal(FieldMismatch, **(of_parts if part_samples else kinds)):
        write(root, {"a": {"x": 1}, "b": {"x": "text"}}, part_samples)


def test_odd_value_is_named_by_its_sample(root):
    with refusal(FieldMismatch, what="x", given=[("int", "a"), ("str", "b")], accepted="one kind per column"):
        write(root, {"a": {"x": 1}, "b": {"x": "text"}})


def test_column_of_nulls_takes_any_type_later(root):
    assert write(root, {"a": {"x": None}}).manifest["columns"]["x"]["type"] == "null"
    assert write(root, {"b": {"x": "text"}}).manifest["columns"]["x"]["type"] == "string"
    version = write(root, {"c": {"x": None}, "d": {"y": 1}})
    assert version.manifest["columns"]["x"]["type"] == "string"
    assert column(version, "x") == {"a": None, "b": "text", "c": None, "d": None}
    assert column(version, "y") == {"a": None, "b": None, "c": None, "d": 1}
    assert len(version.where("x = 'text'")) == 1


def test_lists_keep_their_type_over_runs(root):
    write(root, {"a": {"e": [], "f": [1.5]}})
    write(root, {"b": {"e": [], "f": [1, 2]}})
    write(root, {"c": {"e": [3], "f": None}})
    version = write(root, {"d": {"e": [], "f": []}})
    assert column(version, "e") == {"a": [], "b": [], "c": [3], "d": []}
    assert column(version, "f") == {"a": [1.5], "b": [1.0, 2.0], "c": None, "d": []}
    with refusal(
        FieldMismatch,
        what="type",
        where="column 'e'",
        given="list<element: string>",
        accepted="list<element: int64>",
    ):
        write(root, {"x": {"e": ["text"]}})


def test_times_are_utc_microseconds(root):
    version = write(root, {"a": {"t": AT}, "b": {"t": None}})
    assert version.manifest["columns"]["t"]["type"] == "timestamp[us, tz=UTC]"
    assert column(version, "t") == {"a": AT.astimezone(UTC), "b": None}
    assert column(write(root, {"c": {"t": AT}}), "t")["c"] == AT


TYPES = [
    pa.int64(),
    pa.float64(),
    pa.string(),
    pa.bool_(),
    pa.null(),
    pa.timestamp("us", "UTC"),
    pa.list_(pa.field("element", pa.int64())),
    pa.list_(pa.field("element", pa.list_(pa.field("element", pa.timestamp("us", "UTC"))))),
]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_type_names_are_read_back(kind):
    assert type_named(str(kind)) == kind
    assert str(type_named(str(kind))) == str(kind)
    assert fits(str(kind), str(kind))
    assert fits("null", str(kind))
    assert fits(str(kind), "string") == (kind in (pa.string(), pa.null()))


def test_group_names(root):
    for group in ("", "Media", "a/b", "a.b", "../x", 3):
        with refusal(InvalidField, what="group", given=group):
            root.write("d", group=group)
    assert loader.Root(root.url).write("d", groups={"cls": "labels"})
