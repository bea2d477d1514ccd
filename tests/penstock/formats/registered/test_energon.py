"""Energon's datasets: their index is believed where it fits, and is never more than bytes of somebody else."""

import contextlib
import json
import sqlite3
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loader
from loader.errors import Corrupt, InvalidStore
from loader.storage import open_store
from penstock.formats.archives import energon as archives
from penstock.formats.archives import energon_index as nv_meta
from penstock.formats.archives.energon_index import expand_braces
from penstock.formats.registration.register import register
from penstock.formats.run_export import export
from tests.penstock.formats.builders.places import put
from tests.penstock.formats.versions import place_objects
from tests.refusals import refusal


@pytest.fixture(scope="session")
def export_place(tmp_path_factory):
    """A dataset of 12 samples in four archives, as our own export writes it, without the export's notes."""
    folder = tmp_path_factory.mktemp("energon")
    with loader.Root(folder / "root") as root:
        with root.write("d", part_samples=6) as writer:
            for i in range(12):
                key = f"{'long' * 24}/k{i}" if i == 5 else f"a/k{i}"
                fields = {"JPG": bytes([i]) * 700 * i, "txt": str(i), "seg.npy": np.arange(i)}
                writer.add(key, fields, source={"split": "val" if i % 3 == 0 else "train"})
        assert export(root.open("d"), "energon", open_store(folder / "out")).lost == []
    return place_objects(folder / "out")


@pytest.fixture
def place(export_place, tmp_path):
    """A folder of it; put(key, bytes) replaces an object."""
    for key, data in export_place.items():
        put(tmp_path / "place" / key, data)
    return tmp_path / "place"


def walk_samples(folder, reads=None, has_damaged_index=False):
    """(archive, key) -> (field -> bytes, split)."""
    store = open_store(folder)
    found = archives.find_objects(store, list(store.list()))
    out = {}
    for info in found.infos:
        data = store.get(info.key).data
        for key, fields, metadata, source, _ in found.samples(info):
            # The index has no checksums: a damaged name of a member goes unnoticed unless it is the archive's last.
            assert has_damaged_index or set(metadata) == {
                "json_split"
            }  # of the members `json` that the export wrote
            spans = {name: data[at.offset : at.offset + at.nbytes] for name, at in fields.items()}
            out[info.key, key] = spans, source.get("split")
    return out


@pytest.fixture
def headers(monkeypatch):
    """Names of the archives whose headers were walked."""
    seen, walk = [], archives.archive_samples

    def record_reader(reader, *given, **more):
        seen.append(reader.name.rpartition("/")[2])
        return walk(reader, *given, **more)

    monkeypatch.setattr(archives, "archive_samples", record_reader)
    return seen


def test_index_alone_gives_the_samples_that_the_headers_give(place, export_place, headers):
    found = walk_samples(place)
    assert headers == []
    assert {split for _, split in found.values()} == {"train", "val"}
    assert {key: fields["JPG"] for (_, key), (fields, _) in found.items()} == {
        f"{'long' * 24 if i == 5 else 'a'}/k{i}": bytes([i]) * 700 * i for i in range(12)
    }
    (place / ".nv-meta/index.sqlite").unlink()
    assert walk_samples(place) == found
    assert sorted(set(headers)) == sorted(key for key in export_place if key.endswith(".tar"))


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE samples SET byte_size = byte_size - 512 WHERE tar_file_id = 1 AND sample_index = 0",
        "UPDATE sample_parts SET content_byte_offset = content_byte_offset + 512 WHERE tar_file_id = 1",
        "UPDATE sample_parts SET content_byte_size = 4611686018427387904 WHERE tar_file_id = 1",
        "DELETE FROM sample_parts WHERE tar_file_id = 1 AND sample_index = 1",
        "DELETE FROM samples WHERE tar_file_id = 1",
        "UPDATE samples SET byte_offset = -512 WHERE tar_file_id = 1 AND sample_index = 0",
        "UPDATE sample_parts SET part_name = 'txt' WHERE tar_file_id = 1",
        "UPDATE samples SET sample_key = 'renamed' WHERE tar_file_id = 1 AND sample_index = 1",
        "UPDATE sample_parts SET content_byte_size = content_byte_size - 1 WHERE tar_file_id = 1",
    ],
)
def test_index_that_does_not_fit_an_archive_is_not_believed(place, headers, change):
    expected = walk_samples(place)
    with contextlib.closing(sqlite3.connect(place / ".nv-meta/index.sqlite")) as database, database:
        database.execute(change)
    assert walk_samples(place) == expected
    assert headers == ["000001.tar"]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (["DROP TABLE samples"], {"what": "table samples"}),
        (
            ["ALTER TABLE samples RENAME COLUMN byte_size TO size"],
            {"what": "column byte_size"},
        ),
        (
            ["ALTER TABLE samples RENAME TO s", "CREATE VIEW samples AS SELECT * FROM s"],
            {"what": "table samples", "accepted": "a plain table"},
        ),
        (
            ["UPDATE samples SET tar_file_id = 9 WHERE rowid = 2"],
            {"what": "row 1 of samples", "given": "(9, 'a/k7', 1, 6656, 8704)"},
        ),
        (
            ["UPDATE samples SET sample_key = x'00' WHERE rowid = 2"],
            {"what": "row 1 of samples", "given": "(0, b'\\x00', 1, 6656, 8704)"},
        ),
        (
            ["UPDATE sample_parts SET content_byte_size = 'many' WHERE rowid = 3"],
            {"what": "row 2 of sample_parts", "given": "(0, 0, 'seg.npy', 5120, 'many')"},
        ),
        (
            ["UPDATE samples SET sample_key = zeroblob(2000000) WHERE rowid = 2"],
            {"what": "index", "accepted": "an index of Energon"},
        ),
    ],
)
def test_another_schema_is_told_by_name(place, changes, fault):
    with contextlib.closing(sqlite3.connect(place / ".nv-meta/index.sqlite")) as database, database:
        for change in changes:
            database.execute(change)
    with refusal(Corrupt, **fault):
        walk_samples(place)


