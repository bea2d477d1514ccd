"""Arrow IPC that is read where it lies, by the spans of its values."""

import os
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.root import root_in_store
from loader.errors import Changed, Corrupt, DuplicateKey, InvalidSample, InvalidStore
from loader.storage import open_store
from penstock.formats.importer import ColumnarOptions
from penstock.formats.registration.register import register
from penstock.formats.run_import import import_place
from tests.penstock.formats.builders.places import arrow
from tests.penstock.formats.versions import digest
from tests.penstock.formats.versions import import_version as copied
from tests.refusals import refusal

MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
KINDS = {
    "binary": (pa.binary(), st.binary(max_size=9)),
    "large_binary": (pa.large_binary(), st.binary(max_size=9)),
    "fixed": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "text": (pa.string(), st.text(st.characters(codec="utf-8"), max_size=5)),
    "large_text": (pa.large_string(), st.text(st.characters(codec="utf-8"), max_size=5)),
    "media": (MEDIA, st.fixed_dictionaries({"bytes": st.binary(max_size=9), "path": st.just("a.x")})),
    "u2": (pa.list_(pa.uint16()), st.lists(st.integers(0, 2**16 - 1), max_size=4)),
    "f8": (pa.large_list(pa.float64()), st.lists(st.floats(width=64), max_size=4)),
    "box": (pa.list_(pa.float32(), 4), st.lists(st.floats(width=32), min_size=4, max_size=4)),
}
"""Column -> its type, and values: all that lies in a file as a field has it."""
TEXTS = {"text": "txt", "large_text": "txt"}


def table(first=0, n=40):
    """Pictures of which every seventh is null, tokens, texts and numbers."""
    numbers = range(first, first + n)
    images = [None if k % 7 == 3 else {"bytes": b"\xff\xd8\xff%d" % k, "path": f"{k}.x"} for k in numbers]
    return pa.table(
        {
            "id": [f"k{k}" for k in numbers],
            "image": pa.array(images, MEDIA),
            "ids": pa.array([list(range(k % 5)) for k in numbers], pa.list_(pa.uint16())),
            "cap": [f"text {k}" for k in numbers],
            "n": list(numbers),
        }
    )


@pytest.fixture
def place(tmp_path):
    """A stream of five record batches, and a file."""
    arrow(tmp_path / "place/0.arrow", table(), rows=8)
    arrow(tmp_path / "place/1.arrow", table(40), stream=False)
    return tmp_path / "place"


HOW = {"key": "id", "fields": {"cap": "txt"}}


def import_arrow(place, key="id", fields=HOW["fields"], without=()):
    return copied("arrow", place, key=key, fields=fields, without=without, workers=1)


def digests(version):
    return [digest(version, full=full) for full in (False, True)]


def register_arrow(root, place, **how):
    return register(root, "arrow", place, "t", **{**HOW, **how}).version


def test_value_is_a_span_of_its_file(root, place):
    version = register_arrow(root, place)
    whole = {name: (place / name).read_bytes() for name in ("0.arrow", "1.arrow")}
    ordinals = np.arange(80)
    for key, address in zip(version.keys(ordinals), version.address(ordinals, ["cap.txt"]), strict=True):
        number, at = int(key[1:]), address.fields["cap.txt"]
        data = whole["0.arrow" if number < 40 else "1.arrow"]
        assert data[at.offset : at.offset + at.nbytes] == b"text %d" % number


def test_training_reads_it_shuffled(root, place):
    view = register_arrow(root, place).select("image.jpg", "ids.u2", where_present=True)
    plan, seen = loader.plan({"t": view}, seed=3, global_batch=8), list[int]()
    decode = {"image.jpg": loader.modalities.decode_bytes}
    with loader.Loader(plan, decode=decode, epochs=1, workers=0) as batches:
        for batch in batches:
            seen += [int(one[3:]) for one in batch["image.jpg"] if one]  # the last batch is padded
            assert not batch.stats.get("unverified_bytes", 0)
    assert set(seen) == {k for k in range(80) if k % 7 != 3}
    assert seen[:20] != sorted(seen[:20])


