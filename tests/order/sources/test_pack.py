"""Packing: the table of sequences, and plans whose slots are sequences."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loader.errors import BatchTooLarge, EmptyView, InvalidPlan, PlanMismatch
from loader.order.digests import planned_digest
from loader.order.from_json import plan_from_json
from loader.order.plan import make_plan
from loader.order.planned_source import source
from loader.order.slots import rank_slice
from loader.order.sources import pack_table
from loader.order.sources.pack_request import pack
from loader.order.sources.packing import Packing
from loader.order.sources.views import synthetic
from tests.refusals import refusal

exact = settings(derandomize=True, deadline=None, max_examples=150)
tokens_of = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 90)), max_size=60)


@pytest.fixture(scope="session")
def documents_of(properties):
    return properties.make_documents


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(pack_table, "BLOCK_DOCUMENTS", 8)


@exact
@given(tokens=tokens_of, length=st.integers(1, 40))
def test_table_is_the_reference(reference, properties, tokens, length):
    properties.packing_is_the_reference(reference, tokens, length)


@settings(exact, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_groups_stay_together_as_in_the_reference(reference, properties, small_blocks, data):
    """Each group is in one sequence, whole; blocks of eight groups."""
    tokens = data.draw(st.lists(st.integers(0, 4), max_size=60))
    groups = data.draw(st.lists(st.integers(0, 25), min_size=len(tokens), max_size=len(tokens)))
    group_tokens = dict.fromkeys(groups, 0)
    for group, n in zip(groups, tokens, strict=True):
        group_tokens[group] += n
    largest = max([1, *group_tokens.values()])
    length = data.draw(st.integers(largest, largest + 20))
    properties.groups_stay_together_as_in_the_reference(reference, tokens, groups, length)


@settings(exact, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tokens=tokens_of, more=tokens_of, length=st.integers(1, 40))
def test_small_blocks_are_independent_and_the_reference(
    reference, properties, small_blocks, tokens, more, length
):
    """Documents added at the end leave the sequences of full blocks alone."""
    properties.packing_is_the_reference(reference, tokens, length)
    block = None
    block = block or pack_table.BLOCK_DOCUMENTS
    one = pack_table.pack_documents(np.arange(len(tokens)), np.array(tokens, np.int64), length)
    two = pack_table.pack_documents(
        np.arange(len(tokens) + len(more)), np.array([*tokens, *more], np.int64), length
    )
    full = len(tokens) // block * block
    rows = one.rows(0, one.n_pieces)
    kept = rows[rows[:, 1] < full]
    assert np.array_equal(two.rows(0, len(kept)), kept)


@exact
@given(tokens=tokens_of, length=st.integers(1, 40))
def test_every_token_is_in_one_place(properties, tokens, length):
    """Each token of each document once; no sequence too long, none empty; pieces lie one behind another."""
    documents = np.arange(len(tokens), dtype=np.int64) * 3 + 1  # version ordinals are not row numbers
    made = pack_table.pack_documents(documents, np.array(tokens, np.int64), length)
    pieces = made.pieces(np.arange(len(made), dtype=np.int64))
    held = Counter()
    for document, start, taken in zip(pieces.document, pieces.start, pieces.length, strict=True):
        held.update((int(document), int(start) + i) for i in range(int(taken)))
    wanted = {(3 * number + 1, i) for number, n in enumerate(tokens) for i in range(n)}
    assert set(held) == wanted
    assert all(n == 1 for n in held.values())
    assert made.n_tokens == len(wanted)
    assert len(pieces) == made.n_pieces
    filled = Counter()
    for row, place, at, taken in zip(
        pieces.row, pieces.number_in_sequence, pieces.offset_in_sequence, pieces.length, strict=True
    ):
        assert (int(place) == 0) == (int(at) == 0)
        assert int(at) == filled[int(row)]
        filled[int(row)] += int(taken)
    assert sorted(filled) == list(range(len(made)))
    assert all(0 < n <= length for n in filled.values())


def test_block_by_hand():
    """Sequences of 10: 25 is 10 + 10 + 5; then 7, 5, 4, 3, 3, 2 best-fit decreasing."""
    made = pack_table.pack_documents(
        np.array([40, 41, 42, 43, 44, 45, 46]), np.array([3, 25, 0, 7, 4, 3, 2]), 10
    )
    assert made.rows(0, 99).tolist() == [
        [0, 40, 0, 3],
        [0, 43, 0, 7],
        [1, 41, 0, 10],
        [2, 41, 10, 10],
        [3, 41, 20, 5],
        [3, 44, 0, 4],
        [4, 45, 0, 3],
        [4, 46, 0, 2],
    ]


def test_million_documents_hold_few_bytes_and_waste_little():
    rng = np.random.default_rng(3)
    tokens = np.maximum(1, rng.lognormal(6, 1.2, 2**15)).astype(np.int64)
    made = pack_table.pack_documents(np.arange(len(tokens)), tokens, 2048)
    assert made.n_tokens == tokens.sum()
    assert made.n_tokens / (2048 * len(made)) > 0.995
    assert len(made) < 1.005 * tokens.sum() / 2048 + 2


def test_pieces_come_in_the_requested_order():
    made = pack_table.pack_documents(np.arange(4), np.array([3, 9, 2, 5]), 5)
    every = made.pieces(np.arange(len(made)))
    some = made.pieces(np.array([3, 0, 3]))
    for row, sequence in enumerate((3, 0, 3)):
        mine, there = some.row == row, every.row == sequence
        for column in ("number_in_sequence", "document", "start", "length", "offset_in_sequence"):
            assert getattr(some, column)[mine].tolist() == getattr(every, column)[there].tolist()
    assert len(made.pieces(np.zeros(0, np.int64))) == 0


def build_plan(view, batch=4, pack_=None, **more):
    return make_plan({"docs": view}, seed=7, global_batch=batch, pack=pack_ or pack("t.npy", 16), **more)


@exact
@given(tokens=st.lists(st.integers(0, 40), min_size=40, max_size=80), step=st.integers(0, 40), data=st.data())
def test_ranks_resumes_and_json_give_the_same_sequences(documents_of, tokens, step, data):
    view = documents_of(tokens)
    made = build_plan(view, allow_repeats=True) if sum(tokens) else None
    if made is None:
        return
    world = data.draw(st.integers(1, 4))
    again = plan_from_json(made.to_json(), lambda spec: view.packed(pack("t.npy", 16)))
    assert again.hash == made.hash
    assert again.check_state(made.state(step)) == step
    slots, ids = made.slots(step), made.batch_ids(step)
    assert planned_digest(step, slots, again) == planned_digest(step, again.slots(step), made)
    parts = [ids[rank_slice(4, rank, world)] for rank in range(world)]
    assert [one for part in parts for one in part] == ids
    assert ids == [("docs", f"sequence-{number:012d}") for number in slots.ordinal.tolist()]


@pytest.mark.parametrize("boundary", ["fill", "mask"])
def test_epoch_of_a_plan_is_every_token_once(documents_of, boundary):
    tokens = [int(n) for n in np.random.default_rng(5).integers(0, 50, 300)]
    made = build_plan(documents_of(tokens), boundary=boundary)
    view = made.sources["docs"].view
    n, seen = len(view), []
    for step in range(-(-n // 4)):
        slots = made.slots(step)
        first = slots.valid & (slots.epoch == 0)
        pieces = view.table.pieces(slots.ordinal[first])
        seen += zip(pieces.document.tolist(), pieces.start.tolist(), pieces.length.tolist(), strict=True)
    held = {}
    for document, start, length in sorted(seen):
        assert held.get(document, 0) == start
        held[document] = start + length
    assert held == {number: count for number, count in enumerate(tokens) if count}


def test_facts_tell_how_full_the_sequences_are(documents_of):
    made = build_plan(documents_of([10, 10, 10, 33, 0]), batch=2)
    assert made.facts()["sources"]["docs"]["pack"] == {
        "documents": 5,
        "length": 16,
        "tokens": 63,
        "pieces": 6,
        "efficiency": 63 / (5 * 16),
    }
    assert "5 sequences of 16 tokens, packed from 5 documents with 63 tokens in 6 pieces (78.75 %" in (
        made.describe()
    )
    assert made.facts()["segments"][0]["per_s"]["requests"] == pytest.approx(2 * 6 / 5)


def test_layout_is_part_of_the_plan_and_the_past(documents_of):
    view = documents_of([5, 9, 16, 20])
    made, other = build_plan(view, 2), build_plan(view, 2, pack("t.npy", 16, pad_id=3))
    assert made.hash != other.hash
    assert made.slots(3).ordinal.tolist() == other.slots(3).ordinal.tolist()
    assert made.sources["docs"].view_id == other.sources["docs"].view_id
    with refusal(PlanMismatch, what="state", where="step 2", given=["pack"]):
        other.check_state(made.state(2))
    longer = build_plan(documents_of([5, 9, 16, 21]), 2)
    with refusal(PlanMismatch, what="state", where="step 2", given=["source 'docs' view"]):
        longer.check_state(made.state(2))


def test_table_that_changed_is_refused(documents_of):
    made = build_plan(documents_of([5, 9, 16, 20]), 2)
    other = documents_of([5, 9, 15, 20])
    with refusal(PlanMismatch, what="view", where="source 'docs'") as refused:
        plan_from_json(made.to_json(), lambda spec: other.packed(pack("t.npy", 16)))
    assert [change.partition(" was ")[0] for change in refused.value.given] == ["id"]


def test_quarantined_document_moves_nothing(documents_of):
    view = documents_of([5, 9, 16, 20] * 9)
    made = build_plan(view)
    bad = build_plan(view, quarantine=[(2, {"docs": ["000000000003"]})])
    assert bad.hash != made.hash
    for step in range(8):
        assert made.slots(step).ordinal.tolist() == bad.slots(step).ordinal.tolist()
        assert not bad.slots(step).attempt.any()
    assert bad.check_state(made.state(2)) == 2
    with refusal(PlanMismatch, what="state", where="step 3", given=["quarantine"]):
        bad.check_state(made.state(3))


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"field": "", "length": 8}, {"what": "field", "where": "pack", "given": ""}),
        ({"field": "t.npy", "length": 0}, {"what": "pack: length", "given": 0}),
        ({"field": "t.npy", "length": 8, "pad_id": 0.5}, {"what": "pack: pad_id", "given": 0.5}),
        ({"field": "t.npy", "length": 8, "lengths": ""}, {"what": "lengths", "where": "pack", "given": ""}),
        ({"field": "t.npy", "length": 8, "checksums": 1}, {"what": "checksums", "where": "pack", "given": 1}),
    ],
)
def test_questions_that_are_refused(arguments, fault: dict[str, object]):
    with refusal(InvalidPlan, **fault):
        pack(**arguments)


def test_plans_that_are_refused(documents_of):
    view = documents_of([5, 9])
    with refusal(InvalidPlan, what="pack", given=2048):
        make_plan({"docs": view}, seed=1, global_batch=1, pack=2048)
    with refusal(InvalidPlan, what="source 'docs'", given="SyntheticView"):
        build_plan(synthetic(10))
    with refusal(InvalidPlan, what="bucket_by", accepted="pack or bucket_by"):
        build_plan(view, bucket_by="b")
    with pytest.raises(EmptyView):
        build_plan(documents_of([0, 0]))
    with refusal(BatchTooLarge, what="global_batch", where="source 'docs'", given=3):
        build_plan(documents_of([16, 16]), 3)
    with refusal(InvalidPlan, what="pad_id", where="source 'docs'", given=70_000):
        build_plan(view, 1, pack("t.npy", 16, pad_id=70_000))
    with refusal(InvalidPlan, what="t.npy", where="source 'docs'", given="float32"):
        build_plan(documents_of([5, 9], dtype="<f4"), 1)
    with refusal(InvalidPlan, what="pack", where="t.npy", given="{'a': '<u2', 'b': '<i4'}"):
        make_plan(
            {"a": view, "b": source(documents_of([9], dtype="<i4"), weight=2)},
            seed=1,
            global_batch=1,
            pack=pack("t.npy", 16),
        )
    for damaged in ({}, {"field": "t", "length": 3, "pad_id": 0, "dtype": 5}, []):
        with pytest.raises(InvalidPlan):
            Packing.from_json(damaged)
