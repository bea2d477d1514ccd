"""Objects that are read at once and asked for one by one: what is known to be needed costs one round trip."""

from collections.abc import Iterable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Protocol

from .shared.threads import DaemonPool
from .store import Blob

AT_ONCE = 64
"""Requests in flight: as many as a store takes by default."""


class Objects(Protocol):
    """What reading whole objects needs of a store."""

    @property
    def url(self) -> str:
        """Where it is, without secrets."""

    def get(self, key: str) -> Blob:
        """The whole object. Raises: ObjectNotFound."""


class Together:
    """A store of which some objects are on their way. A context manager: what nobody has asked for is left at its end.

    The first `get` of one of `keys` gives what was read then, its error too; every other reads.
    """

    def __init__(self, store: Objects, keys: Iterable[str]) -> None:
        self._store, self.url = store, store.url
        self._pool = DaemonPool(AT_ONCE, "penstock-together")
        self._coming: dict[str, Future[Blob]] = {
            key: self._pool.submit(copy_context().run, store.get, key) for key in keys
        }

    def get(self, key: str) -> Blob:
        """The whole object. Raises: as the store does."""
        coming = self._coming.pop(key, None)
        return self._store.get(key) if coming is None else coming.result()

    def peek(self, key: str) -> Blob:
        """As `get`; the next `get` gives the same and costs no request. Raises: as the store does."""
        if key not in self._coming:
            self._coming[key] = self._pool.submit(copy_context().run, self._store.get, key)
        return self._coming[key].result()

    def __enter__(self) -> "Together":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.dismiss()
