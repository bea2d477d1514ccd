"""Parquet that is read where it lies, by the decoded chunk."""

import os
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.dataset.columnar.arrow_columns import TableRows, joined
from loader.dataset.columnar.choices import NO_OPTIONS, ColumnarOptions, schema_features
from loader.dataset.columnar.parquet_chunks import CHUNKS, ChunkCache
from loader.dataset.tables import manifest
from loader.errors import (
    Changed,
    Conflict,
    Corrupt,
    DuplicateKey,
    FormatTooNew,
    InvalidPlan,
    InvalidRuntime,
    InvalidSample,
    InvalidStore,
)
from loader.order.random.lanes import LIVE_CHUNK_BYTES, choose_shape
from loader.storage import open_store
from penstock.cli import main
from penstock.formats.content_digest import content_digest
from penstock.formats.registration.adoption import adopt
from penstock.formats.registration.register import register
from penstock.formats.run_import import import_place
from penstock.upkeep.verify.version import verify
from tests.refusals import refusal

HEADS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"")
SEVERAL = {"workers": 2}, {"workers": 2, "executor": "processes"}


def row(k):
    """A row of three kinds: pictures of two formats, and one without."""
    image = None if k % 7 == 3 else {"bytes": HEADS[k % 2] + bytes([k % 251]) * (k % 40), "path": f"{k}.x"}
    return {
        "id": f"k{k}",
        "image": image,
        "ids": list(range(k % 5)),
        "cap": f"text {k}",
        "n": k,
        "j": {"a": [k]},
    }


def put(path, first, n, row_group_size=8, **how):
    path.parent.mkdir(exist_ok=True, parents=True)
    kinds = {
        "ids": pa.list_(pa.uint16()),
        "image": pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    }
    rows = [row(k) for k in range(first, first + n)]
    table = pa.table({name: pa.array([one[name] for one in rows], kinds.get(name)) for name in rows[0]})
    plain = {"use_dictionary": False, "compression": "NONE"}
    pq.write_table(table, path, row_group_size=row_group_size, **plain, **how)
    os.utime(path, ns=(10**18 + first, 10**18 + first))


@pytest.fixture
def place(tmp_path):
    """Three objects of 40 rows, five row groups each."""
    CHUNKS.begin_anew()
    for k in range(3):
        put(tmp_path / "place" / f"{k}.parquet", 40 * k, 40)
    return tmp_path / "place"


def register_parquet(root, place, **how):
    return register(root, "parquet", place, "t", key="id", fields={"cap": "txt"}, **how).version


def make_plan(version, **how):
    return loader.plan({"t": version.select("cap.txt", "ids.u2")}, seed=3, global_batch=16, **how)


def steps(version, n=9, **how):
    with loader.Loader(make_plan(version), **how) as batches:
        return [(b.digest, list(b["cap.txt"])) for _, b in zip(range(n), batches, strict=False)]


def damage(path, at):
    """Flip a bit, with the file's size and time as they were. at: function of the text column's second chunk."""
    row_group = pq.read_metadata(path).row_group(1)
    columns = [row_group.column(k) for k in range(row_group.num_columns)]
    byte = at(next(one for one in columns if one.path_in_schema == "cap"))
    told, data = path.stat(), bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))


def last_byte(chunk):
    return chunk.data_page_offset + chunk.total_compressed_size - 1


def first_byte(chunk):
    return chunk.data_page_offset


@pytest.mark.parametrize("how", SEVERAL, ids=str)
def test_every_executor_gives_the_same_batches_and_nothing_is_unverified(root, place, how):
    version = register_parquet(root, place)
    assert steps(version, workers=0) == steps(version, **how)
    with loader.Loader(make_plan(version), workers=0) as batches:
        assert not next(iter(batches)).stats.get("unverified_bytes", 0)


def test_view_of_bytes_and_a_step_seen_again(root, place):
    version = register_parquet(root, place)
    view = version.select("image.jpg", "ids.u2", where_present=True)
    plan = loader.plan({"t": view}, seed=1, global_batch=8)
    raw = {"image.jpg": loader.modalities.decode_bytes}
    with loader.Loader(plan, decode=raw, workers=0) as batches:
        batch = next(iter(batches))
    keys = version.keys(batch.ordinals)
    ids = {key: list(values) for key, values in zip(keys, batch["ids.u2"], strict=True)}
    images = dict(zip(ids, batch["image.jpg"], strict=True))
    assert len(ids) == 8
    assert all(ids[f"k{k}"] == row(k)["ids"] for k in (int(key[1:]) for key in ids))
    assert all(images[f"k{k}"] == row(k)["image"]["bytes"] for k in (int(key[1:]) for key in ids))


