"""The prefixes that docs/format.md lists: each is searched by a proof, or holds no byte and no name of a sample."""

import gzip
import io
import json
import re
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.dataset.log.marker import FOLDERS, MARKER
from penstock.upkeep.takedown import object_kinds, scan

FORMAT = Path(__file__).parents[4] / "docs" / "format.md"
SECRET = "ZQALICEZQ"


def prefixes():
    """The first folder of every path in the list of a root's objects, and in other such lists of the page."""
    blocks = re.findall(r"^    (\S.*)$", FORMAT.read_text(), re.MULTILINE)
    paths = [
        path for line in blocks for path in line.split("  ") if re.match(r"[a-z]+/|penstock\.json", path)
    ]
    return sorted({re.match(r"[a-z]+/|penstock\.json", path)[0] for path in paths})


def test_every_prefix_of_the_format_is_known_to_a_proof():
    found = prefixes()
    assert {
        "data/",
        "foreign/",
        "log/",
        "tables/",
        "jobs/",
        "checkpoints/",
        "penstock.json",
    } <= set(found)
    known = [*scan.SCANNED, *scan.ELSEWHERE, *object_kinds.WITHOUT]
    assert len(known) == len(set(known))
    assert set(found) <= set(known), sorted(set(found) - set(known))
    assert sorted(known) == sorted([*FOLDERS, MARKER])


def table(**columns):
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def archive():
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(f"{SECRET}/one.a.txt"))
    return sink.getvalue()


def names(**more):
    return json.dumps({"key": f"{SECRET}/one", **more}).encode()


PLANTED = {
    "data/": lambda root, id: (f"data/{next(iter(root.state.txns))}/0/media-x.tar", archive()),
    "tables/": lambda root, id: ("tables/photos/notes/1/x.parquet", table(reason=[f"near {SECRET}"])),
    "stages/": lambda root, id: (
        "stages/photos/units/1/000000000009.json",
        names(exclude={f"{SECRET}/one": 1}),
    ),
    "exclusions/": lambda root, id: (
        f"exclusions/photos/{'0' * 16}.json",
        names(samples=[{"key": f"{SECRET}/one"}]),
    ),
    "slices/": lambda root, id: (
        "slices/photos/cups/000001.parquet",
        table(ordinal=[0], part=["p"], row=[0], key=[f"{SECRET}/one"]),
    ),
    "search/": lambda root, id: (
        f"search/{'0' * 16}/t-{'0' * 16}.texts.parquet",
        table(part=["p"], row=[0], text=[f"{SECRET}/one"]),
    ),
    "maps/": lambda root, id: (
        f"maps/{'0' * 16}/t-{'0' * 16}.parquet",
        table(part=["p"], row=[0], x=[1], key=[f"{SECRET}/one"]),
    ),
    "plans/": lambda root, id: (f"plans/{'0' * 64}.json", names(version=id)),
    "follows/": lambda root, id: (
        f"follows/r/{7:019d}.json",
        names(counts={"by": [[f"{SECRET}/one", 0, 1, 0]]}),
    ),
    "ledgers/": lambda root, id: ("ledgers/x/0.jsonl", names(version_id=id) + b"\n"),
    "cards/": lambda root, id: (f"cards/photos/000001-{id}/card.json", b"{}"),
    "gates/": lambda root, id: ("gates/photos/x.html", f"<p>{SECRET}/one</p>".encode()),
    "reports/": lambda root, id: (f"reports/training/photos/runs/r/{'0' * 32}.json", names()),
    "log/": lambda root, id: ("log/repair-000000000099.json", names()),
    "jobs/": lambda root, id: (f"jobs/{'0' * 32}/given/1.json", names()),
    "foreign/": lambda root, id: (f"foreign/{'0' * 32}/a.tar", archive()),
    "trainings/": lambda root, id: (
        "trainings/r/windows/000001-000000000009.parquet",
        table(slow_key=[f"{SECRET}/one"]),
    ),
    "checkpoints/": lambda root, id: ("checkpoints/r/steps/000000000001.json", names(versions=[{"id": id}])),
    "protected/": lambda root, id: (f"protected/{id}.parquet", table(hash=[7], ordinal=[0])),
}


