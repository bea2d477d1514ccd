"""A wait for Dagster lasts as long as its runs make progress: a busy machine is as slow as it likes."""

from pathlib import Path
from typing import Any

import pytest

from tests.servers.deployment import Deployment


class Runs(Deployment):
    """One run that writes an event each time it is asked, up to a number of events."""

    def __init__(self, folder: Path, n_events: int) -> None:
        super().__init__(folder, folder / "none.py", {})
        self._n_events, self.n_asked = n_events, 0

    def runs(self, job: str | None = None) -> list[dict[str, Any]]:
        return [{"runId": "one", "status": "STARTED", "jobName": "ingest", "tags": {}}]

    def events(self, run_id: str) -> list[dict[str, Any]]:
        self.n_asked += 1
        return [{"message": "step"}] * min(self.n_asked, self._n_events)


def test_wait_lasts_while_a_run_makes_progress(tmp_path: Path) -> None:
    dagster = Runs(tmp_path, n_events=5)
    assert dagster.wait_for("four events", lambda: dagster.n_asked >= 4, patience_s=0)


def test_wait_ends_without_progress(tmp_path: Path) -> None:
    dagster = Runs(tmp_path, n_events=2)
    with pytest.raises(AssertionError, match="no progress in 0 s: what never comes"):
        dagster.wait_for("what never comes", lambda: False, patience_s=0)
    assert dagster.n_asked == 3


def test_wait_ends_though_runs_go_on_for_ever(tmp_path: Path) -> None:
    dagster = Runs(tmp_path, n_events=1000)
    with pytest.raises(AssertionError, match="what never comes"):
        dagster.wait_for("what never comes", lambda: False, patience_s=0)
    assert dagster.n_asked == 7
