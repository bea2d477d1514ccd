"""Fields with an array per token, and ragged fields with any number of rows (docs/order.md, "Packing")."""

import itertools
import json
import struct

import google_crc32c
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.errors import FormatTooNew, InvalidPlan
from loader.order.digests import identity_hash
from loader.order.random.keyed_permutation import hash_fields, sub
from tests.refusals import refusal

TOKENS, EXPERTS, KEPT, NAMES = "tokens.npy", "experts.npy", "kept.npy", "names.npy"
FIELDS = (TOKENS, EXPERTS, KEPT, NAMES)
SEGMENTS = f"{KEPT}.segment_ids"
LENGTHS = [int(n) for n in np.random.default_rng(9).integers(0, 20, 40)]
roots = itertools.count()


def document(number, n):
    """What a value is tells its document and its place."""
    tokens = (number * 100 + np.arange(n)).astype(np.int32)
    n_kept = number * 7 % 5
    kept = (number * 100 + np.arange(2 * n_kept)).reshape(n_kept, 2)
    return {
        TOKENS: tokens,
        EXPERTS: experts(tokens),
        KEPT: kept.astype(np.uint32),
        NAMES: np.full(number % 3, number / 2),
    }


def experts(tokens):
    """Return int64 [n, 2, 3]: the routing of each token."""
    return tokens.astype(np.int64)[:, np.newaxis, np.newaxis] * 10 + np.arange(6).reshape(2, 3)


def write(root, lengths=LENGTHS, change=lambda number, fields: fields, name="docs", **options):
    with root.write(name, groups={EXPERTS: "routing", KEPT: "kept"}, **options) as writer:
        for number, n in enumerate(lengths):
            writer.add(
                f"{name}-{number:03d}", change(number, document(number, n)), metadata={"number": number}
            )
    return writer.version


def request(length=24, **more):
    return loader.pack(TOKENS, length, beside={EXPERTS: -1}, ragged=(KEPT, NAMES), split=False, **more)


def build_plan(version, batch=4, pack=None, boundary="mask", **more):
    view = version.select(KEPT, TOKENS, NAMES, EXPERTS)
    return loader.plan(
        {"docs": view}, seed=3, global_batch=batch, pack=pack or request(), boundary=boundary, **more
    )


def numpy_loader(plan, rank=0, world=1, **more):
    return loader.Loader(plan, rank, world, framework="numpy", **{"workers": 0, **more})


@pytest.fixture(scope="module")
def docs(tmp_path_factory):
    with loader.Root(str(tmp_path_factory.mktemp("rows"))) as root:
        yield write(root, part_samples=15)


def check_sequence(batch, row):
    """Check one sequence by the tokens alone. Return the numbers of its documents."""
    tokens = batch[TOKENS][row]
    segment_ids = batch[f"{TOKENS}.segment_ids"][row]
    is_token = (segment_ids > 0)[:, np.newaxis, np.newaxis]
    assert np.array_equal(batch[EXPERTS][row], np.where(is_token, experts(tokens), -1))
    numbers = []
    rows = []
    row_segments = []
    names = []
    for segment in range(1, int(segment_ids.max(initial=0)) + 1):
        first = int(np.flatnonzero(segment_ids == segment)[0])
        number = int(tokens[first]) // 100
        numbers.append(number)
        stored = document(number, 1)
        rows += stored[KEPT].tolist()
        row_segments += [segment] * len(stored[KEPT])
        names += stored[NAMES].tolist()
    assert batch[KEPT][row].tolist() == rows
    assert batch[SEGMENTS][row].tolist() == row_segments
    assert batch[NAMES][row].tolist() == names
    assert batch[KEPT][row].shape == (len(rows), 2)
    assert batch[KEPT][row].dtype == np.uint32
    assert batch[SEGMENTS][row].dtype == np.int32
    return numbers


