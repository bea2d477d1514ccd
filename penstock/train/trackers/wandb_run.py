"""A run in W&B: its id is the run's name. W&B's own variables name project, entity, server and mode."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .run_facts import RunFacts, TrackedVersion
from .tracker import RunEnd, TrackedStep

if TYPE_CHECKING:
    import wandb

FINISH_S = 8.0
"""Seconds that W&B has at the end to send what it holds."""
_STATUS = {"again": 75, "finished": 0, "stopped": 0, "failed": 1}


class WandbRun:
    """See `Tracker`."""

    settle_s = 20.0
    """W&B's own process writes its file every 15 s, and ends with this one."""

    def __init__(self, run: str) -> None:
        self._name = run
        self._run: wandb.Run | None = None
        self._last = -1
        self._versions = 0

    @property
    def knows_steps(self) -> bool:
        """See `Tracker.knows_steps`: a server can be asked, files of an offline run cannot."""
        return self._run is not None and not self._run.offline

    def begin(self, facts: RunFacts, last: int) -> int:
        """See `Tracker.begin`."""
        import wandb

        if self._run is None:
            self._run = wandb.init(
                id=self._name,
                name=self._name,
                resume="allow",
                reinit="create_new",  # the script's own run, if it has one, goes on
                config=facts.tags(),
                allow_val_change=True,
                settings=wandb.Settings(console="off", finish_timeout=FINISH_S),
            )
            self._last = self._run.starting_step - 1 if self.knows_steps else last
        # Without a server, W&B can only store what a run made, not what it used.
        declare = self._run.log_artifact if self._run.offline else self._run.use_artifact
        while self._versions < len(facts.versions):
            version = facts.versions[self._versions]
            declare(_artifact(version), aliases=[version.id])
            self._versions += 1
        return self._last

    def log(self, steps: Sequence[TrackedStep]) -> None:
        """See `Tracker.log`."""
        assert self._run is not None
        for row in steps:
            values = {**row.values, "_timestamp": row.at_us / 1e6}
            self._run.log(values, step=row.step, commit=True)
            self._last = row.step

    def close(self, end: RunEnd, checkpoint: str) -> None:
        """See `Tracker.close`."""
        assert self._run is not None
        if checkpoint:
            self._run.config.update({"penstock.checkpoint": checkpoint}, allow_val_change=True)
        if end == "again":
            self._run.mark_preempting()
        self._run.finish(exit_code=_STATUS[end])


def _artifact(version: TrackedVersion) -> "wandb.Artifact":
    import wandb

    facts = {"version": version.name, "id": version.id, "source": version.source}
    artifact = wandb.Artifact(version.dataset, type="dataset", metadata=facts)
    # Of a local folder, W&B would reference each file.
    uri = version.url if "://" in version.url else f"file://{version.url}/penstock.json"
    artifact.add_reference(uri, name=version.name, checksum=False)
    return artifact
