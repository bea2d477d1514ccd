"""Count the requests of a run's start: what all ranks ask of the store until each has its first batch.

One rank opens the root, and sends plan and small tables of shards to the others. Each rank reads larger tables, its
part of the checkpoint, and indexes and samples of its first batch. `benchmarks.fleet_start` counts the same.
"""

from dataclasses import dataclass

import numpy as np

from loader import Plan, Root, Version, plan_of
from loader.dataset.reading.version_shards import PREPARED_BYTES
from loader.errors import CheckpointNotFound, PenstockError
from loader.run.recipe.recipe import stored_view, stored_views
from loader.storage.mirror import primary_store

from ..checkpoints import marker
from ..checkpoints.parts import REQUEST_BYTES
from .run_spec import RunSpec

STARTS_S = 5.0
"""Ranks of a gang start within so many seconds."""
READS_PER_S = 5500.0
"""Reads that S3 answers per second and prefix."""
LOOKED_AT = 16
"""Ranks whose first batches are counted; the others are assumed to be alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequests:
    """Requests of one rank until its first batch, in this order; the largest of the ranks' counts."""

    tables: int = 0
    """Tables of shards that are too large to travel with the plan."""
    checkpoint: int = 0
    """Reads of the checkpoint."""
    indexes: int = 0
    """Indexes of shards."""
    samples: int = 0
    """Ranges of samples."""

    @property
    def waves(self) -> list[int]:
        """Requests at once, each wave after the answers to the one before."""
        return [n for n in (self.checkpoint, self.tables, self.indexes, self.samples) if n]

    def text(self, ranks: int) -> str:
        """Return the requests of a gang as a line."""
        each = sum(self.waves)
        kinds = ", ".join(f"{getattr(self, name)} {name}" for name in self.__slots__ if getattr(self, name))
        per_s = ranks * each / STARTS_S
        text = (
            f"{ranks:,} ranks make {ranks * each:,} requests until their first batch, {each} each ({kinds}): "
        )
        text += f"{per_s:,.0f} per second if they start within {STARTS_S:g} s"
        if per_s <= READS_PER_S:
            return text
        wait_s = ranks * each / READS_PER_S
        return f"{text}; S3 answers {READS_PER_S:,.0f} per second and prefix, so this takes {wait_s:,.0f} s or more"


def start_requests(plan: Plan, ranks: int, checkpoint: marker.Checkpoint | None = None) -> StartRequests:
    """Return the requests of a rank that begins a plan's step. checkpoint: the one that it loads; None for a new run.

    Raises: InvalidRuntime for more ranks than slots of the batch; Corrupt; StoreError.
    """
    step = 0
    if checkpoint is not None:
        step = checkpoint.step
    first = [
        _first_batch(plan, step, rank, ranks) for rank in range(0, ranks, max(1, -(-ranks // LOOKED_AT)))
    ]
    versions = {view.version.id: view.version for view in stored_views(plan).values()}
    return StartRequests(
        tables=sum(map(_tables, versions.values())),
        checkpoint=0 if checkpoint is None else _parts(checkpoint, ranks),
        indexes=max(n_indexes for n_indexes, _ in first),
        samples=max(n_samples for _, n_samples in first),
    )


def newest_checkpoint(root: Root, run: str) -> marker.Checkpoint | None:
    """Return a run's newest checkpoint; None without one. Raises: Corrupt; StoreError."""
    store = primary_store(root.store)
    try:
        steps = marker.steps(store, run)
        if steps:
            return marker.read(store, run, steps[-1])
        return None
    except CheckpointNotFound:  # deleted meanwhile
        return None


def _tables(version: Version) -> int:
    sizes = [file["nbytes"] for file in (*version.manifest["shards"], *version.manifest["exclusions"])]
    return len(sizes) if sum(sizes) > PREPARED_BYTES else 0


def _parts(checkpoint: marker.Checkpoint, ranks: int) -> int:
    """Return the reads of a rank that loads its share: whole parts, or pieces of large ones."""
    return max(1, -(-len(checkpoint.parts) // ranks), -(-checkpoint.nbytes // ranks // REQUEST_BYTES))


def _first_batch(plan: Plan, step: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return the number of shards' indexes and of ranges of samples; adjacent samples are one range.

    A sequence of packed documents, or a window, counts as one sample in a shard of its own.
    """
    slots = plan.stack([step], rank, ranks).slots
    n_indexes = n_samples = 0
    for index, planned in enumerate(plan.sources.values()):
        view = stored_view(planned.view)
        ordinals = slots.ordinal[(slots.source == index) & slots.valid]
        if view is None or not len(ordinals):
            continue
        first = view.version.parts.first_ordinal
        groups = {view.version.group_of(name) for name in view.fields}
        if view is planned.view:
            ordinals = np.unique(ordinals)
            # int64 [samples]: number of the part of each, from 1.
            parts = np.searchsorted(first, ordinals, side="right")
            # Neighbours in one part share a range: each pair of them saves a request.
            n_ranges = len(ordinals) - int(((np.diff(ordinals) == 1) & (np.diff(parts) == 0)).sum())
            n_parts = len(np.unique(parts))
        else:
            n_ranges = len(ordinals)
            n_parts = min(len(ordinals), len(first) - 1)
        n_indexes += len(groups) * n_parts
        n_samples += len(groups) * n_ranges
    return n_indexes, n_samples


def start_line(spec: RunSpec, root: str | None, plan: str | None) -> str:
    """Return the requests of a run's start as a line. Reads its plan and newest checkpoint.

    root: Root of the plan; None for the record. plan: Its hash; None for the plan of the run.

    Raises: PenstockError if the plan is named and cannot be read.
    """
    ranks = spec.node_range[1] * spec.ranks_per_node
    try:
        read = plan_of(Root(root or spec.record), plan or spec.run)
        saved = Root(spec.checkpoints or spec.record)
        checkpoint = newest_checkpoint(saved, spec.run)
        return start_requests(read, ranks, checkpoint).text(ranks)
    except PenstockError as error:
        if plan:
            raise
        return (
            f"the requests of its start are unknown without a plan (--plan HASH of plan.save(root)): {error}"
        )
