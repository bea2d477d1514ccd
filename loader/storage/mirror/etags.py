"""Change tokens of mirrored objects: one token over each store's own ETag."""

from ...errors import Changed
from ..shared.threads import lock

FIRST = 1


class Pins:
    """Each object's first ETag in each store, under one token. Thread-safe; about 200 bytes per object read.

    The token is "m1", and the next number after a replacement; the same in every process.
    """

    def __init__(self, n_stores: int) -> None:
        self._lock = lock()
        self._etags: list[dict[str, str]] = [{} for _ in range(n_stores)]
        self._numbers: dict[str, int] = {}  # of the objects that were replaced

    def etag(self, store: int, key: str, token: str | None) -> str | None:
        """Return a store's ETag for a pinned `token`; None for any."""
        if token is None:
            return None
        with self._lock:
            self._check(key, token)
            return self._etags[store].get(key)

    def token(self, store: int, key: str, etag: str, pinned: str | None = None) -> str:
        """Return the token of a store's object. Raises: Changed if it is not `pinned`."""
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
        """Return the token that an object would have, without pinning."""
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
