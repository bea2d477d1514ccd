"""TFRecord: every record is a sample by its features, and damage is told with its object and byte."""

import gzip
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.formats.tables import tfrecord_import
from penstock.formats.tables.tfrecord_import import Wire, mask_crc32c, parse_features
from tests.penstock.formats.builders import records
from tests.penstock.formats.builders.places import put
from tests.penstock.formats.versions import contents, failures, import_version

JPG = b"\xff\xd8\xff-a picture-"


def test_checksums_are_those_of_tfrecord():
    """The heads of an empty record, and of the first record of TensorFlow's event files."""
    for nbytes, head in ((0, "000000000000000029039807"), (24, "1800000000000000a37f4b22")):
        assert records.record(bytes(nbytes))[:12].hex() == head
        assert mask_crc32c(bytes.fromhex(head)[:8]).hex() == head[16:]


@pytest.mark.parametrize(
    ("name", "packed"),
    [("a.tfrecord", True), ("b.tfrecords.gz", False), ("x.tfrecord-00000-of-00001", True)],
)
def test_records_are_samples(name, packed, tmp_path):
    rows = [
        {
            "image/encoded": [JPG],
            "image/text": ["Ü caption".encode()],
            "id": [b"one"],
            "label": [-3],
            "score": [0.5],
            "ids": [1, -2, 2**62],
            "emb": [1.5, float("inf")],
            "raw": [b"\0\1"],
            "more": [b"{}"],
            "left": [b"1", b"2"],
            "none": [],
        },
        {
            "image/encoded": [JPG + b"2"],
            "id": [b"two"],
            "ids": [7, 8],
            "emb": [1.0, 2.0],
            "raw": [b"\0"],
            "more": [b""],
        },
    ]
    data = b"".join(records.record(records.example(row, packed)) for row in rows)
    put(tmp_path / f"in/{name}", gzip.compress(data) if name.startswith("b") else data)
    found = contents(
        import_version("tfrecord", tmp_path / "in", key="id", fields={"more": "json"}, without=["left"])
    )
    fields, columns = found["one"]
    assert fields == {
        "image_encoded.jpg": JPG,
        "ids.i8": np.array([1, -2, 2**62]).tobytes(),
        "emb.f4": np.array([1.5, np.inf], np.float32).tobytes(),
        "raw": b"\0\1",
        "more.json": b"{}",
    }
    assert (columns["image_text"], columns["label"], columns["score"]) == ("Ü caption", -3, 0.5)
    assert found["two"][0]["more.json"] == b""
    assert "label" not in found["two"][1]


def test_records_of_parts_have_keys_of_their_own(tmp_path):
    data = records.record(records.example({"text": [b"a"], "label": [1]}))
    keys = []
    for name, stem in (
        ("a.tfrecord-00000-of-00002", "a-00000-of-00002"),
        ("a.tfrecord-00001-of-00002", "a-00001-of-00002"),
        ("b/a-3-of-4.x.tfrecord", "b/a-3-of-4"),
        ("c.gz.tfrecord-0-of-1", "c-0-of-1"),
        ("d-0-of-2.tfrecord-0-of-2", "d-0-of-2-0-of-2"),
        ("d-0-of-2.tfrecord-1-of-2", "d-0-of-2-1-of-2"),
        ("d-1-of-2.tfrecord-0-of-2.gz", "d-1-of-2-0-of-2"),
        ("e.x-0-of-2.tfrecord-1-of-2", "e-0-of-2-1-of-2"),
    ):
        put(tmp_path / "in" / name, data)
        keys.append(f"{stem}/000000000")
    found = contents(import_version("tfrecord", tmp_path / "in", fields={"text": "txt"}, allow_missing=True))
    assert sorted(found) == keys  # with the whole name in front, had they repeated


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data, one: data[:-1], r"bad\.tfrecord, byte 36: a record of 20 bytes is cut"),
        (lambda data, one: data[:42], r"bad\.tfrecord, byte 36: the length of a record is cut"),
        (lambda data, one: data[:60] + b"?" + data[61:], r"bad\.tfrecord, byte 36: .* its checksum is wrong"),
        (
            lambda data, one: b"\1" + data[1:],
            r"bad\.tfrecord, byte 0: the length of a record is cut, or its checksum",
        ),
        (
            lambda data, one: data + one(b"\x0a\x05"),
            r"record 2 at byte 72 is not a tf\.train\.Example: byte 0: field 1",
        ),
        (lambda data, one: data + one(b"\x12\x00"), r"record 2 at byte 72 .* a SequenceExample"),
        (lambda data, one: data + one(b""), r"sample 'bad/000000002' has no field"),
        (
            lambda data, one: data + one(b"x" * 2000),
            r"byte 72: a record has 2,000 bytes; at most 1,000 are read",
        ),
    ],
)
def test_damaged_records_are_told_with_their_byte(change, told, tmp_path, monkeypatch):
    monkeypatch.setattr(tfrecord_import, "RECORD_BYTES", 1000)
    one = records.record(records.example({"abcde": [b"\0\1\2"]}))
    assert len(one) == 36
    put(tmp_path / "in/bad.tfrecord", change(one + one, records.record))
    put(tmp_path / "in/good.tfrecord", one)
    (why,) = failures("tfrecord", tmp_path / "in")
    assert re.search(told, why), why


@pytest.mark.parametrize(
    ("row", "options", "told"),
    [
        ({"a": [b"1", b"2"], "b": [b"\0"]}, {}, r"record 0: feature 'a' has 2 values of bytes"),
        ({"a": [b"x" * 20_000]}, {}, r"record 0: the text in column 'a' has more than"),
        ({"a/b": [1], "a.b": [2], "x": [1, 2]}, {}, r"record 0: two features would both be 'a_b'"),
        ({"x": [1, 2]}, {"key": "id"}, r"record 0: the key, column 'id', is None"),
        ({"x": [1, 300]}, {"fields": {"x": "u1"}}, r"record 0: numbers of column 'x' do not fit u1"),
    ],
)
def test_features_that_fit_no_rule_are_told(row, options, told, tmp_path):
    put(tmp_path / "in/x.tfrecord", records.record(records.example(row)))
    (why,) = failures("tfrecord", tmp_path / "in", **options)
    assert re.search(told, why), why


@given(st.binary(max_size=60))
@example(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
@example(b"\x0a\x0a\x0a\x08\x12\x06\x1a\x04\x0d\0\0\0")
def test_any_bytes_are_an_example_or_damage(data):
    told = "byte 0: "
    try:
        parse_features(data)
    except Wire as error:
        told = str(error)
    assert re.match(r"byte \d+: ", told)


values = st.one_of(
    st.lists(st.binary(max_size=9), min_size=1, max_size=4),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=4),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4),
)


@settings(max_examples=25)
@given(rows=st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), values), packed=st.booleans())
def test_examples_come_back_as_they_were_written(rows, packed):
    found = parse_features(records.example(rows, packed))
    assert {name: list(one.values) for name, one in found.items()} == rows
