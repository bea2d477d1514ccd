"""The places between which a plain prefix may be copied, and the target's note of its source."""

from collections.abc import Iterator, Mapping

from loader.dataset.log.entries import DAMAGED
from loader.dataset.log.marker import MARKER
from loader.errors import Conflict, Corrupt, InvalidStore, ObjectNotFound
from loader.json_text import parse_json_object
from loader.storage import ObjectInfo, Store
from loader.storage.shared.threads import in_background
from loader.storage.spec import Opened
from loader.storage.store import Refuse, list_place

from ..doctor.target import PROVIDERS

FOLDER = ".penstock-migration/"
"""Hidden, as files of tools are: a listing of media there passes it over."""
SOURCE = f"{FOLDER}source.json"
_OF_SERVER = ("endpoint_url", "account_name", "account_host")
"""Names of fsspec's options, which say where a server is; ours are the same."""


def check_places(source: Store, target: Store) -> None:
    """Check that a plain prefix may be copied from one place to the other.

    Raises: Conflict where one of them is a root, or the target was filled from another source; InvalidStore where one
    lies in the other, or the source has nothing and nothing was copied from it; Corrupt for an edited note of the
    source in the target.
    """
    if _is_inside(source, target) or _is_inside(target, source):
        raise InvalidStore(
            f"{source.url} and {target.url}: one lies in the other, so copies would be copied again; give another"
        )
    with in_background(next, objects(source), None) as first:
        for store in (source, target):
            if read(store, MARKER) is not None:
                raise Conflict(
                    f"{store.url} is a root, whose log is copied last: penstock migrate run without --from, and its "
                    "URL as --root, makes a mirror of it; give other places here"
                )
        found = read(target, SOURCE)
        if found is None and first.result() is None:  # one that was emptied since is no mistake
            raise InvalidStore(
                f"{source.url}: nothing lies there; check the URL, whose last part is a folder"
            )
    if found is not None:
        said = _source_said(target, found)
        if said != source.url:
            raise Conflict(
                f"{target.url} was filled from {said} (its {SOURCE} says so), not from {source.url}: keys of both "
                "would lie on each other; give another place"
            )


def objects(store: Store, refuse: Refuse | None = None) -> Iterator[ObjectInfo]:
    """Return the objects of a place, without the notes of migrations. refuse: as for `list_place`."""
    infos = list_place(store, refuse=refuse, outside=True)
    return (info for info in infos if not info.key.startswith(FOLDER))


def read(store: Store, key: str) -> bytes | None:
    """Return the bytes of an object; None where nothing lies there."""
    try:
        return store.get(key).data
    except ObjectNotFound:
        return None


def _source_said(target: Store, found: bytes) -> str:
    """Return the URL of the source that the target names. Raises: Corrupt."""
    try:
        return str(parse_json_object(found)["source"])
    except DAMAGED as error:
        raise Corrupt(
            f"{target.url}/{SOURCE} is not what a migration wrote: somebody edited it; delete it, and give the source "
            "that the target was filled from"
        ) from error


def _is_inside(outer: Store, inner: Store) -> bool:
    """Return whether a place lies in another of the same server: another server may have a bucket of the same name."""
    if not (isinstance(outer, Opened) and isinstance(inner, Opened)):
        return False
    return f"{inner.url}/".startswith(f"{outer.url}/") and _server(outer) == _server(inner)


def _server(store: Opened) -> str:
    """Return the URL of a store's server, by its options, the environment or a profile; "" where there is only one."""
    scheme, options = store.url.partition("://")[0], store.spec.options
    if scheme not in PROVIDERS:
        return ""
    own = options.get("fsspec")
    if isinstance(own, Mapping):
        inner = {**own, **(own.get("client_kwargs") or {})}
        options = {name: inner[name] for name in _OF_SERVER if name in inner}
    return PROVIDERS[scheme][0](store.url, options).rstrip("/")
