"""Write one near checkpoint: each part to this rank's node and to another one, the marker to all."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributed.checkpoint.planner import SavePlan

from loader import Root
from loader.cache.peers.near_client import NearFault
from loader.cache.peers.near_files import part_key
from loader.cores import lower_thread_priority
from loader.native import crc32c

from .. import marker
from ..marker import Checkpoint, StoredObject
from ..parts import PART_BYTES, StoredPiece, TensorPiece
from ..writer import CheckpointWriter
from .nodes import NearNodes, NearSaveFailed
from .part_stream import write_part

PARTS_AT_ONCE = 1
"""Parts that a rank writes at a time: the training runs beside them.

With two, four ranks on two cores saved as often, but the slowest step took 1.44 to 1.85 times as long, not 1.09.
"""
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

    def store_part(
        self,
        name: str,
        pieces: Sequence[TensorPiece],
        contents: Sequence[memoryview],
    ) -> Sequence[StoredPiece]:
        """Store a part on two nodes; return the locations of its pieces. Raises: NearSaveFailed; StoreError."""
        if time.monotonic() > self._deadline_s:
            raise NearSaveFailed(f"a rank's parts took longer than {SAVE_S:g} s")
        # Not the thread that exchanges plans and results: the other ranks wait for it.
        lower_thread_priority()
        key = part_key(self._run, self._step, name)
        file = self._nodes.files.open_new(key)
        try:
            part = write_part(
                name,
                pieces,
                contents,
                file.write,
            )
            file.finish()
        finally:
            file.close()
        self._store_copy(name, part.views, part.checksum)
        return part.placed

    def store_object(self, stored: StoredObject, data: bytes | memoryview) -> None:
        """Store the index on two nodes. Raises: NearSaveFailed; StoreError."""
        super().store_object(stored, data)
        self._store_copy(
            stored.name,
            [memoryview(data)],
            crc32c(data),
        )

    def _store_copy(self, name: str, views: Sequence[memoryview], checksum: int) -> None:
        """Store an object on the other node. Raises: NearSaveFailed."""
        if self._partner is None:
            return
        try:
            self._nodes.client.put(
                self._partner,
                self._run,
                self._step,
                name,
                views,
                checksum,
            )
        except NearFault as error:
            # The next save then picks another partner.
            self._nodes.leave_out(self._partner)
            raise NearSaveFailed(f"the second copy failed: {error}") from error

    def commit(self, checkpoint: Checkpoint) -> None:
        """Write the marker to all nodes; then delete all but this step and the one before."""
        data = marker.encode(checkpoint)
        self._nodes.put_marker(self._run, self._step, data)
        # From here on a start may choose this step, so no failure may delete it.
        self.is_committed = True
        kept = [self._step]
        before = self._nodes.previous_step(self._run, self._step)
        if before is not None:
            kept.append(before)
        self._nodes.keep(self._run, kept)
