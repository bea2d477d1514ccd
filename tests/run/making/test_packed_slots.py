"""Packed sequences out of a Loader: every token of every document, laid out as docs/order.md says."""

import functools
import io
import itertools
import json
import operator
import pickle
from itertools import islice

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.dataset.tables.parquet import table_bytes
from loader.dataset.versions.pack import COLUMNS
from loader.errors import (
    Corrupt,
    DecodeFailed,
    InvalidPlan,
    InvalidRuntime,
    PlanMismatch,
    TooManyCorrupt,
    TransformFailed,
)
from loader.run.ahead.read_choice import working_set_bytes
from tests.refusals import refusal

FIELD = "tokens.npy"
PACK = loader.pack(FIELD, 32, pad_id=9)
roots = itertools.count()


def tokens(number, n):
    """The document's own number and places: what a batch holds tells where it is from."""
    return (number * 100 + np.arange(n)).astype(np.int32)


LENGTHS = [int(n) for n in np.random.default_rng(8).integers(0, 40, 60)] + [100, 64, 0, 33]


def write(root, name="docs", lengths=LENGTHS, **options):
    with root.write(name, **options) as writer:
        for number, n in enumerate(lengths):
            writer.add(
                f"{name}-{number:03d}",
                {FIELD: tokens(number, n), "txt": str(number)},
                metadata={"n": n, "wrong": n + (number == 59)},
                source={"raw_uri": f"s3://raw/{number}"},
            )
    return writer.version


@pytest.fixture(scope="module")
def docs():
    with loader.Root("memory://run-pack") as root:
        yield write(root, part_samples=20)


def make_plan(version, batch=6, pack=PACK, **more):
    return loader.plan({"docs": version.select(FIELD)}, seed=3, global_batch=batch, pack=pack, **more)


def numpy_loader(plan, rank=0, world=1, **more):
    return loader.Loader(plan, rank, world, framework="numpy", **{"workers": 0, **more})


def arrays(batch):
    return [
        batch[name]
        for name in (FIELD, *(f"{FIELD}.{one}" for one in ("position_ids", "segment_ids", "loss_mask")))
    ]


