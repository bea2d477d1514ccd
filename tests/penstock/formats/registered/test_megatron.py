"""Megatron's files where they lie: a document is a sample, and an index that is damaged, or another's, is told."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.errors import Corrupt, EmptyVersion
from loader.storage import open_store
from penstock.formats import megatron as megatron
from penstock.formats import megatron as megatron_index
from penstock.formats.registration.register import register
from penstock.upkeep.verify.version import verify
from tests.penstock.formats.builders import megatron_files as files
from tests.refusals import refusal


def walk_folder(folder):
    """Runs of the documents of a folder: (prefix, first, field, metadata), and the bytes of each."""
    store = open_store(folder)
    found = megatron.find_objects(store, list(store.list()))
    runs, documents = [], []
    for info in found.infos:
        data = store.get(info.key).data
        for run in found.samples(info):
            runs.append(
                (run.prefix, run.first, run.field, {k: v.to_pylist() for k, v in run.metadata.items()})
            )
            documents += [data[at:end] for at, end in pairwise(run.edges.tolist())]
    return runs, documents


DOCUMENTS = st.lists(st.lists(st.lists(st.integers(0, 100), max_size=4), max_size=3), max_size=9)


@given(
    documents=DOCUMENTS, word=st.sampled_from(sorted(megatron_index.DTYPES.values())), step=st.integers(1, 4)
)
def test_each_document_is_its_sequences(documents, word, step, tmp_path_factory):
    folder = tmp_path_factory.mktemp("megatron")
    modes = [i % 3 for i in range(sum(map(len, documents)))] if len(documents) % 2 else None
    files.fill(folder, "a", word, documents, modes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(megatron_index, "RUN_SAMPLES", step)
        runs, found = walk_folder(folder)
    assert found == [files.data(word, [document]) for document in documents]
    assert [run[1] for run in runs] == list(range(0, max(1, len(documents)), step))
    assert {run[2] for run in runs} == {f"tokens.{word}"}
    for prefix, first, _, columns in runs:
        mine = documents[first : first + step]
        lengths = [[len(sequence) for sequence in document] for document in mine]
        assert prefix == ""
        assert columns.get("sequence_lengths", lengths) == lengths
        assert ("sequence_lengths" in columns) == any(len(document) != 1 for document in mine)
        assert ("sequence_modes" in columns) == (modes is not None and bool(modes))
    said = [mode for run in runs for modes in run[3].get("sequence_modes", []) for mode in modes]
    assert said == (modes or [])


def test_training_packs_documents_of_two_files(root, tmp_path, monkeypatch):
    monkeypatch.setattr(megatron_index, "RUN_SAMPLES", 7)
    for number, stem in enumerate(("a.b/web_text_document", "code")):
        files.fill(tmp_path / "place", stem, "u2", files.number_documents(20, 100 * number))
    version = register(root, "megatron", tmp_path / "place", "docs").version
    rows = version.samples().collect().to_dicts()
    assert {row["key"] for row in rows} == {
        f"{stem}/{i}" for stem in ("a.b/web_text_document", "code") for i in range(20)
    }
    assert {row["raw_key"] for row in rows} == {"a.b/web_text_document.bin", "code.bin"}
    assert "source_key" not in rows[0]
    assert len({row["part"] for row in rows}) == 6
    body = version.manifest["groups"]["media"]
    assert body["nbytes"] == body["field_nbytes"]["tokens.u2"]
    assert verify(root, "docs", full=True).problems == []
    (address,) = version.address(np.array([25]), version.fields)
    (found,) = read_fields(version.shard_store, [address])
    assert found["tokens.u2"] == np.array([105], "<u2").tobytes()
    plan = loader.plan(
        {"d": version.select("tokens.u2")}, seed=1, global_batch=2, pack=loader.pack("tokens.u2", 8, pad_id=0)
    )
    with loader.Loader(plan) as batches:
        assert next(batches)["tokens.u2"].shape == (2, 8)


def test_one_pair_has_plain_numbers_and_a_second_one_comes_later(root, tmp_path):
    files.fill(tmp_path / "place", "a", "i4", files.number_documents(9))
    first = register(root, "megatron", tmp_path / "place", "docs").version
    assert [row["key"] for row in first.samples().collect().to_dicts()] == [str(i) for i in range(9)]
    assert register(root, "megatron", tmp_path / "place", "docs").version.id == first.id
    files.fill(tmp_path / "place", "b", "i4", files.number_documents(3))
    done = register(root, "megatron", tmp_path / "place", "docs")
    assert (done.new, done.same, done.others) == (1, 1, 2)
    keys = [row["key"] for row in done.version.samples().collect().to_dicts()]
    assert keys == [*map(str, range(9)), "b/0", "b/1", "b/2"]


def test_names_too_long_for_a_key_are_hashes(root, tmp_path):
    for stem in ("a%b", "z" * 140):
        files.fill(tmp_path / "place", stem, "u1", [[[1, 2]], [[3]]])
    rows = register(root, "megatron", tmp_path / "place", "docs").version.samples().collect().to_dicts()
    assert [row["source_key"] for row in rows] == [None, None, f"{'z' * 140}/0", f"{'z' * 140}/1"]
    assert [row["key"] for row in rows[:2]] == ["a%b/0", "a%b/1"]
    assert [len(row["key"]) for row in rows[2:]] == [32, 32]


@pytest.mark.parametrize(
    ("at", "value", "fault"),
    [
        (0, b"X", {"what": "magic", "accepted": "MMIDIDX"}),
        (9, b"\2", {"what": "version", "given": 2, "accepted": 1}),
        (17, b"\x09", {"what": "dtype", "given": 9, "accepted": "1 to 8"}),
        (
            18,
            b"\xff" * 8,
            {"what": "size", "given": 102, "accepted": [221360928884514619446, 239807672958224171061]},
        ),
        (26, bytes(8), {"what": "size", "given": 102, "accepted": [70, 73]}),
        (
            34,
            b"\xff\xff\xff\xff",
            {"what": "length of a sequence", "given": "np.int64(-1)"},
        ),
        (
            38,
            b"\xff\xff\xff\x7f",
            {"what": "begin of a sequence", "given": "np.int64(8)"},
        ),
        (
            54,
            b"\2",
            {"what": "begin of a sequence", "given": "np.int64(2)"},
        ),
        (70, b"\1", {"what": "end of a document", "given": "np.int64(1)"}),
        (
            78,
            b"\xff" * 8,
            {"what": "end of a document", "given": "np.int64(-1)"},
        ),
        (94, b"\4", {"what": "end of a document", "given": "np.int64(4)"}),
        (94, b"\2", {"what": "last document", "given": 2, "accepted": 3}),
    ],
)
def test_damage_is_told_with_its_byte(root, tmp_path, at, value, fault):
    files.fill(tmp_path / "place", "a", "u2", [[[1, 2]], [[3, 4]], [[5]]])
    path = tmp_path / "place/a.idx"
    data = bytearray(path.read_bytes())
    data[at : at + len(value)] = value
    path.write_bytes(data)
    with refusal(Corrupt, **fault):
        register(root, "megatron", tmp_path / "place", "docs")
    assert root.datasets() == []


def test_index_of_another_file_is_told(root, tmp_path):
    place = tmp_path / "place"
    files.fill(place, "a", "u2", [[[1, 2]], [[3, 4]]])
    (place / "a.bin").write_bytes(bytes(9))
    with refusal(Corrupt, what="sequences", where=f"{tmp_path}/place/a.idx, byte 34", given=8, accepted=9):
        register(root, "megatron", place, "docs")
    (place / "a.bin").unlink()
    with refusal(Corrupt, what=["a.bin"], given=1):
        register(root, "megatron", place, "docs")
    (place / "a.idx").unlink()
    (place / "b.bin").write_bytes(b"1")
    with pytest.raises(EmptyVersion):
        register(root, "megatron", place, "docs")


@given(data=st.data(), documents=DOCUMENTS.filter(lambda documents: sum(map(len, documents)) > 1))
def test_flipped_bit_or_a_cut_is_told_or_changes_bounds_and_modes_alone(data, documents, tmp_path_factory):
    folder = tmp_path_factory.mktemp("megatron")
    n, with_modes = sum(map(len, documents)), data.draw(st.booleans())
    files.fill(folder, "a", "i2", documents, [1] * n if with_modes else None)
    good, tokens = bytearray((folder / "a.idx").read_bytes()), (folder / "a.bin").read_bytes()
    bit = data.draw(st.integers(0, 8 * len(good) - 1))
    good[bit // 8] ^= 1 << bit % 8
    cut = data.draw(st.just(len(good)) | st.integers(0, len(good)))
    (folder / "a.idx").write_bytes(good[:cut])
    said, runs, found = "", [], []
    try:
        runs, found = walk_folder(folder)
    except Corrupt as error:
        said = str(error)
    if said:
        assert "a.idx, byte " in said
        return
    same_tokens_in_order = b"".join(found) == tokens
    assert same_tokens_in_order
    fields = {run[2] for run in runs}
    changed = bit // 8 if cut == len(good) else -1
    unseen = changed >= 34 + 12 * n or changed == 17  # bounds, modes, and a dtype of as many bytes
    assert unseen
    assert fields == {"tokens.i2"} or changed == 17
    assert len(found) == len(documents)
