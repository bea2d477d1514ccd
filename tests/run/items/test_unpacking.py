"""Loops over batches of tuples, as they are written for torch's DataLoader."""

from collections import namedtuple

import pytest

import loader
from loader.errors import InvalidRuntime
from tests.refusals import refusal

Pair = namedtuple("Pair", "image label")


def mapping(i):
    return {"image": i, "label": i % 3}


def pair(i):
    return Pair(i, i % 3)


def make_loader(dataset, **options):
    plan = loader.plan({"photos": dataset}, seed=7, global_batch=4)
    return loader.Loader(plan, 0, 1, steps=2, **options)


def name_fields(items):
    return loader.items(items, fields=("image", "label"))


PAIRS = [(i, i % 3) for i in range(12)]
SAYS = r"Take its columns: batch\['{}'\], batch\['{}'\]\. batch\.keys\(\) has the names"


def test_batch_of_tuples_is_not_unpacked():
    with make_loader(PAIRS) as batches, pytest.raises(InvalidRuntime, match=SAYS.format(0, 1)):
        for _images, _labels in batches:
            pass


def test_batch_of_a_worker_process_is_not_unpacked():
    with (
        make_loader(PAIRS, workers=1) as batches,
        refusal(InvalidRuntime, what="batch", given="tuple"),
    ):
        for _images, _labels in batches:
            pass


@pytest.mark.parametrize("dataset", [name_fields(PAIRS), [pair(i) for i in range(12)]])
def test_unpacking_names_the_fields(dataset):
    with (
        make_loader(dataset) as batches,
        pytest.raises(InvalidRuntime, match=SAYS.format("image", "label")),
    ):
        _images, _labels = next(batches)


def test_batch_of_tuples_is_a_mapping_otherwise():
    with make_loader(name_fields(PAIRS)) as batches:
        batch = next(batches)
    assert list(batch.keys()) == ["image", "label"]
    assert dict(batch).keys() == dict(batch.items()).keys() == batch.fields.keys()
    assert "image" in batch
    assert "0" not in batch
    assert len(batch) == 4
    assert "image: int64 [4]" in repr(batch)
    first, second = batch.micro_batches(2)
    assert [len(first), len(second)] == [2, 2]
    for part in (first, batch.to("cpu")):
        with refusal(InvalidRuntime, what="batch", given="tuple"):
            list(part)


def test_part_without_samples_is_not_unpacked():
    plan = loader.plan({"photos": PAIRS}, seed=7, global_batch=8)
    with loader.Loader(plan, 7, 8, epochs=1) as batches:
        *_, last = batches
    assert not last.mask.any()
    with refusal(InvalidRuntime, what="batch", given="tuple"):
        _image, _label = last


@pytest.mark.parametrize("dataset", [[mapping(i) for i in range(12)], list(range(12))])
def test_other_items_give_names(dataset):
    with make_loader(dataset) as batches:
        batch = next(batches)
    assert list(batch) == list(batch.keys())


def test_stored_batch_gives_names(tmp_path):
    root = loader.Root(tmp_path / "root")
    with root.write("rows") as writer:
        for i in range(8):
            writer.add(f"{i}", {"0.cls": i, "1.cls": i})
    with make_loader(root.open("rows@1")) as batches:
        first, second = next(batches)
    assert [first, second] == ["0.cls", "1.cls"]
