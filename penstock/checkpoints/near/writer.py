"""Write one near checkpoint: each part to this rank's node and to another one, the marker to all."""

import time
from collections.abc import Mapping
from typing import Any

from torch.distributed.checkpoint.planner import SavePlan

from loader import Root
from loader.cache.peers.near_client import NearFault

from .. import marker
from ..marker import Checkpoint, StoredObject
from ..parts import PART_BYTES
from ..writer import CheckpointWriter
from .nodes import NearNodes, NearSaveFailed

PARTS_AT_ONCE = 2
"""Parts of a rank in memory at a time: the training runs beside them."""
SAVE_S = 120.0
"""Seconds after which a rank begins no further part."""


class NearWriter(CheckpointWriter):
    """Saves one near step (`CheckpointWriter`). A step of an earlier attempt is replaced.

    Raises, wrapped in torch's exception: NearSaveFailed; StoreError.
    """

    at_once = PARTS_AT_ONCE

    def __init__(
        self,
        nodes: NearNodes,
        run: str,
        step: int,
        *,
        facts: Mapping[str, Any],
        part_bytes: int,
    ) -> None:
        super().__init__(
            Root(nodes.folder),
            run,
            step,
            facts=facts,
            part_bytes=min(part_bytes, PART_BYTES),
        )
        self._nodes = nodes
        self._partner = nodes.partner
        self._deadline_s = time.monotonic() + SAVE_S
        self.is_committed = False
        """True once the step is whole, on the first rank."""

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans: a near step may be saved again, after a start at an earlier one."""
        return plans

    def store_object(self, stored: StoredObject, data: bytes | memoryview) -> None:
        """Store a part or the index on two nodes. Raises: NearSaveFailed; StoreError."""
        if time.monotonic() > self._deadline_s:
            raise NearSaveFailed(f"a rank's parts took longer than {SAVE_S:g} s")
        super().store_object(stored, data)
        if self._partner is None:
            return
        try:
            self._nodes.client.put(
                self._partner,
                self._run,
                self._step,
                stored.name,
                data,
                stored.sha256,
            )
        except NearFault as error:
            self._nodes.leave_out(self._partner)
            raise NearSaveFailed(f"the second copy failed: {error}") from error

    def commit(self, checkpoint: Checkpoint) -> None:
        """Write the marker to all nodes; then delete all but this step and the one before."""
        data = marker.encode(checkpoint)
        self._nodes.put_marker(self._run, self._step, data)
        self.is_committed = True
        kept = [self._step]
        before = self._nodes.newest_below(self._run, self._step)
        if before is not None:
            kept.append(before)
        self._nodes.keep(self._run, kept)
