"""The table of given segments: read in three formats, checked row by row, part of what landed and of each clip."""

import io
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from assets.arrivals.make_batches import discover
from assets.ingest.raw_objects import land
from assets.media import segments
from assets.media.parquet_pages import pages
from assets.media.policy import CutPolicy, VideoPolicy
from assets.media.segments import SEGMENT_TABLES, GivenSegments, Segment, read_segments
from assets.pipeline.stages import require_published
from assets.pipeline.tables import read_table
from assets.spec import DatasetSpec
from loader.errors import Corrupt
from loader.storage import Store, open_store
from tests.refusals import ABSENT, refusal

Run = Callable[..., dg.ExecuteInProcessResult]
Arrive = Callable[[Path], str]

CSV = (
    "key,start_s,end_s,label,caption\n"
    'a.mp4,0.5,2,walk,"a man, walking"\n'
    "a.mp4,1.25,1.75,,\n"
    'b/ü.mp4,0,0.1,run,"two\nlines"\n'
    "other.mp4,nonsense,-3,,\n"
)
JSONL = (
    '{"key": "a.mp4", "start_s": 0.5, "end_s": 2, "label": "walk", "caption": "a man, walking"}\n'
    '{"key": "a.mp4", "start_s": 1.25, "end_s": 1.75, "label": null}\n'
    '{"key": "b/ü.mp4", "start_s": 0.0, "end_s": 0.1, "label": "run", "caption": "two\\nlines"}\n'
)
EXPECTED = {
    "a.mp4": (
        Segment(start_s=0.5, end_s=2.0, label="walk", caption="a man, walking"),
        Segment(start_s=1.25, end_s=1.75),
    ),
    "b/ü.mp4": (Segment(start_s=0.0, end_s=0.1, label="run", caption="two\nlines"),),
}


def parquet_bytes(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(table, sink, **options)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def parquet(rows: list[dict[str, Any]]) -> bytes:
    return parquet_bytes(pa.Table.from_pylist(rows))


def write_place(folder: Path, name: str, data: bytes) -> Store:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    return open_store(str(folder))


SOUND = parquet([{"key": "a.mp4", "start_s": 0.5, "end_s": 2.0, "label": "walk"}] * 3)


@pytest.mark.parametrize("name", SEGMENT_TABLES)
def test_same_table_in_three_formats(tmp_path: Path, name: str) -> None:
    rows = [
        {"key": key, "start_s": one.start_s, "end_s": one.end_s, "label": one.label, "caption": one.caption}
        for key, some in EXPECTED.items()
        for one in reversed(some)
    ]
    data = {"csv": CSV.encode(), "jsonl": JSONL.encode(), "parquet": parquet(rows)}[name.rpartition(".")[2]]
    place = write_place(tmp_path / "place", name, data)
    assert read_segments(place, {"a.mp4", "b/ü.mp4", "c.mp4"}) == GivenSegments(by_key=EXPECTED)
    assert (
        read_segments(place, {"c.mp4"}) == GivenSegments()
    )  # rows of other objects are nobody's mistake yet
    assert discover(open_store(str(tmp_path / "root")), place, "d") == []  # it is not a raw object


def test_without_a_table_there_are_none(tmp_path: Path) -> None:
    assert read_segments(open_store(str(tmp_path)), {"a"}) == GivenSegments()


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("a,x,2", "row 2 (key 'a'): start_s='x'; accepted are seconds from 0"),
        ("a,,2", "row 2 (key 'a'): start_s=''; accepted"),
        ("a,-1,2", "row 2 (key 'a'): start_s='-1'; accepted"),
        ("a,nan,2", "row 2 (key 'a'): start_s='nan'; accepted"),
        ("a,1,inf", "row 2 (key 'a'): end_s='inf'; accepted"),
        ("a,2,2", "row 2 (key 'a'): start_s=2.0 to end_s=2.0 is 0 s; accepted are 0.02 to 600 s"),
        ("a,3,2", "row 2 (key 'a'): start_s=3.0 to end_s=2.0 is -1 s; accepted"),
        ("a,0,601", "row 2 (key 'a'): start_s=0.0 to end_s=601.0 is 601 s; accepted"),
        ("a,0.0,1.0", "row 2 (key 'a'): 0.0 to 1.0 s is there twice"),
    ],
)
def test_row_that_makes_no_sense_is_named(tmp_path: Path, row: str, told: str) -> None:
    place = write_place(tmp_path / "place", "_segments.csv", f"key,start_s,end_s\na,0,1\n{row}\n".encode())
    given = read_segments(place, {"a"})
    assert given.by_key == {}
    assert told in given.problems["a"]
    assert "_segments.csv" in given.problems["a"]
    assert read_segments(place, {"b"}) == GivenSegments()


