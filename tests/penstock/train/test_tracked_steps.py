"""Steps of a trail for a tracker that lacks them: each once, and few at a time."""

from pathlib import Path
from typing import Any

import pytest

import loader
from loader.errors import Corrupt
from penstock.train.trackers import feed
from penstock.train.trackers.feed import TrackedSteps
from tests.refusals import refusal

STEPS = 40


@pytest.fixture
def record(tmp_path: Path) -> str:
    root = loader.Root(tmp_path / "root")
    with root.write("points") as writer:
        for number in range(STEPS):
            writer.add(f"{number:03d}", {"cls": number})
    plan = loader.plan({"points": root.open("points@1")}, seed=7, global_batch=1)
    trail = loader.Trail(root, "big-7")
    with loader.Loader(plan, 0, 1, framework="numpy", workers=0, trail=trail, steps=STEPS) as batches:
        for batch in batches:
            batches.note(loss=float(batch.step))
    return root.url


def test_gap_is_read_in_parts(record: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "PART", 7)
    read, parts = feed.read_rank_trail, list[int]()

    def counted(root: loader.Root, run: str, steps: range) -> Any:
        trail = read(root, run, steps)
        parts.append(len(trail.steps))
        return trail

    monkeypatch.setattr(feed, "read_rank_trail", counted)
    rows = [row for batch in TrackedSteps(record, "big-7", "mlflow").from_trail(1, 30) for row in batch]
    assert [(row.step, row.values["loss"]) for row in rows] == [(step, float(step)) for step in range(2, 30)]
    assert parts == [7] * 4


@pytest.mark.parametrize("data", [b"{", b'{"step":"x"}', b'{"step":1e999}', b"[]"])
def test_damaged_last_step_is_named(record: str, data: bytes) -> None:
    steps = TrackedSteps(record, "big-7", "mlflow")
    assert steps.last() == -1
    steps.put(5)
    assert steps.last() == 5
    loader.Root(record).store.put("trainings/big-7/trackers/mlflow.json", data)
    with refusal(Corrupt, what="last step", within="trackers/mlflow.json") as damaged:
        steps.last()
    assert "delete it: the tracker gets the trail again" in str(damaged.value)
