"""Registered places leave as they came; so do imports of Megatron's files, which hold tokens alone."""

import io
import shutil
import tarfile

import pytest

import loader
from loader.errors import Changed
from loader.storage import open_store
from penstock.formats.registration.register import register
from penstock.formats.run_export import export
from tests.penstock.formats.builders import mds_files as mds
from tests.penstock.formats.builders import tars
from tests.penstock.formats.builders.places import PLACES
from tests.penstock.formats.versions import digest, place_objects
from tests.refusals import refusal


def test_pair_without_its_numbers_loses_keys_by_name(tmp_path, cli):
    PLACES["megatron.pairs"](place := tmp_path / "place")
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
        ({"t.u2": b"1234"}, {"sequence_lengths": [3]}, "has 2 values, but its sequence_lengths"),
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
def archives(tmp_path):
    """Two tar archives, with members that an export of ours would take for metadata, and one without samples."""
    a = [one for n in range(3) for one in tars.sample(f"k{n}", jpg=b"%d" % n, json=b'{"n": 1}')]
    tars.fill(tmp_path / "place/sub", {"a.tar": a})
    tars.fill(tmp_path / "place", {"b.tar": tars.sample("x", JPG=b"x"), "none.tar": []})
    return tmp_path / "place"


def leaves(root, ref, out):
    done = export(root.open(ref), "webdataset", open_store(out), lossy=True)
    return place_objects(out), done


def test_archives_leave_as_they_came_until_something_is_added(archives, tmp_path):
    root = loader.Root(tmp_path / "root")
    register(root, "webdataset", archives, "r")
    first, done = leaves(root, "r@1", tmp_path / "first")
    assert first == place_objects(archives)
    assert (done.samples, done.objects, done.failures) == (4, 3, [])
    again = export(root.open("r@1"), "webdataset", open_store(tmp_path / "first"))
    assert (again.skipped, again.lost) == (3, [])
    back = register(loader.Root(tmp_path / "other"), "webdataset", tmp_path / "first", "r").version
    assert digest(back) == digest(root.open("r@1"))
    root.add_group("r@1", "sizes", {"size.u2": lambda one: b"12"}, inputs=[])
    more, _ = leaves(root, "r@2", tmp_path / "more")
    assert b"size.u2" in b"".join(more.values())
    assert more.keys().isdisjoint(first)


