"""Chunks of registered tables: how many samples a shuffle mixes at once, and what a copy would cost."""

from typing import Any, NamedTuple

from loader import Version
from loader.order.random.lanes import frozen_shape

from ...units import size

LARGE_CHUNK_BYTES = 8 * 2**20
"""A larger chunk leaves a shuffle little to choose from, and an import is told."""


class ChunksTold(NamedTuple):
    """The meaning of a version's chunks for its shuffles."""

    samples: int
    """Live samples of the version."""
    chunk_rows: int
    """Samples of a chunk, on the average."""
    chunk_nbytes: int
    """Bytes that the chunks of a row group decode to, on the average."""
    shuffled_samples: int
    """Samples that a shuffle chooses from at any moment."""
    nbytes: int
    """Bytes that an import would copy."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, without the number of samples."""
        return {name: value for name, value in self._asdict().items() if name != "samples"}

    def to_text(self) -> str:
        """Return a line for people."""
        said = (
            f"row groups of {self.chunk_rows:,} samples, {size(self.chunk_nbytes)} decoded: a shuffle mixes "
            f"{self.shuffled_samples:,} of {self.samples:,} samples at a time"
        )
        if self.chunk_nbytes <= LARGE_CHUNK_BYTES or self.shuffled_samples == self.samples:
            return said
        return f"{said}; penstock import copies {size(self.nbytes)}, and its shuffles mix all"


def chunks_of(version: Version) -> ChunksTold | None:
    """Return what the chunks of registered tables mean; None for a version without such."""
    tables = [one for one in version.manifest.get("foreign", ()) if "chunk_rows" in one]
    if not tables:
        return None
    fields = {name for one in tables for name in one["chunk_fields"]}
    groups = version.manifest["groups"].values()
    nbytes = sum(n for group in groups for name, n in group["field_nbytes"].items() if name in fields)
    rows, mean = max(one["chunk_rows"] for one in tables), -(-nbytes // version.manifest["n_rows"])
    shape = frozen_shape(len(version), mean, decoded=(rows, max(1, rows * mean)))
    mixed = len(version) if shape.chunk == 1 else min(len(version), shape.live_samples)
    return ChunksTold(len(version), rows, rows * mean, mixed, nbytes)
