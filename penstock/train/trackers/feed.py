"""Send a run's steps to one tracker, in a thread. A tracker that fails is tried again, and never stops the training.

The last step of a tracker that cannot be asked is in trainings/<run>/trackers/<tracker>.json: {"format": 1, "step":
number}, replaced after each batch.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loader.dataset.log.entries import canonical
from loader.dataset.root import Root
from loader.errors import Corrupt, FormatTooNew, MissingDependency, ObjectNotFound, RunNotFound
from loader.redaction import redact
from loader.run.trail.read_trail import RunTrail
from loader.run.trail.step_range_reads import read_rank_trail
from loader.run.trail.step_rows import NOTE
from loader.storage.mirror import primary_store

from ..record_objects.json_object import read_object, whole_number
from ..run_folder import FORMAT, RunFolder
from .run_facts import RunFacts
from .tracker import RunEnd, TrackedStep, Tracker

_log = logging.getLogger(__name__)
FLUSH_S = 20.0
"""Seconds between two batches."""
RETRY_S = 60.0
"""Seconds until a tracker that failed is tried again."""
CLOSE_S = 6.0
"""Seconds that the end of a run waits for its trackers."""
MAX_STEPS = 100_000
"""Steps held for a tracker that fails; the oldest are dropped."""
BATCH = 1000
"""Steps of the trail that are sent at once."""
PART = 20_000
"""Steps of the trail that are read at once."""


class TrackedSteps:
    """The last step that a tracker has, in the record of the run."""

    def __init__(self, record: str, run: str, tracker: str) -> None:
        self._root = Root(record)
        self._run = run
        self._tracker = tracker
        self._store = primary_store(self._root.store)
        self._key = RunFolder(self._store, run).key(f"trackers/{tracker}.json")

    def last(self) -> int:
        """Return the last step; -1 for none. Raises: StoreError; Corrupt."""
        try:
            return read_object(self._store, self._key, "last step", lambda body: whole_number(body, "step"))
        except ObjectNotFound:
            return -1
        except Corrupt as error:
            raise error.with_message(f"{error}; delete it: the tracker gets the trail again") from error

    def put(self, step: int) -> None:
        """Store the last step. Raises: StoreError."""
        self._root.create_if_empty()
        self._store.put(self._key, canonical({"format": FORMAT, "step": step}))

    def from_trail(self, after: int, before: int) -> Iterator[Sequence[TrackedStep]]:
        """Yield the trail's metrics of the steps between two, in batches: the first rank's last record of each step.

        Costs as `read_rank_trail` for each `PART` steps: memory does not grow with the gap. Raises: StoreError.
        """
        for begin in range(after + 1, before, PART):
            steps = range(begin, min(begin + PART, before))
            try:
                trail = read_rank_trail(self._root, self._run, steps)
            except (RunNotFound, Corrupt, FormatTooNew, MissingDependency) as error:
                _log.warning(
                    "%s gets no steps between %d and %d of %s: %s",
                    *(self._tracker, steps.start - 1, before, self._run, redact(str(error))),
                )
                return
            yield from _batches(trail)


def _batches(trail: RunTrail) -> Iterator[Sequence[TrackedStep]]:
    rows = trail.steps.sort("step", "rank", "at_us", descending=[False, True, False])
    rows = rows.unique("step", keep="last", maintain_order=True)
    rows = rows.select("step", "at_us", *(NOTE + name for name in trail.notes))
    for batch in rows.iter_slices(BATCH):
        yield [
            TrackedStep(
                step=row.pop("step"),
                at_us=row.pop("at_us"),
                values={name.removeprefix(NOTE): value for name, value in row.items() if value is not None},
            )
            for row in batch.to_dicts()
        ]


@dataclass(slots=True, kw_only=True)
class HeldStep:
    """A step's notes as the training gave them: numbers, or tensors that are read later."""

    step: int
    """Global step."""
    at_us: int
    """Time of the first note, UTC microseconds."""
    notes: dict[str, Any]
    """Metric -> number, or what `float` takes."""


