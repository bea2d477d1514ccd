"""The nodes that keep the near checkpoints of a training, as one of its ranks sees them."""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import loader
from loader.cache.node_cache import OpenCache
from loader.cache.page_cache import count_nothing
from loader.cache.peers.environment import node_block
from loader.cache.peers.lifetime import cache_token
from loader.cache.peers.members import CacheMembers
from loader.cache.peers.near_client import NearClient, NearFault
from loader.cache.peers.near_files import NearFiles, marker_key, near_folder
from loader.cache.peers.training_nodes import member_address
from loader.cache.running_loaders import BEAT_S
from loader.errors import InvalidRuntime, StoreError
from loader.native import crc32c

from ..ranks import map_in_order
from .copy_order import copy_order

_log = logging.getLogger(__name__)

AT_ONCE = 8
"""Nodes that are asked at a time."""
LEFT_OUT_S = 60.0
"""Seconds for which a node that failed receives no copies."""


class NearSaveFailed(Exception):
    """A near checkpoint was not saved. The training goes on."""


class NodeFacts(NamedTuple):
    """One node, as its ranks describe it."""

    address: str
    block: str
    """Nodes that fail together; "" if unknown."""
    free_bytes: int
    """Bytes of its disk that neither files nor the cache's limit take."""


class NearNodes:
    """The nodes of one near cache. Thread-safe. Starts this node's server if the peers name this machine.

    near: with peers.

    Raises: InvalidRuntime if this machine is none of the peers, or its server does not come up.
    """

    def __init__(self, near: "loader.NodeCache") -> None:
        assert near.peers is not None
        members = CacheMembers(tuple(near.peers))
        self.addresses = members.all()
        """All nodes, HOST:PORT, sorted."""
        # First: it makes the folder, where a server may start. It is also the sign of a running loader, without which
        # the server would end a minute after its last page.
        alone = replace(near, peers=None)
        self._cache = OpenCache(alone, count_nothing)
        try:
            self.own = _own_member(near, self.addresses)
            """Address of this node."""
        except BaseException:
            self._cache.close()
            raise
        self.folder = near_folder(near)
        self.files = NearFiles(self.folder)
        self.client = NearClient(cache_token(os.fspath(near.path)))
        # The blocks of the nodes are not known before `use_blocks`.
        self._order = copy_order(self.own, self.addresses, {})
        """The other nodes, the first choice for copies first."""
        self._left_out_s: dict[str, float] = {}
        """Address -> monotonic time until which the node receives no copies."""
        self._warned: set[str] = set()
        """Texts of warnings: each is logged once."""
        self._ended = threading.Event()
        self._beat = threading.Thread(target=self._show_use, name="penstock-near-sign", daemon=True)
        self._beat.start()

    def facts(self, run: str) -> NodeFacts:
        """Return what the other ranks need of this node. Raises: OSError; StoreError."""
        self.files.create()
        free_bytes = self.files.free_bytes() - self._cache.room_bytes()
        for near in self.files.steps(run):
            free_bytes += near.nbytes  # the next ones replace them
        return NodeFacts(
            self.own,
            node_block(),
            free_bytes,
        )

    def use_blocks(self, blocks: Mapping[str, str]) -> None:
        """Let copies leave this node's block. blocks: address -> block."""
        self._order = copy_order(self.own, self.addresses, blocks)

    @property
    def partner(self) -> str | None:
        """The node that receives copies now; None if there is no other."""
        now_s = time.monotonic()
        for address in self._order:
            if now_s >= self._left_out_s.get(address, 0.0):
                return address
        # All failed lately: try the best one again, rather than save on one disk only.
        if self._order:
            return self._order[0]
        return None

    def leave_out(self, address: str) -> None:
        """Send no copies to a node that failed, for a while."""
        self._left_out_s[address] = time.monotonic() + LEFT_OUT_S

    def put_marker(self, run: str, step: int, data: bytes) -> None:
        """Write a step's marker to every node that answers.

        Raises: NearSaveFailed if no other node has it; StoreError for this node's disk.
        """
        # By the sender: the receiver refuses bytes that changed on the network.
        checksum = crc32c(data)
        others = self._others()

        def put(address: str) -> str:
            return self._problem(
                lambda: self.client.put_marker(
                    address,
                    run,
                    step,
                    data,
                    checksum,
                )
            )

        problems = [problem for problem in map_in_order(put, others, at_once=AT_ONCE) if problem]
        for problem in problems:
            self._warn(f"the marker of near step {step} is missing on a node: {problem}")
        if others and len(problems) == len(others):
            raise NearSaveFailed(f"no other node took the marker: {problems[0]}")
        # This node last: its own marker means that another node has it too.
        self.files.write(
            marker_key(run, step),
            len(data),
            checksum,
            [data],
        )

    def previous_step(self, run: str, step: int) -> int | None:
        """Return the newest step below `step` with a marker on this node; None without one. Raises: StoreError."""
        marked = [near.step for near in self.files.steps(run) if near.has_marker and near.step < step]
        return max(marked, default=None)

    def keep(self, run: str, kept: Collection[int]) -> None:
        """Delete all other steps of a run, on every node that answers."""
        self._delete(run, lambda step: step not in kept)

    def delete_steps(self, run: str, last: int) -> None:
        """Delete the steps of a run up to `last`, on every node that answers."""
        self._delete(run, lambda step: step <= last)

    def delete(self, run: str, deleted: int) -> None:
        """Delete a step of a run, on every node that answers."""
        self._delete(run, lambda step: step == deleted)

    def close(self) -> None:
        """Close all connections, and end the sign that a rank uses the server."""
        self._ended.set()
        self._beat.join()
        self._cache.close()
        self.client.close()

    def _delete(self, run: str, is_deleted: Callable[[int], bool]) -> None:
        def delete(address: str) -> str:
            return self._problem(partial(self._delete_node_steps, address, run, is_deleted))

        for problem in map_in_order(delete, self.addresses, at_once=AT_ONCE):
            if problem:
                self._warn(f"near steps that are no longer needed stay on a node: {problem}")

    def _delete_node_steps(self, address: str, run: str, is_deleted: Callable[[int], bool]) -> None:
        """Delete steps on one node. Raises: NearFault; StoreError."""
        if address == self.own:
            for near in self.files.steps(run):
                if is_deleted(near.step):
                    self.files.delete(run, near.step)
            return
        steps = self.client.runs(address).get(run, ())
        for near in steps:
            if is_deleted(near.step):
                self.client.delete(address, run, near.step)

    def _problem(self, call: Callable[[], object]) -> str:
        """Call, and return why it failed; "" if it did not."""
        try:
            call()
        except (NearFault, StoreError) as error:
            return str(error)
        return ""

    def _others(self) -> list[str]:
        return [address for address in self.addresses if address != self.own]

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", text)

    def _show_use(self) -> None:
        while not self._ended.wait(BEAT_S):
            self._cache.beat()


def _own_member(near: "loader.NodeCache", addresses: Sequence[str]) -> str:
    """Return this node's address, whose server runs from now on. Raises: InvalidRuntime if it is not a peer."""
    own = member_address(near, addresses)
    if own is None:
        names = ", ".join(addresses)
        raise InvalidRuntime(
            f"near checkpoints need a server on each node, and this machine is none of the peers {names}: name it, or "
            "pass near=run.node_cache(path)",
            what="peers",
            given=list(addresses),
            accepted="this machine's address",
        )
    return own
