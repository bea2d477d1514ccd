"""Change tokens of mirrored objects: each store has its own ETags, and readers compare one token."""

from ...errors import Changed
from ..shared.threads import lock

FIRST = 1


class Pins:
    """The ETag of each object in each store, as it was first seen there, under one token per object.

    The token is "m1", and the next number once the object was seen to be replaced; the same in every process.
    Thread-safe; some 200 bytes per object read.
    """

    def __init__(self, n_stores: int) -> None:
        self._lock = lock()
        self._etags: list[dict[str, str]] = [{} for _ in range(n_stores)]
        self._numbers: dict[str, int] = {}  # of the objects that were replaced

    def etag(self, store: int, key: str, token: str | None) -> str | None:
        """Return the ETag to expect of a store for a pinned `token`; None for any. Raises: Changed."""
        if token is None:
            return None
        with self._lock:
            self._check(key, token)
            return self._etags[store].get(key)

    def token(self, store: int, key: str, etag: str, pinned: str | None = None) -> str:
        """Return the token of an object that a store gave. Raises: Changed where the reader has pinned another."""
        with self._lock:
            if pinned is not None:
                self._check(key, pinned)
            held = self._etags[store].setdefault(key, etag)
            if held != etag:
                if pinned is not None:
                    raise self._changed(key, pinned)
                for etags in self._etags:
                    etags.pop(key, None)
                self._etags[store][key] = etag
                self._numbers[key] = self._numbers.get(key, FIRST) + 1
            return self._token(key)

    def listed(self, store: int, key: str, etag: str) -> str:
        """Return the token that an object would have; nothing is kept of it."""
        with self._lock:
            if self._etags[store].get(key, etag) == etag:
                return self._token(key)
            return f"m{self._numbers.get(key, FIRST) + 1}"

    def _token(self, key: str) -> str:
        return f"m{self._numbers.get(key, FIRST)}"

    def _check(self, key: str, token: str) -> None:
        if token != self._token(key):
            raise self._changed(key, token)

    def _changed(self, key: str, token: str) -> Changed:
        return Changed(
            f"{key}: the object was replaced since it was first read (etag {token}, now another); open the version "
            "again"
        )
