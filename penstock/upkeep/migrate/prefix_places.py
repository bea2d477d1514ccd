"""Check the places of a plain prefix's copy, and the target's note of its source."""

from collections.abc import Iterator, Mapping

from loader.dataset.log.entries import DAMAGED
from loader.dataset.log.marker import MARKER
from loader.errors import Conflict, Corrupt, InvalidStore, ObjectNotFound
from loader.json_text import parse_json_object
from loader.storage import ObjectInfo, Store
from loader.storage.refusals import Refuse, list_place
from loader.storage.shared.threads import in_background
from loader.storage.spec import Opened

from ..doctor.target import PROVIDERS

FOLDER = ".penstock-migration/"
"""Hidden, so that a listing of media there skips it."""
SOURCE = f"{FOLDER}source.json"
_OF_SERVER = ("endpoint_url", "account_name", "account_host")
"""fsspec's options that locate a server; ours have the same names."""


def check_places(source: Store, target: Store) -> None:
    """Check that a plain prefix may be copied between the places.

    Raises: Conflict if one of them is a root, or the target was filled from another source; InvalidStore if one
    contains the other, or the source is empty and nothing was copied from it; Corrupt for an edited note.
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
        note = read(target, SOURCE)
        if note is None and first.result() is None:  # one that was emptied since is no mistake
            raise InvalidStore(
                f"{source.url}: nothing lies there; check the URL, whose last part is a folder"
            )
    if note is not None:
        noted = _noted_source(target, note)
        if noted != source.url:
            raise Conflict(
                f"{target.url} was filled from {noted} (by its {SOURCE}), not from {source.url}: keys of both "
                "would lie on each other; give another place"
            )


def objects(store: Store, refuse: Refuse | None = None) -> Iterator[ObjectInfo]:
    """Return the objects of a place, without the notes of migrations."""
    infos = list_place(store, refuse=refuse, outside=True)
    return (info for info in infos if not info.key.startswith(FOLDER))


def read(store: Store, key: str) -> bytes | None:
    """Return the bytes of an object, or None."""
    try:
        return store.get(key).data
    except ObjectNotFound:
        return None


def _noted_source(target: Store, note: bytes) -> str:
    """Return the source's URL in the target's note. Raises: Corrupt."""
    try:
        return str(parse_json_object(note)["source"])
    except DAMAGED as error:
        raise Corrupt(
            f"{target.url}/{SOURCE} is not what a migration wrote: it was edited; delete it, and give the source "
            "that the target was filled from"
        ) from error


def _is_inside(outer: Store, inner: Store) -> bool:
    """Return whether a place lies in another of the same server."""
    if not (isinstance(outer, Opened) and isinstance(inner, Opened)):
        return False
    return f"{inner.url}/".startswith(f"{outer.url}/") and _server(outer) == _server(inner)


def _server(store: Opened) -> str:
    """Return the URL of a store's server, from its options, the environment or a profile; "" for the only one."""
    scheme, options = store.url.partition("://")[0], store.spec.options
    if scheme not in PROVIDERS:
        return ""
    own = options.get("fsspec")
    if isinstance(own, Mapping):
        inner = {**own, **(own.get("client_kwargs") or {})}
        options = {name: inner[name] for name in _OF_SERVER if name in inner}
    return PROVIDERS[scheme][0](store.url, options).rstrip("/")
