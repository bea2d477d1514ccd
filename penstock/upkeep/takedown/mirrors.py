"""Mirrors: delete a takedown's objects from one, and check that it has none."""

from collections.abc import Iterable, Iterator, Sequence

from loader import Root
from loader.dataset.log.marker import root_id
from loader.dataset.shards.seals import SEALS
from loader.errors import InvalidRuntime, PenstockError
from loader.storage import Store, is_there, open_store
from loader.storage.external_shards import FOREIGN

from ...denied.denied_bytes import DeniedBytes
from ...denied.record import Place, TakedownRecord
from ..gc.derived_segments import FOLDERS as DERIVED
from .remains import delete_noncurrent, noncurrent

COLLECTED = ("data/", SEALS, FOREIGN)
"""Prefixes whose objects only the mirror's collector deletes: its readers may need them."""


def purge_mirror(url: str, record: TakedownRecord, root: Store) -> int:
    """Delete a takedown's objects from a mirror; return the number of objects and noncurrent versions.

    Raises: InvalidRuntime if the URL is not a mirror of this root.
    """
    store = open_store(url, None)
    _check_mirror(store, root)
    there = [path for path in _paths_to_delete(store, record, root) if not path.startswith(COLLECTED)]
    store.delete_many(there)
    return len(there) + delete_noncurrent(store, record.paths)


def _check_mirror(store: Store, root: Store) -> None:
    """Raise InvalidRuntime if a store is not a mirror of this root. Raises: StoreError."""
    if root_id(store) != root_id(root):
        raise InvalidRuntime(f"{store.url} is not a mirror of {root.url}: it has another root's id, or none")


def still_there(store: Store, places: Iterable[Place]) -> list[str]:
    """Return the paths of recorded objects that a store has. Costs a request each."""
    return [place["path"] for place in places if is_there(store, place["path"])]


def _paths_to_delete(store: Store, record: TakedownRecord, root: Store) -> list[str]:
    """Return the paths in a mirror that the takedown deletes. root: the primary's store."""
    # An object that the root made again is clean; one that the root lacks is the former one.
    remade = still_there(store, record.having("remade"))
    stale = [path for path in remade if not is_there(root, path)]
    absent = still_there(store, record.having("absent"))
    return absent + stale + _former(store, record, root)


def _former(store: Store, record: TakedownRecord, root: Store) -> list[str]:
    """Return the paths of a mirror's objects with the bytes from before the takedown."""
    # A map made again has its fit at the same path.
    maps = [place for place in record.having("remade") if place["path"].startswith(DERIVED)]
    return [
        path
        for path in still_there(store, [*record.having("replaced"), *maps])
        if not is_there(root, path) or bytes(store.get(path).data) != bytes(root.get(path).data)
    ]


def mirror_places(
    root: Root, record: TakedownRecord, urls: Sequence[str], keeps_nothing: Sequence[str] = ()
) -> Iterator[Place]:
    """Yield check results for each mirror in the log and given URL: the paths are absent, with no remains.

    keeps_nothing: URLs of stores that keep no remains.
    """
    denied = DeniedBytes(root.store, root.state.denies)
    named = {str(body.get("url", body.get("name", body["n"]))) for body in root.state.mirrors}
    for url in sorted(named | set(urls)):
        place = {"check": "mirror", "what": "a mirror", "url": url}
        if url not in urls:
            yield {**place, "clean": False, "why": "not checked: pass --mirror with its URL"}
            continue
        try:
            store = open_store(url, None)
            # A disk that is not mounted lacks each object.
            _check_mirror(store, root.store)
            there = still_there(store, record.having("absent")) + _former(store, record, root.store)
            there += [info.key for info in store.list(FOREIGN) if denied.has_path(info.key)]
        except InvalidRuntime as error:
            yield {**place, "clean": False, "why": str(error)}
            continue
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
