"""Stored sequences equal those of the packed path, and of an implementation by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.dataset.root import root_in_store
from loader.errors import Conflict, InvalidPlan, InvalidRuntime, InvalidSample
from loader.order.sources import pack_table
from loader.storage import open_store
from penstock.packing.pack import pack_documents
from tests.mortal_store import PUTS, killed_runs
from tests.order import reference
from tests.penstock.packing.conftest import MASK, STARTS, TOKENS, Documents, assert_same
from tests.refusals import refusal


def expected(documents, version, lengths, length, together):
    """Return the sequences of documents in memory, by hand."""
    keys = version.keys(np.arange(len(lengths), dtype=np.int64))
    numbers = [int(key.removeprefix("doc-")) for key in keys]  # in the version's order
    tokens = [lengths[number] for number in numbers]
    if together:
        table = reference.packed_groups(tokens, [number // 2 for number in numbers], length)
    else:
        table = reference.packed(tokens, length)
    sequences = {}
    for number, pieces in enumerate(table):
        fields = {name: [] for name in (TOKENS, MASK, "position", "segment", "loss")}
        for segment, (document, start, n_tokens) in enumerate(pieces, 1):
            values = documents.document(numbers[document], tokens[document])
            fields[TOKENS] += values[TOKENS][start : start + n_tokens].tolist()
            fields[MASK] += values[MASK][start : start + n_tokens].tolist()
            fields["position"] += range(n_tokens)
            fields["segment"] += [segment] * n_tokens
            fields["loss"] += [False] + [True] * (n_tokens - 1)
        fills = {TOKENS: 9, MASK: True, "position": 0, "segment": 0, "loss": False}
        dtypes = {TOKENS: np.uint16, MASK: bool, "position": np.int32, "segment": np.int32, "loss": bool}
        arrays = {}
        for name, values in fields.items():
            n_empty = length - len(values)
            arrays[name] = np.array(values + [fills[name]] * n_empty, dtypes[name])
        sequences[number] = {
            TOKENS: arrays[TOKENS],
            MASK: arrays[MASK],
            f"{TOKENS}.position_ids": arrays["position"],
            f"{TOKENS}.segment_ids": arrays["segment"],
            f"{TOKENS}.loss_mask": arrays["loss"],
        }
    return sequences


@settings(max_examples=3)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=3, max_size=24).filter(any),
    length=st.sampled_from([32, 80]),
    together=st.booleans(),
)
def test_stored_sequences_are_the_packed_ones_on_any_number_of_ranks(
    tmp_path_factory, lengths, length, together
):
    documents = Documents(tmp_path_factory.mktemp("stored"))
    if together:
        length = 80  # a pair fits
    root = documents.root()
    version = documents.write(root, lengths)
    request = loader.pack(
        TOKENS, length, pad_id=9, beside={MASK: 1}, together="pair_id" if together else None
    )
    pack_documents(root, "docs@1", "packed", request)
    stored = root.open("packed@1")
    packed = documents.sequences(documents.plan(version.select(TOKENS, MASK), pack=request))
    assert_same(packed, expected(documents, version, lengths, length, together))
    for world in (1, 2, 4):
        assert_same(documents.stored(stored, MASK, world=world), packed)


def test_flat_tokens_and_rows_beside_them_are_stored(documents):
    root = documents.root()
    with root.write("docs") as writer:
        for number in range(20):
            tokens = np.arange(number, 2 * number + 1, dtype="<u4")
            rows = np.repeat(tokens.astype(">f4")[:, np.newaxis], 3, axis=1)
            writer.add(f"doc-{number}", {"ids.u4": tokens.tobytes(), "rows.npy": rows})
    request = loader.pack("ids.u4", 16, beside={"rows.npy": -1})
    pack_documents(root, "docs@1", "packed", request)
    packed = documents.sequences(documents.plan(writer.version.select("ids.u4", "rows.npy"), pack=request))
    view = root.open("packed@1").select("ids.u4", "rows.npy", STARTS)
    stored = documents.sequences(documents.plan(view), transform=loader.laid_out("ids.u4"))
    assert_same(stored, packed)


def test_repeated_command_changes_nothing_and_more_documents_add_only_new_blocks(documents, monkeypatch):
    monkeypatch.setattr(pack_table, "BLOCK_DOCUMENTS", 8)
    root = documents.root()
    documents.write(root, [11] * 20)
    request = loader.pack(TOKENS, 32)
    first = pack_documents(root, "docs@1", "packed", request)
    again = pack_documents(root, "docs@1", "packed", request)
    assert (again.id, again.added) == (first.id, 0)
    # Blocks of 8 documents: the first two stay, the third one had 4 documents and has 8.
    newer = documents.write(root, [7] * 9, first=20)
    second = pack_documents(root, "docs@2", "packed", request)
    assert second.name == "packed@2"
    assert second.excluded == 2
    assert second.added == second.sequences - first.sequences + second.excluded
    packed = documents.sequences(documents.plan(newer.select(TOKENS), pack=request))
    assert_same(documents.stored(root.open("packed@2")), packed)
    # Back to the first version: its sequences are there again.
    third = pack_documents(root, "docs@1", "packed", request)
    assert (third.added, third.sequences) == (2, first.sequences)


def test_excluded_sequence_stays_out_of_later_versions(documents):
    root = documents.root()
    documents.write(root, [11] * 20)
    request = loader.pack(TOKENS, 32)
    pack_documents(root, "docs@1", "packed", request)
    key = root.open("packed@1").keys(np.zeros(1, np.int64))[0]
    root.exclude("packed@1", [key], reason="a loop of one token")
    report = pack_documents(root, "docs@1", "packed", request)
    assert (report.name, report.added) == ("packed@2", 0)
    assert root.open("packed@2").select(STARTS).ordinals([key]).tolist() == [-1]


@pytest.mark.parametrize(
    ("request_of", "name", "error", "fault"),
    [
        (
            lambda: loader.pack(TOKENS, 64),
            "packed",
            Conflict,
            {"what": "length", "where": "packed@1", "given": 64, "accepted": 32},
        ),
        (
            lambda: loader.pack(TOKENS, 32, pad_id=1),
            "packed",
            Conflict,
            {"what": "pad_id", "where": "packed@1", "given": 1, "accepted": 0},
        ),
        (
            lambda: loader.pack(TOKENS, 32),
            "other",
            Conflict,
            {"what": "field", "where": "other@1", "given": TOKENS},
        ),
        (
            lambda: loader.pack(TOKENS, 32),
            "docs",
            Conflict,
            {"what": "dataset", "given": "docs", "accepted": "another dataset"},
        ),
        (
            lambda: loader.pack(TOKENS, 32, columns=("pair_id",)),
            "more",
            InvalidPlan,
            {"what": "columns and ragged fields", "accepted": "none"},
        ),
        (
            lambda: loader.pack("mask.npy", 32),
            "more",
            InvalidPlan,
            {"what": "mask.npy", "given": "bool"},
        ),
        (
            lambda: loader.pack(TOKENS, 8, split=False),
            "more",
            InvalidPlan,
            {"what": "length", "where": "pack", "given": 4, "accepted": "documents of at most 8 tokens"},
        ),
    ],
)
def test_request_that_cannot_be_stored_is_refused(documents, request_of, name, error, fault):
    root = documents.root()
    documents.write(root, [11] * 4)
    documents.write(root, [11] * 4, name="other")
    pack_documents(root, "docs@1", "packed", loader.pack(TOKENS, 32))
    with refusal(error, **fault):
        pack_documents(root, "docs@1", name, request_of())


def test_documents_without_tokens_or_of_another_dtype_are_refused(documents):
    root = documents.root()
    documents.write(root, [0, 0], name="empty")
    with refusal(InvalidPlan, what="tokens", where="empty@1", given=0):
        pack_documents(root, "empty@1", "packed", loader.pack(TOKENS, 32))
    with root.write("mixed") as writer:
        writer.add("a", {TOKENS: np.arange(4, dtype=np.uint16)})
        writer.add("b", {TOKENS: np.arange(4, dtype=np.int16)})
    kinds = {"given": "int16 [4]", "accepted": "uint16 [4]"}
    with refusal(InvalidPlan, what=TOKENS, within="sample 'b'", **kinds):
        pack_documents(root, "mixed@1", "packed", loader.pack(TOKENS, 32))
    assert root.state.newest("packed") is None


def test_layout_of_samples_that_are_no_sequences_is_refused(documents):
    root = documents.root()
    version = documents.write(root, [11] * 8)
    accepted = [TOKENS, STARTS]
    with refusal(InvalidRuntime, what="transform", where="source 'text'", given=[TOKENS], accepted=accepted):
        documents.sequences(documents.plan(version.select(TOKENS)), transform=loader.laid_out(TOKENS))
    plan = documents.plan(version.select(TOKENS), pack=loader.pack(TOKENS, 32))
    with refusal(InvalidRuntime, what="transform", where="packed plan"):
        documents.sequences(plan, transform=loader.laid_out(TOKENS))
    with refusal(InvalidPlan, what="field", given="text.txt"):
        loader.laid_out("text.txt")


@pytest.mark.parametrize(
    ("starts", "given"),
    [
        (np.array([0, 9], np.int64), "int64 [2]"),
        (np.array([0, 33], np.int32), "[0, 33] ... 33"),
        (np.array([1, 9], np.int32), "[1, 9] ... 9"),
        (np.array([0, 5, 5, 9], np.int32), "[0, 5, 5] ... 9"),
        (np.array([0, 9, -1], np.int32), "[0, 9, -1] ... -1"),
        (np.zeros(0, np.int32), "int32 [0]"),
        (np.array([[0, 9]], np.int32), "int32 [1, 2]"),
    ],
)
def test_starts_that_do_not_fit_name_their_sample(documents, starts, given):
    root = documents.root()
    with root.write("packed") as writer:
        writer.add("sequence-0-a", {TOKENS: np.zeros(32, np.uint16), STARTS: np.array([0, 9], np.int32)})
        writer.add("sequence-1-b", {TOKENS: np.zeros(32, np.uint16), STARTS: starts})
    with refusal(InvalidSample, what=STARTS, where="sample 'sequence-1-b'", given=given) as caught:
        documents.stored(writer.version)
    assert "pack the documents again with penstock pack" in str(caught.value)


def test_layout_inside_a_transform_equals_that_of_a_batch(documents):
    root = documents.root()
    documents.write(root, [11, 40, 3, 25])
    pack_documents(root, "docs@1", "packed", loader.pack(TOKENS, 32))
    version = root.open("packed@1")
    lay_out = loader.laid_out(TOKENS)
    view = version.select(TOKENS, STARTS)
    single = documents.sequences(documents.plan(view), transform=lambda sample, rng: lay_out(sample, rng))
    assert_same(single, documents.stored(version))


def test_sequences_of_two_lengths_in_a_batch_are_lists(documents):
    root = documents.root()
    documents.write(root, [11, 40, 3, 25])
    views = {}
    for length in (32, 64):
        pack_documents(root, "docs@1", f"packed-{length}", loader.pack(TOKENS, length))
        views[f"text-{length}"] = root.open(f"packed-{length}@1").select(TOKENS, STARTS)
    plan = loader.plan(views, seed=5, global_batch=4, allow_repeats=True)
    with loader.Loader(
        plan, 0, 1, steps=2, workers=0, framework="numpy", transform=loader.laid_out(TOKENS)
    ) as batches:
        for batch in batches:
            pairs = zip(batch[TOKENS], batch[f"{TOKENS}.segment_ids"], strict=True)
            assert all(tokens.shape == segments.shape for tokens, segments in pairs)


def test_killed_command_goes_on_and_gives_the_same_version(documents):
    """Killed at every fourth write of an object. No part is left that the version does not have."""
    whole = documents.root()
    documents.write(whole, [11] * 100)
    request = loader.pack(TOKENS, 32)

    def pack(store):
        return pack_documents(root_in_store(store), "docs@1", "packed", request, workers=1, shard_bytes=640)

    def copied(name):
        store = open_store(str(documents.folder / f"copy-{name}"))
        for info in whole.store.list(""):
            store.put(info.key, bytes(whole.store.get(info.key).data))
        return store

    expected = pack(copied("whole"))
    skipped = 0
    for store, _, _ in killed_runs(pack, copied, verbs=PUTS, at=range(1, 60, 4)):
        report = pack(store)
        assert report.id == expected.id
        skipped = max(skipped, report.skipped_parts)
        shards = {
            shard["path"] for shard in root_in_store(store).open("packed@1").parts.shard_rows().to_pylist()
        }
        written = [
            info.key for info in store.list("data/") if info.key.endswith(".tar") and "/packed/" in info.key
        ]
        assert set(written) == shards
    assert skipped > 2


def test_replay_lays_out_a_batch_its_samples_and_a_slot(documents):
    root = documents.root()
    documents.write(root, [11, 40, 3, 25, 9, 60])
    pack_documents(root, "docs@1", "packed", loader.pack(TOKENS, 32))
    plan = documents.plan(root.open("packed@1").select(TOKENS, STARTS))
    lay_out = loader.laid_out(TOKENS)
    samples = {}
    with loader.Replay(plan, transform=lay_out, framework="numpy") as replay:
        batch = replay.batch(0)
        replay.each(0, samples.__setitem__)
        slot = replay.slot(0, 1)
    assert set(samples) == set(range(len(batch)))
    for number, sample in samples.items():
        assert sample.keys() == set(batch)
        for field in batch:
            assert np.array_equal(sample[field], batch[field][number])
    for field in batch:
        assert np.array_equal(slot.trained[field], batch[field][1])
