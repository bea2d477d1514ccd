"""A torch.profiler trace of some steps, with the loader's stages as spans.

The profiler does not see a loader's threads and processes. Their spans are added to its file afterwards: a batch's
`stats` give the time of each stage, one after the other, until the batch was ready.
"""

import gzip
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from loader.errors import InvalidRuntime
from loader.json_text import parse_json
from loader.run.batch.batch import MAKING

from .batch_source import BatchSource

if TYPE_CHECKING:
    import loader

_log = logging.getLogger(__name__)
PROCESS = "penstock loader"
WAIT = "loader wait"
"""Name of the span in which the training waits for a batch."""


class _TracedBatch(NamedTuple):
    """A batch of the traced steps."""

    step: int
    """Its global step."""
    ready_us: float
    """When the loader had made it, in UTC microseconds."""
    seconds: dict[str, float]
    """Stage of the loader -> its duration."""
    facts: dict[str, Any]
    """Arguments of its spans in the trace."""


class StepTrace:
    """Profiles the steps [first, end), and hands the gzipped trace to `put` as a function that makes it.

    A failure costs only the trace, and is logged.
    """

    def __init__(
        self, steps: tuple[int, int], device: Any, put: Callable[[str, Callable[[], bytes]], None]
    ) -> None:
        self._first, self._end = check_steps(steps)
        self._device = device
        self._put = put
        self._profiler: Any = None
        self._traced: list[_TracedBatch] = []
        self._is_over = False

    def batches(self, batches: BatchSource) -> Iterator["loader.Batch"]:
        """Yield the batches; profile from the first step's request to the end of the last step."""
        iterator = iter(batches)
        while True:
            step = batches.step  # of the next batch: all earlier steps are done
            if step >= self._end:
                self.close(step)
            elif step >= self._first and self._profiler is None and not self._is_over:
                self._start(step)
            batch = next(iterator, None) if self._profiler is None else self._wait_batch(iterator)
            if batch is None:
                return
            yield batch

    def _start(self, step: int) -> None:
        try:
            from torch.profiler import ProfilerActivity, profile

            activities = [ProfilerActivity.CPU]
            if self._device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            profiler = profile(activities=activities)
            profiler.start()
            self._profiler = profiler
            self._first = step  # a run that began after the first step to profile has a later one
        except Exception as error:  # noqa: BLE001 - such as another profiler that runs
            self._is_over = True
            _log.warning("steps from %d on are not profiled: %s", step, error)

    def _wait_batch(self, batches: Iterator["loader.Batch"]) -> "loader.Batch | None":
        """Return the next batch, or None at the end; note when the loader had it ready."""
        from torch.profiler import record_function

        asked_us = time_ns() / 1000
        with record_function(WAIT):
            batch = next(batches, None)
        if batch is not None and batch.micro == 0:  # the first part of a step; its stats are the whole step's
            lay_s = batch.stats.get("handover_wait_seconds", 0.0)
            # A batch that lay ready was made earlier than it was asked for.
            ready_us = asked_us - 1e6 * lay_s if lay_s else time_ns() / 1000
            seconds = {stage: batch.stats.get(name, 0.0) for stage, name in MAKING.items()}
            names = ("samples", "fetched_bytes", "requests", "retries")
            facts = {name: batch.stats[name] for name in names if name in batch.stats}
            self._traced.append(_TracedBatch(batch.step, ready_us, seconds, {"step": batch.step, **facts}))
        return batch

    def close(self, end: int) -> None:
        """End the profile before this step, if it runs."""
        profiler = self._profiler
        self._profiler = None
        self._is_over = True
        if profiler is None:
            return
        traced = self._traced
        self._traced = []
        try:
            profiler.stop()
            self._put(f"{self._first:012d}-{end:012d}", lambda: _trace_bytes(profiler, traced))
        except Exception as error:  # noqa: BLE001 - the training goes on
            _log.warning("the profile of steps %d to %d is lost: %s", self._first, end, error)


def check_record(steps: tuple[int, int], record: str | None) -> str:
    """Return the root of the record that takes the trace. Raises: InvalidRuntime for wrong steps or without one."""
    check_steps(steps)
    if record is None:
        message = f"profile={steps!r} without a record: Run.joined(record=URL), or `record` of its TOML file"
        raise InvalidRuntime(message, what="record", given=steps)
    return record


def check_steps(steps: tuple[int, int]) -> tuple[int, int]:
    """Return the steps. Raises: InvalidRuntime unless they are (first, end) with 0 <= first < end."""
    first, end = steps
    if not 0 <= first < end:
        raise InvalidRuntime(
            f"profile={steps!r}; accepted: (first step, step after the last), such as (100, 110)",
            what="profile",
            given=steps,
            accepted="(first step, step after the last)",
        )
    return first, end


def _trace_bytes(profiler: Any, traced: Sequence[_TracedBatch]) -> bytes:
    """Return the profiler's trace and the loader's spans as gzipped JSON."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(file))
        trace = parse_json(file.read_bytes(), lenient=True)
    base_us = trace.get("baseTimeNanoseconds", 0) / 1000
    trace["traceEvents"] += _events(traced, base_us)
    return gzip.compress(json.dumps(trace).encode(), 6, mtime=0)


def _events(traced: Sequence[_TracedBatch], base_us: float) -> list[dict[str, Any]]:
    """Return spans of the loader's stages, on as many rows as batches were made at the same time."""
    rows: list[float] = []  # begin of each row's earliest span
    events: list[dict[str, Any]] = []
    for batch in sorted(traced, key=lambda batch: -batch.ready_us):
        end_us = batch.ready_us
        # From the last batch backwards: the first row whose earliest span begins after this one ends.
        row = next((row for row, begin_us in enumerate(rows) if begin_us >= end_us), len(rows))
        # Only durations are known, so stages are laid out backwards from the time of readiness.
        for stage in reversed(MAKING):
            duration_us = 1e6 * batch.seconds[stage]
            end_us -= duration_us
            if duration_us:
                event = {"ph": "X", "cat": "user_annotation", "name": f"loader {stage}", "args": batch.facts}
                place = {"pid": PROCESS, "tid": row, "ts": end_us - base_us, "dur": duration_us}
                events.append({**event, **place})
        rows[row : row + 1] = [end_us]
    name = {"ph": "M", "name": "process_name", "pid": PROCESS, "tid": 0, "args": {"name": PROCESS}}
    return [name, *reversed(events)]
