"""What became of a rank's slots: samples, and what each is known by."""

from dataclasses import dataclass
from typing import Any

Sample = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """By slot: samples, field -> value; keys, the delivered sample's; crcs, the CRC-32C that its digest is made of."""

    samples: dict[int, Sample]
    keys: dict[int, str]
    crcs: dict[int, int]
