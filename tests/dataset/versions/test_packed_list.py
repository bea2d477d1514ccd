"""Packing of a list: its documents in its order, at a cost that does not grow with the version."""

import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.dataset.versions.pack import piece_checks
from loader.errors import InvalidPlan
from tests.dataset.stores import Counting
from tests.order import reference
from tests.refusals import refusal

FIELD = "tokens.npy"
LENGTHS = [5, 0, 17, 3, 40, 8, 8, 1, 2, 29, 16, 7, 12, 4, 4, 31, 6, 9, 0, 11]
MIXED = [17, 2, 3, 19, 1, 0, 8, 12, 4]


def tokens(number):
    return (np.arange(LENGTHS[number % len(LENGTHS)]) + 100 * number).astype(np.int32)


def write(root, n=20, name="docs", first=0):
    with root.write(name, part_samples=5) as writer:
        for number in range(first, first + n):
            metadata = {
                "n_tokens": len(tokens(number)),
                "half": number / 2,
                "pair": f"pair {number // 2}",
                "odd": number % 2 == 1,
            }
            if number % 7:
                metadata["some"] = number
            writer.add(f"k{number:03d}", {FIELD: tokens(number)}, metadata=metadata)
    return writer.version


def key_numbers(version, ordinals):
    return [int(key[1:]) for key in version.keys(np.asarray(ordinals))]


def rows(view):
    table = view.table
    return table.rows(0, table.n_pieces).tolist()


def expected_rows(sequences, ordinals):
    out = []
    for number, sequence in enumerate(sequences):
        for document, start, length in sequence:
            out.append([number, int(ordinals[document]), start, length])
    return out


@pytest.fixture(scope="module")
def documents():
    """A version of 20 documents."""
    return write(loader.Root("memory://packed-lists"))


