"""Objects that a listing leaves out: keys that no store takes, and patterns of a caller."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from ..errors import InvalidRuntime, MissingDependency
from .store import ObjectInfo, Store, list_from

_log = logging.getLogger(__name__)

SHOWN = 20
Refuse = Callable[[str, str], object]
"""Receives (name, reason) of an object that a listing cannot return. The name is text, and no key of the store."""


@dataclass(slots=True)
class Refusals:
    """Objects that listings refused: their number, and the first of them."""

    n: int = 0
    """Number of refused objects."""
    first: list[tuple[str, str]] = field(default_factory=list)
    """(name, reason) of the first `SHOWN`."""

    def __call__(self, name: str, reason: str) -> None:
        """Count an object."""
        self.n += 1
        if len(self.first) < SHOWN:
            self.first.append((name, reason))

    def lines(self) -> list[str]:
        """Return a line of text for each, and one for the number not shown."""
        shown = [f"  refused: {name[:300]!r}: {reason}" for name, reason in self.first]
        return [*shown, f"  ... and {self.n - len(shown)} more"] if self.n > len(shown) else shown


class _ListsPlaces(Protocol):
    def list_place(
        self, prefix: str, start_after: str, refuse: Refuse, *, seek: bool, outside: bool
    ) -> Iterator[ObjectInfo]: ...


def list_place(
    store: Store,
    prefix: str = "",
    start_after: str = "",
    *,
    refuse: Refuse | None = None,
    seek: bool = False,
    outside: bool = False,
) -> Iterator[ObjectInfo]:
    """Yield as `Store.list` the objects of a place that other people fill.

    refuse: receives each object that is not returned. None logs it.
    seek: begin behind `start_after` as `store.list_from` does.
    outside: follow symbolic links out of the place, too.

    Raises: as `Store.list`.
    """
    refuse = refuse or log_refusals(store.url)
    if hasattr(type(store), "list_place"):
        return cast(_ListsPlaces, store).list_place(prefix, start_after, refuse, seek=seek, outside=outside)
    return list_from(store, prefix, start_after) if seek else store.list(prefix, start_after)


def log_refusals(url: str) -> Refuse:
    """Return a function that logs what a listing of the store at `url` refuses: the first `SHOWN` by name."""
    refusals = Refusals()

    def refuse(name: str, reason: str) -> None:
        refusals(name, reason)
        if refusals.n <= SHOWN:
            _log.warning("%s: %r is left out: %s", url, name[:300], reason)
        elif refusals.n == SHOWN + 1:
            _log.warning("%s: more is left out, and not named", url)

    return refuse


KeyFilter = Callable[[str], str]
"""Key -> why it is left out: "not_included", "excluded" or ""."""


def key_filter(include: Sequence[str], exclude: Sequence[str], whose: str) -> KeyFilter:
    """Return a function that gives the reason why patterns leave out a key.

    include: patterns of keys to keep; all when empty. exclude: patterns of keys to leave out. whose: for messages.

    Raises: InvalidRuntime for what is no pattern; MissingDependency.
    """
    if not include and not exclude:
        return lambda key: ""
    try:
        from pathspec import GitIgnoreSpec  # 20 ms, and definitions are loaded often
    except ImportError:
        raise MissingDependency(f"{whose}: patterns need pathspec: pip install pathspec") from None
    try:
        included = GitIgnoreSpec.from_lines(include) if include else None
        excluded = GitIgnoreSpec.from_lines(exclude) if exclude else None
    except (ValueError, TypeError) as error:
        raise InvalidRuntime(f"{whose}: {error}; write patterns as in .gitignore") from error

    def why(key: str) -> str:
        if included is not None and not included.match_file(key):
            return "not_included"
        return "excluded" if excluded is not None and excluded.match_file(key) else ""

    return why
