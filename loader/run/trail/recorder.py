"""Record a rank's steps: rows in memory, which a thread writes in the background.

    trails/<run>/<rank>-of-<world size>/<first step, 19 digits>-<16 hex>.parquet

An object is written every `SECONDS`, at each `state_dict`, and at the end. Objects are at least world size / 10 seconds
apart: at most ten a second if all ranks are recorded.
"""

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from threading import Lock, Thread, current_thread
from typing import Any

from ...dataset.root import Root
from ...errors import AlreadyExists, InvalidRuntime
from ...order.slots import rank_slice
from ...storage.threads import LEAVE_S, AwaitedThread, Signal, ends_with_the_process
from ..batch.batch import Batch
from ..recipe.recipe import Recipe
from .slot_columns import tensor_crcs
from .step_rows import PerSample, StepRow, copy_row, rows_bytes, snapshot, snapshot_per_sample
from .trail import StartRecord, Trail, start_record, trail_folder

SECONDS = 60.0
GAP_S = 1.0
"""Least time between two objects of a rank, in seconds."""
MAX_ROWS = 50_000
"""Number of rows at which an object is written early."""
MAX_KEPT = 4 * MAX_ROWS
"""Rows kept while writes fail. The oldest are dropped first."""
MAX_NOTES = 200
"""Most metrics per step."""
_log = logging.getLogger(__name__)


def begin_recorder(trail: object, recipe: Recipe, epochs: int | None) -> "Recorder | None":
    if isinstance(trail, RunRecorder):
        return trail.begin(recipe, epochs)
    if not isinstance(trail, Trail):
        raise InvalidRuntime(
            f"trail = {trail!r}; accepted: None, or a loader.Trail(root, run=...)",
            what="trail",
            given=trail,
            accepted="None, or a loader.Trail",
        )
    if trail.records(recipe.world.rank):
        return Recorder(trail, recipe, epochs)
    return None