def test_row_that_makes_no_sense_is_its_objects_problem(tmp_path: Path) -> None:
    table = b"key,start_s,end_s\na,0,1\nb,0,x\nb,0,1\n"
    given = read_segments(write_place(tmp_path / "place", "_segments.csv", table), {"a", "b"})
    assert given.by_key == {"a": (Segment(start_s=0, end_s=1),)}
    assert list(given.problems) == ["b"]


DEEP = "more than 64 arrays and objects are in one another"


@pytest.mark.parametrize(
    ("name", "data", "what", "given"),
    [
        ("_segments.csv", b"key,start,end_s\na,0,1\n", "start_s", ["end_s", "key", "start"]),
        ("_segments.csv", b"key,start_s,end_s\na,0\n", "table", "ArrowInvalid"),
        ("_segments.csv", b"", "table", "ArrowInvalid"),
        ("_segments.csv", b"\xff\xfe,start_s,end_s\n", "table", "UnicodeDecodeError"),
        ("_segments.jsonl", b"{", "row 1", ABSENT),
        ("_segments.jsonl", b'{"file": "a"}', "key", ["file"]),
        (
            "_segments.jsonl",
            b'{"key": ' + b"[" * 5_000_000,
            "row 1",
            "more than 64 arrays and objects are in one another",
        ),
        ("_segments.parquet", b"PAR1", "table", "ArrowInvalid"),
    ],
)
def test_table_that_is_none(tmp_path: Path, name: str, data: bytes, what: str, given: object) -> None:
    place = write_place(tmp_path / "place", name, data)
    with refusal(Corrupt, what=what, where=f"{place.url}/{name}", given=given):
        read_segments(place, {"a"})


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (b'{"key": "a", "start_s": 0, "end_s": true}', "end_s=True; accepted"),
        (b'{"key": "a", "start_s": 0, "end_s": 1, "label": 3}', "label=3 is not text"),
        (b'{"key": "a", "start_s": 0, "end_s": 1, "label": "%s"}' % (b"x" * 70_000), "label has more than"),
        (b'{"key": "a", "start_s": {}, "end_s": 1}', "start_s={}; accepted"),
    ],
)
def test_line_that_makes_no_sense_is_named(tmp_path: Path, row: bytes, told: str) -> None:
    given = read_segments(write_place(tmp_path / "place", "_segments.jsonl", row), {"a"})
    assert told in given.problems["a"]


def wide(text: str, rows: int, **options: Any) -> bytes:
    """A table in which every row has this label; only the first is of "a"."""
    keys = pa.array(["a"] + ["b"] * (rows - 1))
    label = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))
    columns = {"key": keys, "start_s": [0.0] * rows, "end_s": [1.0] * rows}
    return parquet_bytes(pa.table({**columns, "label": label}), compression="zstd", **options)


def bomb(nbytes: int) -> bytes:
    """One value, with a footer that says it is small."""
    table = pa.table(
        {"key": pa.array(["a"]), "start_s": [0.0], "end_s": [1.0], "label": pa.array(["x" * nbytes])}
    )
    return parquet_bytes(table, compression="zstd", use_dictionary=False)


