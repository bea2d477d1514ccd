"""A batch as it is shown: equal values are found by their bytes, whatever they are."""

import numpy as np
import pytest
import torch

import loader
from penstock.view.inspect.shown_batch import show_batch
from penstock.view.inspect.step_record import step_record, step_values
from penstock.view.replays.replays import Replayers, Replays
from penstock.view.replays.training import Training
from tests.view.batch_values import BatchValues
from tests.view.conftest import train
from tests.view.recipes import plain

ONES = torch.ones(64, dtype=torch.bfloat16)
RAMP = np.arange(100, dtype=np.float32)


def batch_values(*samples):
    return BatchValues(ids=[None] * len(samples), slots=list(samples))


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
    found = show_batch(plan, batch_values({"a": one}, {"a": other}, {"a": same}, {"b": one}))
    hashes = [slot.hashes for slot in found.slots]
    assert hashes[0] == hashes[2] != {}
    assert hashes[1] == hashes[3] == {}


def test_small_values_and_those_without_bytes_have_none(plan):
    for value in (7, "cat", b"x" * 63, np.zeros(3), {"a": 1}, object(), np.array([object()] * 64), None):
        found = show_batch(plan, batch_values({"a": value}, {"a": value}))
        assert [slot.hashes for slot in found.slots] == [{}, {}]


@pytest.mark.parametrize("as_values", [np.asarray, torch.from_numpy])
def test_padding_of_windows_is_not_compared(plan, as_values):
    def window(chunk, is_pad):
        ages = np.zeros(len(chunk), np.int64)
        return {"a": as_values(chunk), "a.is_pad": as_values(is_pad), "a.age_ns": as_values(ages)}

    is_pad = np.arange(48) >= 20
    end = np.repeat(RAMP[:21], [*[1] * 20, 28])
    other_padding = np.where(is_pad, np.float32(7), end)
    none, whole = np.zeros(48, bool), np.ones(48, bool)
    chunks = (end, is_pad), (other_padding, is_pad), (end, none), (end, whole), (end, whole)
    found = show_batch(plan, batch_values(*(window(*one) for one in chunks)))
    hashes = [slot.hashes for slot in found.slots]
    assert hashes[0] == hashes[1] != {}
    assert hashes[2:] == [{}, {}, {}]
    few = np.arange(48) >= 15  # 60 bytes of values are too few to compare
    assert [slot.hashes for slot in show_batch(plan, batch_values(*[window(end, few)] * 2)).slots] == [{}, {}]


def test_step_of_windows_marks_only_values_inside_of_the_episode(root):
    """The first episode's camera ends early, so single frames and the end of chunks are padding."""
    rows = np.arange(12)
    ns = rows.astype(np.int64) * 10**8
    frames = np.random.default_rng(7).integers(0, 256, (12, 4, 8, 3), np.uint8)
    frozen = frames.copy()
    frozen[5] = frozen[4]
    for dataset, shown, camera_ns in (("ends", frames[:6], ns[:6]), ("freezes", frozen, ns)):
        with root.write(dataset) as writer:
            fields = {"action.npy": np.stack([rows] * 16, 1).astype(np.float32), "action.ns.npy": ns}
            writer.add("ep", {**fields, "cam.npy": shown, "cam.ns.npy": camera_ns})
        view = root.open(f"{dataset}@1").select("cam.npy", "action.npy")
        at = {"cam.npy": [0], "action.npy": loader.rows(0, 6)}
        windows = loader.windows(view, anchor="action.npy", at=at, max_age="50ms")
        train(root, loader.plan({dataset: windows}, seed=1, global_batch=12), dataset, plain, steps=1)
    marks = {}
    for dataset in ("ends", "freezes"):
        training, replayers = Training(root, dataset), Replayers(plain=Replays(root))
        batch, trouble = step_values(training, replayers, 0, 0, 1, show_batch)
        record = step_record(training, batch, None, trouble)
        replayers.close()
        keys = {row.slot: row.key for row in record.slots}
        equal = [mark for mark in record.marks if mark.name == "equal_values"]
        marks[dataset] = [(mark.field, sorted(keys[slot] for slot in mark.slots)) for mark in equal]
    assert marks == {"ends": [], "freezes": [("cam.npy", ["ep", "ep"])]}


def test_packed_documents_of_one_length_have_no_mark(root):
    """Their masks and layouts are equal, and so is a column; two sequences of one text are marked."""
    with root.write("texts") as writer:
        for number in range(8):
            start = 1000 * (number % 2) if number < 4 else 100 * number
            tokens = np.arange(start, start + 64, dtype=np.int32)
            writer.add(f"t{number}", {"tokens.npy": tokens, "mask.npy": np.arange(64) > 9}, {"n_sampled": 54})
    view = root.open("texts@1").select("tokens.npy", "mask.npy")
    marks = {}
    for length in (64, 128):
        pack = loader.pack("tokens.npy", length, beside={"mask.npy": 0}, columns=("n_sampled",))
        global_batch = 8 * 64 // length
        plan = loader.plan({"texts": view}, seed=1, global_batch=global_batch, boundary="mask", pack=pack)
        train(root, plan, f"packed-{length}", plain, steps=1)
        training, replayers = Training(root, f"packed-{length}"), Replayers(plain=Replays(root))
        batch, trouble = step_values(training, replayers, 0, 0, 1, show_batch)
        record = step_record(training, batch, None, trouble)
        marks[length] = [(mark.name, mark.field, len(mark.slots)) for mark in record.marks]
        replayers.close()
    assert marks[64] == [("equal_values", "tokens.npy", 2), ("equal_values", "tokens.npy", 2)]
    assert [mark for mark in marks[128] if mark[1] != "tokens.npy"] == []


def test_values_of_equal_checksums_are_held_against_each_other(plan, monkeypatch):
    monkeypatch.setattr(BatchValues, "crcs_of", lambda _, slot, sample: dict.fromkeys(sample, 7))
    found = show_batch(plan, batch_values({"a": RAMP}, {"a": RAMP + 1}, {"a": RAMP.copy()}))
    one, other, same = (slot.hashes["a"] for slot in found.slots)
    assert one == same != other


def test_pictures_are_made_of_the_first_field_that_has_one(plan):
    photo = np.zeros((300, 200, 3), np.uint8)
    sample = {"txt": "a cat", "depth": photo[:, :, 0], "jpg": photo}
    found = show_batch(plan, batch_values(sample, {}))
    assert [set(slot.thumbnails) for slot in found.slots] == [{"depth"}, set()]
    assert [one.field for one in found.slots[0].fields] == ["txt", "depth", "jpg"]
    assert len(found.slots[0].thumbnails["depth"].data) < found.nbytes < 20_000
    assert show_batch(plan, batch_values(sample), n_pictured=0).slots[0].thumbnails == {}


@pytest.fixture(scope="module")
def plan(trained):
    with loader.Root(trained) as root:
        yield loader.open_plan(root, loader.read_trail(root, "one").starts[0].plan)
