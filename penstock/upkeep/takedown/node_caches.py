"""Pages of shards with denied samples in visible node caches."""

import os
from collections.abc import Iterator, Sequence

from loader.cache.cached_store import VERIFIED
from loader.cache.folder import MARKER
from loader.cache.pages import HEADER_BYTES, page_name
from loader.errors import InvalidRuntime

from ...denied.record import Place, Record

PAGE_SIZES = tuple(2**power for power in range(12, 27))
"""Page sizes to look for, besides the sizes in the folder."""


def purge_cache(folder: str, record: Record) -> int:
    """Delete the pages of a takedown's shards. Returns their number. Raises: InvalidRuntime for no node cache."""
    pages = _pages(folder, record)
    for path in pages:
        os.unlink(path)
    return len(pages)


def cache_places(record: Record, folders: Sequence[str]) -> Iterator[Place]:
    """Yield a place for each folder."""
    for folder in folders:
        place = {"check": "cache", "what": "a node cache", "path": folder}
        if pages := _pages(folder, record):
            yield {
                **place,
                "clean": False,
                "why": f"{len(pages)} pages are there: penstock takedown run --cache",
            }
        else:
            yield {**place, "clean": True, "evidence": "no page of the shards"}


def _pages(folder: str, record: Record) -> list[str]:
    """Return the paths of cached pages of shards that had the samples."""
    if not os.path.isfile(os.path.join(folder, MARKER)):
        raise InvalidRuntime(
            f"{folder} is no node cache: it has no {MARKER}; pass the path given to NodeCache"
        )
    there: dict[str, str] = {}
    sizes = set(PAGE_SIZES)
    for at, _, names in os.walk(os.path.join(folder, "pages")):
        for name in names:
            there[name] = os.path.join(at, name)
            sizes.add(os.path.getsize(there[name]) - HEADER_BYTES)
    shards = {(place["sha256"], place["nbytes"]) for place in record.having("absent") if "nbytes" in place}
    shards |= {tuple(place["pages"]) for place in record.having("registered") if "pages" in place}
    names = (
        page_name(content, size, number)
        for sha256, nbytes in sorted(shards)
        for content in (sha256, f"{sha256}{VERIFIED}")
        for size in sorted(sizes)
        if size > 0 and there
        for number in range(-(-nbytes // size))
    )
    return sorted({there[name] for name in names if name in there})
