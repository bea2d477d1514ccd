"""Fields with a value per token, laid out beside the tokens of packed sequences (docs/order.md, "Packing")."""

import itertools
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.errors import InvalidPlan
from loader.order.sources.packing import Packing
from tests.refusals import refusal

FIELD, LABELS, ANSWER, WEIGHT = "tokens.npy", "labels.npy", "answer.npy", "weight.npy"
BESIDE = {LABELS: -100, ANSWER: False, WEIGHT: 0}
DTYPES = {FIELD: "<u2", LABELS: "<i8", ANSWER: "|b1", WEIGHT: "<f4"}
PACK = loader.pack(FIELD, 16, pad_id=9, beside=BESIDE)
LENGTHS = [int(n) for n in np.random.default_rng(3).integers(0, 20, 50)] + [60, 33, 16]
roots = itertools.count()


def document(number, n):
    """What a value is tells where it is from."""
    tokens = (number * 100 + np.arange(n)).astype(np.uint16)
    return {
        FIELD: tokens,
        LABELS: tokens.astype(np.int64) + 7,
        ANSWER: tokens % 3 == 0,
        WEIGHT: (tokens / 8).astype(np.float32),
    }


def write(root, lengths=LENGTHS, change=lambda number, fields: fields, **options):
    with root.write("docs", **options) as writer:
        for number, n in enumerate(lengths):
            writer.add(f"docs-{number:03d}", change(number, document(number, n)))
    return writer.version


@pytest.fixture(scope="module")
def docs(tmp_path_factory):
    with loader.Root(str(tmp_path_factory.mktemp("beside"))) as root:
        yield write(root, part_samples=20)


def make_plan(version, batch=5, pack=PACK, **more):
    fields = version.select(WEIGHT, FIELD, ANSWER, LABELS)
    return loader.plan({"docs": fields}, seed=3, global_batch=batch, pack=pack, **more)


def numpy_loader(plan, rank=0, world=1, **more):
    return loader.Loader(plan, rank, world, framework="numpy", **{"workers": 0, **more})


def follows_its_tokens(whole):
    """Every value of a batch's real slots is that of the token at its place, and the fill where there is none. Number
    of tokens. (A padded slot is zeros, whatever the fills are.)"""
    batch = {name: values[whole.mask] for name, values in whole.fields.items()}
    some = batch[f"{FIELD}.segment_ids"] > 0
    tokens = batch[FIELD].astype(np.int64)
    assert np.array_equal(batch[LABELS], np.where(some, tokens + 7, -100))
    assert np.array_equal(batch[ANSWER], np.where(some, tokens % 3 == 0, False))
    assert np.array_equal(batch[WEIGHT], np.where(some, tokens / 8, 0))
    assert {name: batch[name].dtype.str for name in DTYPES} == DTYPES
    return int(some.sum())


def test_open_plan_reads_the_packing_table_of_fields_in_any_order(tmp_path):
    """`pack(beside=)` may name fields in another order than `select` and the stored plan."""
    sides = (WEIGHT, LABELS, ANSWER)
    with loader.Root(tmp_path) as root:
        version = write(root, LENGTHS[:10])
        for view_sides in itertools.permutations(sides):
            view_fields = (*view_sides, FIELD)
            beside = {name: BESIDE[name] for name in sides}
            plan = loader.plan(
                {"docs": version.select(*view_fields)},
                seed=3,
                global_batch=5,
                pack=loader.pack(FIELD, 16, pad_id=9, beside=beside),
            )
            plan.save(root)
            before = [info.key for info in root.store.list("packs/")]
            with loader.Root(tmp_path) as again, numpy_loader(loader.open_plan(again, plan.hash)) as batches:
                assert follows_its_tokens(next(batches))
            assert [info.key for info in root.store.list("packs/")] == before


@settings(derandomize=True, deadline=None, max_examples=15)
@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=20).filter(any),
    length=st.integers(1, 40),
    batch=st.integers(1, 9),
)
def test_any_values_lie_beside_their_tokens(lengths, length, batch):
    with loader.Root(f"memory://run-pack-beside-{next(roots)}") as root:
        asked = loader.pack(FIELD, length, pad_id=9, beside=BESIDE)
        plan = make_plan(write(root, lengths, part_samples=7), batch, asked, boundary="mask")
        with numpy_loader(plan, epochs=1) as batches:
            assert sum(map(follows_its_tokens, batches)) == sum(lengths)


@pytest.mark.parametrize("options", [{"workers": 2}, {"workers": 1, "executor": "processes"}])
def test_ranks_and_workers_make_the_same_batches(docs, options):
    plan = make_plan(docs)
    with (
        numpy_loader(plan) as alone,
        numpy_loader(plan, 0, 2, **options) as one,
        numpy_loader(plan, 1, 2, **options) as other,
    ):
        for whole in islice(alone, 4):
            assert follows_its_tokens(whole)
            parts = [next(one), next(other)]
            for name in whole.fields:
                assert np.array_equal(np.concatenate([part[name] for part in parts]), whole[name])
            assert sum(part.digest for part in parts) % 2**64 == whole.digest


