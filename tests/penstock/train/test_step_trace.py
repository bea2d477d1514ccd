"""A profile of some steps, read back: torch's spans, and the loader's beside them."""

import gzip
import json
import signal
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import loader
from loader.errors import InvalidRuntime
from penstock.train import Run
from penstock.train.launched import Launched
from penstock.train.step_trace import PROCESS, WAIT
from tests.penstock.train.conftest import Rank, digests
from tests.refusals import refusal

Start = Callable[..., list[Rank]]
RECORDED = {"PENSTOCK_RUN": "big-7"}


def traces(root: str) -> dict[str, list[dict[str, Any]]]:
    """Return the name of each trace -> its events."""
    store, prefix = loader.Root(root).store, "trainings/big-7/profiles/"
    return {
        info.key.removeprefix(prefix): json.loads(gzip.decompress(store.get(info.key).data))["traceEvents"]
        for info in store.list(prefix)
    }


def test_profile_of_steps_has_the_loaders_stages(root: str, start: Start) -> None:
    ranks = start(2, "--steps", 14, "--profile", 5, 9, **RECORDED, PENSTOCK_RECORD=root)
    assert [rank.status() for rank in ranks] == [0, 0], ranks[0].text
    ((name, events),) = traces(root).items()
    assert name.startswith("000000000005-000000000009-000000-")
    waits = [event for event in events if event.get("name") == WAIT and event["ph"] == "X"]
    assert len(waits) == 4
    stages = [event for event in events if event.get("pid") == PROCESS and event["ph"] == "X"]
    counts = Counter((event["name"], event["args"]["step"]) for event in stages)
    for stage in ("plan", "fetch", "decode", "collate"):
        assert [counts[f"loader {stage}", step] for step in range(5, 9)] == [1] * 4, stage
    for row in {event["tid"] for event in stages}:
        own = sorted((event["ts"], event["dur"]) for event in stages if event["tid"] == row)
        assert all(ts + dur <= after + 1 for (ts, dur), (after, _) in pairwise(own)), row
    end = max(event["ts"] + event["dur"] for event in waits)
    assert all(event["ts"] + event["dur"] <= end + 1e3 for event in stages), "ready before it was taken"
    assert any("all_reduce" in str(event.get("name")) for event in events), "torch's own spans are there"


def test_stop_within_the_profiled_steps_stores_what_there_is(root: str, start: Start) -> None:
    (rank,) = start(1, "--profile", 3, 39, **RECORDED, PENSTOCK_RECORD=root)
    rank.wait_for("took", 8)
    rank.signal(signal.SIGTERM)
    rank.status()
    ((name, events),) = traces(root).items()
    assert name.startswith(f"000000000003-{len(digests([rank])):012d}-000000-")
    assert (
        sum(event.get("name") == WAIT and event["ph"] == "X" for event in events) == len(digests([rank])) - 3
    )


def test_store_that_refuses_a_trace_costs_only_the_trace(root: str, start: Start) -> None:
    blocked = Path(root) / "trainings" / "big-7" / "profiles"
    blocked.parent.mkdir(parents=True)
    blocked.write_bytes(b"")
    (rank,) = start(1, "--steps", 8, "--step-s", 0, "--profile", 2, 4, **RECORDED, PENSTOCK_RECORD=root)
    assert rank.status() == 0, rank.text
    assert list(digests([rank])) == list(range(8))
    assert "could not store" in rank.text
    store = loader.Root(root).store
    assert len(list(store.list("trainings/big-7/events/"))) == 4


@pytest.mark.parametrize(
    ("steps", "record", "name"),
    [((4, 4), "x", "profile"), ((-1, 3), "x", "profile"), ((2, 4), None, "record")],
)
def test_profile_that_cannot_be_is_refused(steps: tuple[int, int], record: str | None, name: str) -> None:
    run = Run(Launched.from_env({}), "alone", None, record)
    with refusal(InvalidRuntime, what=name, given=steps):
        next(run.steps(None, profile=steps))
