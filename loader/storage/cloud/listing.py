"""Listing a bucket in key order, over broken pages, without trusting a provider's offset or prefix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import StoreError
from ..refusals import Refuse
from ..shared.requests import count_request
from ..store import ObjectInfo, key_fault
from .connection import Connection, client_errors
from .errors import is_unparsed

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

    from .raw_listing import PageOf

PAGE_KEYS = 1_000


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
    """Yield objects below `base` whose relative key starts with `prefix`, behind `start_after`.

    obstore lists whole folders, so the rest is filtered here. A page that fails is asked for under the retry budget,
    from the beginning of the listing. No object is yielded twice. Pages that were seen before are part of the try, so
    the budget of a page that always fails runs out.

    base: '' or ends in '/'.
    pages_of: lists on where obstore cannot parse a key.
    refuse: receives each object whose key no store takes.
    seek: let the server begin behind the last object yielded, which some get wrong.

    Raises: StoreError when the bucket does not list in key order.
    """
    full = base + prefix
    folder = full[: full.rfind("/")] if "/" in full else None
    pages: Iterator[Sequence[Any]] | None = None
    previous = ""  # in this pass
    last = start_after  # over all passes
    seen = ""  # the last path of the pages that were taken, over all passes
    is_parsed = True

    def attempt(obstore: Any, client: Client) -> Sequence[Any] | None:
        nonlocal pages, previous, seen, is_parsed
        try:
            if pages is None:
                behind = base + last if seek and last else None
                pages, previous = obstore.list(client, folder, offset=behind, chunk_size=PAGE_KEYS), ""
            page: Sequence[Any] | None = next(pages, None)
            while page and (end := max(meta["path"] for meta in page)) <= seen:
                count_request()
                page = next(pages, None)
            seen = end if page else seen
            return page
        except client_errors() as error:
            pages = None  # a broken stream cannot be resumed
            if is_unparsed(error):
                is_parsed = False
                return None
            raise

    def each_page() -> Iterator[Sequence[Any]]:
        nonlocal previous
        while (page := connection.call("list", prefix, attempt)) is not None:
            yield page
        if not is_parsed:
            behind, token, previous = base + last if seek and last else "", "", ""
            while True:
                raw = connection.call("list", prefix, lambda *_: pages_of(full, behind, token))  # noqa: B023
                yield raw.objects
                token = raw.token
                if not token:
                    return

    for page in each_page():
        for meta in page:
            key = meta["path"][len(base) :]
            if not meta["path"].startswith(full) or not key:
                continue
            is_marker = meta["size"] == 0
            key = key.removesuffix("/") if is_marker else key  # consoles make 'sub/' of a folder
            if key <= previous:
                if is_marker:
                    continue  # 'sub/' sorts behind 'sub.x', and 'sub' before it
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


def info_of(key: str, meta: Any) -> ObjectInfo:
    """Return obstore's metadata of an object as an ObjectInfo."""
    modified_us = int(meta["last_modified"].timestamp() * 1_000_000)
    return ObjectInfo(key=key, nbytes=meta["size"], etag=etag_of(meta), modified_us=modified_us)


def etag_of(meta: Any) -> str:
    """Return the ETag in obstore's metadata of an object."""
    return quoted(meta["e_tag"] or "")


def quoted(etag: str) -> str:
    """Return an ETag as servers should write it: Azure's listings have no quotes, and its answers do."""
    return etag if not etag or etag.endswith('"') else f'"{etag}"'
