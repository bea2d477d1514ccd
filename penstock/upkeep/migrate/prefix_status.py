"""The progress of the copy of a plain prefix."""

from dataclasses import asdict, dataclass
from typing import Any

from loader.errors import PenstockError
from loader.storage import Store

from ...units import size
from ..copying.journal import Journal
from .prefix_copy import both_sides, is_marker, item_of, left_out
from .prefix_places import FOLDER, check_places


@dataclass(slots=True, kw_only=True)
class PrefixStatus:
    """Counts of the objects of a plain prefix."""

    missing: int = 0
    """Objects that are not at the target."""
    missing_nbytes: int = 0
    """Their bytes."""
    changed: int = 0
    """Objects that are others at the source than were copied."""
    refused: int = 0
    """Objects that a run would name, and not copy."""
    uncopied: int = 0
    """Things in the source's folder that can be no object."""
    there: int = 0
    """Objects that are at the target."""
    unhashed: int = 0
    """Objects of `there` that were accepted by their size."""
    unfinished: bool = False
    """True where a run was killed, or is at work."""

    @property
    def lags(self) -> bool:
        return bool(self.missing or self.changed or self.refused or self.uncopied)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        return (
            f"{self.there} objects are there ({self.unhashed} taken by their size), {self.missing} missing "
            f"({size(self.missing_nbytes)}), {self.changed} changed at the source, {self.refused} are others at "
            + "the target"
            + (
                f"; {self.uncopied} can never be copied: penstock migrate verify names them"
                if self.uncopied
                else ""
            )
            + ("; a run was not finished, or is at work" if self.unfinished else "")
        )


def prefix_status(source: Store, target: Store, scratch: str | None = None) -> PrefixStatus:
    """Return the progress of a plain prefix, by two listings. Raises: as `check_places`; what listing raises."""
    check_places(source, target)
    found, refused = PrefixStatus(), dict[str, str]()
    with Journal(target, FOLDER, scratch) as journal:
        found.unfinished = journal.is_resumed
        for sides in both_sides(source, target, journal, refused.__setitem__):
            if sides.source is None:
                continue
            try:
                item = item_of(sides)
            except PenstockError:
                found.refused += 1
                continue
            if item is None:
                found.there += 1
                found.unhashed += sides.noted is None or not sides.noted.digest
            elif item.was:
                found.changed += 1
            elif not is_marker(source, sides.source):
                found.missing += 1
                found.missing_nbytes += item.nbytes or 0
    found.uncopied = len(refused | dict(left_out(source)))
    return found
