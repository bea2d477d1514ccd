"""Registered places leave as they came; so do imports of Megatron's files, which hold tokens alone."""

import pytest

import loader
from loader.errors import Changed
from loader.foreign.register import register
from loader.storage import open_store
from penstock.sources.content_digest import content_digest
from penstock.sources.run_export import export
from penstock.sources.run_import import import_place


@pytest.fixture
def place(shared, tmp_path):
    """A folder with two pairs of files, of two dtypes, one of them with modes."""
    files = shared("foreign/megatron_files")
    files.fill(tmp_path / "place", "a_text_document", "u2", files.numbered(30))
    files.fill(tmp_path / "place", "sub/b", "i4", [[[1], [2, 3]], [], [[]], [[4, 5, 6]]], [0, 1, 0, 1])
    return tmp_path / "place"


def digest(version):
    done = content_digest(version, full=True)
    assert done.failures == []
    return done.digest


def test_laws_1_2_and_3(place, objects, tmp_path):
    root = loader.Root(tmp_path / "root")
    version = register(root, "megatron", place, "r").version
    assert import_place(root, "megatron", open_store(place), "i", shard_bytes=50).failures == []
    assert digest(root.open("i")) == digest(version)
    done = export(version, "megatron", open_store(tmp_path / "out"))
    found = objects(open_store(tmp_path / "out"))
    assert (done.lost, done.samples) == ([], 34)
    assert {key: data for key, data in found.items() if key[0] != "."} == objects(open_store(place))
    assert import_place(root, "megatron", open_store(tmp_path / "out"), "back").failures == []
    assert digest(root.open("back")) == digest(version)
    copied = export(root.open("i"), "megatron", open_store(tmp_path / "copied"), without=["raw_etag"])
    again = objects(open_store(tmp_path / "copied"))
    assert copied.lost == []
    assert {key: again[key] for key in again if key[0] != "."} == objects(open_store(place))


def test_a_pair_without_its_numbers_loses_keys_by_name(place, tmp_path, cli):
    root = loader.Root(tmp_path / "root")
    register(root, "megatron", place, "r")
    root.exclude("r", ["sub/b/1"], reason="empty")
    run = cli("export", "r", "megatron", tmp_path / "out", root=root.url)
    assert run.code == 2
    assert "keys: Megatron counts documents" in run.err
    done = cli("export", "r", "megatron", tmp_path / "out", "--lossy", "--json", root=root.url).json
    assert ([one["name"] for one in done["lost"]], done["samples"]) == (["keys"], 33)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"txt": "x"}, r"d@1 has none"),
        ({"a.u2": b"12", "b.u2": b"12"}, r"have a\.u2, b\.u2: leave all but one out"),
    ],
)
def test_tokens_are_not_guessed(tmp_path, cli, fields, said):
    root = loader.Root(tmp_path / "root")
    with root.write("d") as writer:
        writer.add("a", fields)
    run = cli("export", "d", "megatron", tmp_path / "out", "--lossy", root=root.url)
    assert run.code == 2
    assert said.replace("\\", "") in run.err


@pytest.mark.parametrize(
    ("fields", "metadata", "said"),
    [
        ({"t.u2": b"123"}, {}, "has 3 bytes, no whole values of u2"),
        ({"t.u2": b"1234"}, {"sequence_lengths": [3]}, "has 2 values, and its sequence_lengths"),
        ({"t.u2": b"1234"}, {"sequence_lengths": "x"}, "with sequence_lengths x: leave the column out"),
        ({"t.u2": b"1234"}, {"sequence_modes": [300]}, "with sequence_modes [300]"),
    ],
)
def test_documents_that_it_cannot_hold_are_told(tmp_path, fields, metadata, said):
    root = loader.Root(tmp_path / "root")
    with root.write("d") as writer:
        writer.add("a", fields, metadata=metadata)
    (why,) = export(root.open("d"), "megatron", open_store(tmp_path / "out"), lossy=True).failures
    assert said in why
    assert "document 'a'" in why


@pytest.fixture
def archives(shared, tmp_path):
    """Two tar archives, with members that an export of ours would take for metadata, and one without samples."""
    tars = shared("foreign/tars")
    a = [one for n in range(3) for one in tars.sample(f"k{n}", jpg=b"%d" % n, json=b'{"n": 1}')]
    tars.fill(tmp_path / "place/sub", {"a.tar": a})
    tars.fill(tmp_path / "place", {"b.tar": tars.sample("x", JPG=b"x"), "none.tar": []})
    return tmp_path / "place"


def leaves(root, ref, out):
    done = export(root.open(ref), "webdataset", open_store(out), lossy=True)
    return {key: data for key, data in stored(out).items() if key[0] != "."}, done


def stored(folder):
    store = open_store(folder)
    return {info.key: bytes(store.get(info.key).data) for info in store.list()}


def test_archives_leave_as_they_came_until_something_is_added_or_left_out(archives, tmp_path):
    root = loader.Root(tmp_path / "root")
    register(root, "webdataset", archives, "r")
    first, done = leaves(root, "r@1", tmp_path / "first")
    assert first == {key: data for key, data in stored(archives).items() if key != "none.tar"}
    assert (done.samples, done.objects, done.failures) == (4, 2, [])
    again = export(root.open("r@1"), "webdataset", open_store(tmp_path / "first"))
    assert (again.skipped, again.lost) == (2, [])
    back = register(loader.Root(tmp_path / "other"), "webdataset", tmp_path / "first", "r").version
    assert digest(back) == digest(root.open("r@1"))
    root.exclude("r", ["k1"], reason="blurred")
    without, _ = leaves(root, "r@2", tmp_path / "without")
    assert b"k1.jpg" not in b"".join(without.values())
    (archives / "c.tar").write_bytes((archives / "b.tar").read_bytes())
    register(root, "webdataset", archives, "r")
    grown, _ = leaves(root, "r@3", tmp_path / "grown")
    assert b"k1.jpg" not in b"".join(grown.values())
    root.add_group("r@1", "sizes", {"size.u2": lambda one: b"12"}, inputs=[])
    more, _ = leaves(root, "r@4", tmp_path / "more")
    assert b"size.u2" in b"".join(more.values())


def test_an_archive_that_was_written_since_does_not_leave(archives, tmp_path):
    root = loader.Root(tmp_path / "root")
    register(root, "webdataset", archives, "r")
    (archives / "b.tar").write_bytes((archives / "sub/a.tar").read_bytes())
    found, done = leaves(root, "r", tmp_path / "out")
    assert [*found] == ["sub/a.tar"]
    assert len(done.failures) == 1
    assert "b.tar" in done.failures[0]
    assert "register again" in done.failures[0]


def test_an_index_that_tells_of_fewer_than_were_registered_does_not_leave(shared, tmp_path):
    mds, tars = shared("foreign/mds_files"), shared("foreign/tars")
    place, shards = tmp_path / "place", ([{"text": b"a"}], [{"text": b"b"}])
    root = loader.Root(tmp_path / "root")
    for n in (2, 1):
        mds.fill(place, {"text": "str"}, *shards[:n])
        for path in place.glob("*.mds"):
            tars.set_time(path)
        if n == 2:
            register(root, "mds", place, "r")
            assert export(root.open("r"), "mds", open_store(tmp_path / "first")).failures == []
            assert {k: v for k, v in stored(tmp_path / "first").items() if k[0] != "."} == stored(place)
    with pytest.raises(Changed, match="register the place again"):
        export(root.open("r"), "mds", open_store(tmp_path / "out"))
