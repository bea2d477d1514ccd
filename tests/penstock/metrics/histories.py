"""Runs with synthetic histories: objects of a run log and of a record, as a training writes them."""

import hashlib
import io
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq

from loader.run.trail.step_rows import StepRow, rows_table
from loader.storage import Store
from penstock.train.intervals import ROW, interval_bytes
from penstock.train.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a run log."""

    step: int
    at_us: int
    loss: float = 1.0
    wait_us: int = 0
    substituted: int = 0
    start: str = "0" * 16


def put_steps(store: Store, run: str, steps: list[Step], place: str = "0-of-1") -> str:
    """Store an object of the run log, and return its key."""
    rows = []
    for step in steps:
        row = StepRow(
            step=step.step,
            at_us=step.at_us,
            digest=step.step,
            substituted=step.substituted,
            wait_us=step.wait_us,
            notes={"loss": step.loss},
        )
        rows.append(row)
    file = io.BytesIO()
    pq.write_table(rows_table(rows, steps[0].start), file)
    data = file.getvalue()
    name = hashlib.sha256(data).hexdigest()[:16]
    key = f"trails/{run}/{place}/{steps[0].step:019d}-{name}.parquet"
    store.put(key, data)
    return key


def even_steps(first: int, n: int, begun_us: int, every_us: int = 1_000_000, **facts: float) -> list[Step]:
    """Return steps at even times."""
    steps = []
    for number in range(n):
        step = Step(step=first + number, at_us=begun_us + number * every_us, **facts)  # type: ignore[arg-type]
        steps.append(step)
    return steps


def put_start(store: Store, run: str, at_us: int, node: str = "m1") -> int:
    """Store a start, and return its number."""
    return RunFolder(store, run).begin_attempt({"at_us": at_us, "id": str(at_us), "node": node, "ranks": 1})


def put_interval(
    store: Store,
    run: str,
    attempt: int,
    end_step: int,
    ended_us: int,
    wait_s: float = 1.0,
    step_s: float = 60.0,
) -> None:
    """Store an interval of one rank."""
    row = np.zeros(1, ROW)
    row["node"] = b"m1"
    row["end_step"] = end_step
    row["begun_us"] = ended_us - 60_000_000
    row["ended_us"] = ended_us
    row["wait_s"] = wait_s
    row["step_s"] = step_s
    _, data = interval_bytes(row.tobytes())
    RunFolder(store, run).put_interval(attempt, end_step, data)
