"""What is said where a version is not found because a mirror was asked that does not have it yet."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import VersionNotFound
from ..storage import Store
from ..storage.mirrored import MirroredStore
from .history import State
from .marker import Marker


@contextmanager
def mirrors_named(store: Store, marker: Marker, state: State) -> Iterator[None]:
    """A VersionNotFound that is raised inside says that a mirror was asked, up to which log entry that is copied, and
    what brings it up to date; where the primary was asked it stays as it is. No request."""
    try:
        yield
    except VersionNotFound as error:
        if not (lag := _lag(store, marker, state)):
            raise
        raise VersionNotFound(f"{error}; {lag}") from None


def _lag(store: Store, marker: Marker, state: State) -> str:
    if isinstance(store, MirroredStore):
        # (the marker may be that of a mirror that is read because it is near: it lends what it has, and no more)
        if store.primary_is_up:
            return ""
        mirrors = ", ".join(one.url for one in store.stores[1:])
        return (
            f"{store.url} does not answer, and its log is read from a mirror ({mirrors}), which has it up to entry "
            f"{state.n}: what is newer is there again when {store.url} is; then penstock migrate run MIRROR --root "
            f"{store.url} copies it"
        )
    if (primary := marker.mirror_of) is None:
        return ""
    return (
        f"{store.url} is a mirror of {primary}, copied up to log entry {state.n}: what is newer comes by penstock "
        f"migrate run {store.url} --root {primary}"
    )