def test_small_parquet_file_of_huge_rows_takes_no_memory(tmp_path: Path) -> None:
    data = wide("x" * 60_000, 100_000)  # 6 GB when it is read as it is
    assert len(data) < 100_000
    given = read_segments(write_place(tmp_path / "place", "_segments.parquet", data), {"a"})
    ((segment,),) = given.by_key.values()
    assert len(segment.label) == 60_000
    with refusal(Corrupt, what="rows of one batch", accepted=512 * 2**20):
        read_segments(open_store(str(tmp_path / "place")), {"b"})
    longer = write_place(tmp_path / "longer", "_segments.parquet", wide("x" * 70_000, 3))
    assert "label has more than 65536 bytes" in read_segments(longer, {"a"}).problems["a"]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (lambda: bomb(3_000_000), {"what": "pages", "accepted": 2_000_000}),
        (
            lambda: wide("x", 3, use_dictionary=False, column_encoding={"key": "DELTA_BYTE_ARRAY"}),
            {"what": "encoding", "given": "DELTA_BYTE_ARRAY"},
        ),
        (lambda: wide("x", 2000), {"what": "rows", "given": 2000, "accepted": 1000}),
        (
            lambda: parquet([{"key": ["a"], "start_s": 0.0, "end_s": 1.0}]),
            {"what": "key", "given": "list<element: string>"},
        ),
        (
            lambda: parquet([{"key": "a", "start_s": 0.0, "end_s": 1.0, "label": {"a": "b"}}]),
            {"what": "label", "given": "struct<a: string>"},
        ),
    ],
)
def test_parquet_file_beyond_the_limits_is_refused_unread(
    tmp_path: Path, data: Callable[[], bytes], fault: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "MAX_DECODED_BYTES", 2_000_000)
    monkeypatch.setattr(segments, "MAX_ROWS", 1000)
    place = write_place(tmp_path / "place", "_segments.parquet", data())
    with refusal(Corrupt, where=f"{place.url}/_segments.parquet", **fault):
        read_segments(place, {"a"})


def test_footer_that_lies_is_not_believed(tmp_path: Path) -> None:
    """Pages are counted by their own headers."""
    data = bomb(3_000_000)
    metadata = pa.parquet.ParquetFile(io.BytesIO(data)).metadata
    label = metadata.row_group(0).column(3)
    said = _zigzag(label.total_uncompressed_size)
    at = data.rindex(said)
    lying = data[:at] + _zigzag(2_000_000)[: len(said)] + data[at + len(said) :]
    metadata = pa.parquet.ParquetFile(io.BytesIO(lying)).metadata
    assert metadata.row_group(0).column(3).total_uncompressed_size == 2_000_000
    found = [page.nbytes for page in pages(lying, metadata, frozenset({"label"}))]
    assert sum(found) >= 3_000_000


def _zigzag(number: int) -> bytes:
    """As Thrift's compact protocol has an integer."""
    out, left = bytearray(), number << 1
    while left >= 128:
        out.append(left & 127 | 128)
        left >>= 7
    return bytes([*out, left])


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=6))
def test_damaged_parquet_file_is_refused_or_read(changes: list[tuple[int, int]]) -> None:
    data = bytearray(SOUND)
    for at, value in changes:
        data[at % len(data)] = value
    name = f"memory://{os.urandom(8).hex()}"
    place = open_store(name)
    place.put("_segments.parquet", bytes(data))
    with suppress(Corrupt):  # nothing else
        read_segments(place, {"a.mp4"})


def test_table_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write_place(tmp_path / "place", "_segments.csv", CSV.encode())
    monkeypatch.setattr(segments, "MAX_TABLE_BYTES", 50)
    with refusal(Corrupt, what="size", given=len(CSV.encode()), accepted=50):
        read_segments(place, {"a.mp4"})


