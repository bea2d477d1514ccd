"""The last step that a tracker has, if it cannot be asked, and steps of the trail that it lacks.

trainings/<run>/trackers/<tracker>.json     {"format": 1, "step": last step}; replaced after each batch
"""

import logging
from collections.abc import Iterator, Sequence

from loader.dataset.log.entries import canonical
from loader.dataset.root import Root
from loader.errors import Corrupt, FormatTooNew, MissingDependency, ObjectNotFound, RunNotFound
from loader.run.trail.read_trail import RunTrail, read_trail_of
from loader.run.trail.step_rows import NOTE
from loader.storage.mirror.store import primary_of
from loader.storage.spec import redact

from ..run_folder import FORMAT, RunFolder, read_object, whole_number
from .tracker import TrackedStep

_log = logging.getLogger(__name__)
BATCH = 1000
"""Steps of the trail that are sent at once."""
PART = 20_000
"""Steps of the trail that are read at once."""


class TrackedSteps:
    """The last step that a tracker has, in the record of the run."""

    def __init__(self, record: str, run: str, tracker: str) -> None:
        self._root, self._run, self._tracker = Root(record), run, tracker
        self._store = primary_of(self._root.store)
        self._key = RunFolder(self._store, run).key(f"trackers/{tracker}.json")

    def last(self) -> int:
        """Return the last step; -1 for none. Raises: StoreError; Corrupt."""
        try:
            return read_object(self._store, self._key, "last step", lambda body: whole_number(body, "step"))
        except ObjectNotFound:
            return -1
        except Corrupt as error:
            raise Corrupt(f"{error}; delete it: the tracker gets the trail again") from error

    def put(self, step: int) -> None:
        """Store the last step. Raises: StoreError."""
        self._store.put(self._key, canonical({"format": FORMAT, "step": step}))

    def from_trail(self, after: int, before: int) -> Iterator[Sequence[TrackedStep]]:
        """Yield what the trail has of the steps between two, in batches: each step's last try of its first rank.

        Costs as `read_trail_of` for each `PART` steps: memory does not grow with the gap. Raises: StoreError.
        """
        for begin in range(after + 1, before, PART):
            steps = range(begin, min(begin + PART, before))
            try:
                trail = read_trail_of(self._root, self._run, steps)
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
