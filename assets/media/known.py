"""What is known of an object before it is cut."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loader.storage import Store

from .segments.read import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipStaging:
    """Where the clips of one object wait. Its key says what decides their bytes."""

    store: Store
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An object, as its audit and its neighbours describe it."""

    audit: Mapping[str, Any] = field(default_factory=dict)
    """Its row of the media table, or nothing."""
    segments: tuple[Segment, ...] = ()
    """Segments that a table beside the media gives."""
    staging: ClipStaging | None = None
    """Where clips may wait that the audit made."""


NOTHING = Known()
