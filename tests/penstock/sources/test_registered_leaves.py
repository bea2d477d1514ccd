"""Laws of Megatron's files, which hold tokens alone: imports have what registrations have, both leave as they came."""

import pytest

import loader
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
