"""Arrays of JSON objects are imported, in bounded memory; what is none is told in words that lead on."""

import gzip
import json
import re
import tracemalloc

import pytest

import loader
from loader.errors import EmptyVersion, InvalidStore
from loader.storage import open_store
from penstock.formats.importer import NO_OPTIONS, ColumnarOptions, ImportRun
from penstock.formats.registration.register import register
from penstock.formats.registry import importer_named
from penstock.formats.run_import import import_place
from penstock.formats.tables import text_tables
from tests.refusals import refusal

CONVERSATIONS = [
    {
        "id": f"{n:04}",
        "image": f"{n}.jpg",
        "conversations": [{"from": "human", "value": '<image>\n“ü” \\ " ]}'}],
    }
    for n in range(50)
]


@pytest.fixture
def place(tmp_path):
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture
def root(tmp_path):
    return loader.Root(tmp_path / "root")


def _import_chats(root, place, **more):
    return import_place(root, "json", open_store(str(place)), "chats", **more)


def _values(place, name="a.json"):
    store = open_store(str(place))
    found = importer_named("json").find_readable(store, list(store.list()), NO_OPTIONS)
    info = next(one for one in found.infos if one.key == name)
    return [sample.metadata for sample in found.samples(ImportRun(info))]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", ["a.json", "A.JSON.gz"])
def test_array_of_objects_is_imported(root, place, indent, name):
    data = json.dumps(CONVERSATIONS, indent=indent, ensure_ascii=False).encode()
    (place / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else b"\xef\xbb\xbf" + data)
    done = _import_chats(root, place, options=ColumnarOptions(key="id"))
    assert (done.failures, done.samples) == ([], 50)
    assert [*root.open(done.name).fields] == ["conversations.json"]


def test_objects_one_behind_the_other_are_rows_too(place):
    """As Spark writes JSON: lines in a file *.json."""
    (place / "a.json").write_text('{"n": 1}\n{"n": 2}\n\n{"n": 3}{"n": 4}')
    assert [row["n"] for row in _values(place)] == [1, 2, 3, 4]


@pytest.mark.parametrize("text", ["[]", " [ ] \n", "", " \n"])
def test_file_without_objects_has_no_rows(place, text):
    (place / "a.json").write_text(text)
    assert _values(place) == []


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_values_are_the_same_however_the_file_is_read(place, monkeypatch, size):
    """A piece may end inside of a character, an escape, a literal or a number."""
    rows = [
        {"text": 'ü"\\\n\u2028😀', "n": -12.5e3, "flag": True, "none": None, "in": {"a": [1, "]"]}}
        for _ in range(9)
    ]
    (place / "a.json").write_bytes(json.dumps(rows, ensure_ascii=False).encode())
    (place / "b.json").write_bytes(json.dumps(rows).encode())
    whole = _values(place)
    data = {name: (place / name).read_bytes() for name in ("a.json", "b.json")}

    def pieces(file):
        text = data[file.path.rpartition("/")[2]]
        return (text[at : at + size] for at in range(0, len(text), size))

    monkeypatch.setattr(text_tables, "chunks", pieces)
    assert _values(place) == _values(place, "b.json") == whole
    assert len(whole) == 9


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('[{"n": [1]}, {"n": [2]}', "is cut: its array has 2 values"),
        ('[{"n": [1]}, {"n": ', "row 1 is not JSON: .*, or the file is cut"),
        ('[{"n": [1]} {"n": [2]}]', "row 1 is not JSON: '{' in place of a comma"),
        ('[{"n": [1]}] x', "'x' after the end of its array"),
        ('[{"n": [1]}, 2]', "row 1 is a int; accepted are an array of objects"),
        ('[[{"n": [1]}]]', "row 0 is a list"),
        ('[{"n": 1, "n": 2}]', "row 0 is not JSON: an object has one name twice"),
        ('[{"n": ' + "[" * 100_000 + '"' * 100, "row 0 is not JSON"),
        ('[{"n" 1}' + ", " * 3_000_000, "row 0 is not JSON: Expecting ':' delimiter"),
        ('{"images": [{"id": 1}], "annotations": [{"id": 2}]}', "whose 'images' is a list of objects"),
    ],
)
def test_text_that_is_no_array_of_objects_is_named(root, place, text, match):
    (place / "a.json").write_text(text)
    (failure,) = _import_chats(root, place).failures
    assert re.search(match, failure), failure
    assert "a.json" in failure


def test_text_that_is_not_utf8_is_named(root, place):
    (place / "a.json").write_bytes(b'[{"n": "\xe9"}]')
    (failure,) = _import_chats(root, place).failures
    assert "is not UTF-8" in failure


def test_array_is_read_in_bounded_memory(place):
    """30 MB of rows take a few pieces of 1 MiB."""
    row = json.dumps({"text": "x" * 10_000}).encode()
    with open(place / "a.json", "wb") as file:
        file.write(b"[" + b",".join([row] * 3_000) + b"]")
    store = open_store(str(place))
    found = importer_named("json").find_readable(store, list(store.list()), NO_OPTIONS)
    tracemalloc.start()
    n = sum(1 for _ in found.samples(ImportRun(found.infos[0])))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert n == 3_000
    assert peak < 12 * 2**20


def test_place_of_the_other_json_says_which_import_reads_it(root, place):
    (place / "a.json").write_text("[]")
    with refusal(EmptyVersion, what="jsonl", where=place) as caught:
        import_place(root, "jsonl", open_store(str(place)), "chats")
    assert "penstock import json reads it" in str(caught.value)
    (place / "a.json").rename(place / "a.jsonl")
    with refusal(EmptyVersion, what="json", where=place) as caught:
        _import_chats(root, place)
    assert "penstock import jsonl reads it" in str(caught.value)


@pytest.mark.parametrize(
    ("format", "name", "fault"),
    [
        ("mds", "shard.00000.mds", {"what": "index.json", "given": "shard.00000.mds"}),
        (
            "mds-compressed",
            "train/shard.00000.mds.zstd",
            {"what": "index.json", "given": "train/shard.00000.mds.zstd"},
        ),
        ("litdata", "chunk-0-0.bin", {"what": "index.json", "given": "chunk-0-0.bin"}),
        ("litdata-compressed", "chunk-0-0.zstd.bin", {"what": "index.json", "given": "chunk-0-0.zstd.bin"}),
    ],
)
def test_shards_without_an_index_say_that_it_is_missing(root, place, format, name, fault):
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).write_bytes(b"x")
    with refusal(InvalidStore, **fault):
        import_place(root, format, open_store(str(place)), "shards")
    if not format.endswith("-compressed"):
        with refusal(InvalidStore, **fault):
            register(root, format, place, "shards")


def test_listing_of_an_import_names_skipped_objects(root, place):
    (place / "a.json").write_text('[{"n": [1]}]')
    (place / "b\x07.json").write_text("[]")
    (place / "passwd.json").symlink_to("/etc/passwd")
    done = _import_chats(root, place)
    assert (done.samples, done.refusals.n) == (1, 2)
    assert "refused: 'passwd.json': a link out of the place" in done.to_text()
    assert done.to_json()["refusals"]["n"] == 2
