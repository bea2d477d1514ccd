"""One sample of a foreign format: the places of its fields in an object."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ...storage import ObjectInfo, Span

NO_METADATA: Mapping[str, Any] = {}


class ForeignSample(NamedTuple):
    """A sample as its format names it."""

    key: str
    """Key, any text: what our format forbids is escaped by whoever registers it."""
    fields: Mapping[str, Span]
    """Field -> its bytes in the object."""
    metadata: Mapping[str, Any] = NO_METADATA
    """Metadata column -> value."""
    source: Mapping[str, str] = NO_METADATA
    """Provenance column -> value, of those that a sample's object does not tell."""


class Found(NamedTuple):
    """The objects of a place that are of a format, and their reader."""

    infos: list[ObjectInfo]
    """The objects, as they were listed."""
    samples: Callable[[ObjectInfo], Iterator[ForeignSample]]
    """The samples of an object. Raises: Corrupt; InvalidSample; Changed; StoreError."""
