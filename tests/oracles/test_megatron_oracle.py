"""megatron-core, version pinned in megatron.txt: its builder's files leave as they came, and it reads our own."""

import numpy as np
import pytest

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.storage import open_store
from penstock.formats.registration.register import register
from penstock.formats.run_export import export

pytestmark = pytest.mark.oracle


def objects(folder):
    return {info.key: open_store(folder).get(info.key).data for info in open_store(folder).list()}


def test_what_its_builder_wrote_is_registered_and_leaves_as_it_came(tmp_path, peer):
    peer("megatron", "write", tmp_path / "theirs")
    theirs = peer("megatron", "read", tmp_path / "theirs")
    with loader.Root(tmp_path / "root") as root:
        version = register(root, "megatron", tmp_path / "theirs", "docs").version
        rows = {row["key"]: row for row in version.samples().collect().to_dicts()}
        assert len(rows) == len(theirs) == 90
        number = {}
        for one in theirs:
            ((stem, document),) = one.items()
            row = rows[f"{stem}/{number.setdefault(stem, 0)}"]
            number[stem] += 1
            word = {"uint16": "u2", "int32": "i4", "int64": "i8"}[document["dtype"]]
            (address,) = version.address(np.array([row["ordinal"]]), [f"tokens.{word}"])
            (fields,) = read_fields(version.shard_store, [address])
            tokens = [token for sequence in document["tokens"] for token in sequence]
            assert np.frombuffer(fields[f"tokens.{word}"], f"<{word}").tolist() == tokens
            lengths = [len(sequence) for sequence in document["tokens"]]
            assert (row["sequence_lengths"] or [len(tokens)]) == lengths or (
                row["sequence_lengths"],
                lengths,
            ) == ([], [])
            assert row["sequence_modes"] == document["modes"]
        export(version, "megatron", open_store(tmp_path / "ours"))
    ours = {name: data for name, data in objects(tmp_path / "ours").items() if name[0] != "."}
    assert ours == objects(tmp_path / "theirs")


def test_it_reads_documents_of_our_own(tmp_path, peer):
    with loader.Root(tmp_path / "root") as root:
        with root.write("d", part_samples=7) as writer:
            for i in range(20):
                writer.add(f"k{i}", {"tok.npy": np.arange(i, dtype=np.int32), "txt": "x"}, metadata={"w": i})
        root.exclude("d", ["k3"], reason="bad")
        done = export(root.open("d"), "megatron", open_store(tmp_path / "out"), lossy=True)
    assert {one["name"] for one in done.lost} == {"field 'txt'", "column 'w'", "keys"}
    theirs = [document for one in peer("megatron", "read", tmp_path / "out") for document in one.values()]
    assert sorted(document["tokens"] for document in theirs) == [
        [list(range(i))] for i in range(20) if i != 3
    ]
    assert {document["dtype"] for document in theirs} == {"int32"}
