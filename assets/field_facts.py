"""Facts of fields that versions keep for ever (docs/format.md): those of cut media, and those that a publish may tell.

Featurizers have their own (`Featurizer.facts`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from loader.dataset.shards.part import ShardFile

CUT: Mapping[str, Mapping[str, Any]] = {
    "jpg": {"dims": ["row", "column", "channel"]},
    "img": {"dims": ["row", "column", "channel"]},
    "mp4": {"dims": ["frame", "row", "column", "channel"]},
    "flac": {"dims": ["channel", "sample"], "unit": "full scale"},
    "sound.flac": {"dims": ["channel", "sample"], "unit": "full scale"},
}
"""Field of a unit -> facts of its decoded values under every policy, which may change from batch to batch."""


def facts_told(
    shards: Iterable[ShardFile], *known: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the facts of the fields that these shards have: those of other fields a publish refuses."""
    there = {field for shard in shards for field in shard.field_nbytes}
    return {field: dict(told) for one in known for field, told in one.items() if field in there}
