"""Options of reading a table, and the sample that a row becomes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

_NONE: Mapping[str, Any] = MappingProxyType({})
WIDTHS = "widths"
"""Key of a registration's note that stands for `declared_widths`."""


class Options(NamedTuple):
    """Options of an import or a registration."""

    key: str | None = None
    """Column that holds the keys; None for the object's name and the row's number."""
    fields: Mapping[str, str] = _NONE
    """Column -> extension of the field it becomes, "" for the format's choice."""
    without: frozenset[str] = frozenset()
    """Fields and columns that are left out."""
    declared_widths: bool = True
    """True keeps the declared width of numbers in nested lists, False makes them 64 bits."""
    episodes: tuple[tuple[int, int], ...] = ()
    """(first, last) numbers of the episodes of robots that are read; empty for all."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {"key": self.key, "fields": dict(sorted(self.fields.items())), "without": sorted(self.without)}

    def episodes_json(self) -> dict[str, Any]:
        """Return plain JSON of `episodes`; empty where all are read, as in notes of earlier releases."""
        return {"episodes": [list(one) for one in self.episodes]} if self.episodes else {}

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> "Options":
        """Return the choices whose `to_json` is in `body`. Raises: KeyError."""
        return Options(body["key"], body["fields"], frozenset(body["without"]))

    @staticmethod
    def of_registered(body: Mapping[str, Any]) -> "Options":
        """Return the options in a registration's note. Raises: KeyError."""
        return Options.from_json(body)._replace(declared_widths=WIDTHS in body)


NO_OPTIONS = Options()


class ReadSample(NamedTuple):
    """One sample as its format has it."""

    key: str
    """Key, any text: what our format forbids is escaped."""
    fields: Mapping[str, bytes]
    """Field -> its bytes."""
    metadata: Mapping[str, Any] = _NONE
    """Metadata column -> value."""
    source: Mapping[str, str] = _NONE
    """Provenance, such as `split`."""
