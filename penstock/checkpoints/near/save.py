"""Save near checkpoints beside a training. Whatever fails costs the near checkpoint, never a step.

The caller's thread copies the state to host memory. One other thread does the rest over a process group of its own:

1. All ranks say whether they have a copy. If one was still saving the step before, all drop this one.
2. `torch.distributed.checkpoint.save` writes parts to two nodes each, and gathers that both copies are there.
3. The first rank writes the marker to every node, and deletes the third newest step.

Every rank calls equally often, and each call is one exchange of that thread, in the order of the calls. So no rank
waits for an exchange that another one does not join. If one fails, the thread waits until all ranks answer again.
"""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future
from threading import Event, Lock
from typing import Any, NamedTuple

from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.stateful import Stateful

from loader.storage.threads import DaemonPool

from ..ranks import first_error, from_all_ranks, on_every_rank
from .host_copy import HostCopy
from .nodes import NearNodes, NearSaveFailed
from .part_stream import WRITE_BYTES
from .rank_group import GroupFailed, RankGroup
from .room import STEPS, check_room, rank_bytes, state_bytes
from .writer import PARTS_AT_ONCE, SAVE_S, NearWriter

_log = logging.getLogger(__name__)

CLOSE_S = SAVE_S + 60.0
"""Longest wait for the running near save at the end."""
WAIT_S = 0.5
"""Seconds between two looks at whether a rank waits for another."""


class NearCounts(NamedTuple):
    """Near saves of this start, as this rank saw them."""

    saved: int
    skipped: int
    """Dropped, because a rank was still saving the one before."""
    failed: int
    step: int
    """Newest near step of this start; -1 before the first one."""
    problem: str
    """Why the last one failed; "" if it did not."""