def read_back(batches):
    """number of a document -> its tokens, by the segments of the batches alone. Checks what lies beside them."""
    found = {}
    for batch in batches:
        for row in np.flatnonzero(np.asarray(batch.mask)):
            held, position, segment, loss = (one[row] for one in arrays(batch))
            for number in sorted(set(segment.tolist()) - {0}):
                mine = np.flatnonzero(segment == number)
                assert np.array_equal(mine, np.arange(mine[0], mine[0] + len(mine)))
                assert position[mine].tolist() == list(range(len(mine)))
                assert loss[mine].tolist() == [False] + [True] * (len(mine) - 1)
                found.setdefault(int(held[mine[0]]) // 100, []).append(held[mine].tolist())
            assert (held[segment == 0] == 9).all()
            assert not loss[segment == 0].any()
            assert not position[segment == 0].any()
    return {number: functools.reduce(operator.iadd, sorted(pieces), []) for number, pieces in found.items()}


@settings(derandomize=True, deadline=None, max_examples=20)
@given(
    lengths=st.lists(st.integers(0, 99), min_size=1, max_size=30).filter(any),
    length=st.integers(1, 40),
    batch=st.integers(1, 9),
    checksums=st.booleans(),
)
def test_any_documents_come_back(lengths, length, batch, checksums):
    with loader.Root(f"memory://run-pack-{next(roots)}") as root:
        asked = loader.pack(FIELD, length, pad_id=9, checksums=checksums)
        plan = make_plan(write(root, lengths=lengths, part_samples=7), batch, asked, boundary="mask")
        with numpy_loader(plan, epochs=1) as batches:
            assert read_back(batches) == {
                n: tokens(n, count).tolist() for n, count in enumerate(lengths) if count
            }


@pytest.mark.parametrize("boundary", ["fill", "mask"])
@pytest.mark.parametrize("workers", [0, 2])
def test_epoch_is_every_token_of_every_document_once(docs, workers, boundary):
    plan = make_plan(docs, boundary=boundary)
    with numpy_loader(plan, workers=workers, epochs=1) as batches:
        seen = list(batches)
    assert read_back(seen) == {number: tokens(number, n).tolist() for number, n in enumerate(LENGTHS) if n}
    assert {batch[FIELD].shape[1] for batch in seen} == {32}


def test_batch_is_what_its_table_says(docs):
    """Row by row from `plan.batch_ids`, `explain` and the documents alone."""
    plan = make_plan(docs)
    with numpy_loader(plan) as batches:
        for step in (*range(9), 40):
            batch = batches.batch_at(step)
            assert batch.ids == plan.batch_ids(step)
            for row, one in enumerate(loader.explain(plan, step)):
                assert batch.ids[row] == ("docs", one.address.key)
                held, position, segment, loss = (np.full(32, fill) for fill in (9, 0, 0, 0))
                for piece in one.pieces:
                    number, n = int(piece.address.key[-3:]), piece.stop - piece.start
                    here = slice(piece.at, piece.at + n)
                    held[here] = tokens(number, LENGTHS[number])[piece.start : piece.stop]
                    position[here], segment[here] = np.arange(n), piece.segment_id
                    loss[here] = np.arange(n) > 0
                    assert piece.provenance == {"raw_uri": f"s3://raw/{number}"}
                for got, wanted in zip(arrays(batch), (held, position, segment, loss), strict=True):
                    assert got[row].tolist() == wanted.tolist()
            dtypes = [one.dtype for one in arrays(batch)]
            assert dtypes == [np.int32, np.int32, np.int32, np.bool_]
    assert "segment 1   tokens [" in str(loader.explain(plan, 0, slot=0)[0])
    assert json.dumps(loader.explain(plan, 0)[0].to_json())


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    worlds=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    runs=st.lists(st.integers(0, 4), min_size=4, max_size=4),
)
def test_any_stops_resumes_and_world_sizes_give_the_uninterrupted_run(docs, worlds, runs):
    plan = make_plan(docs, boundary="mask")
    state, step = plan.state(0), 0
    with numpy_loader(plan) as alone:
        for world, n in zip(worlds, runs, strict=False):
            ranks = [numpy_loader(plan, rank, world) for rank in range(world)]
            for one in ranks:
                one.load_state_dict(state)
            for _ in range(n):
                parts, whole = [next(one) for one in ranks], alone.batch_at(step)
                for name in whole.fields:
                    assert np.array_equal(np.concatenate([part[name] for part in parts]), whole[name])
                assert [one for part in parts for one in part.ids] == whole.ids
                assert sum(part.digest for part in parts) % 2**64 == whole.digest
                step += 1
            (state,) = {json.dumps(one.state_dict()): one.state_dict() for one in ranks}.values()
            for one in ranks:
                one.close()
    assert state["step"] == step


def test_delivered_digest_is_the_formula(docs, properties):
    plan = make_plan(docs)
    with numpy_loader(plan) as batches:
        assert batches.batch_at(2).digest == properties.sequence_digest(plan, 2, "docs", [FIELD])


