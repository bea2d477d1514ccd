"""Metrics of a run and of its replay, read part by part: any trainer may write these objects."""

import gc
import secrets

import pyarrow as pa
import pytest

from loader.dataset.tables.parquet import table_bytes
from loader.errors import Corrupt
from loader.run.trail import row_numbers, step_range_reads, step_rows
from loader.run.trail.step_range_reads import notes_in_parts
from tests.dataset.stores import Counting
from tests.refusals import refusal


def put_notes(root, run, rank, ranks, steps, nbytes=0, **columns):
    """Store an object of a rank with metrics only, which a trainer may forge."""
    table = pa.table({"step": list(steps), "at_us": [1000 + step for step in steps]} | columns)
    data = table_bytes(table, step_rows.TABLE) + bytes(nbytes)
    name = secrets.token_hex(8)
    root.store.put(f"trails/{run}/{rank}-of-{ranks}/{next(iter(steps)):019d}-{name}.parquet", data)


def test_metrics_of_two_runs_come_part_by_part_from_the_second_ones_steps(memory_root, monkeypatch):
    for run, first_steps in (("a", range(0, 400, 20)), ("b", (100, 120, 300))):
        for rank in (0, 1):
            for first in first_steps:
                steps = range(first, first + 20)
                losses = pa.array([rank + step / 2 for step in steps], pa.float64())
                put_notes(memory_root, run, rank, 2, steps, **{"note.loss": losses, "start": ["x"] * 20})
    counted = Counting(memory_root.store)
    memory_root._use(counted)
    monkeypatch.setattr(step_range_reads, "PART_ROWS", 20)
    found = [
        (sorted(set(one.steps["step"])), one.steps.columns, len(one.steps), one.steps.equals(other.steps))
        for one, other in notes_in_parts(memory_root, "a", "b")
    ]
    columns = ["step", "at_us", "rank", "world_size", "note.loss"]
    begins = (100, 110, 120, 130, 300, 310)
    assert [one[0] for one in found] == [list(range(begin, begin + 10)) for begin in begins]
    assert all(one[1:] == (columns, 20, True) for one in found)
    assert list(notes_in_parts(memory_root, "a", "c")) == list(notes_in_parts(memory_root, "c", "b")) == []


def test_comparison_of_a_forged_long_trail_ends(memory_root, monkeypatch, caplog):
    put_notes(memory_root, "a", 0, 1, range(3))
    for first in range(0, 10**6, 10**4):
        put_notes(memory_root, "b", 0, 10**9, range(first, first + 1))
    monkeypatch.setattr(step_range_reads, "MOST_PARTS", 5)
    assert [other.steps["step"].to_list() for _, other in notes_in_parts(memory_root, "a", "b")] == [
        [0], [10_000], [20_000]
    ]  # fmt: skip
    assert "b is compared with a up to step 20001 only" in caplog.text


FORGED_NOTES = {
    "texts": ({"note.loss": ["x"] * 3}, "a metric is not a number"),
    "many": ({f"note.{number}": pa.array([0.0] * 3) for number in range(8)}, "3 rows with 10 columns"),
    "no time": ({"at_us": pa.array([1, None, 2])}, "a step lacks its at_us"),
}


@pytest.mark.parametrize(("columns", "fault"), FORGED_NOTES.values(), ids=FORGED_NOTES)
def test_forged_object_of_a_trail_is_named(memory_root, monkeypatch, columns, fault):
    monkeypatch.setattr(row_numbers, "MOST_NUMBERS", 27)
    put_notes(
        memory_root, "a", 0, 1, range(3), **{f"note.{number}": pa.array([0.0] * 3) for number in range(7)}
    )
    assert list(notes_in_parts(memory_root, "a", "a"))
    put_notes(memory_root, "b", 0, 1, range(3), **columns)
    with refusal(Corrupt, what="table", within=f"trails/b/0-of-1/{0:019}-", given=fault):
        list(notes_in_parts(memory_root, "a", "b"))


def test_large_object_of_a_trail_is_named(memory_root):
    put_notes(memory_root, "a", 0, 1, range(3))
    put_notes(memory_root, "b", 0, 1, range(3), nbytes=9 * 2**20)
    with refusal(Corrupt, within="trails/b/", accepted="up to 8388608 bytes") as caught:
        list(notes_in_parts(memory_root, "a", "b"))
    assert str(caught.value.what).startswith(f"0-of-1/{0:019}-")


def test_objects_of_metrics_leave_no_work_for_the_garbage_collector(memory_root):
    put_notes(memory_root, "a", 0, 1, range(3), **{"note.loss": [0.5] * 3})
    (info,) = memory_root.store.list("trails/a/0-of-1/")
    data = memory_root.store.get(info.key).data

    def n_garbage():
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                row_numbers.row_numbers(data, info.key, {"step": pa.int64()})
            return gc.collect()
        finally:
            gc.enable()

    # A thread of an earlier test may end meanwhile, and leave some.
    assert min(n_garbage() for _ in range(4)) == 0
