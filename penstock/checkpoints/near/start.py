"""Near steps at a start: the first rank chooses one, all ranks read it, and older ones go."""

import logging
import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import loader
from loader.cache.peers.lifetime import cache_token
from loader.cache.peers.near_client import NearClient
from loader.cache.peers.near_files import NearFiles, near_folder
from loader.errors import Corrupt, StoreError
from loader.storage import Store

from ..marker import Checkpoint, part_key, steps
from ..parts import Index, decode_index
from ..ranks import on_every_rank
from ..set_aside import is_record, read_record
from .choice import Holders, NearRejection, choose_near_step
from .inventory import NearInventory, gather_inventory, other_nodes
from .near_marker import attempt_id
from .reads import NearReads
from .session import NearSession

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NearStart:
    """The choice of a start, broadcast by the first rank."""

    checkpoint: Checkpoint | None
    """The near step to load; None to load the root's newest."""
    index: Index
    """Empty without a near step."""
    holders: Holders
    root_step: int
    """Newest step of the root; -1 without one."""
    marked: Collection[int]
    """Steps with a marker on any node."""


class NearSteps:
    """The near steps of one run, for one start after another. Every rank has one, and calls `gather` equally often.

    group: process group; None for a single process.
    """

    def __init__(self, cache: "loader.NodeCache", run: str, group: Any) -> None:
        self._cache = cache
        self._run = run
        self._group = group
        self._folder = near_folder(cache)
        self._client = NearClient(cache_token(os.fspath(cache.path)))
        self._inventory = NearInventory(
            own="",
            is_first_rank=False,
            is_first_of_node=False,
            nodes=(),
            addresses=(),
        )
        self._unreadable: set[tuple[int, str]] = set()
        """(step, id of the save) of near steps whose bytes are wrong."""
        self.rejections: list[NearRejection] = []
        """Near steps that `choose` and `reject` passed over on this rank."""

    def gather(self) -> None:
        """Look at what the nodes have now. Every rank calls it."""
        self._inventory = gather_inventory(
            self._cache,
            self._run,
            self._group,
        )

    def choose(self, store: Store) -> NearStart:
        """Return the newest near step above the root's newest, with its index. Call it on the first rank.

        Logs for each newer step that is not whole which and why.
        """
        root_step = max(steps(store, self._run), default=-1)
        others = other_nodes(
            self._cache,
            self._run,
            self._inventory.addresses,
            self._client,
        )
        nodes = [*self._inventory.nodes, *others]
        marked: set[int] = set()
        for node in nodes:
            marked |= node.markers.keys()
        # Without near steps a start costs the root no further request.
        below = None
        if max(marked, default=-1) > root_step:
            below = set_aside_step(store, self._run, root_step)
        # `reject` makes a step unreadable, so each further round has one step less.
        while True:
            choice = choose_near_step(
                nodes,
                self._run,
                above=root_step,
                below=below,
                unreadable=self._unreadable,
            )
            for rejection in choice.rejections:
                self._note(rejection)
            index = Index(tensors={}, values={}, paths={})
            if choice.checkpoint is not None:
                try:
                    index = self._index(choice.checkpoint, choice.holders)
                except Corrupt as error:
                    self.reject(choice.checkpoint, error)
                    continue
            return NearStart(
                checkpoint=choice.checkpoint,
                index=index,
                holders=choice.holders,
                root_step=root_step,
                marked=marked,
            )

    def reads(self, start: NearStart) -> NearReads:
        """Return the near step's objects as a store."""
        assert start.checkpoint is not None
        return self._reads(start.checkpoint, start.holders)

    def reject(self, checkpoint: Checkpoint, error: Corrupt) -> None:
        """Never choose a near step again, because its bytes are wrong."""
        attempt = attempt_id(checkpoint)
        self._unreadable.add((checkpoint.step, attempt))
        reason = f"near step {checkpoint.step}, attempt {attempt}: {error}"
        self._note(NearRejection(checkpoint.step, reason))

    def delete(self, start: NearStart) -> None:
        """Delete this node's near steps that the root made needless, and steps without a marker on any node.

        Call it on every rank, after the start has loaded: no save runs then.
        """
        if not self._inventory.is_first_of_node:
            return
        files = NearFiles(self._folder)
        # A disk that fails must not end a start that has loaded.
        try:
            for near in files.steps(self._run):
                if near.step <= start.root_step or near.step not in start.marked:
                    files.delete(self._run, near.step)
        except (StoreError, OSError) as error:
            _log.warning("needless near saves stay in %s until the next start: %s", self._folder, error)

    def close(self) -> None:
        self._client.close()

    def _reads(self, checkpoint: Checkpoint, holders: Holders) -> NearReads:
        return NearReads(
            checkpoint,
            holders,
            self._inventory.own,
            self._folder,
            self._client,
        )

    def _index(self, checkpoint: Checkpoint, holders: Holders) -> Index:
        """Return a near step's index. Raises: Corrupt."""
        data = self._reads(checkpoint, holders).read(checkpoint.index)
        return decode_index(data, checkpoint.parts, checkpoint.index.name)

    def _note(self, rejection: NearRejection) -> None:
        """Log a near step once, in one line, on the first rank."""
        if rejection in self.rejections:
            return
        self.rejections.append(rejection)
        if self._inventory.is_first_rank:
            _log.warning("run %s does not go on at %s", self._run, rejection.reason)


def open_near_steps(session: NearSession, cache: "loader.NodeCache", run: str, group: Any) -> NearSteps:
    """Return the near steps of a run. Every rank calls it. This node's server runs from now on if the run saves.

    Raises: InvalidRuntime, on every rank.
    """

    def open_here() -> NearSteps:
        # The other nodes read this one's parts through its server.
        if session.saves:
            session.nodes()
        return NearSteps(cache, run, group)

    return on_every_rank(open_here, group)


def set_aside_step(store: Store, run: str, newest: int) -> int | None:
    """Return the first step above the root's newest that a person set aside; None if there is none.

    Near steps from there on go back to the checkpoint that the run shall not go on at. Costs a listing.
    """
    # The folder of all steps: the key of any step's folder, without the step.
    prefix, _, _ = part_key(run, 0, "").rpartition(f"{0:012d}/")
    last = None
    if newest >= 0:
        last = part_key(run, newest, "~~")  # sorts after all objects of the newest step
    for info in store.list(prefix, start_after=last):
        # A start's own record names a damaged checkpoint only; near steps after it stay valid.
        if is_record(info.key) and not _is_automatic(store, info.key):
            step, _, _ = info.key.removeprefix(prefix).partition("/")
            return int(step)
    return None


def _is_automatic(store: Store, key: str) -> bool:
    """Return whether a start of the run set a checkpoint aside. A damaged record counts as a person's."""
    try:
        return read_record(store, key).is_automatic
    except Corrupt:
        return False
