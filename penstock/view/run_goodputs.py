"""Goodput of runs for the viewer's pages: by the function of `penstock train goodput`, from records read once."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from loader.errors import EngineUnreachable
from loader.storage import Store

from ..compute.cluster import Cluster
from ..train.goodput.run_usage import RunTimes, read_times, run_goodput
from ..train.goodput.starts import AttemptGoodput
from ..train.launch.launcher import Launcher
from ..train.run_folder import RunFolder
from ..train.submitting import RunBrief, record_launcher
from .lru_cache import LruCache

_log = logging.getLogger(__name__)
MOST_RUNS = 24
"""Runs whose events and intervals are cached: all of the first page, and of twelve other pages."""


@dataclass(frozen=True, slots=True)
class _Record:
    times: RunTimes
    is_submitted: bool
    """True for a run that `penstock train submit` started: its launcher may have times of it."""


class RunGoodputs:
    """Divides the time of runs' starts into parts. Thread-safe.

    Reads a run's starts, events and intervals again only if its record has changed.
    """

    def __init__(self) -> None:
        self._records = LruCache[_Record](MOST_RUNS)

    def starts(self, store: Store, brief: RunBrief) -> tuple[RunTimes, Sequence[AttemptGoodput]]:
        """Return (the times in the run's record, the parts of each start's time).

        brief: the run as it was listed a moment ago. The launcher is this machine's, as in `penstock train goodput`
        without `--cluster`. Raises: RunNotFound; Corrupt; StoreError.
        """
        folder = RunFolder(store, brief.run)
        key = (store.url, brief.run, brief.record_key)
        record = self._records.get(key, lambda: _read(folder))
        launcher = None
        # Another record's run of this name may have left times on this machine.
        if record.is_submitted:
            launcher = record_launcher(store.url, Cluster())
        return record.times, _goodput(folder, launcher, record.times)


def _read(folder: RunFolder) -> _Record:
    times = read_times(folder)
    is_submitted = folder.read_spec() is not None
    return _Record(times, is_submitted)


def _goodput(folder: RunFolder, launcher: Launcher | None, times: RunTimes) -> list[AttemptGoodput]:
    try:
        return run_goodput(folder, launcher, times)
    except EngineUnreachable as error:  # such as another user's folder of processes
        _log.warning("the goodput of %s is by its record only: %s", folder.run, error)
        return run_goodput(folder, None, times)
