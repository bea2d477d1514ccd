"""What is known of an object before it is cut."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loader.storage import Store

from .segments.read import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """Where the clips of one object wait. Its key says what decides their bytes."""

    store: Store
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """audit: its row of the media table, or nothing; segments: those that a table beside the media gives; shelf: where
    clips may wait that were made on the way."""

    audit: Mapping[str, Any] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    shelf: Shelf | None = None


NOTHING = Known()
