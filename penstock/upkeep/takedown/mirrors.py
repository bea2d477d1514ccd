"""Purge and check mirrors of a root with a takedown, and node caches with pages of its shards."""

import os
from collections.abc import Iterable, Iterator, Sequence

from loader import Root
from loader.cache.cached_store import VERIFIED
from loader.cache.pages import HEADER_BYTES, MARKER, page_name
from loader.dataset.log.marker import root_id
from loader.dataset.shards.shard import SEALS
from loader.errors import InvalidRuntime, PenstockError
from loader.storage import Store, is_there, open_store
from loader.storage.external_shards import FOREIGN

from ...denied.denied_bytes import DeniedBytes
from ...denied.record import Place, TakedownRecord
from .noncurrent import delete_noncurrent, noncurrent

PAGE_SIZES = tuple(2**power for power in range(12, 27))
"""Page sizes to search for, in bytes, besides those found in the folder."""


def purge_cache(folder: str, record: TakedownRecord) -> int:
    """Delete a takedown's shard pages, and return their number. Raises: InvalidRuntime if there is no node cache."""
    pages = _pages(folder, record)
    for path in pages:
        os.unlink(path)
    return len(pages)


def cache_places(record: TakedownRecord, folders: Sequence[str]) -> Iterator[Place]:
    """Yield a check result per folder."""
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


def _pages(folder: str, record: TakedownRecord) -> list[str]:
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
    page_names = (
        page_name(content, size, number)
        for sha256, nbytes in sorted(shards)
        for content in (sha256, f"{sha256}{VERIFIED}")
        for size in sorted(sizes)
        if size > 0 and there
        for number in range(-(-nbytes // size))
    )
    return sorted({there[name] for name in page_names if name in there})


COLLECTED = ("data/", SEALS, FOREIGN)
"""Prefixes whose objects only the mirror's own collector deletes, since its readers may need them."""


def purge_mirror(url: str, record: TakedownRecord, root: Store) -> int:
    """Delete a takedown's objects from a mirror. Returns the number of objects and noncurrent versions.

    The primary deleted or replaced these; an S3 bucket keeps noncurrent versions. Raises: InvalidRuntime if the URL is
    not a mirror of this root.
    """
    store = open_store(url, None)
    if root_id(store) != root_id(root):
        raise InvalidRuntime(f"{url} is no mirror of {root.url}: it has another root's id, or none")
    there = [path for path in _paths_to_delete(store, record, root) if not path.startswith(COLLECTED)]
    store.delete_many(there)
    return len(there) + delete_noncurrent(store, record.paths)


def still_there(store: Store, places: Iterable[Place]) -> list[str]:
    """Return the paths of recorded objects that a store has. Costs a request each."""
    return [place["path"] for place in places if is_there(store, place["path"])]


def _paths_to_delete(store: Store, record: TakedownRecord, root: Store) -> list[str]:
    remade = still_there(store, record.having("remade"))
    deleted = [path for path in remade if not is_there(root, path)]
    return still_there(store, record.having("absent")) + deleted + _former(store, record, root)


def _former(store: Store, record: TakedownRecord, root: Store) -> list[str]:
    return [
        path
        for path in still_there(store, record.having("replaced"))
        if not is_there(root, path) or bytes(store.get(path).data) != bytes(root.get(path).data)
    ]


def mirror_places(
    root: Root, record: TakedownRecord, urls: Sequence[str], keeps_nothing: Sequence[str] = ()
) -> Iterator[Place]:
    """Yield check results for each mirror in the log and each given URL.

    The same paths must be absent there, with no remains. keeps_nothing: URLs of stores that keep no remains.
    """
    denied = DeniedBytes(root.store, root.state.denies)
    named = {str(body.get("url", body.get("name", body["n"]))) for body in root.state.mirrors}
    for url in sorted(named | set(urls)):
        place = {"check": "mirror", "what": "a mirror", "url": url}
        if url not in urls:
            yield {**place, "clean": False, "why": "not looked at: pass --mirror with its URL"}
            continue
        try:
            store = open_store(url, None)
            there = still_there(store, record.having("absent")) + _former(store, record, root.store)
            there += [info.key for info in store.list(FOREIGN) if denied.has_path(info.key)]
        except PenstockError as error:
            yield {**place, "clean": False, "why": f"unreachable: {type(error).__name__}"}
            continue
        if there:
            yield {
                **place,
                "clean": False,
                "why": f"{len(there)} objects are still there, such as {there[0]}",
            }
        else:
            yield {**place, "clean": True, "evidence": "none of the objects that had to go is there"}
        yield from noncurrent(store, record.paths, stated=url in keeps_nothing, mirror=url)
