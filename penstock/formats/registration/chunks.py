"""Chunks of registered tables: how many samples a shuffle mixes at once, and what an import would copy."""

from typing import Any, NamedTuple

from loader import Version
from loader.order.random.lanes import frozen_shape

from ...units import size

LARGE_CHUNK_BYTES = 8 * 2**20
"""With larger chunks a shuffle mixes few samples at a time, so the text recommends an import."""


class ShuffleChunks(NamedTuple):
    """Effect of a version's chunks on its shuffles."""

    samples: int
    """Live samples of the version."""
    chunk_rows: int
    """Mean samples per chunk."""
    chunk_nbytes: int
    """Mean bytes that the chunks of a row group decode to."""
    shuffled_samples: int
    """Samples that a shuffle mixes at any time."""
    nbytes: int
    """Bytes that an import would copy."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, without the number of samples."""
        return {name: value for name, value in self._asdict().items() if name != "samples"}

    def to_text(self) -> str:
        """Return a line of text."""
        text = (
            f"row groups of {self.chunk_rows:,} samples, {size(self.chunk_nbytes)} decoded: a shuffle mixes "
            f"{self.shuffled_samples:,} of {self.samples:,} samples at a time"
        )
        if self.chunk_nbytes <= LARGE_CHUNK_BYTES or self.shuffled_samples == self.samples:
            return text
        return f"{text}; penstock import copies {size(self.nbytes)}, and its shuffles mix all"


def chunks_of(version: Version) -> ShuffleChunks | None:
    """Return the effect of registered tables' chunks; None for a version without registered tables."""
    tables = [one for one in version.manifest.get("foreign", ()) if "chunk_rows" in one]
    if not tables:
        return None
    fields = {name for one in tables for name in one["chunk_fields"]}
    groups = version.manifest["groups"].values()
    nbytes = sum(n for group in groups for name, n in group["field_nbytes"].items() if name in fields)
    rows, mean = max(one["chunk_rows"] for one in tables), -(-nbytes // version.manifest["n_rows"])
    shape = frozen_shape(len(version), mean, decoded=(rows, max(1, rows * mean)))
    mixed = len(version) if shape.chunk == 1 else min(len(version), shape.live_samples)
    return ShuffleChunks(len(version), rows, rows * mean, mixed, nbytes)
