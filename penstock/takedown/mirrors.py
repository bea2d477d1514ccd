"""Mirrors of a root from which a subject is taken down."""

from collections.abc import Iterable, Iterator, Sequence

from loader import Root
from loader.dataset.marker import root_id
from loader.errors import InvalidRuntime, PenstockError
from loader.storage import Store, is_there, open_store

from .record import Place, Record

DATA = "data/"


def purge_mirror(url: str, record: Record, root: Store) -> int:
    """Delete from a mirror the cards, plans, views and packs that were deleted at its primary. Returns how many were
    there. What lies under `data/` goes by the mirror's own collector, which knows who reads it.

    Raises: InvalidRuntime for what is no mirror of this root; StoreError.
    """
    store = open_store(url, None)
    if root_id(store) != root_id(root):
        raise InvalidRuntime(f"{url} is no mirror of {root.url}: it has another root's id, or none")
    small = [place for place in record.having("absent") if not place["path"].startswith(DATA)]
    there = still_there(store, small)
    store.delete_many(there)
    return len(there)


def still_there(store: Store, places: Iterable[Place]) -> list[str]:
    """The paths of these places that a store has. A request for each."""
    return [place["path"] for place in places if is_there(store, place["path"])]


def mirror_places(root: Root, record: Record, urls: Sequence[str]) -> Iterator[Place]:
    """Each mirror that the log names, and each URL given: the same paths have to be absent there."""
    named = {str(body.get("url", body.get("name", body["n"]))) for body in root.state.mirrors}
    for url in sorted(named | set(urls)):
        place = {"check": "mirror", "what": "a mirror", "url": url}
        if url not in urls:
            yield {**place, "clean": False, "why": "not looked at: pass --mirror with its URL"}
            continue
        try:
            there = still_there(open_store(url, None), record.having("absent"))
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