@settings(
    derandomize=True,
    deadline=None,
    max_examples=15,
)
@given(
    ordinals=st.lists(st.integers(0, len(LENGTHS) - 1), min_size=1, max_size=20, unique=True),
    length=st.integers(60, 90),
    together=st.sampled_from([None, "pair", "odd"]),
    lengths=st.sampled_from([None, "n_tokens", '"n_tokens"', "n_tokens + 0"]),
)
def test_table_is_the_reference_in_the_order_of_the_list(documents, ordinals, length, together, lengths):
    numbers = key_numbers(documents, ordinals)
    counts = [len(tokens(number)) for number in numbers]
    if together == "odd":
        length = 400  # either half of all documents fits
    listed = loader.listed(documents.select(FIELD), ordinals)
    packed = listed.packed(loader.pack(FIELD, length, together=together, lengths=lengths))
    if together is None:
        sequences = reference.packed(counts, length)
    elif together == "pair":
        pairs = [number // 2 for number in numbers]
        sequences = reference.packed_groups(counts, pairs, length)
    else:
        odd = [number % 2 for number in numbers]
        sequences = reference.packed_groups(counts, odd, length)
    assert rows(packed) == expected_rows(sequences, ordinals)


def list_view(version, ordinals=MIXED):
    return loader.listed(version.select(FIELD), ordinals)


def packed_plan(view, batch=2, **options):
    request = loader.pack(FIELD, 48, **options)
    return loader.plan({"docs": view}, seed=3, global_batch=batch, pack=request, boundary="mask")


def train_steps(plan, steps, **options):
    """Return the trained tokens of each step on this rank, and the state after them."""
    out = []
    with loader.Loader(plan, steps=steps, framework="numpy", **options) as batches:
        for batch in batches:
            is_trained = batch[f"{FIELD}.loss_mask"]
            out.append(batch[FIELD][is_trained].tolist())
        return out, batches.state_dict()


def test_packed_list_trains_on_its_documents_only_on_any_number_of_ranks(root):
    version = write(root)
    plan = packed_plan(list_view(version))
    table = plan.sources["docs"].view.table
    steps = -(-len(table) // 2)
    whole, _ = train_steps(plan, steps, rank=0, world_size=1)
    parts = [train_steps(plan, steps, rank=rank, world_size=2)[0] for rank in (0, 1)]
    assert whole == [first + second for first, second in zip(*parts, strict=True)]
    expected = []
    for number in key_numbers(version, MIXED):
        expected += tokens(number)[1:].tolist()  # nothing predicts a document's first token
    got = [token for step in whole for token in step]
    assert sorted(got) == sorted(expected)


def test_packed_list_is_saved_and_opened_again(root):
    plan = packed_plan(list_view(write(root)), together="pair")
    plan.save(root)
    assert plan.to_json()["format"] == 2
    opened = loader.open_plan(root, plan.hash)
    assert opened.hash == plan.hash
    assert rows(opened.sources["docs"].view) == rows(plan.sources["docs"].view)
    assert train_steps(opened, 3) == train_steps(plan, 3)
    assert loader.plan_of(root, train_steps(plan, 2)[1]).hash == plan.hash


def test_plan_that_packs_a_list_has_a_format_that_older_packages_refuse(root):
    version = write(root)
    assert packed_plan(list_view(version)).to_json()["format"] == 2
    assert packed_plan(version.select(FIELD)).to_json()["format"] == 1


def test_plan_of_a_packed_list_is_sent_to_other_processes(tmp_path):
    plan = packed_plan(list_view(write(loader.Root(str(tmp_path)))))
    sent = pickle.loads(pickle.dumps(plan))  # noqa: S301 - of this test
    assert sent.hash == plan.hash
    assert train_steps(sent, 2, workers=0) == train_steps(plan, 2, workers=0)


def test_explain_and_quarantine_see_through_a_packed_list(root):
    version = write(root)
    view = list_view(version)
    plan = packed_plan(view)
    explained = {}
    for step in (0, 1):
        for slot in loader.explain(plan, step):
            for piece in slot.pieces:
                explained.setdefault(piece.address.key, []).append(step)
    numbers = [number for number in key_numbers(version, MIXED) if len(tokens(number))]
    assert explained.keys() == {f"k{number:03d}" for number in numbers}
    for key, steps in explained.items():
        uses = plan.steps_of("docs", key, before=2)
        assert [use.step for use in uses] == steps
    (unlisted,) = version.keys(np.array([10]))
    assert plan.steps_of("docs", unlisted, before=2) == []

    masked, *_ = explained
    quarantined = plan.quarantined({"docs": [masked]}, step=0)
    lost = Counter(np.concatenate(train_steps(plan, 2)[0]).tolist())
    lost.subtract(np.concatenate(train_steps(quarantined, 2)[0]).tolist())
    assert sorted(lost.elements()) == tokens(int(masked[1:]))[1:].tolist()


def test_list_with_a_repeated_document_is_not_packed(root):
    version = write(root)
    (key,) = version.keys(np.array([4]))
    with refusal(InvalidPlan, what="list", where="source 'docs'", given=[key]):
        packed_plan(list_view(version, [1, 4, 2, 4]))


def test_list_with_a_repeated_document_of_a_group_is_not_packed(root):
    version = write(root)
    (key,) = version.keys(np.array([9]))
    with refusal(InvalidPlan, what="list", where="source 'docs'", given=[key]):
        packed_plan(list_view(version, [8, 9, 9]), together="pair")
    assert not list(root.store.list("packs/"))


def test_null_of_a_listed_document_in_together_is_named_by_its_key(root):
    """A document of the version that the list lacks may have one."""
    version = write(root)
    missing = [ordinal for ordinal, number in enumerate(key_numbers(version, range(20))) if number % 7 == 0]
    others = [ordinal for ordinal in range(20) if ordinal not in missing]
    assert len(packed_plan(list_view(version, others), together="some").sources["docs"].view) > 0
    (key,) = version.keys(np.array(missing[1:2]))
    with refusal(InvalidPlan, what="together", where="source 'docs'", given=[1, key]):
        packed_plan(list_view(version, [*others, missing[1]]), together="some")


def test_quarantined_document_of_a_group_is_masked_in_its_place(root):
    """Its group keeps its sequence, on any number of ranks, and totals do not count it."""
    version = write(root)
    plan = packed_plan(list_view(version), together="pair")
    table = plan.sources["docs"].view.table
    n_steps = -(-len(table) // 2)
    (key,) = version.keys(np.array([2]))
    tokens_of_bad = tokens(int(key[1:]))
    assert len(tokens_of_bad) > 1
    quarantined = plan.quarantined({"docs": [key]}, step=0)
    quarantined.save(root)
    reopened = loader.open_plan(root, quarantined.hash)
    whole = loader.Loader(plan, 0, 1, steps=n_steps, framework="numpy")
    rest = loader.Loader(reopened, 0, 1, steps=n_steps, framework="numpy")
    n_masked = 0
    with whole, rest:
        for batch, masked in zip(whole, rest, strict=True):
            is_bad = np.isin(batch[FIELD], tokens_of_bad) & (batch[f"{FIELD}.segment_ids"] > 0)
            n_masked += int(is_bad.sum())
            assert np.array_equal(masked[FIELD], np.where(is_bad, 0, batch[FIELD]))
            assert not masked[f"{FIELD}.loss_mask"][is_bad].any()
            assert masked.totals["tokens"] == batch.totals["tokens"] - int(is_bad.sum())
    assert n_masked == len(tokens_of_bad)
    one = train_steps(reopened, n_steps, rank=0, world_size=1)[0]
    parts = [train_steps(reopened, n_steps, rank=rank, world_size=2)[0] for rank in (0, 1)]
    assert one == [first + second for first, second in zip(*parts, strict=True)]


def test_document_without_a_count_is_named_by_its_key(root):
    version = write(root)
    missing = version.select().where("some IS NULL")
    (key,) = version.keys(missing.version_ordinals(np.arange(1)))
    with refusal(InvalidPlan, what="lengths", where="source 'docs'", given=[3, key]):
        packed_plan(list_view(version, np.arange(len(version))), lengths="some")
    with refusal(
        InvalidPlan, what="lengths", where="source 'docs'", given="Float64", accepted="whole numbers"
    ):
        packed_plan(list_view(version), lengths="half")


def test_sql_null_is_no_column_of_that_name(root):
    with root.write("words") as writer:
        for key in ("a", "b"):
            writer.add(key, {"t.npy": np.arange(4, dtype=np.uint16)}, {"null": 4})
    view = root.open("words@1").select("t.npy")
    ask = loader.pack("t.npy", length=8, lengths='"null"')
    assert len(loader.listed(view, [1, 0]).packed(ask)) == len(view.packed(ask)) == 1
    for documents in (view, loader.listed(view, [1, 0])):
        with refusal(InvalidPlan, what="lengths", given="Null", accepted="whole numbers"):
            documents.packed(loader.pack("t.npy", length=8, lengths="null"))


def test_split_document_of_a_list_has_checksums_of_its_pieces(root):
    version = write(root)
    request = loader.pack(FIELD, 16, checksums=True)
    packed = list_view(version).packed(request)
    assert piece_checks(packed) is not None
    plan = loader.plan({"docs": list_view(version)}, seed=3, global_batch=2, pack=request)
    plain = loader.plan({"docs": list_view(version)}, seed=3, global_batch=2, pack=loader.pack(FIELD, 16))
    assert train_steps(plan, 3)[0] == train_steps(plain, 3)[0]


def test_cost_of_packing_a_list_does_not_grow_with_the_version(root):
    """Eight documents of 4 parts, in a version of 4 parts and in one of 24, with a table of columns per transaction."""
    counts = []
    for name, n_transactions in (("small", 1), ("large", 6)):
        for number in range(n_transactions):
            write(root, name=name, first=20 * number)
        store = root.store
        root.store = Counting(store)
        version = root.open(f"{name}@latest")
        version.prepare()
        root.store.calls.clear()
        root.store.nbytes = 0
        view = loader.listed(version.select(FIELD), [3, 1, 8, 9, 12, 17, 16, 2])
        view.packed(loader.pack(FIELD, 48, lengths="n_tokens", together="pair"))
        view.packed(loader.pack(FIELD, 48))
        counts.append({folder: root.store.under(folder) for folder in ("data", "tables", "versions")})
        root.store = store
    small, large = counts
    assert small["data"] > 0
    assert small == large
