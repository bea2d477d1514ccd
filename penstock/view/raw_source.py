"""Raw objects below the one place that a viewer's starter named: whether an address lies there, and its bytes."""

import os

import loader
from loader.errors import InvalidRuntime
from loader.storage import open_store
from penstock.takedown.finding.sources import plain_uri, why_not

MOST_BYTES = 64 * 2**20
"""A larger object is not fetched."""


class RawSource:
    """The objects below a URL. Their addresses are data: none is followed out of it."""

    def __init__(self, root: loader.Root, url: str) -> None:
        """Take the root, whose own objects are not raw ones, and a folder, bucket or prefix.

        Raises: InvalidRuntime for a path that is not written in full; InvalidStore; MissingDependency.
        """
        self._base = plain_uri(url).rstrip("/")
        if "://" not in self._base and (not self._base.startswith("/") or ".." in self._base.split("/")):
            raise InvalidRuntime(
                f"--raw {url!r} is no folder and no bucket; write a path in full, such as /data/landing, or a URL such "
                "as s3://bucket/landing"
            )
        self._store, self._root_url = open_store(self._base), root.url

    def nbytes(self, uri: str) -> int:
        """Return the size of an object; one request. Raises: as `read`."""
        found = self._store.head(self._key(uri)).nbytes
        if found > MOST_BYTES:
            raise InvalidRuntime(f"{uri} has {found:,} bytes; up to {MOST_BYTES:,} are fetched")
        return found

    def read(self, uri: str) -> bytes:
        """Return an object. Raises: InvalidRuntime for one that lies elsewhere or is too large; StoreError."""
        n = self.nbytes(uri)
        return bytes(self._store.get_range(self._key(uri), 0, n).data) if n else b""

    def _key(self, uri: str) -> str:
        plain = plain_uri(uri)
        if not plain.startswith(f"{self._base}/"):
            raise InvalidRuntime(f"{uri} does not lie below --raw {self._store.url}")
        reason = why_not(uri, [self._base], self._root_url)
        # A link is deleted itself, which `why_not` allows; reading would follow it.
        if not reason and plain.startswith("/") and os.path.islink(plain):
            reason = "it is a link"
        if reason:
            raise InvalidRuntime(f"{uri} is not fetched: {reason}")
        return plain.removeprefix(f"{self._base}/")
