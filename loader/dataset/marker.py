"""`penstock.json`: what makes a place a root, created once and checked before anything is read."""

import json
import logging
import secrets
import time

from ..errors import AlreadyExists, FormatTooNew, InvalidStore, NotARoot, ObjectNotFound
from ..storage import Store
from .entries import canonical

logger = logging.getLogger(__name__)

FORMAT = 1
MARKER = "penstock.json"
PROBES = "heartbeats/probe-"
"""What keys of probes begin with: a place that holds nothing else is empty."""


class Marker:
    """The marker of the root in `store`, looked at until it was found good."""

    def __init__(self, store: Store) -> None:
        self._store, self._good = store, False

    def check(self) -> None:
        """Raises: as `check_root`."""
        if not self._good:
            check_root(self._store)
            self._good = True

    def create(self) -> None:
        """Raises: as `create_root`."""
        if not self._good:
            create_root(self._store)
            self._good = True


def check_root(store: Store) -> None:
    """Raises: NotARoot when the store is not a root; FormatTooNew."""
    name = f"{store.url}/{MARKER}"
    try:
        data = store.get(MARKER).data
    except ObjectNotFound:
        there = next(iter(store.list("")), None)
        what = f"it holds other things ({there.key} ...)" if there else "nothing is there"
        raise NotARoot(
            f"{store.url} is not a penstock root: it has no {MARKER}, {what}. Check the path; a root is made by the "
            "first root.write() into an empty place"
        ) from None
    try:
        found = int(json.loads(data)["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise NotARoot(
            f"{name} is not a root's marker ({error}); it was damaged or is somebody else's file"
        ) from error
    if found > FORMAT:
        raise FormatTooNew(
            f"{name} says format {found}; this penstock reads up to {FORMAT}. Upgrade: pip install -U penstock"
        )


def create_root(store: Store) -> None:
    """Make an empty place a root; a root already is no change.

    Raises: NotARoot when the place holds other things; FormatTooNew; InvalidStore when its create-only writes are
    not.
    """
    try:
        check_root(store)
    except NotARoot:
        if any(not there.key.startswith(PROBES) for there in store.list("")):
            check_root(store)  # somebody else may have made it a root this moment
            return
        _prove_create_only(store)
        marker = {"format": FORMAT, "id": secrets.token_hex(16), "created_us": time.time_ns() // 1000}
        try:
            store.put_if_absent(MARKER, canonical(marker))
        except AlreadyExists:
            logger.debug("another process created the root %s", store.url)
        check_root(store)


def _prove_create_only(store: Store) -> None:
    """Some servers accept a second create of one key and would lose history: refuse to write there.

    Raises: InvalidStore.
    """
    key = f"{PROBES}{secrets.token_hex(8)}"
    store.put_if_absent(key, b"first")
    try:
        store.put_if_absent(key, b"second")
    except AlreadyExists:
        return
    finally:
        store.delete_many([key])
    raise InvalidStore(
        f"{store.url} let a create-only write replace an object; versions published there could be lost. Use a "
        "store with conditional creates (S3, GCS, Azure, Ceph, a POSIX disk)"
    )
