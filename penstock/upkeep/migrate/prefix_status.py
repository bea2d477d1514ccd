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
    """Counts of a plain prefix's objects."""

    missing: int = 0
    """Objects that the target lacks."""
    missing_nbytes: int = 0
    """Their bytes."""
    changed: int = 0
    """Objects that changed at the source since their copy."""
    refused: int = 0
    """Objects that a run would name, not copy."""
    uncopied: int = 0
    """Files of the source's folder that can be no object."""
    there: int = 0
    """Objects that the target has."""
    unhashed: int = 0
    """Objects of `there` accepted by size."""
    unfinished: bool = False
    """True if a run was killed or is at work."""

    @property
    def lags(self) -> bool:
        return bool(self.missing or self.changed or self.refused or self.uncopied)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        return (
            f"{self.there} objects are there ({self.unhashed} accepted by size), {self.missing} missing "
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
    """Return the progress of a plain prefix, by two listings. Raises: as `check_places`; as listing."""
    check_places(source, target)
    status, refused = PrefixStatus(), dict[str, str]()
    with Journal(target, FOLDER, scratch) as journal:
        status.unfinished = journal.is_resumed
        for sides in both_sides(source, target, journal, refused.__setitem__):
            if sides.source is None:
                continue
            try:
                item = item_of(sides)
            except PenstockError:
                status.refused += 1
                continue
            if item is None:
                status.there += 1
                status.unhashed += sides.noted is None or not sides.noted.digest
            elif item.was:
                status.changed += 1
            elif not is_marker(source, sides.source):
                status.missing += 1
                status.missing_nbytes += item.nbytes or 0
    status.uncopied = len(refused | dict(left_out(source)))
    return status