def test_other_options_are_another_place(root, place):
    version = register_parquet(root, place)
    other = register(root, "parquet", place, "u", key="id", fields={"cap": "txt"}, without=["ids"]).version
    mine, theirs = (
        {path.split("/")[1] for path in one.parts.shard_rows()["path"].to_pylist()}
        for one in (version, other)
    )
    assert mine.isdisjoint(theirs)
    with refusal(Conflict, what="options", where="t@1"):
        register(root, "parquet", place, "t", key="id")


def test_object_that_was_replaced_is_named_though_its_chunks_are_kept(root, place):
    version = register_parquet(root, place)
    assert steps(version, workers=0)
    put(place / "1.parquet", 41, 40)
    with refusal(Changed, what="size", within="/place/1.parquet"):
        steps(loader.Root(root.url).open("t"), workers=0)


@pytest.mark.parametrize(("at", "lost"), [(last_byte, [55]), (first_byte, range(48, 56))])
def test_damaged_value_or_chunk_costs_its_samples_alone(root, place, at, lost):
    version = register_parquet(root, place)
    damage(place / "1.parquet", at)
    problems = " ".join(one.address for one in verify(root, "t", full=True).problems)
    assert {int(key) for key in re.findall(r"'k(\d+)'", problems)} == set(lost)
    with loader.Loader(make_plan(version), corrupt_budget=0.5, workers=0) as batches:
        seen = [b for _, b in zip(range(7), batches, strict=False)]
    assert {one.address.key for b in seen for one in b.substitutions} == {f"k{k}" for k in lost}


def test_damaged_footer_is_told_before_it_is_parsed(root, place):
    version = register_parquet(root, place)
    damage(place / "1.parquet", lambda chunk: (place / "1.parquet").stat().st_size - 20)
    with pytest.raises(Corrupt, match=r"1\.parquet: its footer, bytes \[.*CRC-32C"):
        steps(version, workers=0)


def test_chunk_that_was_read_wrong_once_is_read_again(root, place):
    version = register_parquet(root, place)
    steps(version, workers=0)
    with CHUNKS._lock:
        for key, (data, nbytes) in list(CHUNKS._held.items()):
            if isinstance(data, memoryview):
                CHUNKS._held[key] = memoryview(bytes(nbytes)), nbytes
    with loader.Loader(make_plan(version), workers=0) as batches:
        batch = next(iter(batches))
    assert batch.stats["refetched"] > 0
    assert not batch.substitutions


def test_adopted_it_needs_its_owner_no_more(root, place, capsys):
    version = register_parquet(root, place)
    before = steps(version, workers=0)
    damage(place / "2.parquet", last_byte)
    done = adopt(root, "t")
    assert len(done.failures) == 1
    assert "2.parquet" in done.failures[0]
    put(place / "2.parquet", 80, 40)
    assert adopt(root, "t").failures == []
    shutil.rmtree(place)
    CHUNKS.begin_anew()
    assert steps(loader.Root(root.url).open("t"), workers=0) == before
    assert verify(root, "t", full=True).problems == []
    told = ["--reason", "r", "--by", "b", "--root", root.url]
    assert main(["takedown", "request", "--dataset", "t", "--sample", "k50", *told]) == 0
    assert main(["takedown", "run", "3", "--apply", "--root", root.url]) in (0, 1)
    assert len(root.open("t")) == 119
    assert content_digest(root.open("t"), full=True).failures == []


def test_older_readers_refuse_the_version(root, place, monkeypatch):
    assert register_parquet(root, place).manifest["format"] == 4
    monkeypatch.setattr(manifest, "NEWEST_FORMAT", 3)
    with refusal(FormatTooNew, what="format", given=4, accepted=3):
        loader.Root(root.url).open("t")


