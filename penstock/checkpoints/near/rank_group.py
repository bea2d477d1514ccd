"""The process group of near saves, and another one once an exchange in it has failed.

gloo closes a group's connections after a failure, and a new group blocks until all ranks join it. So each rank first
writes into torch's store that it is ready, and joins once all are: no rank waits in a group that another one does not
join. The failed groups stay until the end, because torch names a group by their number.
"""

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from torch import distributed
from torch.distributed.checkpoint.api import CheckpointException

from ..ranks import from_all_ranks

_log = logging.getLogger(__name__)

GROUP_S = 300.0
"""Seconds after which an exchange of the ranks fails: longer than a save's SAVE_S and a request."""
LOOK_S = 0.5
"""Seconds between two looks at whether all ranks are ready."""

T = TypeVar("T")


class GroupFailed(Exception):
    """An exchange of the ranks failed, so that the group is of no use any more."""


class RankGroup:
    """The group of all ranks. `exchange` and `rejoin` are for one thread; every rank calls `open`.

    name: alike on all ranks, and of no other group of this process.
    """

    def __init__(self, name: str, group: Any) -> None:
        self._name = name
        self._groups = [group]
        self._n_joins = 0
        self._ended = threading.Event()
        self.is_apart = False
        """True while this rank waits until all others are ready for another group."""
        self.resume_after = -1
        """Newest step that a rank had passed when the ranks joined: they save together from the next one on."""

    @staticmethod
    def open(name: str) -> "RankGroup":
        """Return the group of all ranks; without torch.distributed of this process only."""
        group = None
        if distributed.is_available() and distributed.is_initialized():
            # gloo, not NCCL: near saves use no GPU, and run beside the training's own exchanges.
            group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=GROUP_S))
        return RankGroup(name, group)

    @property
    def group(self) -> Any:
        """The process group; None for a single process."""
        return self._groups[-1]

    @property
    def is_first(self) -> bool:
        """True on the first rank."""
        return self.group is None or distributed.get_rank() == 0

    def exchange(self, call: Callable[[], T]) -> T:
        """Return the result of a call that exchanges values in the group.

        Raises: GroupFailed if the exchange failed; CheckpointException with the ranks' own errors.
        """
        if self.group is None:
            return call()
        try:
            return call()
        # All ranks answered, one of them with an error: the group still works.
        except CheckpointException:
            raise
        except Exception as error:
            raise GroupFailed(f"the ranks did not all answer: {error}") from error

    def rejoin(self, passed_step: Callable[[], int]) -> bool:
        """Wait until all ranks are ready, and join them in another group. Return False if `end` came first.

        passed_step: the newest step that this rank has passed.
        """
        self.is_apart = True
        while True:
            all_ready = self._await_all_ready()
            if not all_ready:
                return False
            try:
                group = distributed.new_group(
                    backend="gloo",
                    timeout=timedelta(seconds=GROUP_S),
                    # Named by its ranks. Else torch names a group by a count, which the main threads' groups raise.
                    use_local_synchronization=True,
                )
                steps = from_all_ranks(passed_step(), group)
            except Exception as error:  # noqa: BLE001 - near saves stay off, and the training goes on
                _log.warning("near saves stay off, because the ranks could not join again: %s", error)
                continue  # the next attempt waits until all ranks are ready anew
            self._groups.append(group)
            self.resume_after = max(steps)
            self.is_apart = False
            return True

    def end(self) -> None:
        """Let `rejoin` return."""
        self._ended.set()

    def close(self) -> None:
        """Destroy all groups."""
        self.end()
        if self.group is None or not distributed.is_initialized():
            return
        for group in self._groups:
            distributed.destroy_process_group(group)

    def _await_all_ready(self) -> bool:
        """Write that this rank is ready, and wait for the others. Return False if `end` came first."""
        store = distributed.distributed_c10d._get_default_store()
        prefix = f"penstock/{self._name}/{self._n_joins}"
        # A key per attempt: torch's store keeps the keys of the last one.
        self._n_joins += 1
        world_size = distributed.get_world_size()
        keys = [f"{prefix}/{rank}" for rank in range(world_size)]
        store.set(keys[distributed.get_rank()], "ready")
        while not store.check(keys):
            if self._ended.wait(LOOK_S):
                return False
        return True
