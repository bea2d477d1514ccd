"""Raw objects under the location given by `--raw`."""

import os
from dataclasses import dataclass
from pathlib import PurePosixPath

import loader
from loader.errors import InvalidRuntime, PenstockError
from loader.storage import open_store
from loader.storage.requests import retry_while

from ..denied.sources import plain_uri, why_not
from .json_record import JsonRecord
from .kinds import Facts, Media, find_kind
from .outage import Outage
from .shown_values import ShownValue, show_value

MOST_BYTES = 64 * 2**20
"""Largest object fetched, in bytes."""
PATIENCE_S = 2.0
"""Seconds of retries; a page does not depend on its raw object."""


class RawSource:
    """Objects under a URL. URIs come from data, so others are rejected."""

    def __init__(self, root: loader.Root, url: str) -> None:
        """Open a URL. Raises: InvalidRuntime for a relative path; InvalidStore; MissingDependency."""
        self._base = plain_uri(url).rstrip("/")
        if "://" not in self._base and (not self._base.startswith("/") or ".." in self._base.split("/")):
            raise InvalidRuntime(
                f"--raw {url!r} is neither a folder nor a bucket; pass an absolute path such as /data/landing, or a "
                "URL such as s3://bucket/landing",
                what="--raw",
                given=url,
                accepted="an absolute path or a URL",
            )
        self._store = open_store(self._base)
        self._root_url = root.url
        self._outage = Outage()

    def nbytes(self, uri: str) -> int:
        """Return an object's size in bytes. Costs one request. Raises: as `read`."""
        key = self._key(uri)
        nbytes = self._outage.ask(lambda: self._store.head(key)).nbytes
        if nbytes > MOST_BYTES:
            message = f"{uri} has {nbytes:,} bytes; up to {MOST_BYTES:,} are fetched"
            raise InvalidRuntime(message, what="size", where=uri, given=nbytes, accepted=MOST_BYTES)
        return nbytes

    def read(self, uri: str) -> bytes:
        """Return an object's bytes. Raises: InvalidRuntime if it is elsewhere or too large; StoreError."""
        n = self.nbytes(uri)
        key = self._key(uri)
        if n:
            return bytes(self._outage.ask(lambda: self._store.get_range(key, 0, n)).data)
        return b""

    def _key(self, uri: str) -> str:
        plain = plain_uri(uri)
        if not plain.startswith(f"{self._base}/"):
            message = f"{uri} is not below --raw {self._store.url}"
            raise InvalidRuntime(message, what="raw object", given=uri, accepted=self._store.url)
        reason = why_not(uri, [self._base], self._root_url)
        # `why_not` allows links because takedown deletes the link itself, but reading would follow it.
        if not reason and plain.startswith("/") and os.path.islink(plain):
            reason = "it is a link"
        if not reason and plain.startswith("/") and os.path.exists(plain) and not os.path.isfile(plain):
            reason = "it is not a file"  # reading from a pipe would block
        if reason:
            message = f"{uri} is not fetched: {reason}"
            raise InvalidRuntime(message, what="raw object", where=uri, given=reason)
        return plain.removeprefix(f"{self._base}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawObjectRecord(JsonRecord):
    """A sample's raw object."""

    uri: str
    nbytes: int = 0
    """Size in bytes."""
    reason: str = ""
    """Why it is not shown, or ""."""
    shown: ShownValue | None = None
    """Decoded value, if fetched."""
    picture: Media | None = None
    """Thumbnail, if there is one."""


def raw_object(
    source: RawSource | None, uri: str, most: int = MOST_BYTES, edge: int = 0
) -> RawObjectRecord | None:
    """Return a raw object's record; None without URI.

    most: largest size fetched, in bytes. edge: thumbnail's longer side in pixels; 0 for none.
    """
    if not uri:
        return None
    if source is None:
        return RawObjectRecord(
            uri=uri, reason="start the viewer with --raw URL to fetch raw objects below that URL"
        )
    field = f"raw{PurePosixPath(uri).suffix.lower()}"
    facts = Facts(field=field)
    try:
        with retry_while(lambda spent_s: spent_s < PATIENCE_S):
            nbytes = source.nbytes(uri)
            if nbytes > most:
                return RawObjectRecord(uri=uri, nbytes=nbytes)
            data = source.read(uri)
    except PenstockError as error:
        return RawObjectRecord(uri=uri, reason=str(error))
    picture = None
    if edge:
        picture = find_kind(data, facts).thumbnail(data, facts, edge)
    return RawObjectRecord(uri=uri, nbytes=nbytes, shown=show_value(field, data, facts), picture=picture)
