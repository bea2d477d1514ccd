"""A run as a folder of TensorBoard: below TENSORBOARD_LOGGING_DIR, or `runs` of the working directory."""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from .run_facts import RunFacts
from .tracker import RunEnd, TrackedStep

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorboardRun:
    """See `Tracker`."""

    knows_steps = False
    settle_s = 0.0

    def __init__(self, run: str) -> None:
        self._folder = os.path.join(os.environ.get("TENSORBOARD_LOGGING_DIR") or "runs", run)
        self._writer: SummaryWriter | None = None
        self._last = -1

    def begin(self, facts: RunFacts, last: int) -> int:
        """See `Tracker.begin`. A SessionLog hides steps after the last, which a start before it may have written."""
        from torch.utils.tensorboard import SummaryWriter

        if self._writer is not None:
            with suppress(Exception):  # it failed before
                self._writer.close()
        self._last = last
        writer = self._writer = SummaryWriter(self._folder, purge_step=last + 1)
        lines = [f"- {name}: `{text}`" for name, text in facts.tags().items()]
        lines += [f"- {one.source}: {one.name}, {one.id}, {one.url}" for one in facts.versions]
        writer.add_text("penstock", "\n".join(lines), last + 1)
        writer.flush()
        return last

    def log(self, steps: Sequence[TrackedStep]) -> None:
        """See `Tracker.log`."""
        assert self._writer is not None
        for row in steps:
            for name, value in row.values.items():
                self._writer.add_scalar(name, value, row.step, walltime=row.at_us / 1e6)
        self._writer.flush()
        self._last = steps[-1].step

    def close(self, end: RunEnd, checkpoint: str) -> None:
        """See `Tracker.close`."""
        assert self._writer is not None
        self._writer.add_text("penstock_end", f"{end} {checkpoint}".strip(), self._last + 1)
        self._writer.close()
