"""A store that the conformance suite runs over: how it is opened, and what it can."""

from collections.abc import Callable
from dataclasses import dataclass

from ..storage import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One place that is empty before a test, and the store there."""

    open: Callable[[], Store]
    """Opens the store; each call opens the same place."""
    creates: bool = True
    """False of a store without an atomic create: its `put_if_absent` raises InvalidStore, and nothing can be published
    to it."""
    tells_time: bool = True
    """False of a store whose `ObjectInfo.modified_us` is None."""
    refused: frozenset[str] = frozenset()
    """Characters that the format allows in a key, and that this store refuses with InvalidStore."""
    secrets: tuple[str, ...] = ()
    """Texts of credentials, which neither a pickle nor a name of the store may hold."""
