"""Read samples' keys from indexes only: neither seals nor the locations of registered shards are needed."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ...storage.threads import DaemonPool
from ..shards.address import SampleAddress
from ..shards.index import ROW_GROUP_ROWS

if TYPE_CHECKING:
    from .sample_places import VersionData

Int64s = np.ndarray[Any, np.dtype[np.int64]]


def sample_keys(version: "VersionData", ordinals: Int64s) -> list[str]:
    """Return the keys of live ordinals, in order. Costs one index row group for each stretch not in memory."""
    part, row = version.parts.locate(ordinals)  # [n] each
    stretch = row // ROW_GROUP_ROWS
    # No part has 2**32 stretches.
    names, position = np.unique(part * 2**32 + stretch, return_inverse=True)
    parts = (names // 2**32).tolist()
    stretches = (names % 2**32).tolist()
    with DaemonPool(16, "penstock-index") as pool:
        keys = list(pool.map(version.stretch_keys, parts, stretches))
    row_in_stretch = row % ROW_GROUP_ROWS
    located = zip(
        position.tolist(),
        row_in_stretch.tolist(),
        strict=True,
    )
    return [keys[number][local] for number, local in located]


def key_addresses(version: "VersionData", ordinals: Int64s) -> list[SampleAddress]:
    """Return the addresses of live ordinals, in order, without fields."""
    part, row = version.parts.locate(ordinals)
    keys = sample_keys(version, ordinals)
    located = zip(
        keys,
        part.tolist(),
        row.tolist(),
        ordinals.tolist(),
        strict=True,
    )
    return [
        SampleAddress(
            key=key,
            version=version.name,
            version_id=version.id,
            part=version.parts.id(position),
            row=row_of_key,
            ordinal=ordinal,
            fields={},
        )
        for key, position, row_of_key, ordinal in located
    ]
