"""The trackers of a run, on its first rank."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from loader.errors import InvalidRuntime, MissingDependency
from loader.order.plan import Plan
from loader.run.trail.step_rows import snapshot

from ...units import utc_us
from .feed import CLOSE_S, HeldStep, TrackedSteps, TrackerFeed
from .mlflow_run import MlflowRun
from .run_facts import collect_facts, newest_checkpoint
from .tensorboard_run import TensorboardRun
from .tracker import RunEnd, Tracker
from .wandb_run import WandbRun

_log = logging.getLogger(__name__)
TRACKERS: Mapping[str, Callable[[str], Tracker]] = {
    "mlflow": MlflowRun,
    "wandb": WandbRun,
    "tensorboard": TensorboardRun,
}
"""Name -> tracker of a run's name. The name is also its package and its extra."""


class RunTrackers:
    """Sends a run's metrics to its trackers. Only `close` waits for a tracker, and only for a moment."""

    def __init__(self, names: Sequence[str], run: str, record: str | None, checkpoints: str | None) -> None:
        """record, checkpoints: URLs of roots, or None.

        Raises: InvalidRuntime for an unknown name; MissingDependency.
        """
        for name in names:
            if name not in TRACKERS:
                raise InvalidRuntime(
                    f"trackers = {name!r}; accepted: {', '.join(TRACKERS)}",
                    what="trackers",
                    given=name,
                    accepted=list(TRACKERS),
                )
            try:
                import_module(name)  # not in the feed's thread: MLflow's modules import each other
            except ImportError as error:
                raise MissingDependency(
                    f"the tracker {name} needs its package: pip install 'penstock-data[{name}]'", what=name
                ) from error
        self._names = names
        self._run = run
        self._record = record
        self._checkpoints = checkpoints
        self._feeds: list[TrackerFeed] = []
        self._newest: HeldStep | None = None

    def begin(self, plan: Plan, first: int) -> None:
        """Begin or find the run in each tracker, beside the training. A second call does nothing.

        first: first step of this start.
        """
        if self._feeds:
            return
        for name in self._names:
            feed = TrackerFeed(
                name,
                TRACKERS[name](self._run),
                lambda: collect_facts(self._run, plan, self._record, self._checkpoints),
                lambda: newest_checkpoint(self._checkpoints, self._run),
                None if self._record is None else TrackedSteps(self._record, self._run, name),
                first,
            )
            self._feeds.append(feed)

    def note(self, step: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Add metrics of a step; return them as they are now, still on their device, for the trail."""
        now = {name: snapshot(name, value) for name, value in values.items()}
        if self._newest is None or self._newest.step != step:
            self._newest = HeldStep(step=step, at_us=utc_us(), notes={})
            for feed in self._feeds:
                feed.add(self._newest)
        self._newest.notes.update(now)
        return now

    def close(self, end: RunEnd) -> None:
        """Send the rest, and wait for it, but not longer than `CLOSE_S`."""
        for feed in self._feeds:
            feed.end(end)
        until_s = time.monotonic() + CLOSE_S
        if not all(feed.join(until_s) for feed in self._feeds):
            _log.warning("a tracker of %s is slow: the next start sends it what the trail has", self._run)
