"""List a bucket in key order, despite failing pages and without trusting a provider's offset or prefix."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import StoreError
from ..shared.requests import count_request
from ..store import ObjectInfo, Refuse, key_fault
from .connection import Connection, client_errors
from .errors import is_unparsed
from .raw_listing import PageOf

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

T = TypeVar("T")

PAGE_KEYS = 1_000
_MD5 = re.compile(r'"[0-9a-f]{32}"')


def list_objects(
    connection: Connection,
    base: str,
    prefix: str,
    start_after: str,
    *,
    pages_of: PageOf,
    refuse: Refuse,
    seek: bool = False,
) -> Iterator[ObjectInfo]:
    """Yield objects below `base` whose relative key starts with `prefix` and sorts after `start_after`.

    obstore lists whole folders; the rest is filtered here. A failed page restarts the listing within the retry budget;
    rereading earlier pages belongs to the same try. No object is yielded twice.

        base: '' or ends in '/'.
        pages_of: direct listing, used if obstore cannot parse a key.
        refuse: receives each object whose key is not a valid store key.
        seek: let the server start after the last object, which some servers get wrong.

    Raises: StoreError if the bucket does not list in key order.
    """
    full = base + prefix
    previous = ""  # in this pass
    last = start_after  # over all passes
    pages = _Pages(connection, base, prefix, pages_of)

    def behind() -> str:
        return base + last if seek and last else ""

    for page in pages.each(behind):
        if pages.begins:
            previous = ""
        for meta in page:
            key = meta["path"][len(base) :]
            if not meta["path"].startswith(full) or not key:
                continue
            is_marker = meta["size"] == 0
            key = key.removesuffix("/") if is_marker else key  # consoles create 'sub/' for a folder
            if key <= previous:
                if is_marker:
                    continue  # 'sub/' sorts after 'sub.x', and 'sub' before it
                raise StoreError(
                    f"cannot list {prefix!r}: {key!r} came behind {previous!r}, and key order is needed; "
                    "this bucket (an S3 directory bucket?) does not list in it: use a general purpose bucket"
                )
            previous = key
            if key > last:
                last = key
                if fault := key_fault(key):
                    refuse(key, fault)
                else:
                    yield info_of(key, meta)


class _Pages:
    def __init__(self, connection: Connection, base: str, prefix: str, pages_of: PageOf) -> None:
        self._connection, self._prefix, self._pages_of = connection, prefix, pages_of
        self._full = base + prefix
        self._folder = self._full[: self._full.rfind("/")] if "/" in self._full else None
        self._pages: Iterator[Sequence[Any]] | None = None
        self._seen = ""  # last path of all pages so far, in all passes
        self._is_parsed = True
        self.begins = True
        """True for the first page of a pass."""

    def each(self, behind: Callable[[], str]) -> Iterator[Sequence[Any]]:
        """Yield the pages. behind: returns the path after which a pass may start, "" for the beginning."""
        while (page := self._call(lambda obstore, client: self._next(obstore, client, behind()))) is not None:
            yield page
            self.begins = False
        if self._is_parsed:
            return
        self.begins, start, token = True, behind(), ""
        while True:
            raw = self._call(lambda *_: self._pages_of(self._full, start, token))  # noqa: B023 - called at once
            yield raw.objects
            self.begins, token = False, raw.token
            if not token:
                return

    def _call(self, attempt: Callable[[Any, Client], T]) -> T:
        return self._connection.call("list", self._prefix, attempt)

    def _next(self, obstore: Any, client: Client, behind: str) -> Sequence[Any] | None:
        """Return the next page; None after the last, or if obstore cannot parse a key."""
        try:
            if self._pages is None:
                self._pages = obstore.list(client, self._folder, offset=behind or None, chunk_size=PAGE_KEYS)
                self.begins = True
            page: Sequence[Any] | None = next(self._pages, None)
            while page and (end := max(meta["path"] for meta in page)) <= self._seen:
                count_request()
                page = next(self._pages, None)
            self._seen = end if page else self._seen
            return page
        except client_errors() as error:
            self._pages = None  # a broken stream cannot be resumed
            if is_unparsed(error):
                self._is_parsed = False
                return None
            raise


def info_of(key: str, meta: Any) -> ObjectInfo:
    modified_us = int(meta["last_modified"].timestamp() * 1_000_000)
    return ObjectInfo(key=key, nbytes=meta["size"], etag=etag_of(meta), modified_us=modified_us)


def etag_of(meta: Any) -> str:
    return quoted(meta["e_tag"] or "")


def quoted(etag: str) -> str:
    """Return an ETag with quotes, which Azure's listings lack."""
    return etag if not etag or etag.endswith('"') else f'"{etag}"'


def is_md5(etag: str) -> bool:
    """Return whether an ETag could be its object's MD5."""
    return bool(_MD5.fullmatch(etag))


def differ(first: str, other: str) -> bool:
    """Return whether two ETags prove that two objects differ: both could be MD5 and are unequal."""
    return first != other and is_md5(first) and is_md5(other)