@pytest.mark.parametrize(
    ("columns", "how", "fault", "words"),
    [
        (
            {"n": [1]},
            {},
            {"what": "fields", "where": "one.parquet, sample 'one/000000000'"},
            "one.parquet, sample 'one/000000000' has no field",
        ),
        (
            {"b": [b"x"]},
            {"key": "id"},
            {"what": "--key", "where": "one.parquet", "given": "id", "accepted": ["b"]},
            "no column 'id', which --key names",
        ),
        (
            {"t": ["x" * 20_000], "b": [b"x"]},
            {},
            {
                "what": "text in column 't'",
                "where": "one.parquet, row 0",
                "given": 20_000,
                "accepted": 16_384,
            },
            "row 0: the text in column 't' has more than 16,384",
        ),
    ],
)
def test_bad_rows_are_named_as_by_an_import(root, tmp_path, columns, how, fault, words):
    (tmp_path / "place").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "place" / "one.parquet")
    with refusal(InvalidSample, **fault):
        register(root, "parquet", tmp_path / "place", "t", **how)
    options = ColumnarOptions(how.get("key"))
    report = import_place(root, "parquet", open_store(tmp_path / "place"), "u", options=options, workers=1)
    assert words in report.failures[0]


def test_what_cannot_be_registered_is_told(root, place, monkeypatch):
    with refusal(InvalidRuntime, what="--key and --field", given="files", accepted="tables"):
        register(root, "files", place, "t", key="id")
    with refusal(InvalidStore, what="format", given="csv"):
        register(root, "csv", place, "t")
    (place / "state.json").write_text("{}")
    with refusal(InvalidStore, what="save_to_disk", given="state.json"):
        register(root, "hf", place, "t")
    (place / "state.json").unlink()
    pq.write_table(pa.table({"b": [b"x", b"y"], "n": [7, 7]}), place / "0.parquet")
    with refusal(DuplicateKey, what="key", where="0.parquet", given="7"):
        register(root, "parquet", place, "u", key="n")
    put(place / "0.parquet", 0, 40)
    monkeypatch.setattr("penstock.formats.tables.parquet.MOST_CHUNK_BYTES", 10)
    with refusal(InvalidSample, what="column 'image'", where="0.parquet, row group 0", given=61, accepted=10):
        register_parquet(root, place)


def test_names_of_files_tell_splits(root, tmp_path):
    for split, first in (("train", 0), ("test", 10)):
        put(tmp_path / "place" / "data" / f"{split}-00000-of-00001.parquet", first, 10)
    version = register(root, "hf", tmp_path / "place", "t", key="id").version
    assert len(version.select("ids.u2").where("split = 'test'")) == 10


def test_verb_tells_what_a_shuffle_mixes(root, place, monkeypatch, capsys):
    arguments = [
        "register",
        "parquet",
        str(place),
        "t",
        "--key",
        "id",
        "--field",
        "cap=txt",
        "--root",
        root.url,
    ]
    assert main(arguments) == 0
    assert "row groups of 8 samples" in (said := capsys.readouterr().out)
    assert "a shuffle mixes 120 of 120 samples at a time" in said
    assert "penstock import" not in said
    monkeypatch.setattr("loader.order.random.lanes.LIVE_CHUNK_BYTES", 1000)
    monkeypatch.setattr("penstock.formats.registration.register.LARGE_CHUNK_BYTES", 10)
    assert main(arguments) == 0
    assert re.search(
        r"a shuffle mixes 32 of 120 samples at a time; penstock import copies", capsys.readouterr().out
    )


def test_lists_and_packing_of_more_than_may_be_decoded_at_once_are_refused(root, place, monkeypatch):
    view = register_parquet(root, place).select("ids.u2")
    loader.plan({"t": view}, seed=1, global_batch=2, pack=loader.pack("ids.u2", 16))
    monkeypatch.setattr("loader.order.random.lanes.LIVE_CHUNK_BYTES", 100)
    with refusal(InvalidPlan, what="documents", where="source 't'", given=8):
        loader.plan({"t": view}, seed=1, global_batch=2, pack=loader.pack("ids.u2", 16))
    with refusal(InvalidPlan, what="listed", where="source 't'", given=8):
        loader.plan({"t": loader.listed(view, range(100))}, seed=1, global_batch=2)


