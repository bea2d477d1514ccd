"""Columns of packed documents, and totals of a step over all ranks (docs/training.md, "packed documents")."""

import itertools
import json
import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.dataset.versions.pack_columns import DocumentColumns
from loader.errors import FormatTooNew, InvalidPlan
from loader.order import content
from tests.refusals import refusal

FIELD = "tokens.npy"
COLUMNS = ("reward", "group_id", "n_sampled", "is_correct", "ordinal")
LENGTHS = [int(n) for n in np.random.default_rng(5).integers(0, 20, 50)]
roots = itertools.count()


def metadata(number):
    """What a document's columns are tells its number."""
    return {
        "reward": number / 4,
        "group_id": f"g{number // 3}" * (1 + number % 3),
        "n_sampled": number * 2**40,
        "is_correct": number % 3 == 0,
        "maybe": None if number == 7 else number,
    }


def write(root, lengths=LENGTHS, name="docs", **options):
    with root.write(name, **options) as writer:
        for number, n in enumerate(lengths):
            tokens = (number * 100 + np.arange(n)).astype(np.int32)
            writer.add(f"{name}-{number:03d}", {FIELD: tokens}, metadata=metadata(number))
    return writer.version


def make_plan(version, batch=5, length=24, columns=COLUMNS, boundary="mask", **more):
    pack = loader.pack(FIELD, length, columns=columns, **more)
    return loader.plan(
        {"docs": version.select(FIELD)}, seed=3, global_batch=batch, pack=pack, boundary=boundary
    )


def numpy_loader(plan, rank=0, world=1, **more):
    return loader.Loader(plan, rank, world, framework="numpy", **{"workers": 0, **more})


@pytest.fixture(scope="module")
def docs(tmp_path_factory):
    with loader.Root(str(tmp_path_factory.mktemp("columns"))) as root:
        yield write(root, part_samples=20)


def segment_documents(batch, row):
    """Return the number of each segment's document, by its tokens."""
    numbers = []
    segment_ids = batch[f"{FIELD}.segment_ids"][row]
    for segment in range(1, int(segment_ids.max()) + 1):
        first = np.flatnonzero(segment_ids == segment)[0]
        numbers.append(int(batch[FIELD][row][first]) // 100)
    return numbers


def check_columns(batch, version):
    """Check that entry k of each column belongs to segment k + 1. Return the documents of all rows."""
    all_numbers = []
    for row in range(len(batch)):
        numbers = segment_documents(batch, row)
        all_numbers += numbers
        rows = [metadata(number) for number in numbers]
        for name in COLUMNS[:-1]:
            assert batch[name][row].tolist() == [one[name] for one in rows]
        keys = version.keys(batch["ordinal"][row])
        assert keys == [f"docs-{number:03d}" for number in numbers]
    return all_numbers


def step_totals(lengths, pieces):
    """Return the totals of a step. pieces: (document's number, tokens) of each piece."""
    numbers = [number for number, _ in pieces]
    return {
        "documents": len(pieces),
        "tokens": sum(n for _, n in pieces),
        "n_sampled": sum(number * 2**40 for number in numbers),
        "is_correct": sum(number % 3 == 0 for number in numbers),
    }


def step_pieces(plan, step):
    """Return (document's number, tokens) of each piece of a step's sequences, by the rows of the stored table."""
    view = plan.sources["docs"].view
    rows = view.table.rows(0, view.table.n_pieces).tolist()
    keys = view.documents.version.keys(np.arange(len(view.documents.version)))
    sequences = Counter(key for source, key in plan.batch_ids(step) if source)
    pieces = []
    for sequence, document, _, length in rows:
        number = int(keys[document].rpartition("-")[2])
        pieces += [(number, length)] * sequences[f"sequence-{sequence:012d}"]
    return pieces


@settings(derandomize=True, deadline=None, max_examples=8)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=25).filter(any),
    length=st.integers(1, 40),
    batch=st.integers(1, 9),
    world=st.integers(1, 4),
    boundary=st.sampled_from(["fill", "mask"]),
)
def test_columns_and_totals_agree_with_the_tables(lengths, length, batch, world, boundary):
    world = min(world, batch)
    with loader.Root(f"memory://run-pack-columns-{next(roots)}") as root:
        version = write(root, lengths, part_samples=7)
        try:
            plan = make_plan(version, batch, length, boundary=boundary)
        except loader.errors.BatchTooLarge:
            return
        ranks = [numpy_loader(plan, rank, world, steps=3, workers=0) for rank in range(world)]
        for step in range(3):
            pieces = step_pieces(plan, step)
            parts = [next(rank) for rank in ranks]
            documents = [number for part in parts for number in check_columns(part, version)]
            assert sorted(documents) == sorted(number for number, _ in pieces)
            for part in parts:
                assert part.totals == step_totals(lengths, pieces)
        for rank in ranks:
            rank.close()