class Recorder:
    """Records what a rank delivers. The training's thread calls `handed` and `note`."""

    def __init__(self, trail: Trail, recipe: Recipe, epochs: int | None) -> None:
        self._trail = trail
        self._rows: list[StepRow] = []
        self._lock = Lock()
        self._reset(recipe, epochs)

    def _reset(self, recipe: Recipe, epochs: int | None) -> None:
        self._recipe = recipe
        self._epochs = epochs
        self._noted_plan = recipe.plan  # of the step that was delivered last
        self._world = recipe.world
        self._has_delivered = False
        self._wake = Signal()
        self._end = Signal()
        self._ended = False
        self._start: StartRecord | None = None  # set once it is stored
        self._first = self._n = 0  # slots of the last delivered micro batch, in the rank's part
        self._real: Any = None  # bool [n], False at padding
        self._thread: Thread | None = None

    def checksums(self, batch: Batch) -> dict[str, int] | None:
        """Return `tensor_crcs` of the batch if its step records them, else None. For any thread."""
        every = self._trail.tensors_every
        if every and batch.step % every == 0:
            return tensor_crcs(batch.fields)
        return None

    def add_step(self, batch: Batch, crcs: dict[str, int] | None) -> None:
        row = StepRow(
            step=batch.step,
            at_us=time.time_ns() // 1000,
            digest=batch.digest,
            substituted=len({one.slot for one in batch.substitutions}) if batch.substitutions else 0,
            wait_us=int(batch.wait_s * 1e6),
            crcs=crcs,
        )
        self._first = self._n = 0
        self._noted_plan = self._recipe.plan
        self._has_delivered = True
        with self._lock:
            self._rows.append(row)
            n = len(self._rows)
        if self._thread is None:
            self._begin()
        elif n % MAX_ROWS == 0:
            self._wake.set()

    def micro_batch_delivered(self, piece: Batch) -> None:
        self._first += self._n
        self._n = len(piece)
        self._real = piece.ordinals >= 0

    def note(self, values: Mapping[str, Any], per_sample: Mapping[str, Any]) -> None:
        if not self._has_delivered:
            raise InvalidRuntime(
                "note() before the first batch: it is of the step that was handed out last",
                what="note",
                where="first batch",
                accepted="after the first batch",
            )
        row = self._rows[-1]  # (the writer keeps the last one)
        batch_size = self._noted_plan.batch_size(row.step)
        first = rank_slice(batch_size, self._world.rank, self._world.world_size).start
        numbers = {name: snapshot(name, value) for name, value in values.items()}
        lists = {
            (name, first + self._first): PerSample(
                values=snapshot_per_sample(name, value, self._n),
                first_slot=first + self._first,
                real=self._real,
            )
            for name, value in per_sample.items()
        }
        names = {*row.notes, *numbers, *(name for name, _ in (*row.per_sample, *lists))}
        if len(names) > MAX_NOTES:
            raise InvalidRuntime(
                f"note() of {len(names)} names at step {row.step}; at most {MAX_NOTES} are kept",
                what="note",
                where=f"step {row.step}",
                given=len(names),
                accepted=f"at most {MAX_NOTES} names",
            )
        with self._lock:
            row.notes.update(numbers)
            row.per_sample.update(lists)
            row.changed = True

    def flush(self) -> None:
        self._wake.set()

    def dismiss(self) -> None:
        self._ended = True
        self._end.set()
        self._wake.set()

    def join(self, timeout_s: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)

    def close(self, *, wait: bool) -> None:
        """Write the remaining rows, and end. wait: False waits only a moment."""
        self.dismiss()
        self.join(None if wait else LEAVE_S)

    def loader_closed(self, *, wait: bool) -> None:
        """End, as `close`: this recorder serves one Loader."""
        self.close(wait=wait)

    def loader_dropped(self) -> None:
        """End, as `dismiss`. For finalizers."""
        self.dismiss()

    def _begin(self) -> None:
        self._thread = AwaitedThread(self._work, name="penstock-trail")
        ends_with_the_process(self)
        self._thread.start()

    def _work(self) -> None:
        interval_s = max(SECONDS, self._world.world_size / 10)
        gap_s = max(GAP_S, self._world.world_size / 10)
        try:
            self._record_start()
        except Exception as error:  # noqa: BLE001 - no trail may end a training
            self._note_failure([], error)
        # A thread that a close did not wait for leaves the loop to its successor.
        while not self._ended and self._thread is current_thread():
            self._wake.wait(interval_s)
            self._write()
            self._end.wait(gap_s)
        self._write()

    def _record_start(self) -> StartRecord:
        if self._start is None:
            root = self._trail.root
            start = self._new_start()
            with suppress(AlreadyExists):  # the same start at another time
                root.store.put_if_absent(start.key, start.to_json())
            self._start = start
        return self._start

    def _new_start(self) -> StartRecord:
        self._recipe.plan.save(self._trail.root)
        return start_record(self._trail, self._recipe, self._epochs, time.time_ns() // 1000)

    def _write(self) -> None:
        with self._lock:
            rows = [row for row in self._rows if row.changed]
            written = [*rows[:-1], *map(copy_row, rows[-1:])]  # the newest may get metrics meanwhile
            for row in rows:
                row.changed = False
            del self._rows[:-1]
        try:
            start = self._record_start()
            for ascending in _ascending_rows(written):
                self._put(ascending, start)
        except Exception as error:  # noqa: BLE001 - as above
            self._note_failure(rows, error)

    def _note_failure(self, rows: list[StepRow], error: Exception) -> None:
        run = self._trail.run
        url = self._trail.root.store.url
        folder = trail_folder(self._trail.run)
        steps = "its start"
        if rows:
            steps = f"steps {rows[0].step} to {rows[-1].step}"
        _log.error(
            "the trail of run %r lacks %s so far: %s. Let the job create objects under %s/%s and %s/plans/",
            *(run, steps, error, url, folder, url),
        )
        with self._lock:
            for row in rows:
                row.changed = True
            self._rows[:0] = [row for row in rows if not any(row is one for one in self._rows[:1])]
            n_lost = len(self._rows) - MAX_KEPT
            if n_lost > 0:
                _log.error("the trail of run %r has lost %d steps for good", run, n_lost)
                del self._rows[:n_lost]

    def _put(self, rows: list[StepRow], start: StartRecord) -> None:
        data = rows_bytes(rows, start.id)
        name = f"{rows[0].step:019d}-{hashlib.sha256(data).hexdigest()[:16]}.parquet"
        folder = f"{trail_folder(self._trail.run)}{self._world.rank}-of-{self._world.world_size}/"
        self._trail.root.store.put_if_absent(folder + name, data)


def _ascending_rows(rows: list[StepRow]) -> Iterator[list[StepRow]]:
    """Yield the rows between two seeks to an earlier step: readers of some steps find an object by its first one."""
    begin = 0
    for position in range(1, len(rows)):
        if rows[position].step < rows[position - 1].step:
            yield rows[begin:position]
            begin = position
    if rows:
        yield rows[begin:]


class RunRecorder(Recorder):
    """A recorder for Loaders of one run that follow one another: one thread, one start record, few objects.

    Pass it as `Loader(trail=)`, and close it after the last Loader; a later one begins it again. The start record names
    no plan: the run's records under `follows/` name one for each step.
    """

    def __init__(self, trail: Trail) -> None:
        if not isinstance(trail, Trail):
            raise InvalidRuntime(
                f"trail = {trail!r}; accepted: None, or a loader.Trail(root, run=...)",
                what="trail",
                given=trail,
                accepted="None, or a loader.Trail",
            )
        self.trail = trail
        self._is_new = True
        self._has_begun = False

    @property
    def root(self) -> Root:
        """Root of the run log."""
        return self.trail.root

    def begin(self, recipe: Recipe, epochs: int | None) -> "RunRecorder | None":
        """Record the next Loader; return None if its rank is not recorded."""
        if not self.trail.records(recipe.world.rank):
            return None
        if self._is_new:
            super().__init__(self.trail, recipe, epochs)
            self._is_new = False
        elif not self._has_begun:
            # Rows that the last close could not write are written with the next ones.
            with self._lock:
                self._rows = [row for row in self._rows if row.changed]
            self._reset(recipe, epochs)
        self._has_begun = True
        self._recipe = recipe
        return self

    def loader_closed(self, *, wait: bool) -> None:
        """Go on for the next Loader. Its rows are written with later ones, not in an object of their own."""

    def loader_dropped(self) -> None:
        """Go on for the next Loader."""

    def dismiss(self) -> None:
        if self._has_begun:
            super().dismiss()

    def close(self, *, wait: bool) -> None:
        if self._has_begun:
            super().close(wait=wait)
            self._has_begun = False

    def _new_start(self) -> StartRecord:
        start = start_record(self._trail, self._recipe, self._epochs, time.time_ns() // 1000)
        return replace(start, plan="")
