"""The objects of a place that a registration or an import looks at.

Patterns are those of .gitignore (through pathspec), against keys. Files of a table's folder that hold no live rows are
left out, as `formats.live_files` says. Objects that a listing cannot hand out are counted and named.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from loader.storage import ObjectInfo, Store
from loader.storage.patterns import key_filter
from loader.storage.refusals import Refusals, list_place

from .live_files import live_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A choice of a place's objects by their keys."""

    include: tuple[str, ...] = ()
    """Patterns; only objects that match one are taken, all when empty."""
    exclude: tuple[str, ...] = ()
    """Patterns; no object that matches one is taken."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; {} where everything is taken."""
        told = {"include": list(self.include), "exclude": list(self.exclude)}
        return {name: patterns for name, patterns in told.items() if patterns}


EVERYTHING = Selection()


class Listed(NamedTuple):
    """The objects of a place."""

    infos: list[ObjectInfo]
    """Objects that may be of the format."""
    n: int
    """Objects of the place, those included that patterns and table layouts leave out."""
    refusals: Refusals
    """Objects that the listing could not hand out."""

    def why_none(self, url: str, format: str) -> str:
        """Return the beginning of a message: the place has no object of a format."""
        text = f"{url} has no {format} object among {self.n}"
        if self.n > len(self.infos):
            text += f", of which {self.n - len(self.infos)} were left out by patterns, or hold no live rows"
        if self.refusals.n:
            name, reason = self.refusals.first[0]
            text += f"; {self.refusals.n} more were refused, such as {name!r}: {reason}"
        return text


def list_selected(store: Store, format: str, selection: Selection) -> Listed:
    """List a place. Raises: InvalidRuntime and MissingDependency as `key_filter`; as `live_files`; StoreError."""
    why, refusals = key_filter(selection.include, selection.exclude, store.url), Refusals()
    infos, n = list[ObjectInfo](), 0

    def refuse(name: str, reason: str) -> None:
        if not why(name):
            refusals(name, reason)

    for info in list_place(store, refuse=refuse):
        n += 1
        if not why(info.key):
            infos.append(info)
    return Listed(live_files(store, format, infos), n, refusals)
