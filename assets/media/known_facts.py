"""Earlier knowledge of an object that is to be cut."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loader.storage import Store

from .segments.read import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipStaging:
    """Place for the clips of one object, between its audit and its cut."""

    store: Store
    """Store that the clips are in."""
    key: str
    """Key in the store; it is made of everything that decides the bytes of the clips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An object, as its audit and its neighbours describe it."""

    audit: Mapping[str, Any] = field(default_factory=dict)
    """Row of the object in the media table; empty for none."""
    segments: tuple[Segment, ...] = ()
    """Segments that a table beside the media gives."""
    staging: ClipStaging | None = None
    """Place for clips that the audit makes; None for nowhere."""


NOTHING = Known()
