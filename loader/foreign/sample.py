"""One sample of a foreign format: the places of its fields in an object."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..storage import Span

NO_METADATA: Mapping[str, Any] = {}


class ForeignSample(NamedTuple):
    """A sample as its format names it."""

    key: str
    """Key, any text: what our format forbids is escaped by whoever registers it."""
    fields: Mapping[str, Span]
    """Field -> its bytes in the object."""
    metadata: Mapping[str, Any] = NO_METADATA
    """Metadata column -> value."""
