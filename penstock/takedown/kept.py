"""What a store keeps of an object that is gone, and that it cannot be known."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """path: of the object; until: why it cannot be deleted here, or ""; delete: does it, where it can."""

    path: str
    what: str
    until: str
    delete: Callable[[], object] | None = None


class Unseen(Exception):
    """What a store keeps cannot be looked at; the text says why."""
