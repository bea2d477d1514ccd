"""Raw objects below the one place that a viewer's starter named: their addresses, bytes and values."""

import os
from dataclasses import dataclass
from pathlib import PurePosixPath

import loader
from loader.errors import InvalidRuntime, PenstockError
from loader.storage import open_store
from loader.storage.shared.requests import tried_while

from ..denied.sources import plain_uri, why_not
from .json_record import Record
from .kinds import Facts, Media, kind_of
from .outage import Outage
from .samples.shown_values import Shown, shown

MOST_BYTES = 64 * 2**20
"""A larger object is not fetched."""
PATIENCE_S = 2.0
"""Seconds in which a page, which is complete without its raw object, tries again to have it."""


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
        self._outage = Outage()

    def nbytes(self, uri: str) -> int:
        """Return the size of an object; one request. Raises: as `read`."""
        key = self._key(uri)
        found = self._outage.ask(lambda: self._store.head(key)).nbytes
        if found > MOST_BYTES:
            raise InvalidRuntime(f"{uri} has {found:,} bytes; up to {MOST_BYTES:,} are fetched")
        return found

    def read(self, uri: str) -> bytes:
        """Return an object. Raises: InvalidRuntime for one that lies elsewhere or is too large; StoreError."""
        n = self.nbytes(uri)
        key = self._key(uri)
        return bytes(self._outage.ask(lambda: self._store.get_range(key, 0, n)).data) if n else b""

    def _key(self, uri: str) -> str:
        plain = plain_uri(uri)
        if not plain.startswith(f"{self._base}/"):
            raise InvalidRuntime(f"{uri} does not lie below --raw {self._store.url}")
        reason = why_not(uri, [self._base], self._root_url)
        # A link is deleted itself, which `why_not` allows; reading would follow it.
        if not reason and plain.startswith("/") and os.path.islink(plain):
            reason = "it is a link"
        if not reason and plain.startswith("/") and os.path.exists(plain) and not os.path.isfile(plain):
            reason = "it is no file"  # a pipe would be waited for
        if reason:
            raise InvalidRuntime(f"{uri} is not fetched: {reason}")
        return plain.removeprefix(f"{self._base}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawObject(Record):
    """The raw object of a sample, by its kind."""

    uri: str
    """Its address."""
    nbytes: int = 0
    """Number of bytes."""
    reason: str = ""
    """The reason why it is not shown; "" where it is."""
    shown: Shown | None = None
    """Its value; None where it was not fetched."""
    picture: Media | None = None
    """A picture of it; None where it has none, or none was asked for."""


def raw_object(source: RawSource | None, uri: str, most: int = MOST_BYTES, edge: int = 0) -> RawObject | None:
    """Return what is shown of a raw object; None without an address.

    most: bytes up to which it is fetched and decoded. edge: pixels of its picture's longer side; 0 for no picture.
    """
    if not uri:
        return None
    if source is None:
        return RawObject(uri=uri, reason="raw objects are fetched with --raw URL, from below that URL alone")
    field = f"raw{PurePosixPath(uri).suffix.lower()}"
    facts = Facts(field=field)
    try:
        with tried_while(lambda spent_s: spent_s < PATIENCE_S):
            nbytes = source.nbytes(uri)
            if nbytes > most:
                return RawObject(uri=uri, nbytes=nbytes)
            data = source.read(uri)
    except PenstockError as error:
        return RawObject(uri=uri, reason=str(error))
    picture = kind_of(data, facts).thumbnail(data, facts, edge) if edge else None
    return RawObject(uri=uri, nbytes=nbytes, shown=shown(field, data, facts), picture=picture)