@pytest.mark.parametrize("options", [{"workers": 2}, {"workers": 1, "executor": "processes"}])
def test_every_rank_and_executor_has_the_same_totals(docs, options):
    plan = make_plan(docs)
    with (
        numpy_loader(plan, steps=4) as alone,
        numpy_loader(plan, 0, 2, steps=4, **options) as one,
        numpy_loader(plan, 1, 2, steps=4, **options) as other,
    ):
        for whole in alone:
            parts = [next(one), next(other)]
            for name in COLUMNS:
                joined = [array.tolist() for part in parts for array in part[name]]
                assert joined == [array.tolist() for array in whole[name]]
            assert whole.totals == parts[0].totals == parts[1].totals
            assert whole.totals["documents"] == sum(map(len, whole["reward"]))


def test_columns_are_lists_even_with_one_document_each(tmp_path):
    with loader.Root(str(tmp_path)) as root:
        plan = make_plan(write(root, [20] * 7), batch=4)
        with numpy_loader(plan, epochs=1) as batches:
            first, last = batches
        assert [array.shape for array in first["reward"]] == [(1,)] * 4
        assert last.mask.tolist() == [True, True, True, False]
        assert [len(array) for array in last["reward"]] == [1, 1, 1, 0]  # no document at padding
        assert last["reward"][3].dtype == np.float64
        assert last.totals["documents"] == 3


def test_rank_that_is_all_padding_has_empty_columns_and_the_totals(tmp_path):
    with loader.Root(str(tmp_path)) as root:
        plan = make_plan(write(root, [20] * 5), batch=4)
        with numpy_loader(plan, 3, 4, epochs=1) as batches:
            *_, last = batches
    assert last.mask.tolist() == [False]
    assert [array.tolist() for array in last["group_id"]] == [[]]
    assert last.totals["documents"] == 1
    assert last.totals["tokens"] == 20


def test_torch_batch_has_tensors_of_numbers_and_keeps_its_totals(docs):
    plan = make_plan(docs)
    with loader.Loader(plan, 0, 1, workers=0, steps=1) as batches:
        batch = next(batches)
    assert [one.dtype for one in batch["reward"]] == [torch.float64] * 5
    assert {one.dtype for one in batch["is_correct"]} == {torch.bool}
    assert isinstance(batch["group_id"][0], np.ndarray)
    moved = batch.to("meta")
    assert {one.device.type for one in moved["n_sampled"]} == {"meta"}
    assert moved.totals == batch.totals == pickle.loads(pickle.dumps(batch)).totals  # noqa: S301 - of this test
    assert [micro.totals for micro in batch.micro_batches(2)] == [batch.totals] * 2


def test_dataloader_and_replay_have_the_loader_s_totals(docs):
    plan = make_plan(docs)
    with numpy_loader(plan, steps=3) as batches:
        totals = [batch.totals for batch in batches]
        assert batches.batch_at(1).totals == totals[1]
    dataset = loader.torch_dataset(plan, 0, 1, steps=3)
    loaded = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    assert [batch.totals for batch in loaded] == totals
    with loader.Replay(plan, framework="numpy") as replay:
        assert replay.batch(2).totals == totals[2]
        assert replay.batch(2, 1, 3).totals == totals[2]
        assert replay.each(2, lambda slot, sample: None).totals == totals[2]
        slot = replay.slot(2, 0)
        assert slot.trained["reward"].tolist() == replay.batch(2)["reward"][0].tolist()


def test_transform_gets_the_columns_and_may_drop_them(docs):
    def sum_rewards(sample, rng):
        return {FIELD: sample[FIELD], "total": sample["reward"].sum(), "reward": sample["reward"] + 1}

    plan = make_plan(docs)
    with numpy_loader(plan, steps=1) as batches, numpy_loader(plan, steps=1, transform=sum_rewards) as others:
        batch = next(batches)
        other = next(others)
    assert "group_id" not in other
    assert other["total"].tolist() == [array.sum() for array in batch["reward"]]
    assert [array.tolist() for array in other["reward"]] == [
        (array + 1).tolist() for array in batch["reward"]
    ]
    assert other.totals == batch.totals


