"""A batch as it is shown: equal values are found by their bytes, whatever they are."""

import numpy as np
import pytest
import torch

import loader
from penstock.view.inspect.shown_batch import shown_batch
from penstock.view.replays.replayed_values import BatchValues

ONES = torch.ones(64, dtype=torch.bfloat16)
RAMP = np.arange(100, dtype=np.float32)


def values_of(*samples):
    return BatchValues(
        step=0,
        rank=0,
        world_size=1,
        first_slot=0,
        digest=0,
        crc32c={},
        ids=[None] * len(samples),
        slots=list(samples),
    )


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (RAMP, RAMP.copy(), RAMP + 1),
        (RAMP.reshape(10, 10), RAMP.reshape(10, 10)[:, :], RAMP.reshape(5, 20)),
        (RAMP, RAMP[::1], RAMP[::-1]),
        (RAMP, RAMP.copy(), RAMP.astype(np.float64)),
        (
            torch.ones(64, dtype=torch.bfloat16),
            torch.ones(64, dtype=torch.bfloat16),
            torch.ones(64, dtype=torch.float16),
        ),
        (b"x" * 64, b"x" * 64, b"x" * 65),
        ("\ud800 caption " * 9, "\ud800 caption " * 9, "\ud801 caption " * 9),
    ],
)
def test_equal_values_have_one_hash_and_others_none(plan, one, same, other):
    found = shown_batch(plan, values_of({"a": one}, {"a": other}, {"a": same}, {"b": one}))
    hashes = [slot.hashes for slot in found.slots]
    assert hashes[0] == hashes[2] != {}
    assert hashes[1] == hashes[3] == {}


def test_small_values_and_those_without_bytes_have_none(plan):
    for value in (7, "cat", b"x" * 63, np.zeros(3), {"a": 1}, object(), np.array([object()] * 64), None):
        found = shown_batch(plan, values_of({"a": value}, {"a": value}))
        assert [slot.hashes for slot in found.slots] == [{}, {}]


def test_values_of_equal_checksums_are_held_against_each_other(plan, monkeypatch):
    monkeypatch.setattr(BatchValues, "crcs_of", lambda _, slot, sample: dict.fromkeys(sample, 7))
    found = shown_batch(plan, values_of({"a": RAMP}, {"a": RAMP + 1}, {"a": RAMP.copy()}))
    one, other, same = (slot.hashes["a"] for slot in found.slots)
    assert one == same != other


def test_pictures_are_made_of_the_first_field_that_has_one(plan):
    photo = np.zeros((300, 200, 3), np.uint8)
    sample = {"txt": "a cat", "depth": photo[:, :, 0], "jpg": photo}
    found = shown_batch(plan, values_of(sample, {}))
    assert [set(slot.thumbnails) for slot in found.slots] == [{"depth"}, set()]
    assert [one.field for one in found.slots[0].fields] == ["txt", "depth", "jpg"]
    assert len(found.slots[0].thumbnails["depth"].data) < found.nbytes < 20_000
    assert shown_batch(plan, values_of(sample), n_pictured=0).slots[0].thumbnails == {}


@pytest.fixture(scope="module")
def plan(trained):
    with loader.Root(trained) as root:
        yield loader.open_plan(root, loader.read_trail(root, "one").starts[0].plan)