@given(data=st.data())
def test_damaged_index_is_told_or_not_believed(data, export_place, tmp_path_factory):
    good = bytearray(export_place[".nv-meta/index.sqlite"])
    for at, byte in data.draw(
        st.lists(
            st.tuples(st.integers(0, len(good) - 1) | st.integers(0, 200), st.integers(0, 255)), max_size=8
        )
    ):
        good[at] = byte
    good = good[: data.draw(st.just(len(good)) | st.integers(0, len(good)))]
    folder = tmp_path_factory.mktemp("energon")
    for key, held in export_place.items():
        put(folder / key, bytes(good) if key.endswith("sqlite") else held)
    said, found = "", {}
    try:
        found = walk_samples(folder, has_damaged_index=True)
    except Corrupt as error:
        said = str(error)
    assert ".nv-meta/index.sqlite" in said or len(found) == 12


def test_excluded_samples_are_skipped(place):
    expected = walk_samples(place)
    archive, key = next(iter(expected))
    (other, _) = list(expected)[-1]
    split = json.loads((place / ".nv-meta/split.yaml").read_text())
    split["exclude"] = [f"{archive}/{key}", other.replace("3", "{2..3..7}").replace("2..3..7", "3..3")]
    (place / ".nv-meta/split.yaml").write_text(json.dumps(split))
    assert walk_samples(place).keys() == {
        one for one in expected if one != (archive, key) and one[0] != other
    }


def test_older_names_and_yaml_are_read(place):
    expected = walk_samples(place)
    info = json.loads((place / ".nv-meta/.info.json").read_text())
    lines = "".join(f"  {name}: {count}\n" for name, count in info["shard_counts"].items())
    (place / ".nv-meta/.info.yaml").write_text(f"energon_version: 7.4.1\nshard_counts:\n{lines}")
    (place / ".nv-meta/.info.json").unlink()
    splits = json.loads((place / ".nv-meta/split.yaml").read_text())["split_parts"]
    names = {split: "{" + ",".join(name[:6] for name in some) + "}.tar" for split, some in splits.items()}
    text = "".join(f"  {split}: ['{name}']\n" for split, name in names.items())
    (place / ".nv-meta/split.yaml").write_text(f"split_parts:\n{text}exclude: []\n")
    assert walk_samples(place) == expected


SAME = "{,,,,}" * 16
ALIASES = "\n".join(["split_parts:", "  a: &a [" + "x.tar, " * 40 + "]", *(f"  s{i}: *a" for i in range(40))])


