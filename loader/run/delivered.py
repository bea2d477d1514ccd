"""What became of a rank's slots: what each is known by, and what could not be read."""

from dataclasses import dataclass

from ..order.keys import I64
from .substitution import Substitution


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Delivered:
    """Per row of the batch: keys, the delivered sample's, "" at padding; crcs, int64, the CRC-32C that its digest is
    made of, anything at padding. The samples lie in the batch's columns."""

    keys: list[str]
    crcs: I64
    substitutions: list[Substitution]
