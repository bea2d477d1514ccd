"""How far the copy of a plain prefix is."""

from dataclasses import asdict, dataclass
from typing import Any

from loader.errors import PenstockError
from loader.storage import Store

from ...units import size
from ..copying.journal import Journal
from .copy import both_sides, is_marker, item_of, left_out
from .places import FOLDER, check_places


@dataclass(slots=True, kw_only=True)
class PrefixStatus:
    """missing, missing_nbytes: what is not at the target.

    changed: what is another object at the source than was copied; refused: what a run would name; uncopied: what lies
    in the source's folder and can be no object; there, unhashed: what is at the target, and of that what was taken by
    its size; unfinished: whether a run was killed, or is at work.
    """

    missing: int = 0
    missing_nbytes: int = 0
    changed: int = 0
    refused: int = 0
    uncopied: int = 0
    there: int = 0
    unhashed: int = 0
    unfinished: bool = False

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
    """How far a plain prefix is, by two listings. Raises: as `check_places`; what listing raises."""
    check_places(source, target)
    found = PrefixStatus()
    with Journal(target, FOLDER, scratch) as journal:
        found.unfinished = journal.is_resumed
        for sides in both_sides(source, target, journal):
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
    found.uncopied = sum(1 for _ in left_out(source))
    return found