def test_tokens_are_those_of_a_plan_of_tokens_only(docs):
    """Which token is where depends on the tokens alone; what it is called does too."""
    with (
        numpy_loader(make_plan(docs)) as some,
        numpy_loader(
            loader.plan(
                {"docs": docs.select(FIELD)},
                seed=3,
                global_batch=5,
                pack=loader.pack(FIELD, 16, pad_id=9),
            )
        ) as alone,
    ):
        for one, other in islice(zip(some, alone, strict=False), 8):
            assert one.ids == other.ids
            for name in other.fields:
                assert np.array_equal(one[name], other[name])


def test_delivered_digest_knows_every_field(docs, properties):
    plan, fields = make_plan(docs), (FIELD, LABELS, ANSWER, WEIGHT)
    with numpy_loader(plan) as batches:
        assert batches.batch_at(2).digest == properties.sequence_digest(plan, 2, "docs", fields)


def test_piece_is_masked_where_any_of_its_fields_is_corrupt(memory_root, watch_store):
    version = write(memory_root)
    addresses = {one.key: one for one in version.address(np.arange(len(version)), [LABELS])}
    store, place = watch_store(memory_root), addresses["docs-050"].fields[LABELS]  # of 60 tokens

    def change(key, offset, data):
        last = place.offset + place.nbytes - 1 - offset
        if key == place.path and 0 <= last < len(data):
            return data[:last] + bytes([data[last] ^ 1]) + data[last + 1 :]
        return data

    store.change = change
    plan = make_plan(memory_root.open(version.name), boundary="mask")
    with numpy_loader(plan, epochs=1, corrupt_budget=0.9) as batches:
        seen = list(batches)
    assert sum(map(follows_its_tokens, seen)) == sum(LENGTHS) - 60
    assert {listed.address.key for one in seen for listed in one.substitutions} == {"docs-050"}


def test_saved_plan_is_opened_with_its_fills(tmp_path):
    with loader.Root(str(tmp_path)) as root:
        version = write(root)
        plan = make_plan(version)
        again = loader.open_plan(root, plan.save(root))
        assert (again.hash, again.pack) == (plan.hash, plan.pack)
        fills = make_plan(version, pack=loader.pack(FIELD, 16, pad_id=9, beside=BESIDE | {LABELS: -1}))
        assert fills.hash != plan.hash
        with numpy_loader(plan) as one, numpy_loader(again) as other:
            assert follows_its_tokens(other.batch_at(3))
            assert one.batch_at(3).digest == other.batch_at(3).digest
        assert Packing.from_json(plan.pack.to_json()) == plan.pack


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            lambda number, fields: fields | {LABELS: fields[LABELS][:-1]},
            {"what": "labels.npy", "given": "int64 [11]"},
        ),
        (
            lambda number, fields: fields | {WEIGHT: fields[WEIGHT].astype("f8")},
            {"what": "weight.npy", "given": "float64 [12]"},
        ),
    ],
)
def test_documents_whose_values_do_not_fit_their_tokens_stop_the_run(
    memory_root, change, fault: dict[str, object]
):
    version = write(memory_root, [12] * 30, lambda n, fields: change(n, fields) if n == 17 else fields)
    with (
        numpy_loader(make_plan(version), epochs=1) as batches,
        refusal(InvalidPlan, **fault, within="'docs-017'"),
    ):
        list(batches)


@pytest.mark.parametrize(
    ("options", "stated"),
    [
        ({"beside": {ANSWER: 2}}, {"what": "beside", "where": "source 'docs'", "given": 2}),
        ({"beside": {FIELD: 0}}, {"what": "beside", "given": FIELD}),
        ({"beside": {f"{FIELD}.loss_mask": 0}}, {"what": "beside", "given": f"{FIELD}.loss_mask"}),
        ({"beside": {LABELS: 0.5}}, {"what": f"pack: beside[{LABELS!r}]", "given": 0.5}),
        ({"beside": [LABELS]}, {"what": "beside", "given": [LABELS], "accepted": "field -> whole number"}),
        ({"beside": {LABELS: 0}, "checksums": True}, {"what": "beside", "accepted": "checksums=False"}),
        ({"beside": {"labels.txt": 0}}, {"what": "field", "given": "labels.txt"}),
        ({"beside": {LABELS: 0}}, {"what": "fields", "given": (FIELD,), "accepted": (FIELD, LABELS)}),
    ],
)
def test_what_is_refused(docs, options, stated):
    fields = [FIELD, ANSWER] if ANSWER in options["beside"] else [FIELD]
    with refusal(InvalidPlan, **stated):
        loader.plan(
            {"docs": docs.select(*fields)}, seed=3, global_batch=5, pack=loader.pack(FIELD, 16, **options)
        )