def test_table_that_cannot_be_read_costs_videos_and_sounds_alone(landing: Path, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "root"))
    place = write_place(landing, "_segments.jsonl", b'{"key": ' + b"[" * 100_000)
    (batch,) = discover(store, place, "d")
    record, rows = land(store, place, dataset="d", partition=batch, run_id="r")
    codes = {row["key"]: row["error_code"] for row in rows if row["error_code"]}
    assert codes == {"videos/clip.mp4": "Corrupt", "speech/tone.wav": "Corrupt"}
    place.put("_segments.jsonl", b'{"key": "videos/clip.mp4", "start_s": 0, "end_s": 1}')
    again, rows = land(store, place, dataset="d", partition=batch, run_id="r")
    assert (again.r, {row["error_code"] for row in rows}) == (record.r + 1, {""})


def test_two_tables_are_one_too_many(tmp_path: Path) -> None:
    place = write_place(tmp_path / "place", "_segments.csv", CSV.encode())
    place.put("_segments.jsonl", JSONL.encode())
    with refusal(Corrupt, what="tables", given=["_segments.csv", "_segments.jsonl"]):
        read_segments(place, {"a.mp4"})


def test_segments_land_with_their_object(landing: Path, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "root"))
    place = write_place(landing, "_segments.csv", b"key,start_s,end_s\nvideos/clip.mp4,0.5,1.5\n")
    (batch,) = discover(store, place, "d")
    first, rows = land(store, place, dataset="d", partition=batch, run_id="r")
    found = {row["key"]: row["segments"] for row in rows}
    assert found.pop("videos/clip.mp4") == [{"start_s": 0.5, "end_s": 1.5, "label": "", "caption": ""}]
    assert set(map(str, found.values())) == {"[]"}
    assert read_table(store, first.files["raw_objects"]) == rows
    assert land(store, place, dataset="d", partition=batch, run_id="r")[0] == first
    place.put("_segments.csv", b"key,start_s,end_s\nvideos/clip.mp4,0.5,1.6\n")
    again, _ = land(store, place, dataset="d", partition=batch, run_id="r")
    assert (again.r, again.fingerprint != first.fingerprint) == (first.r + 1, True)


def test_table_becomes_clips_and_another_one_other_clips(
    run: Run, arrive: Arrive, root: loader.Root, landing: Path
) -> None:
    policy = CutPolicy(video=VideoPolicy(units="segments", short_side_px=64))
    spec = DatasetSpec(name="demo", label_from="folder", policy=policy)
    table = landing / "_segments.csv"
    head = "key,start_s,end_s,label,caption\n"
    table.write_text(f"{head}videos/clip.mp4,0.5,1.5,one,first\nvideos/clip.mp4,1.0,2.0,,\n")
    batch = arrive(landing)

    def clips() -> dict[str, tuple[str, str]]:
        assert run("ingest", spec, batch).success
        record = require_published(root.store, "demo", "units", batch)
        rows = read_table(root.store, record.files["units"])
        return {row["key"]: (row["start"], row["end"]) for row in rows if row["kind"] == "video"}

    assert run(["raw_objects", "media"], spec, batch).success
    assert len(list(root.store.list("tables/demo/clips_ahead/"))) == 2  # made on the way
    before = clips()
    assert list(root.store.list("tables/demo/clips_ahead/")) == []
    assert sorted(before.values()) == [("1000@1/1000", "2000@1/1000"), ("520@1/1000", "1500@1/1000")]
    assert clips() == before
    table.write_text(f"{head}videos/clip.mp4,0.5,1.5,one,another text\nvideos/clip.mp4,1.0,2.0,,\n")
    after = clips()
    assert sorted(after.values()) == sorted(before.values())
    assert len(set(after) & set(before)) == 1  # what was asked for is part of what a clip is
    assert run("release", spec).success
    version = root.open("demo@1")
    samples = version.samples().collect().filter(kind="video").sort("start_s")
    assert samples["label"].to_list() == ["one", "videos"]
    assert version.fields.count("caption.txt") == 1