@settings(derandomize=True, deadline=None, max_examples=10)
@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=20).filter(any),
    length=st.integers(20, 50),
    batch=st.integers(1, 9),
    together=st.booleans(),
)
def test_rows_are_those_of_the_documents(lengths, length, batch, together):
    with loader.Root(f"memory://run-pack-rows-{next(roots)}") as root:
        more = {}
        if together:
            more["together"] = "number"
        plan = build_plan(write(root, lengths, part_samples=7), batch, request(length, **more))
        numbers = []
        with numpy_loader(plan, epochs=1) as batches:
            for whole in batches:
                for row in np.flatnonzero(whole.mask).tolist():
                    numbers += check_sequence(whole, row)
                for row in np.flatnonzero(~whole.mask).tolist():
                    assert whole[KEPT][row].shape == (0, 2)
                    assert len(whole[SEGMENTS][row]) == 0
        assert sorted(numbers) == [number for number, n in enumerate(lengths) if n]


@pytest.mark.parametrize("options", [{"workers": 2}, {"workers": 1, "executor": "processes"}])
def test_ranks_and_workers_make_the_same_rows(docs, options):
    plan = build_plan(docs)
    with (
        numpy_loader(plan, steps=3) as alone,
        numpy_loader(plan, 0, 2, steps=3, **options) as one,
        numpy_loader(plan, 1, 2, steps=3, **options) as other,
    ):
        for whole in alone:
            parts = [next(one), next(other)]
            assert sum(part.digest for part in parts) % 2**64 == whole.digest
            assert np.array_equal(np.concatenate([part[EXPERTS] for part in parts]), whole[EXPERTS])
            for name in (KEPT, SEGMENTS, NAMES):
                arrays = [array for part in parts for array in part[name]]
                assert all(map(np.array_equal, arrays, whole[name]))


def test_digest_covers_every_field(docs):
    plan = build_plan(docs)
    identity = identity_hash(plan.sources["docs"].view.identity)
    total = 0
    for slot, one in enumerate(loader.explain(plan, 1)):
        body = b""
        for piece in one.pieces:
            crcs = [piece.address.fields[field].crc32c for field in FIELDS]
            body += struct.pack("<QQI4I", piece.address.ordinal, piece.start, piece.stop - piece.start, *crcs)
        step_and_slot = sub(sub(hash_fields("delivered"), 1), slot)
        total += sub(sub(step_and_slot, sub(identity, one.address.ordinal)), google_crc32c.value(body))
    with numpy_loader(plan) as batches, loader.Replay(plan, framework="numpy") as replay:
        assert batches.batch_at(1).digest == total % 2**64
        assert replay.digest(1) == total % 2**64


def test_torch_batch_has_tensors_and_the_transform_arrays(docs):
    def count_rows(sample, rng):
        return sample | {"n_rows": len(sample[KEPT])}

    plan = build_plan(docs)
    with loader.Loader(plan, 0, 1, workers=0, steps=1, transform=count_rows) as batches:
        batch = next(batches)
    assert batch[EXPERTS].shape == (4, 24, 2, 3)
    assert {array.dtype for array in batch[SEGMENTS]} == {torch.int32}
    assert batch["n_rows"].tolist() == [len(array) for array in batch[KEPT]]


