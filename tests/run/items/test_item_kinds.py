"""Items of every kind, in the arrays of every framework."""

from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import loader
from loader.errors import InvalidSample
from tests.refusals import refusal

N = 12
BATCH = 4
Pair = namedtuple("Pair", "image label")


@dataclass
class Photo:
    image: object
    label: int


def first_batch(item, **options):
    """Return the first batch of a dataset whose items are item(0) to item(11), and its ordinals."""
    plan = loader.plan({"photos": [item(i) for i in range(N)]}, seed=7, global_batch=BATCH)
    with loader.Loader(plan, 0, 1, **options) as batches:
        batch = next(batches)
    return batch, batch.ordinals.tolist()


def tensor(i):
    return torch.full((2, 3), i, dtype=torch.int32)


KINDS = {
    "mapping": (lambda i: {"image": tensor(i), "label": i}, ["image", "label"]),
    "nested": (lambda i: {"image": {"pixels": tensor(i)}, "label": i}, ["image.pixels", "label"]),
    "named tuple": (lambda i: Pair(tensor(i), i), ["image", "label"]),
    "dataclass": (lambda i: Photo(tensor(i), i), ["image", "label"]),
    "tuple": (lambda i: (tensor(i), i), ["0", "1"]),
    "value": (tensor, ["item"]),
}
ARRAYS = {"torch": torch.Tensor, "numpy": np.ndarray}


@pytest.mark.parametrize("framework", ARRAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_items_become_the_arrays_of_the_framework(kind, framework):
    item, names = KINDS[kind]
    batch, ordinals = first_batch(item, framework=framework)
    assert list(batch.keys()) == names
    image = batch[names[0]]
    assert isinstance(image, ARRAYS[framework])
    assert str(image.dtype).removeprefix("torch.") == "int32"
    assert np.array_equal(np.asarray(image), np.stack([np.full((2, 3), ordinal) for ordinal in ordinals]))


VALUES = [
    ("number", lambda i: i, lambda column, i: column.dtype == np.int64 and column[0] == i),
    ("float", lambda i: i / 2, lambda column, i: column.dtype == np.float64 and column[0] == i / 2),
    ("bool", lambda i: i % 2 == 0, lambda column, i: column.dtype == bool and column[0] == (i % 2 == 0)),
    ("scalar", lambda i: np.float32(i), lambda column, i: column.dtype == np.float32 and column[0] == i),
    ("string", lambda i: f"a{i:02}", lambda column, i: column[0] == f"a{i:02}"),
    ("string of numpy", lambda i: np.str_(f"a{i:02}"), lambda column, i: type(column[0]) is str),
    ("bytes", lambda i: bytes([i]), lambda column, i: column[0] == bytes([i])),
    ("none", lambda i: None if i % 2 else i, lambda column, i: column[0] == (None if i % 2 else i)),
    ("zero dimensions", lambda i: torch.tensor(i), lambda column, i: column.shape == (4,) and column[0] == i),
    ("image", lambda i: Image.new("L", (3, 2), i), lambda column, i: column.shape == (4, 2, 3)),
    ("ragged", lambda i: torch.ones(i + 1), lambda column, i: column[0].shape == (i + 1,)),
    ("list", lambda i: [torch.ones(2), i], lambda column, i: isinstance(column[0][0], np.ndarray)),
    ("boxes", lambda i: [{"box": torch.ones(4)}], lambda column, i: column[0][0]["box"].tolist() == [1] * 4),
    ("gradient", lambda i: torch.ones(2, requires_grad=True), lambda column, i: column.shape == (4, 2)),
    ("complex view", lambda i: torch.tensor([1j]).conj(), lambda column, i: column[0][0] == -1j),
]


@pytest.mark.parametrize(("item", "holds"), [case[1:] for case in VALUES], ids=[case[0] for case in VALUES])
def test_value_of_an_item_becomes_a_column(item, holds):
    batch, ordinals = first_batch(lambda i: {"value": item(i)}, framework="numpy")
    column = batch["value"]
    assert isinstance(column, np.ndarray | list)
    assert holds(column, ordinals[0])


def test_dtype_that_numpy_lacks_stays_a_tensor():
    batch, _ = first_batch(lambda i: torch.ones(2, dtype=torch.bfloat16), framework="numpy")
    assert [one.dtype for one in batch["item"]] == [torch.bfloat16] * BATCH


def test_transform_gets_the_tensors_of_the_dataset():
    kinds = set()

    def transform(sample, rng):
        kinds.add(type(sample["item"]))
        return {"item": sample["item"] * 2}

    batch, ordinals = first_batch(tensor, framework="numpy", transform=transform)
    assert kinds == {torch.Tensor}
    assert batch["item"][:, 0, 0].tolist() == [2 * ordinal for ordinal in ordinals]


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_digest_is_the_same_in_every_framework(framework):
    batch, _ = first_batch(tensor, framework=framework)
    assert batch.digest == first_batch(tensor)[0].digest


def test_objects_without_bytes_are_named_once(caplog):
    plan = loader.plan({"photos": [(SimpleNamespace(a=i), i) for i in range(N)]}, seed=7, global_batch=BATCH)
    with loader.Loader(plan, 0, 1, steps=2) as batches:
        digests = [batch.digest for batch in batches]
    assert len(set(digests)) == 2
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert "source 'photos': the field '0' holds objects without bytes (SimpleNamespace)" in warnings[0]


class Elsewhere:
    """Items on a device that is not this machine's memory."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return {"image": torch.empty(2, device="meta"), "label": i}


def test_tensor_on_a_device_is_refused_in_worker_processes():
    plan = loader.plan({"photos": Elsewhere()}, seed=7, global_batch=BATCH)
    with (
        loader.Loader(plan, 0, 1, workers=1) as batches,
        refusal(InvalidSample, what="image", given="meta", within="of source 'photos'"),
    ):
        next(batches)