@given(n=st.integers(1, 10**7), rows=st.integers(1, 10**5), nbytes=st.integers(1, 2**28))
def test_chunks_that_are_live_at_once_are_bounded(n, rows, nbytes):
    shape = choose_shape(n, -(-nbytes // rows), decoded=(rows, nbytes))
    if rows == 1 or -(-n // rows) * nbytes <= LIVE_CHUNK_BYTES:
        assert shape == choose_shape(n, -(-nbytes // rows))
        return
    assert rows <= shape.chunk < 2 * rows
    live = shape.lanes * shape.rounds_h * nbytes * (shape.chunk + rows) / rows
    assert live <= max(LIVE_CHUNK_BYTES, 4 * 3 * nbytes)
    assert shape.lanes == 1024 or shape.lanes == 1 or 2 * live > LIVE_CHUNK_BYTES


arrow_columns = {
    pa.binary(): st.binary(max_size=9),
    pa.large_binary(): st.binary(max_size=9),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.dictionary(pa.int8(), pa.binary()): st.sampled_from([b"", b"aa", b"b"]),
    pa.struct([("bytes", pa.binary()), ("path", pa.string())]): st.fixed_dictionaries(
        {"bytes": st.binary(max_size=9), "path": st.none() | st.text(max_size=3)}
    ),
    pa.list_(pa.uint16()): st.lists(st.integers(0, 2**16 - 1), max_size=4),
    pa.large_list(pa.float32()): st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=4
    ),
    pa.list_(pa.int64(), 2): st.lists(st.integers(-9, 9), min_size=2, max_size=2),
    pa.struct([("a", pa.list_(pa.int8()))]): st.fixed_dictionaries(
        {"a": st.lists(st.integers(-9, 9), max_size=2)}
    ),
    pa.list_(pa.bool_()): st.lists(st.booleans(), max_size=3),
}
"""Type of a column -> its values."""


@given(data=st.data(), kind=st.sampled_from(list(arrow_columns)), first=st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_chunk_decodes_at_once_to_what_its_rows_become(data, kind, first):
    """Slices too, whose buffers begin elsewhere."""
    values = data.draw(st.lists(st.none() | arrow_columns[kind], min_size=1, max_size=8))
    if pa.types.is_dictionary(kind):
        array = pa.array(values, kind.value_type).dictionary_encode()
    else:
        array = pa.array(values, kind)
    table = pa.table({"c": array})
    words = ["", "u4", "npy"] if kind == pa.list_(pa.uint16()) else [""]
    fields = {"c": word} if (word := data.draw(st.sampled_from(words))) else {}
    rows = TableRows(table.schema, schema_features(table.schema), ColumnarOptions(fields=fields), "o")
    (column,) = [one for one in rows.columns if one.kind == "field"]
    sliced = table.slice(first)
    each = [
        made.value
        for batch in sliced.to_batches()
        for one in rows.rows(batch, 0)
        for made in one.values
        if made.column.kind == "field"
    ]
    assert bytes(joined(column, sliced.column("c"), "o")) == b"".join(each)


def test_text_that_becomes_a_field_decodes_at_once():
    table = pa.table({"c": pa.array(["a", None, "ü", ""])})
    rows = TableRows(table.schema, schema_features(table.schema), ColumnarOptions(fields={"c": ""}), "o")
    assert bytes(joined(rows.columns[0], table.column("c"), "o")) == "aü".encode()
    assert TableRows(table.schema, schema_features(table.schema), NO_OPTIONS, "o").field_columns == []


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=30))
def test_cache_holds_no_more_than_it_may_and_the_last(puts):
    cache = ChunkCache(64)
    for key, nbytes in puts:
        cache.put(key, (key, nbytes), nbytes)
        assert cache.get(key) == (key, nbytes)
        assert cache.size == sum(size for _, size in cache._held.values()) <= 64


def test_range_reader_sees_one_run_of_bytes(root, place):
    """A page of a cache may begin and end anywhere."""
    version = register_parquet(root, place)
    for path in sorted(set(version.parts.shard_rows()["path"].to_pylist())):
        size = version.placed.head(path).nbytes
        store = version.shard_store
        (whole,) = store.get_ranges(path, [loader.storage.ByteRange(0, size)])
        cuts = np.random.default_rng(1).integers(0, size, (20, 2))
        spans = [loader.storage.ByteRange(int(min(a, b)), int(abs(a - b))) for a, b in cuts]
        assert [one.data for one in store.get_ranges(path, spans)] == [
            whole.data[o : o + n] for o, n in spans
        ]
        with refusal(Corrupt, what="byte range", given=[size - 1, size + 1], accepted=size):
            store.get_ranges(path, [loader.storage.ByteRange(size - 1, 2)])
