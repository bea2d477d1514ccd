"""Datasets that break their word: each ends with a line that names the source, the item and what to do."""

import itertools
import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace

import pytest
import torch

import loader
from loader.errors import Corrupt, InvalidPlan, InvalidRuntime, PlanMismatch, Unpicklable, UnseededItems
from tests.refusals import refusal

N = 40
BATCH = 8


class Rows:
    """Rows whose behaviour a test sets."""

    def __init__(self, item=lambda i: i, n=N, **attributes):
        self.item = item
        self.n = n
        vars(self).update(attributes)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.item(i)


def make_plan(dataset, **options):
    return loader.plan({"photos": dataset}, seed=7, global_batch=BATCH, **options)


def read_batches(dataset, steps=4, **options):
    with loader.Loader(make_plan(dataset), 0, 1, steps=steps, **options) as batches:
        return list(batches)


def test_dataset_that_shrinks_ends_with_the_item():
    rows = list(range(N))
    with loader.Loader(make_plan(rows), 0, 1) as batches:
        next(batches)
        del rows[20:]
        with refusal(InvalidRuntime, what="item 29", where="source 'photos'", given=40):
            list(itertools.islice(batches, 5))


def test_items_of_other_shapes_are_a_list():
    (batch, *_) = read_batches(Rows(lambda i: torch.zeros(i % 3 + 1)))
    assert [len(one) for one in batch["item"]] == [ordinal % 3 + 1 for ordinal in batch.ordinals.tolist()]


def test_item_of_another_shape_each_time_is_reported():
    calls = iter(range(1, 10_000))
    with refusal(
        UnseededItems, what="item", where="item 1 of source 'photos'", given="other values each time"
    ):
        read_batches(Rows(lambda i: torch.zeros(next(calls))))


def raise_os_error(i):
    raise OSError("image file is truncated (3 bytes not processed)")


def raise_zero_division(i):
    raise ZeroDivisionError("scale")


def test_damage_of_every_item_names_the_item():
    with refusal(Corrupt, what="item", given="OSError", within="photos/ row ") as raised:
        read_batches(Rows(raise_os_error), corrupt_budget=1)
    assert "image file is truncated" in str(raised.value)
    assert any("all of its substitutes are corrupt too" in note for note in raised.value.__notes__)


def test_error_of_code_in_every_item_raises_at_once():
    calls = []

    def item(i):
        calls.append(i)
        return raise_zero_division(i)

    with pytest.raises(ZeroDivisionError) as raised:
        read_batches(Rows(item))
    assert raised.value.args == ("scale",)
    assert len(calls) == 1
    assert any("item" in note and "of source 'photos'" in note for note in raised.value.__notes__)


@pytest.mark.parametrize(
    ("attributes", "part", "kind"),
    [
        ({"lock": threading.Lock()}, "the Rows.lock", "lock"),
        ({"reader": SimpleNamespace(locks=[1, threading.Lock()])}, "the Rows.reader.locks[1]", "lock"),
        ({"by_name": {"a": threading.Lock()}}, "the Rows.by_name['a']", "lock"),
    ],
)
def test_attribute_that_cannot_be_sent_is_named(attributes, part, kind):
    dataset = Rows(int, **attributes)
    with refusal(Unpicklable, what=part, where="source 'photos'", given=kind):
        loader.Loader(make_plan(dataset), 0, 1, executor="processes")


def test_open_file_that_cannot_be_sent_is_named(tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(b"rows")
    with path.open("rb") as file:
        dataset = Rows(int, file=file)
        with refusal(Unpicklable, what="the Rows.file", where="source 'photos'", given="BufferedReader"):
            loader.Loader(make_plan(dataset), 0, 1, workers=1)


def test_collate_that_cannot_be_sent_is_named():
    class Joining:
        def __init__(self):
            self.lock = threading.Lock()

        def __call__(self, items):
            return items

    items = loader.items(Rows(int), collate=Joining())
    with refusal(Unpicklable, what="collate=", where="source 'photos'", given="lock"):
        loader.Loader(make_plan(items), 0, 1, workers=1)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(N))

    def __len__(self):
        return N


def test_iterable_dataset_with_a_length_is_refused():
    with refusal(InvalidPlan, what="dataset", given="the tests.run.items.test_bad_input.Stream"):
        make_plan(Stream())


@pytest.mark.parametrize(
    ("n", "fault"),
    [
        (-1, {"what": "length", "where": "the tests.run.items.test_bad_input.Rows"}),
        (10**20, {"what": "length", "where": "the tests.run.items.test_bad_input.Rows"}),
        (2**60, {"what": "length", "given": 1152921504606846976}),
        ("7", {"what": "length", "where": "the tests.run.items.test_bad_input.Rows"}),
    ],
)
def test_length_that_is_none_is_refused(n, fault: dict[str, object]):
    with refusal(InvalidPlan, **fault):
        make_plan(Rows(n=n))


def test_order_over_a_trillion_items_takes_no_more_than_over_few():
    plan = make_plan(range(10**12))
    with loader.Loader(plan, 0, 1) as batches:
        late = batches.batch_at(10**11)
    assert late["item"].tolist() == late.ordinals.tolist() == plan.slots(10**11).ordinal.tolist()


@pytest.mark.parametrize("rank", [0, 1])
def test_another_fingerprint_at_resume_is_refused(rank):
    """As after an unseeded shuffle of a Hugging Face dataset, or on a rank whose files differ."""
    with loader.Loader(make_plan(Rows(_fingerprint="before")), 0, 2) as batches:
        next(batches)
        state = batches.state_dict()
    with (
        loader.Loader(make_plan(Rows(_fingerprint="after")), rank, 2) as other,
        pytest.raises(
            PlanMismatch,
            match=r"source 'photos' is a dataset, here of 40 items with the fingerprint 'hf-after'; the run had "
            r"another: usual causes are added files, an unsorted os\.listdir, and a shuffle\(\) without a seed",
        ),
    ):
        other.load_state_dict(state)
    with loader.Loader(make_plan(Rows(_fingerprint="before")), rank, 2) as same:
        same.load_state_dict(state)
        assert next(same).step == 1


IMPORTING = """
    import sys
    import loader

    class Late:
        def __len__(self):
            return 40

        def __getitem__(self, i):
            if i % 4 == 3:
                import torch

                return float(torch.rand(()))
            return float(i)

    plan = loader.plan({"photos": Late()}, seed=7, global_batch=8)

    def values(world_size):
        out = []
        for step in range(4):
            for rank in range(world_size):
                with loader.Loader(plan, rank, world_size, framework="numpy", workers=0) as batches:
                    out += batches.batch_at(step)["item"].tolist()
        return out

    assert "torch" not in sys.modules
    first = values(1)
    assert "torch" in sys.modules
    assert values(2) == first
    assert values(1) == first
"""


def test_library_that_an_item_imports_draws_the_same():
    script = textwrap.dedent(IMPORTING)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