def test_frameworks_and_padded_slots(docs):
    plan = make_plan(docs, batch=7, boundary="mask")
    last = -(-len(plan.sources["docs"].view) // 7) - 1
    with loader.Loader(plan, 0, 1, workers=0) as batches:
        batch = batches.batch_at(last)
    assert batch[FIELD].dtype == torch.int32
    assert batch[f"{FIELD}.loss_mask"].dtype == torch.bool
    padded = ~batch.mask
    assert padded.any()
    assert not batch[f"{FIELD}.segment_ids"][padded].any()
    assert not batch[f"{FIELD}.loss_mask"][padded].any()


def test_transform_gets_the_sequence_and_its_own_generator(docs):
    plan = make_plan(docs)
    with numpy_loader(plan, transform=with_a_number) as batches:
        batch, again = batches.batch_at(5), batches.batch_at(5)
    assert batch["drawn"].tolist() == again["drawn"].tolist()
    assert len(set(batch["drawn"].tolist())) == 6
    assert batch["n"].tolist() == (batch[f"{FIELD}.segment_ids"] > 0).sum(axis=1).tolist()
    with (
        numpy_loader(plan, transform=lambda sample, rng: None) as batches,
        refusal(TransformFailed, accepted="a dict of field -> value", within="sample 'sequence-"),
    ):
        batches.batch_at(0)


def with_a_number(sample, rng):
    return {**sample, "n": int((sample[f"{FIELD}.segment_ids"] > 0).sum()), "drawn": int(rng.integers(10**9))}


def test_mixture_of_packed_sources(memory_root):
    a, b = write(memory_root, "a"), write(memory_root, "b", [5] * 90)
    plan = loader.plan(
        {"a": loader.source(a.select(FIELD), 3), "b": b.select(FIELD)}, seed=1, global_batch=8, pack=PACK
    )
    with numpy_loader(plan) as batches:
        for batch in islice(batches, 6):
            assert [source for source, _ in batch.ids].count("b") == 2
            for row, one in enumerate(loader.explain(plan, batch.step)):
                got = batch[FIELD][row][batch[f"{FIELD}.segment_ids"][row] > 0]
                held = [
                    tokens(int(piece.address.key[-3:]), piece.stop)[piece.start :] for piece in one.pieces
                ]
                assert got.tolist() == np.concatenate(held).tolist()
    assert {one.key.split("/")[0] for one in memory_root.store.list("packs/")} == {"packs"}


def has_padding(plan, batch, bad):
    """Whether a batch is as it is without a quarantine, with padding in the places of these documents."""
    with numpy_loader(
        loader.plan({"docs": plan.sources["docs"].view.documents}, seed=3, global_batch=6, pack=PACK)
    ) as plain:
        whole = plain.batch_at(batch.step)
    met = 0
    for row, one in enumerate(loader.explain(plan, batch.step)):
        for piece in one.pieces if batch.ids[row] else ():
            here = slice(piece.at, piece.at + piece.stop - piece.start)
            if piece.address.key in bad:
                met += 1
                for name, blank in zip(whole.fields, (9, 0, 0, False), strict=True):
                    assert (batch[name][row][here] == blank).all()
            else:
                for name in whole.fields:
                    assert np.array_equal(batch[name][row][here], whole[name][row][here])
    assert [one for one in batch.ids if one] == whole.ids[: int(batch.mask.sum())]
    assert (batch.digest != whole.digest) == (bool(met) or not batch.mask.all())
    return met


def spoil_documents(root, watched, keys, version):
    """A wrong last byte in these documents, at every read."""
    addresses = {one.key: one for one in version.address(np.arange(len(version)), [FIELD])}
    store = watched(root)
    places = [addresses[key].fields[FIELD] for key in keys]

    def change(key, offset, data):
        for at in places:
            last = at.offset + at.nbytes - 1 - offset
            if key == at.path and 0 <= last < len(data):
                data = data[:last] + bytes([data[last] ^ 1]) + data[last + 1 :]
        return data

    store.change = change
    return root.open(version.name)


def test_quarantined_documents_are_masked_and_not_read(memory_root, watch_store):
    """Their bytes are wrong in the store, and nobody notices."""
    bad = {"docs-002", "docs-060", "docs-017"}
    version = spoil_documents(memory_root, watch_store, bad, write(memory_root))
    spoil, memory_root.store.change = memory_root.store.change, lambda key, offset, data: data
    plan = make_plan(version, quarantine=[(2, {"docs": sorted(bad)})])
    with numpy_loader(plan, on_corrupt="raise") as batches:
        seen = [next(batches) for _ in range(2)]
        memory_root.store.change = spoil
        seen += islice(batches, 16)
    memory_root.store.change = lambda key, offset, data: data
    assert sum(has_padding(plan, batch, set()) for batch in seen[:2]) == 0
    assert sum(has_padding(plan, batch, bad) for batch in seen[2:]) > 3
    explained = [piece for step in range(2, 18) for one in loader.explain(plan, step) for piece in one.pieces]
    assert {piece.address.key for piece in explained if piece.masked} == bad
    again = loader.open_plan(memory_root, plan.save(memory_root))
    assert again.hash == plan.hash


def test_corrupt_documents_are_masked_listed_and_budgeted(memory_root, watch_store):
    bad = {"docs-002", "docs-060"}
    version = spoil_documents(memory_root, watch_store, bad, write(memory_root))
    plan = make_plan(version)
    with numpy_loader(plan, corrupt_budget=0.5) as batches:
        seen = list(islice(batches, 9))
    memory_root.store.change = lambda key, offset, data: data
    assert sum(has_padding(plan, batch, bad) for batch in seen) > 3
    listed = [one for batch in seen for one in batch.substitutions]
    assert {one.address.key for one in listed} == bad
    assert {(one.attempt, one.stage, one.substitute, one.substitute_ordinal) for one in listed} == {
        (0, "checksum", "", -1)
    }
    ledger = loader.read_ledger(memory_root, plan)
    assert sorted(one.identity for one in ledger) == sorted(one.identity for one in listed)
    good = make_plan(version, quarantine={"docs": sorted(bad)})
    with numpy_loader(good) as batches:
        for batch in seen:
            again = batches.batch_at(batch.step)
            assert all(np.array_equal(batch[name], again[name]) for name in batch.fields)
            assert batch.digest == again.digest


def test_no_corrupt_document_past_the_budget_or_with_raise(memory_root, watch_store):
    version = spoil_documents(memory_root, watch_store, {"docs-002"}, write(memory_root))
    plan = make_plan(version)
    with (
        numpy_loader(plan, on_corrupt="raise", epochs=1) as batches,
        refusal(Corrupt, what="tokens.npy", within="'docs-002'"),
    ):
        list(batches)
    with (
        numpy_loader(plan, corrupt_budget=0, epochs=1) as batches,
        refusal(TooManyCorrupt, what="corrupt_budget", given=1, accepted=0) as spent,
    ):
        list(batches)
    assert "'docs-002'" in str(spent.value)


def test_document_that_does_not_decode_is_masked(memory_root):
    def refuses_17(data, rng=None):
        array = np.load(io.BytesIO(data))
        if len(array) and array[0] == 1700:
            raise DecodeFailed("no")
        return array

    plan = make_plan(write(memory_root))
    with numpy_loader(plan, decode={FIELD: refuses_17}, epochs=1) as batches:
        seen = list(batches)
    assert sum(has_padding(plan, batch, {"docs-017"}) for batch in seen) == 1
    assert [one.stage for batch in seen for one in batch.substitutions] == ["decode"]


def test_lengths_from_a_column(memory_root):
    version = write(memory_root)
    plain, named = make_plan(version), make_plan(version, pack=loader.pack(FIELD, 32, pad_id=9, lengths="n"))
    assert named.sources["docs"].view.table.sha256 == plain.sources["docs"].view.table.sha256
    assert named.slots(3).ordinal.tolist() == plain.slots(3).ordinal.tolist()
    wrong = make_plan(version, pack=loader.pack(FIELD, 32, lengths="wrong"))
    with (
        numpy_loader(wrong, epochs=1) as batches,
        refusal(InvalidPlan, what="tokens.npy", given="int32 [18]", within="sample 'docs-0"),
    ):
        list(batches)


def test_documents_of_another_dtype_are_refused(memory_root):
    with memory_root.write("docs") as writer:
        writer.add("a", {FIELD: np.arange(8, dtype=np.uint16)})
        writer.add("b", {FIELD: np.arange(8, dtype=np.int16)})
    plan = make_plan(writer.version, batch=1)
    with (
        numpy_loader(plan, epochs=1) as batches,
        refusal(InvalidPlan, what="tokens.npy", given="int16 [8]", accepted="uint16 [8]"),
    ):
        list(batches)


def test_plan_is_opened_with_its_own_table(tmp_path, watch_store):
    root = loader.Root(str(tmp_path))
    version = write(root)
    plan = make_plan(version)
    plan.save(root)
    (saved,) = root.store.list("packs/")
    store = watch_store(root)
    again = loader.open_plan(root, plan.hash)
    assert again.hash == plan.hash
    assert not any(key.endswith(".index.parquet") for verb, key in store.requests if verb == "get")
    with numpy_loader(plan) as one, numpy_loader(again) as other:
        assert one.batch_at(4).digest == other.batch_at(4).digest
    other = loader.pack(FIELD, 32, pad_id=9, lengths="wrong")
    halves = make_plan(version, pack=other).sources["docs"].view.table
    rows = halves.rows(0, halves.n_pieces)
    (tmp_path / saved.key).unlink()
    facts = {"content_sha256": halves.sha256, "dtype": "<i4"}
    columns = pa.table({name: rows[:, i] for i, name in enumerate(COLUMNS)})
    store.inner.put_if_absent(saved.key, table_bytes(columns, "pack", facts=facts))
    with refusal(PlanMismatch, what="view", where="source 'docs'"):
        loader.open_plan(root, plan.hash)
    root.close()


CHECKED = loader.pack(FIELD, 32, pad_id=9, checksums=True)
LONG = [500, 3, 17, 900, 32, 33, 64, 250, 8]


def an_epoch(plan, **more):
    with numpy_loader(plan, epochs=1, **more) as batches:
        return list(batches), batches.metrics()["fetched_bytes_total"]


def same(one, other):
    assert [batch.digest for batch in one] == [batch.digest for batch in other]
    for a, b in zip(one, other, strict=True):
        assert a.ids == b.ids
        assert all(np.array_equal(a[name], b[name]) for name in a.fields)


def test_pieces_of_long_documents_are_read_alone(memory_root):
    """The same batches, digests and plan; bytes of the pieces alone."""
    version = write(memory_root, lengths=LONG)
    plan = make_plan(version, batch=5)
    whole, read_whole = an_epoch(plan)
    checked = make_plan(memory_root.open("docs@1"), batch=5, pack=CHECKED)
    assert checked.hash == plan.hash
    pieces, read_pieces = an_epoch(checked, workers=2)
    same(whole, pieces)
    assert read_whole > 4 * sum(LONG) * 10
    heads = 128 * sum(n <= 32 for n in LONG)
    assert read_pieces == 4 * sum(LONG) + heads
    again = loader.open_plan(memory_root, plan.save(memory_root))
    assert an_epoch(again)[1] == read_pieces


def test_decoder_of_the_callers_gets_whole_documents(memory_root):
    version = write(memory_root, lengths=LONG)
    plan = make_plan(version, batch=5, pack=CHECKED)
    whole, nbytes = an_epoch(plan, decode={FIELD: lambda data, rng: np.load(io.BytesIO(data))})
    pieces, fewer = an_epoch(plan)
    same(whole, pieces)
    assert nbytes > 10 * fewer


def test_of_a_split_document_only_the_corrupt_piece_is_masked(memory_root, watch_store):
    """`spoil_documents` changes the last byte, which lies in the fourth document's last piece, tokens 896 to 899."""
    version = write(memory_root, lengths=LONG)
    plan = make_plan(version, batch=5, pack=CHECKED)
    sound, _ = an_epoch(plan)
    spoil_documents(memory_root, watch_store, {"docs-003"}, version)
    reader = loader.open_plan(memory_root, plan.save(memory_root))
    found, _ = an_epoch(reader)
    (one,) = [one for batch in found for one in batch.substitutions]
    assert one.address.key == "docs-003"
    assert "in the checksums of its pieces" in one.error
    lost = sum((a[FIELD] != b[FIELD]).sum() for a, b in zip(sound, found, strict=True))
    assert lost == 900 % 32
    assert sum(a.digest != b.digest for a, b in zip(sound, found, strict=True)) == 1
    with (
        numpy_loader(reader, on_corrupt="raise", epochs=1) as batches,
        refusal(Corrupt, what="tokens.npy", within="'docs-003'"),
    ):
        list(batches)


def test_documents_that_are_corrupt_when_sums_are_made_are_read_whole(memory_root, watch_store):
    version = write(memory_root, lengths=LONG)
    broken = spoil_documents(memory_root, watch_store, {"docs-003"}, version)
    plan = make_plan(broken, batch=5, pack=CHECKED)
    found, _ = an_epoch(plan, corrupt_budget=1)
    assert {one.address.key for batch in found for one in batch.substitutions} == {"docs-003"}
    assert sum(len(batch.substitutions) for batch in found) == -(-900 // 32)


def test_bytes_cannot_be_packed(docs):
    with refusal(InvalidRuntime, what="decode", where="packed plan", given=False):
        loader.Loader(make_plan(docs), 0, 1, decode=False)


def test_node_cache_counts_all_documents_of_a_packed_source(memory_root):
    """Their sequences are fewer, and a chunk of them has documents from anywhere in a block."""
    version = write(memory_root, lengths=[2] * 90)
    source = make_plan(version).sources["docs"]
    assert len(source.view) == 6
    stored = version.manifest["groups"]["media"]["nbytes"]
    assert working_set_bytes([source], [source.view.documents], 1) == stored


def test_plan_goes_to_worker_processes(docs):
    plan = make_plan(docs)
    sent = pickle.loads(pickle.dumps(plan))  # noqa: S301 - our own
    assert sent.hash == plan.hash
    with numpy_loader(plan) as one, numpy_loader(sent) as other:
        assert one.batch_at(7).digest == other.batch_at(7).digest
