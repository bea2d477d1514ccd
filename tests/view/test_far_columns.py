"""Columns far from their version's mean are marked on the pages of a sample, of its slot and of its step."""

import numpy as np

import loader
from penstock.view.inspect.sample_record import sample_record
from penstock.view.inspect.slot_record import slot_record
from penstock.view.inspect.step_record import step_record
from penstock.view.marks import MIN_SAMPLES, column_spreads
from penstock.view.open_data import OpenData
from tests.view.conftest import photo, train
from tests.view.recipes import plain

PLANTED = 7
"""The sample whose width is far from all others."""


def write(root, n, far=9000, dataset="wide"):
    with root.write(dataset) as writer:
        for i in range(n):
            width = far if i == PLANTED else 100 + i % 10
            metadata = {
                "width": width,
                "share": 0.5,
                "ok": True,
                "label": "a",
                "left": None if i % 2 else 0.1 * i,
            }
            writer.add(f"k{i:03d}", {"jpg": photo(1), "cls": i % 3}, metadata=metadata)
    return root.open(f"{dataset}@latest")


def sample_marks(version):
    """Key -> names and columns of its marks, of the samples that have any."""
    found = (sample_record(version, ordinal) for ordinal in range(len(version)))
    return {one.key: [(mark.name, mark.field) for mark in one.marks] for one in found if one.marks}


def test_sample_with_the_planted_width_alone_is_marked(root):
    version = write(root, 60)
    assert sample_marks(version) == {"k007": [("column_far", "width")]}
    (ordinal,) = (i for i, key in enumerate(version.keys(np.arange(60))) if key == "k007")
    (mark,) = sample_record(version, ordinal).marks
    assert mark.text == "column width = 9,000, 8 sigma from the version's mean 252.7"


def test_few_samples_and_constant_columns_have_no_spread(root):
    assert column_spreads(write(root, MIN_SAMPLES - 1)) == {}
    assert set(column_spreads(write(root, 80, far=100, dataset="other"))) == {"width", "left"}


def test_spread_of_a_column_ignores_infinities(root):
    finite = [100.0 + i % 10 for i in range(60)]
    with root.write("wide") as writer:
        for i, width in enumerate([*finite, *[float("inf")] * 60]):
            writer.add(f"k{i:03d}", {"cls": i % 3}, metadata={"width": width})
    mean, sigma = column_spreads(root.open("wide@latest"))["width"]
    assert mean == np.mean(finite)
    assert np.isclose(sigma, np.std(finite))


def test_its_slot_is_marked_as_well(root):
    view = write(root, 60).select("jpg", "cls")
    plan = loader.plan({"wide": view}, seed=3, global_batch=60)
    train(root, plan, "one", recipe=plain, steps=1)
    opened = OpenData(root)
    one = plan.steps_of("wide", "k007", before=1)[0]
    step, slot = one.step, one.slot
    for at, wanted in ((slot, ["column_far"]), ((slot + 1) % 60, [])):
        record = slot_record(opened.training("one"), opened.slot("one", step, at)[0])
        assert [mark.name for mark in record.marks if mark.name == "column_far"] == wanted
    opened.close()


def column_marks(root, plan, step=0):
    """Marks of the columns of a step, as name, field, slots and text."""
    opened = OpenData(root)
    training = opened.training("one")
    batch, trouble = opened.batch("one", step, 0, 1)
    found = [mark for mark in step_record(training, batch, None, trouble).marks if "column" in mark.name]
    opened.close()
    return [(mark.name, mark.field, mark.slots, mark.text) for mark in found]


def test_its_step_is_marked_and_others_are_not(root):
    view = write(root, 60).select("jpg", "cls")
    plan = loader.plan({"wide": view}, seed=3, global_batch=20)
    train(root, plan, "one", recipe=plain, steps=3)
    (held,) = plan.steps_of("wide", "k007", before=3)
    text = "column width = 9,000, 8 sigma from the version's mean 252.7"
    for step in range(3):
        wanted = [("column_far", "width", (held.slot,), text)] if step == held.step else []
        assert column_marks(root, plan, step) == wanted


def test_step_reads_no_annotation_and_says_where_a_table_cannot_be_read(root):
    write(root, 60)
    root.annotate("wide", "widths", {"k007": {"width": 105}}, author="ada")
    plan = loader.plan({"wide": root.open("wide@latest").select("jpg", "cls")}, seed=3, global_batch=60)
    train(root, plan, "one", recipe=plain, steps=1)
    assert column_marks(root, plan) == []
    (path,) = (info.key for info in root.store.list("data/") if "samples-metadata" in info.key)
    data = bytearray(root.store.get(path).data)
    data[len(data) // 3] ^= 1
    root.store.put(path, bytes(data))
    plan = loader.plan({"wide": root.open("wide@1").select("jpg", "cls")}, seed=3, global_batch=60)
    train(root, plan, "one", recipe=plain, steps=1)
    ((name, _, slots, text),) = column_marks(root, plan)
    assert (name, len(slots)) == ("columns_unreadable", 60)
    assert text.startswith("the samples table cannot be read: ")
