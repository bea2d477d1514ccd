"""What a change of published parts asks of the version that it is laid on, which may be another than it began from."""

from collections.abc import Iterable

from ..errors import Conflict
from .version import Version


def still_there(parent: Version | None, parts: Iterable[str]) -> Version:
    """The version, itself. Raises: Conflict where there is none any more, or where it has not all of these parts: what
    is said of others would be in its tables, and nobody would find it there."""
    if parent is None:
        raise Conflict("every version of the dataset was retired meanwhile; begin again")
    there = set(parent.parts.ids.to_pylist())
    for part in parts:
        if part not in there:
            raise Conflict(
                f"part {part} is no longer in {parent.name}, the newest version; begin again from it"
            )
    return parent