@pytest.mark.parametrize("field", [EXPERTS, KEPT])
def test_document_with_a_corrupt_field_is_masked_in_all_fields(memory_root, watch_store, field):
    version = write(memory_root)
    (address,) = version.address(version.select(TOKENS).ordinals(["docs-011"]), [field])
    place = address.fields[field]

    def change(key, offset, data):
        last = place.offset + place.nbytes - 1 - offset
        if key == place.path and 0 <= last < len(data):
            return data[:last] + bytes([data[last] ^ 1]) + data[last + 1 :]
        return data

    watch_store(memory_root).change = change
    plan = build_plan(memory_root.open(version.name))
    with numpy_loader(plan, epochs=1, corrupt_budget=0.9) as batches:
        damaged = list(batches)
    assert [one.address.key for batch in damaged for one in batch.substitutions] == ["docs-011"]
    values = [array for batch in damaged for array in batch[KEPT]]
    assert not (np.concatenate(values) // 100 == 11).any()
    for batch in damaged:
        is_masked = batch[f"{TOKENS}.segment_ids"] == 0
        assert (batch[EXPERTS][is_masked & batch.mask[:, np.newaxis]] == -1).all()
        assert not (batch[TOKENS][~is_masked] // 100 == 11).any()
        for segments, rows in zip(batch[SEGMENTS], batch[KEPT], strict=True):
            assert len(segments) == len(rows)


def test_plan_with_rows_has_the_next_format_and_opens_again(tmp_path, monkeypatch):
    with loader.Root(str(tmp_path)) as root:
        version = write(root)
        plan = build_plan(version)
        body = plan.to_json()
        assert body["format"] == 2
        assert body["pack"]["beside"] == [{"field": EXPERTS, "fill": -1, "dtype": "<i8", "shape": [2, 3]}]
        assert body["pack"]["ragged"] == [
            {"field": KEPT, "dtype": "<u4", "shape": [2]},
            {"field": NAMES, "dtype": "<f8", "shape": []},
        ]
        assert body["sources"]["docs"]["view"]["ragged"] == [KEPT, NAMES]
        plan.save(root)
        again = loader.open_plan(root, plan.hash)
        assert (again.to_json(), again.pack) == (body, plan.pack)
        with numpy_loader(plan, steps=1) as one, numpy_loader(again, steps=1) as other:
            assert next(one).digest == next(other).digest
        monkeypatch.setattr("loader.order.from_json.PLAN_FORMAT", 1)
        with pytest.raises(FormatTooNew):
            loader.open_plan(root, plan.hash)


def test_plan_with_an_array_per_token_alone_has_the_next_format(docs):
    view = docs.select(TOKENS, EXPERTS)
    pack = loader.pack(TOKENS, 8, beside={EXPERTS: 0})  # documents are split, and their rows with them
    plan = loader.plan({"docs": view}, seed=3, global_batch=4, pack=pack)
    assert plan.to_json()["format"] == 2
    with numpy_loader(plan, steps=5) as batches:
        for batch in batches:
            is_token = batch[f"{TOKENS}.segment_ids"] > 0
            expected = experts(batch[TOKENS].reshape(-1)).reshape(*is_token.shape, 2, 3)
            assert np.array_equal(
                batch[EXPERTS], np.where(is_token[..., np.newaxis, np.newaxis], expected, 0)
            )


@pytest.mark.parametrize("order", ["F", "C"])
def test_documents_stored_otherwise_have_the_same_rows(memory_root, order):
    def change(number, fields):
        if number % 2:
            fields[EXPERTS] = np.asarray(fields[EXPERTS], order=order)
        return fields

    plan = build_plan(write(memory_root, [12] * 8, change))
    with numpy_loader(plan, epochs=1) as batches:
        for batch in batches:
            for row in np.flatnonzero(batch.mask).tolist():
                check_sequence(batch, row)


@pytest.mark.parametrize(
    ("field", "change", "fault"),
    [
        (EXPERTS, lambda array: array[:-1], {"what": "experts.npy", "given": "int64 [11, 2, 3]"}),
        (EXPERTS, lambda array: array[:, :1], {"what": "experts.npy", "given": "int64 [12, 1, 3]"}),
        (EXPERTS, lambda array: array.astype("i2"), {"what": "experts.npy", "given": "int16 [12, 2, 3]"}),
        (KEPT, lambda array: array[:, :1], {"what": "kept.npy", "given": "uint32 [4, 1]"}),
        (KEPT, lambda array: array[:, 0], {"what": "kept.npy", "given": "uint32 [4]"}),
        (KEPT, lambda array: array.astype("f4"), {"what": "kept.npy", "given": "float32 [4, 2]"}),
    ],
)
def test_later_document_of_another_shape_stops_the_run(memory_root, field, change, fault: dict[str, object]):
    def change_one(number, fields):
        if number == 17:
            fields[field] = change(fields[field])
        return fields

    plan = build_plan(write(memory_root, [12] * 20, change_one))
    with numpy_loader(plan, epochs=1) as batches, refusal(InvalidPlan, **fault, within="'docs-017'"):
        list(batches)


@pytest.mark.parametrize(
    ("field", "array", "value", "accepted"),
    [
        (EXPERTS, np.zeros((5, 2)), 5, 8),
        (EXPERTS, np.zeros(()), (), "[n] or [n, ...]"),
        (KEPT, np.zeros(()), (), "[n] or [n, ...]"),
        (KEPT, np.zeros((2, 2), "c8"), "complex64", "numbers or truth values"),
        (TOKENS, np.zeros((8, 1), "i4"), (8, 1), "one dimension"),
        (EXPERTS, np.zeros((8, 64, 4), "i2"), 12_288, 8_192),
    ],
)
def test_first_document_that_cannot_be_packed_is_named(
    memory_root, monkeypatch, field, array, value, accepted
):
    monkeypatch.setattr("loader.order.sources.packing.MAX_FIELD_BYTES", 2**13)
    version = write(memory_root, [8], lambda number, fields: fields | {field: array})
    with refusal(InvalidPlan, what=field, where="source 'docs'", given=value, accepted=accepted) as refused:
        build_plan(version, batch=1)
    is_of_the_document = value not in ("complex64", 12_288)
    assert ("sample 'docs-000'" in str(refused.value)) == is_of_the_document


@pytest.mark.parametrize(
    ("more", "fields"),
    [
        ({"ragged": KEPT}, {"what": "ragged", "given": KEPT}),
        ({"ragged": (KEPT,), "split": True}, {"what": "ragged", "accepted": "split=False"}),
        ({"ragged": (KEPT, KEPT)}, {"what": "ragged", "accepted": "each name once"}),
        ({"ragged": (TOKENS,)}, {"what": "ragged", "given": TOKENS}),
        ({"ragged": (KEPT, SEGMENTS)}, {"what": "ragged", "given": SEGMENTS}),
        ({"ragged": ("kept.txt",)}, {"what": "field", "given": "kept.txt"}),
        ({"ragged": (KEPT,), "columns": (SEGMENTS,)}, {"what": "columns", "given": SEGMENTS}),
        ({"ragged": ()}, {"what": "fields", "accepted": (TOKENS, EXPERTS)}),
    ],
)
def test_ragged_fields_that_no_batch_can_have_are_refused(docs, more, fields):
    def make_plan():
        pack = loader.pack(TOKENS, 24, **{"beside": {EXPERTS: 0}, "split": False, **more})
        return build_plan(docs, pack=pack)

    with refusal(InvalidPlan, **fields):
        make_plan()


def test_sources_with_other_rows_are_refused(memory_root):
    views = {}
    for name, width in (("one", 2), ("two", 3)):
        with memory_root.write(name) as writer:
            writer.add("a", {TOKENS: np.arange(4), KEPT: np.zeros((1, width))})
        views[name] = writer.version.select(TOKENS, KEPT)
    pack = loader.pack(TOKENS, 8, ragged=(KEPT,), split=False)
    with refusal(InvalidPlan, what="pack", where="source 'two'"):
        loader.plan(views, seed=1, global_batch=1, pack=pack)


def test_damaged_rows_of_a_plan_are_refused(tmp_path):
    with loader.Root(str(tmp_path)) as root:
        plan = build_plan(write(root))
        path = tmp_path / "plans" / f"{plan.save(root)}.json"
        damages = [("ragged", 7), ("ragged", [{"field": KEPT}]), ("ragged", [])]
        damages += [("beside", [{"field": EXPERTS, "fill": -1, "dtype": "<i8", "shape": [2, -3]}])]
        for name, damage in damages:
            body = plan.to_json()
            body["pack"][name] = damage
            path.write_text(json.dumps(body))
            with refusal(InvalidPlan, what="pack"):
                loader.open_plan(root, plan.hash)


def test_packing_table_keeps_the_shapes_and_damaged_ones_are_refused(tmp_path):
    from loader.dataset.versions.pack_formats import FieldFormats, formats_from_facts, formats_to_facts

    asked = request()
    dtypes = {TOKENS: "<i4", EXPERTS: "<i8", KEPT: "<u4", NAMES: "<f8"}
    formats = FieldFormats(dtypes, {EXPERTS: (2, 3), KEPT: (2,)})
    facts = formats_to_facts(asked, formats)
    assert facts == {
        "dtype": "<i4",
        "beside": '[["<i8", [2, 3]]]',
        "ragged": '[["<u4", [2]], "<f8"]',
    }
    assert formats_from_facts(asked, facts) == formats
    for damage in (
        "[]",
        "7",
        '["<i8", "<i8"]',
        '[["<i8", [2, -3]]]',
        '[["<i8", [true]]]',
        '[["<i8"]]',
        '[["x", [2]]]',
    ):
        assert formats_from_facts(asked, facts | {"beside": damage}) is None