class TrackerFeed:
    """The steps of one start on their way to one tracker. The training calls `add` and `end`."""

    def __init__(
        self,
        name: str,
        tracker: Tracker,
        facts: Callable[[], RunFacts],
        checkpoint: Callable[[], str],
        steps: TrackedSteps | None,
        first: int,
    ) -> None:
        """Start sending. steps: from the record, or None. first: first step of this start."""
        self._name = name
        self._tracker = tracker
        self._facts = facts
        self._checkpoint = checkpoint
        self._steps = steps
        self._first = first
        self._held: list[HeldStep] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._unsettled: list[tuple[float, int]] = []  # (time, last step) of batches that the record lacks
        self._begun = False
        self._last = -1 if steps is not None else first - 1
        self._end: RunEnd | None = None
        self._thread = threading.Thread(target=self._work, name=f"penstock-{name}", daemon=True)
        self._thread.start()

    def add(self, step: HeldStep) -> None:
        """Add the newest step, which may get notes until the next is added."""
        with self._lock:
            self._held.append(step)
            if len(self._held) > MAX_STEPS:
                _log.warning("%s has taken no step for long: the trail keeps what it lacks", self._name)
                del self._held[: MAX_STEPS // 10]

    def end(self, end: RunEnd) -> None:
        """Let the thread send the rest and end."""
        self._end = end
        self._wake.set()

    def join(self, until_s: float) -> bool:
        """Wait for the thread; return whether it ended. until_s: by `time.monotonic`."""
        self._thread.join(max(0.0, until_s - time.monotonic()))
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (end := self._end) is None:
            self._wake.wait(FLUSH_S if self._sent(None) else RETRY_S)
        until_s = time.monotonic() + CLOSE_S
        while not self._sent(end) and time.monotonic() < until_s:
            time.sleep(1)

    def _sent(self, end: RunEnd | None) -> bool:
        try:
            self._send(all_steps=end is not None)
            if end is not None:
                self._tracker.close(end, self._checkpoint())
                self._record(0)
        except Exception as error:  # noqa: BLE001 - no tracker may end a training
            text = redact(str(error))  # libraries name URLs with their passwords
            _log.warning("%s failed, and is tried again: %s: %s", self._name, type(error).__name__, text)
            self._begun = False
            return False
        return True

    def _send(self, *, all_steps: bool) -> None:
        with self._lock:
            held = self._held[:] if all_steps else self._held[:-1]
        for step in held:  # before a tracker that fails: tensors of the device are not held for it
            step.notes = dict(_numbers(step))
        if not self._begun:
            self._begin()
        rows = [
            TrackedStep(step=one.step, at_us=one.at_us, values=one.notes)
            for one in held
            if one.step > self._last
        ]
        self._log([row for row in rows if row.values])
        with self._lock:
            self._held = [one for one in self._held if not held or one.step > held[-1].step]

    def _begin(self) -> None:
        recorded = -1 if self._steps is None else self._steps.last()
        self._last = self._tracker.begin(self._facts(), max(self._last, recorded))
        with self._lock:
            first = self._held[0].step if self._held else self._first
        if self._steps is not None and self._last + 1 < first:
            for rows in self._steps.from_trail(self._last, first):
                self._log(rows)
        self._begun = True

    def _log(self, rows: Sequence[TrackedStep]) -> None:
        if not rows:
            return
        self._tracker.log(rows)
        self._last = rows[-1].step
        self._unsettled.append((time.monotonic(), self._last))
        self._record(self._tracker.settle_s)

    def _record(self, settle_s: float) -> None:
        """Record the last step that was sent at least `settle_s` seconds ago."""
        until_s = time.monotonic() - settle_s
        settled = [last for at_s, last in self._unsettled if at_s <= until_s]
        if settled and self._steps is not None and not self._tracker.knows_steps:
            self._steps.put(settled[-1])
        del self._unsettled[: len(settled)]


def _numbers(step: HeldStep) -> Mapping[str, float]:
    numbers = {}
    for name, value in step.notes.items():
        try:
            numbers[name] = float(value)
        except Exception as error:  # noqa: BLE001 - the training's own object must not cost the other metrics
            _log.warning("step %d: the metric %s is not a number (%s)", step.step, name, error)
    return numbers
