"""Blocks in the caller's own thread, one unit after the other: for debugging and tests. Isolates nothing."""

from collections.abc import Sequence

from ..pool import InlineCompute
from ..runner_process import open_runner, parser
from .engine import Look


class InlineEngine:
    """An engine whose `submit` returns once the attempt has ended; errors of the runner come through."""

    look_s = 0.0

    def __init__(self) -> None:
        self._names: set[str] = set()

    def submit(self, name: str, runner: Sequence[str], n_blocks: int, final: Sequence[int] = (0,)) -> None:
        """Run all blocks. See `Engine.submit`."""
        self._names.add(name)
        arguments = [*runner[runner.index("-m") + 2 :], "--element", "0", "--elements", "1"]
        open_runner(parser().parse_args(arguments), lambda _: InlineCompute()).run()

    def find(self, name: str) -> bool:
        """See `Engine.find`."""
        return name in self._names

    def look(self, name: str) -> Look:
        """See `Engine.look`."""
        return Look(state="ended")

    def cancel(self, name: str) -> None:
        """See `Engine.cancel`."""

    def logs(self, name: str, element: int) -> str:
        """See `Engine.logs`."""
        return ""

    def close(self) -> None:
        """See `Engine.close`."""