def test_archive_without_some_samples_has_all_other_members_byte_for_byte(archives, tmp_path):
    """Its other headers are kept too: of pax, long names, folders, files that are not samples."""
    sub = archives / "sub"
    with tarfile.open(sub / "pax.tar", "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "all"}) as out:
        for name in (
            "k9.jpg",
            "k9.txt",
            "README",
            f"{'long' * 30}.jpg",
            f"{'long' * 30}.txt",
            "z.jpg",
            "z.txt",
        ):
            out.addfile(member := tarfile.TarInfo(name), io.BytesIO(b""))
            assert member.size == 0
    tars.set_time(sub / "pax.tar")
    root = loader.Root(tmp_path / "root")
    register(root, "webdataset", archives, "r")
    root.exclude("r", ["k1", "k9", "long" * 30], reason="blurred")
    found, done = leaves(root, "r", tmp_path / "out")
    whole = place_objects(archives)
    assert found.keys() == whole.keys()
    assert {key for key in whole if found[key] != whole[key]} == {"sub/a.tar", "sub/pax.tar"}
    for key in ("sub/a.tar", "sub/pax.tar"):
        wanted = [one for one in archive_members(whole[key]) if not one[0].startswith(("k1.", "k9.", "long"))]
        assert archive_members(found[key]) == wanted
    with tarfile.open(fileobj=io.BytesIO(found["sub/pax.tar"])) as archive:
        assert archive.pax_headers == {"comment": "all"}
    at = whole["sub/a.tar"].index(b"k1.jpg")
    end = whole["sub/a.tar"].index(b"k2.jpg")
    assert found["sub/a.tar"] == whole["sub/a.tar"][:at] + whole["sub/a.tar"][end:]
    assert (done.samples, done.lost, done.failures) == (4, [], [])
    back = register(loader.Root(tmp_path / "other"), "webdataset", tmp_path / "out", "r").version
    assert digest(back) == digest(root.open("r"))
    (tmp_path / "out/sub/a.tar").unlink()  # as a run leaves it that was killed
    for note in ("copied.json", "units/000001.json", "units/000002.json"):
        (tmp_path / "out/.penstock" / note).unlink()
    again, done = leaves(root, "r", tmp_path / "out")
    assert (again, done.skipped) == (found, 2)


def archive_members(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [(one.name, archive.extractfile(one).read(), one.mtime) for one in archive]


def test_archive_without_exported_samples_is_dropped(archives, tmp_path):
    root = loader.Root(tmp_path / "root")
    register(root, "webdataset", archives, "r")
    tars.fill(archives, {"c.tar": tars.sample("y", jpg=b"x")})
    (archives / "b.tar").unlink()
    version = register(root, "webdataset", archives, "r").version
    assert len(version.parts) == 3
    found, _ = leaves(root, "r", tmp_path / "out")
    assert found == place_objects(archives)
    done = export(version, "webdataset", open_store(tmp_path / "some"), where="key = 'k0' or key = 'y'")
    assert {
        key: len(archive_members(data))
        for key, data in place_objects(tmp_path / "some").items()
        if key[0] != "."
    } == {
        "c.tar": 1,
        "sub/a.tar": 2,
    }
    assert (done.samples, done.lost) == (2, [])


def test_archive_whose_keys_would_be_others_is_written_anew(archives, tmp_path):
    tars.fill(archives, {"c.tar": tars.sample("k1", jpg=b"c", json=b"0")})
    root = loader.Root(tmp_path / "root")
    register(root, "webdataset", archives, "r")
    root.exclude("r", ["c.tar/k1"], reason="blurred")
    found, _ = leaves(root, "r", tmp_path / "out")
    assert found.keys().isdisjoint(place_objects(archives))
    back = register(loader.Root(tmp_path / "other"), "webdataset", tmp_path / "out", "r").version
    assert digest(back) == digest(root.open("r"))


def test_files_leave_one_by_one(tmp_path):
    place, root = tmp_path / "place", loader.Root(tmp_path / "root")
    for name in ("a/0.jpg", "a/1.jpg", "b.txt", "c.TXT"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(name.encode())
    register(root, "files", place, "r")
    root.exclude("r", ["a/1"], reason="blurred")
    export(root.open("r"), "files", open_store(tmp_path / "out"))
    found = place_objects(tmp_path / "out")
    assert found == {key: data for key, data in place_objects(place).items() if key != "a/1.jpg"}


@pytest.mark.parametrize(("format", "each"), [("mds", 1), ("litdata", 1), ("energon", 1), ("parquet", 3)])
def test_exclusion_changes_no_key(format, each, tmp_path):
    """Its object may hold others. Indexes tell of all, and keys that are numbers of the objects before."""
    root = loader.Root(tmp_path / "root")
    with root.write("d", part_samples=each) as writer:
        for n in range(3):
            writer.add(f"k{n}", {"txt": f"{n}"})
    export(root.open("d"), format, open_store(tmp_path / "place"))
    shutil.rmtree(tmp_path / "place/.penstock")
    registered = register(root, format, tmp_path / "place", "r").version
    first = registered.keys([0])[0]
    root.exclude("r", [first], reason="blurred")
    done = export(root.open("r"), format, open_store(tmp_path / "out"), lossy=True)
    assert (done.samples, done.failures) == (2, [])
    back = register(loader.Root(tmp_path / "other"), format, tmp_path / "out", "r").version
    assert digest(back) == digest(root.open("r"))


def test_archive_that_was_written_since_does_not_leave(archives, tmp_path):
    root = loader.Root(tmp_path / "root")
    register(root, "webdataset", archives, "r")
    (archives / "b.tar").write_bytes((archives / "sub/a.tar").read_bytes())
    found, done = leaves(root, "r", tmp_path / "out")
    assert sorted(found) == ["none.tar", "sub/a.tar"]
    assert len(done.failures) == 1
    assert "b.tar" in done.failures[0]
    assert "register again" in done.failures[0]


@pytest.mark.parametrize(("before", "now"), [(2, 1), (1, 2)])
def test_index_that_tells_of_others_than_were_registered_does_not_leave(before, now, tmp_path):
    place, shards = tmp_path / "place", ([{"text": b"a"}], [{"text": b"b"}])
    root = loader.Root(tmp_path / "root")
    for n in (before, now):
        mds.fill(place, {"text": "str"}, *shards[:n])
        for path in place.glob("*.mds"):
            tars.set_time(path)
        if n == before:
            register(root, "mds", place, "r")
            assert export(root.open("r"), "mds", open_store(tmp_path / "first")).failures == []
            assert place_objects(tmp_path / "first") == place_objects(place)
    accepted = f"the {before} objects that were registered"
    with refusal(Changed, what="index", where=place, accepted=accepted):
        export(root.open("r"), "mds", open_store(tmp_path / "out"))