@pytest.mark.parametrize(
    ("key", "text", "error", "fault"),
    [
        (
            ".info.json",
            '{"shard_counts": [1]}',
            Corrupt,
            {"what": "shard_counts", "accepted": "archives and their numbers of samples"},
        ),
        (".info.json", "{", Corrupt, {"accepted": "JSON"}),
        ("split.yaml", "a: [", Corrupt, {"accepted": "YAML"}),
        ("split.yaml", "[" * 500, Corrupt, {"accepted": "YAML"}),
        (
            "split.yaml",
            '{"split_parts": {"train": [1]}}',
            Corrupt,
            {"what": "split_parts", "accepted": "splits and their archives"},
        ),
        (
            "split.yaml",
            '{"split_parts": {"train": ["9.tar"]}}',
            Corrupt,
            {"what": "split 'train'", "given": "9.tar"},
        ),
        (
            "split.yaml",
            '{"split_parts": {"a": ["000000.tar"], "b": ["000000.tar"]}}',
            InvalidStore,
            {"what": "000000.tar", "given": ["a", "b"]},
        ),
        (
            "split.yaml",
            json.dumps({"split_parts": {"a": ["{" * 99 + "}" * 99]}}),
            Corrupt,
            {
                "what": "braces",
                "given": "{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{",
            },
        ),
        (
            "split.yaml",
            '{"split_parts": {}, "exclude": ["{1..999999999}/{1..9}"]}',
            Corrupt,
            {"what": "{1..999999999}/{1..9}", "given": 1001, "accepted": 1000},
        ),
        # 102 letters that stand for one name 5**16 times: no set of names ever grows.
        (
            "split.yaml",
            json.dumps({"split_parts": {}, "exclude": [SAME]}),
            Corrupt,
            {
                "what": "{,,,,}{,,,,}{,,,,}{,,,,}{,,,,}{,,,,}{,,,,}{,,,,}{,,,,}{,,,,}{,,,,}{,,,,}{,,,,}{,",
                "given": 1001,
                "accepted": 1000,
            },
        ),
        (
            "split.yaml",
            json.dumps({"split_parts": {"a": ["000000.tar" + SAME]}}),
            Corrupt,
            {
                "what": "000000.tar{,,,,}{,,,,}{,,,,}{,,,,}{,,,,}{,,,,}{,,,,}{,,,,}{,,,,}{,,,,}{,,,,}{,,,",
                "given": 1001,
                "accepted": 1000,
            },
        ),
        ("split.yaml", ALIASES, Corrupt, {"what": "split_parts", "given": 1640, "accepted": 1000}),
    ],
)
def test_damaged_description_is_told_by_name(place, key, text, error, fault, monkeypatch):
    monkeypatch.setattr(nv_meta, "MOST_NAMES", 1000)
    (place / ".nv-meta" / key).write_text(text)
    with refusal(error, **fault):
        walk_samples(place)


def test_count_that_is_a_list_of_aliases_is_refused(place):
    """Fourteen lines of YAML stand for 9**13 words: none of them becomes text."""
    names = "abcdefghijklmn"
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{name}: &{name} [{', '.join([f'*{one}'] * 9)}]" for one, name in pairwise(names)]
    (place / ".nv-meta/.info.json").unlink()
    (place / ".nv-meta/.info.yaml").write_text("\n".join([*lines, "shard_counts: {a.tar: *n}"]))
    with refusal(Corrupt, what="shard_counts", accepted="archives and their numbers of samples"):
        walk_samples(place)


def test_archives_that_are_not_there_are_told(place, root):
    path = place / ".nv-meta/.info.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps(info | {"shard_counts": info["shard_counts"] | {"9.tar": 1}}))
    with refusal(Corrupt, what=["9.tar"], given=1):
        register(root, "energon", place, "d")


def test_place_without_a_description_is_told(place):
    (place / ".nv-meta/.info.json").unlink()
    with refusal(InvalidStore, what=".nv-meta/.info.json"):
        walk_samples(place)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("{08..10}.tar", ["08.tar", "09.tar", "10.tar"]),
        ("{a,b{1..2}}-{x,y}", ["a-x", "a-y", "b1-x", "b1-y", "b2-x", "b2-y"]),
        ("{3..1}{5..1..2}", ["35", "33", "31", "25", "23", "21", "15", "13", "11"]),
        ("{a..c}{}", ["a{}", "b{}", "c{}"]),
        ("x{y}{", ["x{y}{"]),
        ("{-1..1}", ["-1", "0", "1"]),
    ],
)
def test_patterns_stand_for_the_names_that_bash_gives(pattern, names):
    assert list(expand_braces(pattern, "split.yaml")) == names


def test_samples_without_a_split_are_named(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        with root.write("d") as writer:
            for i in range(4):
                writer.add(f"k{i}", {"txt": str(i)}, source={"split": "train"} if i % 2 else None)
        done = export(root.open("d"), "energon", open_store(tmp_path / "out"), lossy=True)
        assert [one["name"] for one in done.lost] == ["2 samples without a split"]
        back = register(root, "energon", tmp_path / "out", "back").version
        rows = back.samples().collect().to_dicts()
    assert {row["key"]: row["split"] for row in rows} == {
        f"k{i}": "train" if i % 2 else None for i in range(4)
    }
