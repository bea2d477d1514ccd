"""The table of given segments: read in three formats, checked row by row, part of what landed and of each clip."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet
import pytest

import loader
from assets.discovery import discover, undiscovered
from assets.landing import land
from assets.media.policy import CutPolicy, VideoPolicy
from assets.media.segments import TABLES, Segment, read_segments
from assets.spec import DatasetSpec
from assets.stages import require_published
from assets.tables import read_table
from loader.errors import Corrupt
from loader.storage import Store, open_store

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


def place_with(folder: Path, name: str, data: bytes) -> Store:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    return open_store(str(folder))


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.Table.from_pylist(rows), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


@pytest.mark.parametrize("name", TABLES)
def test_the_same_table_in_three_formats(tmp_path: Path, name: str) -> None:
    rows = [
        {"key": key, "start_s": one.start_s, "end_s": one.end_s, "label": one.label, "caption": one.caption}
        for key, some in EXPECTED.items()
        for one in reversed(some)
    ]
    data = {"csv": CSV.encode(), "jsonl": JSONL.encode(), "parquet": parquet(rows)}[name.rpartition(".")[2]]
    place = place_with(tmp_path / "place", name, data)
    assert read_segments(place, {"a.mp4", "b/ü.mp4", "c.mp4"}) == EXPECTED
    assert read_segments(place, {"c.mp4"}) == {}  # rows of other objects are nobody's mistake yet
    assert undiscovered(open_store(str(tmp_path / "root")), place, "d") == []  # it is not a raw object


def test_without_a_table_there_are_none(tmp_path: Path) -> None:
    assert read_segments(open_store(str(tmp_path)), {"a"}) == {}


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
def test_a_row_that_makes_no_sense_is_named(tmp_path: Path, row: str, told: str) -> None:
    place = place_with(tmp_path / "place", "_segments.csv", f"key,start_s,end_s\na,0,1\n{row}\n".encode())
    with pytest.raises(Corrupt) as refused:
        read_segments(place, {"a"})
    assert told in str(refused.value)
    assert "_segments.csv" in str(refused.value)
    assert read_segments(place, {"b"}) == {}


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        (
            "_segments.csv",
            b"key,start,end_s\na,0,1\n",
            "has no column start_s; needed are key, start_s, end_s",
        ),
        ("_segments.csv", b"key,start_s,end_s\na,0\n", "cannot be read"),
        ("_segments.csv", b"", "cannot be read"),
        ("_segments.csv", b"\xff\xfe,start_s,end_s\n", "cannot be read"),
        ("_segments.jsonl", b"{", "cannot be read"),
        ("_segments.jsonl", b'{"key": "a", "start_s": 0, "end_s": true}', "end_s=True; accepted"),
        ("_segments.jsonl", b'{"key": "a", "start_s": 0, "end_s": 1, "label": 3}', "label=3 is no text"),
        ("_segments.parquet", b"PAR1", "cannot be read"),
    ],
)
def test_a_table_that_is_none(tmp_path: Path, name: str, data: bytes, told: str) -> None:
    with pytest.raises(Corrupt, match=told.replace("(", r"\(")):
        read_segments(place_with(tmp_path / "place", name, data), {"a"})


def test_two_tables_are_one_too_many(tmp_path: Path) -> None:
    place = place_with(tmp_path / "place", "_segments.csv", CSV.encode())
    place.put("_segments.jsonl", JSONL.encode())
    with pytest.raises(Corrupt, match=r"_segments.csv and _segments.jsonl: which of them counts"):
        read_segments(place, {"a.mp4"})


def test_segments_land_with_their_object(landing: Path, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "root"))
    place = place_with(landing, "_segments.csv", b"key,start_s,end_s\nvideos/clip.mp4,0.5,1.5\n")
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


def test_a_table_becomes_clips_and_another_one_other_clips(
    run: Run, arrive: Arrive, root: loader.Root, landing: Path
) -> None:
    policy = CutPolicy(video=VideoPolicy(units="segments", short_side_px=64))
    spec = DatasetSpec(name="demo", policy=policy)
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
