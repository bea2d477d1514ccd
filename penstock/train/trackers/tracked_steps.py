"""The last step that a tracker has, if it cannot be asked, and steps of the trail that it lacks.

trainings/<run>/trackers/<tracker>.json     {"format": 1, "step": last step}; replaced after each batch
"""

import logging
from collections.abc import Iterator, Sequence

from loader.dataset.log.entries import DAMAGED, canonical
from loader.dataset.root import Root
from loader.errors import Corrupt, FormatTooNew, MissingDependency, ObjectNotFound, RunNotFound
from loader.json_text import parse_json_object
from loader.run.trail.read_trail import read_trail_of
from loader.run.trail.step_rows import NOTE
from loader.storage.mirror.store import primary_of

from ..run_folder import FORMAT, RunFolder
from .tracker import TrackedStep

_log = logging.getLogger(__name__)
BATCH = 1000
"""Steps of the trail that are sent at once."""


class TrackedSteps:
    """The last step that a tracker has, in the record of the run."""

    def __init__(self, record: str, run: str, tracker: str) -> None:
        self._root, self._run, self._tracker = Root(record), run, tracker
        self._store = primary_of(self._root.store)
        self._key = RunFolder(self._store, run).key(f"trackers/{tracker}.json")

    def last(self) -> int:
        """Return the last step; -1 for none. Raises: StoreError; Corrupt."""
        try:
            return int(parse_json_object(self._store.get(self._key).data)["step"])
        except ObjectNotFound:
            return -1
        except DAMAGED as error:
            raise Corrupt(
                f"{self._store.url}/{self._key} has no step ({error}); delete it: the tracker gets the trail again"
            ) from error

    def put(self, step: int) -> None:
        """Store the last step. Raises: StoreError."""
        self._store.put(self._key, canonical({"format": FORMAT, "step": step}))

    def from_trail(self, after: int, before: int) -> Iterator[Sequence[TrackedStep]]:
        """Yield what the trail has of the steps between two, in batches: each step's last try of its first rank.

        Costs as `read_trail_of`, whatever the length of the run. Raises: StoreError.
        """
        try:
            trail = read_trail_of(self._root, self._run, range(after + 1, before))
        except (RunNotFound, Corrupt, FormatTooNew, MissingDependency) as error:
            _log.warning(
                "%s gets no steps between %d and %d of %s: %s",
                *(self._tracker, after, before, self._run, error),
            )
            return
        rows = trail.steps.sort("step", "rank", "at_us", descending=[False, True, False])
        rows = rows.unique("step", keep="last", maintain_order=True)
        rows = rows.select("step", "at_us", *(NOTE + name for name in trail.notes))
        for batch in rows.iter_slices(BATCH):
            yield [
                TrackedStep(
                    step=row.pop("step"),
                    at_us=row.pop("at_us"),
                    values={
                        name.removeprefix(NOTE): value for name, value in row.items() if value is not None
                    },
                )
                for row in batch.to_dicts()
            ]
