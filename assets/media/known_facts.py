"""Facts known about an object before its cut."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loader.storage import Store

from .segments.read import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipStaging:
    """Where the clips of one object wait between its audit and its cut."""

    store: Store
    """Store of the clips."""
    key: str
    """Key prefix, derived from everything that decides the clips' bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Facts of an object from its audit and its landing place."""

    audit: Mapping[str, Any] = field(default_factory=dict)
    """Row of the object in the media table; empty for none."""
    segments: tuple[Segment, ...] = ()
    """Segments from the landing place's table."""
    staging: ClipStaging | None = None
    """Staging for clips that the audit made; None for none."""


NOTHING = Known()