@given(data=st.data(), stream=st.booleans(), rows=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_every_kind_of_column_has_the_digest_of_its_import(data, stream, rows, tmp_path_factory):
    some = data.draw(st.sets(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3))
    n = data.draw(st.integers(1, 6))
    columns = {"there": pa.array([b"x"] * n)}
    for name in sorted(some):
        kind, values = KINDS[name]
        columns[name] = pa.array(data.draw(st.lists(st.none() | values, min_size=n, max_size=n)), kind)
    place = tmp_path_factory.mktemp("place")
    arrow(place / "0.arrow", pa.table(columns), stream, rows)
    fields = {name: word for name, word in TEXTS.items() if name in some}
    root = root_in_store(open_store(f"memory://arrow-{place.name}-{stream}"))
    version = register(root, "arrow", place, "t", fields=fields).version
    assert digests(version) == digests(import_arrow(place, None, fields))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("stream", [True, False])
def test_compressed_buffers_are_refused(root, tmp_path, compression, stream):
    arrow(tmp_path / "place/a.arrow", table(), stream=stream, compression=compression)
    with refusal(
        InvalidStore,
        what="values",
        where="a.arrow",
        accepted="values without compression, in this byte order",
    ):
        register_arrow(root, tmp_path / "place")
    assert root.datasets() == []
    assert len(import_arrow(tmp_path / "place")) == 40


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("column", ["plain", "dictionary"])
def test_record_batch_that_grows_beyond_the_limit_is_refused_by_its_header(
    tmp_path, monkeypatch, compression, stream, column
):
    """59 KB took 1.6 GiB: Arrow decompresses a batch whole, so the lengths before its buffers are summed first."""
    text = pa.array(["x" * 100_000, "y"] * 20)
    rows = pa.table({"text": text if column == "plain" else text.dictionary_encode()})
    arrow(tmp_path / "place/a.arrow", rows, rows=10, stream=stream, compression=compression)
    assert len(import_arrow(tmp_path / "place", None, {"text": "txt"})) == 40
    monkeypatch.setattr("loader.dataset.columnar.record_batches.MIN_ARROW_BATCH_BYTES", 99_999)
    monkeypatch.setattr("loader.dataset.columnar.record_batches.MAX_ARROW_RATIO", 1)
    done = import_place(
        loader.Root(tmp_path / "root"),
        "arrow",
        open_store(tmp_path / "place"),
        "t",
        options=ColumnarOptions(fields={"text": "txt"}),
    )
    (failure,) = done.failures
    size = "500,0.." if column == "plain" else "100,0.."
    assert re.search(
        rf"a\.arrow: the record batch at byte \d+ .*: {size} decompressed bytes; at most 99,999", failure
    )


@pytest.mark.parametrize(
    ("column", "how", "field"),
    [
        ([{"x": 1}], {}, "c.json"),
        ([[[1], [2]]], {}, "c.json"),
        ([[True]], {}, "c.json"),
        ([[1, 2]], {"fields": {"c": "u1"}}, "c.u1"),
        ([[1, 2]], {"fields": {"c": "f8"}}, "c.f8"),
        ([[1, 2]], {"fields": {"c": "npy"}}, "c.npy"),
        ([7], {"fields": {"c": "txt"}}, "c.txt"),
        (pa.array([b"ab"]).dictionary_encode(), {}, "c"),
    ],
)
def test_fields_whose_bytes_are_not_in_the_file_are_refused(root, tmp_path, column, how, field):
    arrow(tmp_path / "place/a.arrow", pa.table({"b": [b"x"], "c": column}))
    with refusal(InvalidSample, what=field, where="a.arrow, row 0", given="c") as caught:
        register(root, "arrow", tmp_path / "place", "t", **how)
    assert "leave it out (--without c), or copy the table: penstock import arrow" in str(caught.value)
    version = register(root, "arrow", tmp_path / "place", "t", without=["c"]).version
    assert digests(version) == digests(import_arrow(tmp_path / "place", None, {}, ["c"]))


def test_classes_are_metadata_without_their_numbers(root, tmp_path):
    told = b'{"info": {"features": {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}}}'
    made = pa.table({"b": [b"x", b"y"], "label": [1, 0]}).replace_schema_metadata({"huggingface": told})
    arrow(tmp_path / "place/a.arrow", made)
    with refusal(
        InvalidSample,
        what="cls",
        where="a.arrow, row 0",
        given="label",
        accepted="bytes that are in the file unchanged",
    ):
        register(root, "arrow", tmp_path / "place", "t")
    version = register(root, "arrow", tmp_path / "place", "t", without=["cls"]).version
    assert version.samples().select("label").collect().to_dicts() == [{"label": "dog"}, {"label": "cat"}]
    assert digests(version) == digests(import_arrow(tmp_path / "place", None, {}, ["cls"]))


def test_bad_rows_and_keys_are_named(root, tmp_path):
    arrow(tmp_path / "a/a.arrow", pa.table({"n": [1]}))
    with refusal(InvalidSample, what="fields", where="a.arrow, sample 'a/000000000'", given=["n"]):
        register(root, "arrow", tmp_path / "a", "t")
    arrow(tmp_path / "b/b.arrow", pa.table({"b": [b"x", b"y"], "n": [7, 7]}), rows=1)
    with refusal(DuplicateKey, what="key", where="b.arrow", given="7"):
        register(root, "arrow", tmp_path / "b", "t", key="n")


def test_file_that_changed_or_flipped_is_told_and_registered_again(root, place):
    version = register_arrow(root, place)
    path = place / "0.arrow"
    data, told = bytearray(path.read_bytes()), path.stat()
    ordinals = dict(zip(version.keys(np.arange(80)), range(80), strict=True))

    def text(version, key):
        wanted = version.address(np.array([ordinals[key]]), ["cap.txt"])
        return read_fields(version.shard_store, wanted)[0]["cap.txt"]

    (at,) = (one.fields["cap.txt"] for one in version.address(np.array([ordinals["k5"]]), ["cap.txt"]))
    data[at.offset] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))
    assert text(version, "k4") == b"text 4"
    with refusal(Corrupt, what="cap.txt", within="sample 'k5'"):
        text(version, "k5")
    arrow(path, table(0, 30), rows=8)
    with refusal(Changed, what="size", within="/place/0.arrow"):
        text(root.open("t"), "k4")
    assert len(register_arrow(root, place)) == 70


@pytest.mark.parametrize("stream", [True, False])
def test_name_that_is_no_text_is_damage(root, tmp_path, stream):
    path = tmp_path / "place/a.arrow"
    arrow(path, table(), stream=stream)
    path.write_bytes(path.read_bytes().replace(b"cap", b"\xffap"))
    with refusal(Corrupt, what="Arrow data", where=f"{tmp_path}/place/a.arrow"):
        register(root, "arrow", path.parent, "t")
    (said,) = import_place(root, "arrow", open_store(path.parent), "u", workers=1).failures
    assert "a.arrow is damaged or cut: " in said
