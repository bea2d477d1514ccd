"""Splits of samples, which workers name too."""

from collections.abc import Mapping
from hashlib import blake2b


def split_of(dataset: str, splits: Mapping[str, float], identity: str) -> str:
    """Return the split of a raw object or subject, as `DatasetSpec.split_of`. splits: name -> share."""
    hashed = blake2b(f"{dataset}\0{identity}".encode(), digest_size=8).digest()
    place = int.from_bytes(hashed, "little") / 2**64
    for name, share in sorted(splits.items()):
        place -= share
        if place < 0:
            return name
    return max(splits)