@pytest.fixture(scope="module")
def redacted_root(kit, tmp_path_factory):
    root = loader.Root(tmp_path_factory.mktemp("root"))
    kit.write(root, "photos", {f"{SECRET}/one": SECRET, "p2": "bob", "p3": "carol"}, part_samples=2)
    had = root.state.newest("photos").id
    n = kit.deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    assert kit.prove(root, n)["result"] == "complete"
    return root, n, had


def test_proof_finds_names_planted_under_each_prefix(kit, redacted_root):
    root, n, had = redacted_root
    assert set(PLANTED) == {*scan.SCANNED, *scan.ELSEWHERE}
    for prefix, plant in PLANTED.items():
        path, data = plant(root, had)
        root.store.put(path, data)
        proof = kit.prove(root, n)
        assert proof["result"] == "incomplete", prefix
        assert any(
            path == one.get("path") or path in str(one) for one in proof["places"] if not one["clean"]
        ), prefix
        root.store.delete_many([path])
    assert kit.prove(root, n)["result"] == "complete"


STRANGE = [
    "copy/photo.txt",
    "export.jsonl",
    "views/photo.jpg",
    "nodes/photo.jpg",
    "trails/r/photo.jpg",
    "data/t/photo.jpg",
    "tables/photos/units/1/photo.npy",
    "stages/photos/photo.txt",
    "plans/photo.txt",
    "cards/photos/photo.jpg",
    "gates/photos/photo.jpg",
    "reports/photo.txt",
    "log/photo.txt",
    "trainings/r/photo.jpg",
]


def test_proof_names_objects_that_it_cannot_search(kit, redacted_root):
    root, n, _ = redacted_root
    for path in STRANGE:
        root.store.put(path, names())
    proof = kit.prove(root, n)
    assert proof["result"] == "incomplete"
    unclean = [one for one in proof["places"] if not one["clean"]]
    assert sorted(one["path"] for one in unclean) == sorted(STRANGE)
    assert all("not searched" in one["why"] for one in unclean)
    root.store.delete_many(STRANGE)
    many = [f"copy/{number}" for number in range(object_kinds.MOST_NAMED + 7)]
    for path in many:
        root.store.put(path, b"")
    unclean = [one for one in kit.prove(root, n)["places"] if not one["clean"]]
    assert len(unclean) == object_kinds.MOST_NAMED + 1
    assert unclean[-1]["what"] == "7 more unknown objects"
    root.store.delete_many(many)
    assert kit.prove(root, n)["result"] == "complete"


RUN_OBJECTS = {
    "trainings/r/spec.json": names,
    "trainings/r/events/000001-000000.json": names,
    "trainings/r/stop": names,
    "trainings/r/profiles/000000000000-000000000001-000000-0123456789abcdef.json.gz": lambda: gzip.compress(
        names()
    ),
}


def test_run_and_proof_name_records_of_trainings_with_a_name(kit, redacted_root):
    root, n, _ = redacted_root
    for path, data in RUN_OBJECTS.items():
        root.store.put(path, data())
    report = kit.take_down(root, n)
    assert report.named == sorted(RUN_OBJECTS)
    assert all(f"never rewritten: {path}" in report.text() for path in RUN_OBJECTS)
    unclean = [one["path"] for one in kit.prove(root, n)["places"] if not one["clean"]]
    assert sorted(unclean) == sorted(RUN_OBJECTS)
    profile = next(path for path in RUN_OBJECTS if path.endswith(".gz"))
    root.store.put(profile, names())
    (place,) = [one for one in kit.prove(root, n)["places"] if one.get("path") == profile]
    assert "could not be read" in place["why"]
    root.store.delete_many(list(RUN_OBJECTS))
    assert kit.prove(root, n)["result"] == "complete"


def test_clips_of_a_running_batch_leave_a_proof_complete(kit, redacted_root):
    root, n, _ = redacted_root
    folder = f"tables/films/clips_ahead/000001-a/{'0' * 32}"
    paths = [f"{folder}/clips.bin", f"{folder}/clips.json"]
    root.store.put(paths[0], b"clips")
    root.store.put(paths[1], b"{}")
    assert kit.prove(root, n)["result"] == "complete"
    root.store.put(f"{folder}/other.bin", b"?")
    assert kit.prove(root, n)["result"] != "complete"
    root.store.delete_many([*paths, f"{folder}/other.bin"])


@pytest.mark.parametrize("path", ["leases/abc.json", f"leases/v-{'0' * 64}/abc.json"])
def test_leases_of_this_and_of_earlier_releases_name_no_sample(path):
    assert object_kinds.is_free(path)