def test_document_masked_at_reading_still_counts(memory_root, watch_store):
    version = write(memory_root)
    (address,) = version.address(version.select(FIELD).ordinals(["docs-010"]), [FIELD])
    place = address.fields[FIELD]

    def change(key, offset, data):
        last = place.offset + place.nbytes - 1 - offset
        if key == place.path and 0 <= last < len(data):
            return data[:last] + bytes([data[last] ^ 1]) + data[last + 1 :]
        return data

    plan = make_plan(version)
    with numpy_loader(plan, epochs=1) as batches:
        intact = list(batches)
    watch_store(memory_root).change = change
    plan = make_plan(memory_root.open(version.name))
    with numpy_loader(plan, epochs=1, corrupt_budget=0.9) as batches:
        damaged = list(batches)
    masked = [one for batch in damaged for one in batch.substitutions]
    assert [one.address.key for one in masked] == ["docs-010"]
    with loader.Replay(plan, masked, framework="numpy") as replay:
        replayed = [replay.batch(batch.step) for batch in damaged]
    for batch, other, again in zip(intact, damaged, replayed, strict=True):
        assert batch.totals == other.totals == again.totals
        assert other.digest == again.digest
        assert [array.tolist() for array in batch["reward"]] == [array.tolist() for array in other["reward"]]


def test_quarantined_document_counts_in_no_total(docs):
    plan = make_plan(docs)
    quarantined = plan.quarantined({"docs": ["docs-010"]}, 0)
    n_steps = -(-len(plan.sources["docs"].view) // 5)
    with numpy_loader(plan, steps=n_steps) as batches:
        whole = [batch.totals for batch in batches]
    for rank in (0, 1):
        with numpy_loader(quarantined, rank, 2, steps=n_steps) as batches:
            rest = [batch.totals for batch in batches]
        for name, difference in step_totals(LENGTHS, [(10, LENGTHS[10])]).items():
            assert sum(one[name] for one in whole) - sum(one[name] for one in rest) == difference


def test_plan_with_columns_has_the_next_format_and_opens_again(tmp_path, monkeypatch):
    with loader.Root(str(tmp_path)) as root:
        version = write(root)
        plain = make_plan(version, columns=())
        plan = make_plan(version)
        assert (plain.to_json()["format"], plan.to_json()["format"]) == (1, 2)
        assert plan.to_json()["pack"]["columns"] == [
            ["reward", "double"],
            ["group_id", "string"],
            ["n_sampled", "int64"],
            ["is_correct", "bool"],
            ["ordinal", "int64"],
        ]
        assert plan.sources["docs"].view.id == plain.sources["docs"].view.id
        plan.save(root)
        n_tables = len(list(root.store.list("packs/")))
        again = loader.open_plan(root, plan.hash)
        assert (again.to_json(), again.pack) == (plan.to_json(), plan.pack)
        assert again.sources["docs"].view.packing == plan.pack
        assert len(list(root.store.list("packs/"))) == n_tables
        with numpy_loader(plan, steps=1) as one, numpy_loader(again, steps=1) as other:
            first = next(one)
            second = next(other)
        assert first.digest == second.digest
        assert first.totals == second.totals
        monkeypatch.setattr("loader.order.from_json.PLAN_FORMAT", 1)
        with pytest.raises(FormatTooNew):
            loader.open_plan(root, plan.hash)
        assert content.PLAN_FORMAT == 2


def test_plain_packed_plan_has_totals_too(docs):
    plan = make_plan(docs, columns=())
    with numpy_loader(plan, steps=1) as batches:
        batch = next(batches)
    segments = batch[f"{FIELD}.segment_ids"]
    assert batch.totals == {"documents": int(segments.max(axis=1).sum()), "tokens": int((segments > 0).sum())}


def test_batches_without_packing_have_no_totals(docs):
    plan = loader.plan({"docs": docs.select(FIELD)}, seed=3, global_batch=4)
    with numpy_loader(plan, steps=1) as batches:
        assert next(batches).totals == {}


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("reward", r"columns='reward'\): a tuple of names"),
        (("reward", 3), "a tuple of names is needed"),
        (("reward", "reward"), r"names \['reward'\] twice"),
        (("rewrd",), "names 'rewrd', did you mean 'reward'"),
        (("maybe",), r"1 documents of docs@1 have no 'maybe': 'docs-007' .* where\(\"maybe IS NOT NULL\"\)"),
        ((FIELD,), "is a field of the batch"),
        ((f"{FIELD}.segment_ids",), "is a field of the batch"),
        (("tokens",), r"batch.totals\['tokens'\] is the step's number of tokens"),
    ],
)
def test_columns_that_no_batch_can_have_are_refused(docs, columns, says):
    with pytest.raises(InvalidPlan, match=says):
        make_plan(docs, columns=columns)


