"""Select the objects of a place for a registration or an import.

Patterns have the syntax of .gitignore (through pathspec), against keys. Files without live rows of a table are left
out (`live_files`). Objects that a listing cannot return are counted and named.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from loader.storage import ObjectInfo, Store
from loader.storage.store import Refusals, key_filter, list_place

from .live_files import live_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A choice of objects by their keys."""

    include: tuple[str, ...] = ()
    """Patterns to include; all objects if empty."""
    exclude: tuple[str, ...] = ()
    """Patterns to exclude."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; {} for all objects."""
        patterns = {"include": list(self.include), "exclude": list(self.exclude)}
        return {name: texts for name, texts in patterns.items() if texts}


EVERYTHING = Selection()


class ListedObjects(NamedTuple):
    """The objects of a place."""

    infos: list[ObjectInfo]
    """Objects that may be of the format."""
    n: int
    """All objects of the place, selected or not."""
    refusals: Refusals
    """Objects that the listing could not return."""

    def why_none(self, url: str, format: str) -> str:
        """Return the beginning of a message: the place has no object of a format."""
        text = f"{url} has no {format} object among {self.n}"
        if self.n > len(self.infos):
            text += f", of which {self.n - len(self.infos)} were left out by patterns, or hold no live rows"
        if self.refusals.n:
            name, reason = self.refusals.first[0]
            text += f"; {self.refusals.n} more were refused, such as {name!r}: {reason}"
        return text


def list_selected(store: Store, format: str, selection: Selection) -> ListedObjects:
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
    return ListedObjects(live_files(store, format, infos), n, refusals)