class NearSaves:
    """Near saves of one run, one at a time. Every rank calls `open`, then `save` and `wait` equally often."""

    on_failed: Callable[..., object] | None = None
    """Called with the step and `reason=` by the first failure after a success, in the background thread."""

    def __init__(
        self, nodes: NearNodes, run: str, part_bytes: int, ranks: RankGroup, step_bytes: int
    ) -> None:
        self._nodes = nodes
        self._run = run
        self._part_bytes = part_bytes
        self._ranks = ranks
        self.step_bytes = step_bytes
        """Bytes of this rank's parts of a step."""
        self._copy_bytes = 0  # of the state in host memory, which other ranks may have too
        self._host_copy = HostCopy()
        self._passed_step = -1  # newest step that this rank was to save
        self._pool = DaemonPool(1, "penstock-near")
        self._lock = Lock()
        self._state: Mapping[str, Any] | None = None
        """Copy in host memory that the thread has not taken yet."""
        self._saving: Future[None] | None = None
        self._last: Future[None] | None = None
        self._counts = NearCounts(0, 0, 0, -1, "")

    @staticmethod
    def open(
        open_nodes: Callable[[], NearNodes],
        run: str,
        part_bytes: int,
        state: Mapping[str, Any],
    ) -> "NearSaves":
        """Return the near saves of a run, once all nodes have room for three steps of this state.

        Raises: InvalidRuntime on every rank.
        """
        ranks = RankGroup.open(f"near/{run}")
        group = ranks.group
        nodes = on_every_rank(open_nodes, group)
        step_bytes = rank_bytes(plain_state(state), group)
        check_room(nodes, run, step_bytes, group)
        if nodes.partner is None and ranks.is_first:
            _log.warning(
                "near checkpoints lie on one node only, %s: they outlive a killed process, not a lost node",
                nodes.own,
            )
        saves = NearSaves(nodes, run, part_bytes, ranks, step_bytes)
        # The first save then finds the memory: fresh memory takes a step as long again as the copy.
        copy = saves._host_copy.take(plain_state(state))
        saves._copy_bytes = state_bytes(copy)
        return saves

    def fit(self, state: Mapping[str, Any]) -> None:
        """Check the disks again if a rank's state has another size than in `open`. Every rank calls it.

        An optimizer of the caller's may have no state before the first step. Raises: InvalidRuntime on every rank.
        """
        plain = plain_state(state)
        has_changed = state_bytes(plain) != self._copy_bytes
        if not any(from_all_ranks(has_changed, self._ranks.group)):
            return
        self.step_bytes = rank_bytes(plain, self._ranks.group)
        check_room(
            self._nodes,
            self._run,
            self.step_bytes,
            self._ranks.group,
        )
        copy = self._host_copy.take(plain)
        self._copy_bytes = state_bytes(copy)

    @property
    def counts(self) -> NearCounts:
        """Counts of the near saves of this start."""
        with self._lock:
            return self._counts

    def save(self, step: int, state: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Copy the state, and save it in the background; if the save before is running, skip this one."""
        self._passed_step = step
        if self._saving is not None and not self._saving.done():
            # Declined in the one thread too: every rank makes one exchange per call, in the order of calls.
            self._last = self._pool.submit(self._decline, step)
            return
        self._state = self._host_copy.take(plain_state(state))
        self._copy_bytes = state_bytes(self._state)
        begun = Event()
        self._saving = self._pool.submit(
            self._save,
            step,
            facts,
            begun,
        )
        self._last = self._saving
        if self._ranks.group is None:
            # torch warns in the thread until then, and all threads share the warning filters.
            begun.wait()

    def delete_steps(self, step: int) -> None:
        """Delete near steps that a checkpoint in the root made needless, in the background, on the first rank."""
        if self._ranks.is_first:
            self._last = self._pool.submit(self._delete_steps, step)

    def wait(self) -> None:
        """Wait for the running near save. It ends within CLOSE_S, saved or not."""
        last = self._last
        if last is None:
            return
        deadline_s = time.monotonic() + CLOSE_S
        while time.monotonic() < deadline_s:
            # No save runs while a rank does not answer, perhaps for hours.
            if self._ranks.is_apart:
                return
            finished, _ = futures.wait([last], WAIT_S)
            if finished:
                return
        _log.warning("a near save has not ended after %g s; the training goes on without it", CLOSE_S)

    def close(self) -> None:
        """Wait for the running near save, and destroy the process group."""
        self.wait()
        self._ranks.end()
        # `wait` has given up after CLOSE_S: a hung exchange must not keep the process alive.
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._ranks.close()

    def describe(self) -> str:
        """Return where near steps lie, and what became of them."""
        counts = self.counts
        partner = self._nodes.partner or "no other node"
        block_bytes = min(self._part_bytes, WRITE_BYTES, self.step_bytes)
        memory_bytes = self._copy_bytes + PARTS_AT_ONCE * block_bytes
        text = (
            f"near: {self.step_bytes:,} bytes a step of this rank in {self._nodes.folder}, copied to {partner}; up to "
            f"{STEPS} steps of each; {memory_bytes:,} bytes of host memory, which the copy of the state keeps; "
            f"{counts.saved} saved, {counts.skipped} skipped, {counts.failed} failed"
        )
        if counts.step >= 0:
            text += f"; the newest is step {counts.step}"
        if counts.problem:
            text += f"; the last one failed: {counts.problem}"
        if self._ranks.is_apart:
            text += "; they go on once all ranks answer"
        return text

    def _save(self, step: int, facts: Mapping[str, Any], begun: Event) -> None:
        """Save the state if all ranks are ready; raise nothing. begun: set once the save has begun or is off."""
        writer: NearWriter | None = None
        state = self._state
        # The thread holds the only reference, so `HostCopy` may replace its memory.
        self._state = None
        assert state is not None
        try:
            if not self._agree(step, is_ready=True):
                self._skip()
                return
            writer = NearWriter(
                self._nodes,
                self._run,
                step,
                facts=facts,
                part_bytes=self._part_bytes,
            )
            writer.on_set_up = begun.set
            first_error(lambda: self._write(state, writer))
        except Exception as error:  # noqa: BLE001 - it costs the near checkpoint, never a step
            # A rank that dies after the marker must not cost the step, which a start will need.
            if writer is None or not writer.is_committed:
                self._fail(step, error)
            else:
                self._succeed(step)
            self._rejoin_after(error)
            return
        finally:
            begun.set()
        self._succeed(step)

    def _write(self, state: Mapping[str, Any], writer: NearWriter) -> None:
        how: dict[str, Any] = {"no_dist": True}
        if self._ranks.group is not None:
            how = {"process_group": self._ranks.group}
        self._ranks.exchange(lambda: save(dict(state), storage_writer=writer, **how))

    def _decline(self, step: int) -> None:
        """Let the other ranks know that this one has no copy of a step."""
        try:
            self._agree(step, is_ready=False)
        except Exception as error:  # noqa: BLE001 - it costs the near checkpoint, never a step
            self._fail(step, error)
            self._rejoin_after(error)
            return
        self._skip()

    def _rejoin_after(self, error: Exception) -> None:
        """Wait in this thread until all ranks answer again, if they did not. The steps meanwhile are skipped."""
        if isinstance(error, GroupFailed) and self._ranks.rejoin(lambda: self._passed_step):
            _log.warning("all ranks answer again: near saves go on after step %d", self._ranks.resume_after)

    def _agree(self, step: int, *, is_ready: bool) -> bool:
        """Return whether all ranks are ready to save a step. Raises: NearSaveFailed."""
        # Another rank had passed this step when all joined again.
        if step <= self._ranks.resume_after:
            return False
        if self._ranks.group is None:
            return is_ready
        answers = self._ranks.exchange(lambda: from_all_ranks((step, is_ready), self._ranks.group))
        steps = {rank_step for rank_step, _ in answers}
        if len(steps) > 1:
            raise NearSaveFailed(f"the ranks save different steps: {sorted(steps)}")
        return all(is_rank_ready for _, is_rank_ready in answers)

    def _delete_steps(self, step: int) -> None:
        try:
            self._nodes.delete_steps(self._run, step)
        except Exception as error:  # noqa: BLE001 - the next start deletes them
            _log.warning("near steps up to %d stay: %s", step, error)

    def _skip(self) -> None:
        with self._lock:
            counts = self._counts
            self._counts = counts._replace(skipped=counts.skipped + 1)

    def _succeed(self, step: int) -> None:
        with self._lock:
            counts = self._counts
            self._counts = counts._replace(saved=counts.saved + 1, step=step, problem="")
        if counts.problem:
            _log.warning("near saves work again: step %d was saved", step)

    def _fail(self, step: int, error: Exception) -> None:
        """Count a save that failed, log the first of several in a row, and delete its parts."""
        problem = f"{type(error).__name__}: {error}"
        with self._lock:
            counts = self._counts
            self._counts = counts._replace(failed=counts.failed + 1, problem=problem)
        if not counts.problem:
            _log.warning(
                "near step %d was not saved, and the training goes on: %s (logged again once one succeeds)",
                step,
                problem,
            )
            if self.on_failed is not None:
                self.on_failed(step, reason=problem)
        if self._ranks.is_first:
            # Parts without a marker would fill the disks while the fault lasts.
            self._delete_failed(step)

    def _delete_failed(self, step: int) -> None:
        try:
            self._nodes.delete(self._run, step)
        except Exception as error:  # noqa: BLE001 - the next near save deletes them
            _log.warning("parts of near step %d stay: %s", step, error)


def plain_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state whose objects are replaced by their state_dict()."""
    plain: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, Stateful):
            plain[name] = value.state_dict()
        else:
            plain[name] = value
    return plain