def test_sources_with_other_types_of_a_column_are_refused(memory_root):
    views = {}
    for name, value in (("one", 1), ("two", 0.5)):
        with memory_root.write(name) as writer:
            writer.add("a", {FIELD: np.arange(4, dtype=np.int32)}, metadata={"reward": value})
        views[name] = writer.version.select(FIELD)
    with refusal(
        InvalidPlan, what="pack", where="column 'reward'", given="{'one': 'int64', 'two': 'double'}"
    ):
        loader.plan(views, seed=1, global_batch=1, pack=loader.pack(FIELD, 8, columns=("reward",)))


def test_columns_come_from_each_source_s_own_version(memory_root):
    views = {}
    for name, reward in (("one", 1.5), ("two", 2.5)):
        with memory_root.write(name) as writer:
            for number in range(4):
                writer.add(
                    f"{number}", {FIELD: np.full(4, reward * 2, np.int32)}, metadata={"reward": reward}
                )
        views[name] = writer.version.select(FIELD)
    pack = loader.pack(FIELD, 8, columns=("reward",))
    plan = loader.plan(views, seed=1, global_batch=2, pack=pack)
    with numpy_loader(plan, steps=4) as batches:
        for batch in batches:
            for row in range(2):
                assert batch["reward"][row].tolist() == [batch[FIELD][row][0] / 2] * 2


def test_damaged_columns_of_a_plan_are_refused(tmp_path):
    with loader.Root(str(tmp_path)) as root:
        plan = make_plan(write(root))
        path = tmp_path / "plans" / f"{plan.save(root)}.json"
        for damage in ([["reward"]], 7, [["reward", "list"]]):
            body = plan.to_json()
            body["pack"]["columns"] = damage
            path.write_text(json.dumps(body))
            fields = {"what": "pack", "given": str(body["pack"])}
            if damage == [["reward", "list"]]:
                fields = {"what": "column 'reward'", "given": "list"}
            with refusal(InvalidPlan, **fields):
                loader.open_plan(root, plan.hash)


def test_values_are_in_the_order_of_the_documents_across_row_groups(docs, monkeypatch):
    monkeypatch.setattr("loader.dataset.versions.view_columns.ROW_GROUP_ROWS", 4)
    ordinals = np.random.default_rng(1).permutation(len(docs))
    ordinals = np.concatenate([ordinals, ordinals[:9]])  # documents may repeat
    read = DocumentColumns(docs, {"n_sampled": "int64", "group_id": "string", "ordinal": "int64"})
    values = read(ordinals)
    numbers = [int(key[-3:]) for key in docs.keys(ordinals)]
    assert values["n_sampled"].tolist() == [number * 2**40 for number in numbers]
    assert values["group_id"].tolist() == [metadata(number)["group_id"] for number in numbers]
    assert values["ordinal"].tolist() == ordinals.tolist()


def test_list_of_documents_has_their_columns_and_totals(docs):
    view = docs.select(FIELD)
    chosen = view.ordinals([f"docs-{number:03d}" for number in range(40, 10, -1) if LENGTHS[number]])
    pack = loader.pack(FIELD, 24, columns=COLUMNS)
    plan = loader.plan(
        {"docs": loader.listed(view, chosen)}, seed=3, global_batch=4, pack=pack, boundary="mask"
    )
    documents = []
    n_sampled = 0
    with numpy_loader(plan, epochs=1) as batches:
        for batch in batches:
            documents += check_columns(batch, docs)
            n_sampled += batch.totals["n_sampled"]
    assert sorted(documents) == [number for number in range(11, 41) if LENGTHS[number]]
    assert n_sampled == sum(number * 2**40 for number in documents)
