"""Near checkpoints of one `Checkpoints`: opened at their first use, closed with it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import loader

from .settings import check_near_settings

if TYPE_CHECKING:
    from .nodes import NearNodes
    from .save import NearCounts, NearSaves


class NearSession:
    """Near checkpoints of one run. Does nothing until it is used. Raises: InvalidRuntime for settings without sense."""

    def __init__(
        self,
        near: "loader.NodeCache | None",
        every: int | None,
        run: str,
        part_bytes: int,
    ) -> None:
        check_near_settings(near, every)
        self._near = near
        self._every = every
        self._run = run
        self._part_bytes = part_bytes
        self._nodes: NearNodes | None = None
        self._saves: NearSaves | None = None
        self._is_checked = False  # True once the disks were checked for the state of a step

    @property
    def saves(self) -> bool:
        """True if this run saves near checkpoints."""
        return self._every is not None

    def is_due(self, step: int) -> bool:
        """Return whether a near checkpoint of this step is to be saved."""
        return self._every is not None and step % self._every == 0

    def nodes(self) -> "NearNodes":
        """Return the nodes of the near cache; starts this node's server. Raises: InvalidRuntime."""
        if self._nodes is None:
            from .nodes import NearNodes

            assert self._near is not None
            self._nodes = NearNodes(self._near)
        return self._nodes

    def open(self, state: Mapping[str, Any]) -> None:
        """Set near saves of such a state up: process group, server, memory and room. Every rank calls it.

        `load` calls it, so that no step waits for it. Raises: InvalidRuntime on every rank.
        """
        self._is_checked = False
        if self._saves is None:
            # Imports torch.distributed, which a start without near saves does without.
            from .save import NearSaves

            self._saves = NearSaves.open(
                self.nodes,
                self._run,
                self._part_bytes,
                state,
            )

    def check(self, state: Mapping[str, Any]) -> None:
        """Check once that the disks hold the state of a step, which may be larger than the loaded one.

        Every rank calls it. Raises: InvalidRuntime on every rank.
        """
        if self._is_checked:
            return
        if self._saves is None:
            self.open(state)
        else:
            self._saves.fit(state)
        self._is_checked = True

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        facts: Mapping[str, Any],
        on_failed: Callable[..., object] | None,
    ) -> None:
        """Save a near checkpoint in the background (`NearSaves.save`)."""
        assert self._saves is not None
        self._saves.on_failed = on_failed
        self._saves.save(step, state, facts)

    def counts(self) -> "NearCounts | None":
        """Return the counts of this start's near saves; None before `open`."""
        if self._saves is None:
            return None
        return self._saves.counts

    def committed(self, step: int, on_committed: Callable[[], object] | None) -> None:
        """Call `on_committed`; then delete near steps that this step in the root made needless, in the background."""
        if on_committed is not None:
            on_committed()
        if self._saves is not None:
            self._saves.delete_steps(step)

    def describe(self) -> str:
        """Return a line about the near saves; "" before the first one."""
        if self._saves is None:
            return ""
        return self._saves.describe()

    def wait(self) -> None:
        """Wait for the running near save. Raises nothing."""
        if self._saves is not None:
            self._saves.wait()

    def close(self) -> None:
        """Wait for the running near save, and close all connections."""
        saves = self._saves
        nodes = self._nodes
        self._saves = None
        self._nodes = None
        if saves is not None:
            saves.close()
        if nodes is not None:
            nodes.close()
