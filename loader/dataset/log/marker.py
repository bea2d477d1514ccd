"""`penstock.json`: the marker that makes a location a root, created once and checked before anything is read."""

import logging
import secrets
import time
from collections.abc import Mapping
from typing import Any

from ...errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    FormatTooNew,
    InvalidStore,
    NotARoot,
    ObjectNotFound,
    Transient,
)
from ...json_text import DamagedJson, damage_fields, parse_json_object
from ...storage import Store
from ...storage.mirror import MirroredStore, primary_store
from .entries import DAMAGED, canonical
from .state import State

logger = logging.getLogger(__name__)

FORMAT = 1
MARKER = "penstock.json"
MIRROR_OF = "mirror_of"
"""Key in a mirror's marker: the URL of its primary."""
PRIMARY = "primary"
"""Key in a moved root's marker: token of the entry that moved it here."""
FOLDERS = (
    "cards/",
    "checkpoints/",
    "collect/",
    "data/",
    "exclusions/",
    "follows/",
    "foreign/",
    "gates/",
    "heartbeats/",
    "jobs/",
    "leases/",
    "ledgers/",
    "lists/",
    "log/",
    "maps/",
    "migrations/",
    "nodes/",
    "norms/",
    "packs/",
    "places/",
    "plans/",
    "protected/",
    "reports/",
    "seals/",
    "search/",
    "slices/",
    "stages/",
    "starts/",
    "swept/",
    "tables/",
    "takedowns/",
    "trails/",
    "trainings/",
    "views/",
    "windows/",
)
"""Prefixes of all objects of a root except its marker, ascending."""
PROBES = "heartbeats/probe-"
"""Key prefix of probe objects."""
BEFORE_A_ROOT = (PROBES, "follows/", "ledgers/", "nodes/", "plans/", "trails/", "trainings/")
"""Key prefixes of a training's records. Earlier releases wrote them without a root.

A location with nothing else is empty: its first checkpoint or version makes it a root."""


class Marker:
    """The marker of the root in `store`. Once valid, it is not reread.

    With mirrors, any store may identify the root, but only the primary decides who may write.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._valid: Mapping[str, Any] | None = None
        self._primary: Mapping[str, Any] | None = None  # marker of the store that receives writes
        self._creation_tried = False  # True once `create_if_empty` has done what it can

    def check(self) -> None:
        """Check that the store is a root. Raises: as `check_root`."""
        if self._valid is None:
            self._valid = check_root(self._store)

    def create(self) -> None:
        """Make an empty store a root, and check that it accepts writes.

        Raises: as `create_root` and `check_writable`.
        """
        if self._valid is None:
            self._valid = create_root(self._store)
        self.check_writable()

    def create_if_empty(self) -> None:
        """Make the store a root if it is empty. After one success it costs no request, whatever the store holds."""
        if self._valid is None and not self._creation_tried:
            create_root_if_empty(self._store)
            self._creation_tried = True

    @property
    def mirror_of(self) -> str | None:
        """URL of the primary if the root is a mirror, else None."""
        if self._primary is None:
            # With mirrors, `_valid` may be the marker of any of the stores.
            if isinstance(self._store, MirroredStore):
                self._primary = check_root(self._store.writable())
            else:
                self.check()
                self._primary = self._valid
        assert self._primary is not None
        url = self._primary.get(MIRROR_OF)
        if url is None:
            return None
        return str(url)

    def check_writable(self) -> None:
        """Check that the root accepts writes. Raises: Conflict if it is a mirror: only its primary accepts writes."""
        if self.mirror_of is not None:
            # It may have become the primary meanwhile: read its marker again.
            self._valid = None
            self._primary = None
        primary = self.mirror_of
        if primary is not None:
            raise Conflict(
                f"{self._store.url} is a mirror of {primary}, and a mirror has the history of its primary: write "
                "there, then bring the mirror up to date with penstock migrate run",
                what="mirror",
                where=self._store.url,
                given=self._store.url,
                accepted=primary,
            )


def is_primary(store: Store, state: State) -> bool:
    """Return whether the history of `state` continues in this store. One request if the root was moved."""
    marker = check_root(primary_store(store))  # only the primary receives writes, and it may have changed
    if MIRROR_OF in marker:
        return False
    if state.primary is None:
        return True
    # The entry that moved the root names a token, and only the root that it was moved to has that in its marker: a
    # copy of the log, or the former primary, never passes for it.
    return bool(marker.get(PRIMARY) == state.primary.token)


def check_primary(store: Store, state: State) -> None:
    """Check before an append that the history continues here. Raises: Conflict if it does not; as `check_root`."""
    moved = state.primary
    if moved is not None and not is_primary(store, state):
        raise Conflict(
            f"{store.url} was the primary up to log entry {moved.n}, and was moved to {moved.url}: write there. Where "
            "that was not finished, penstock migrate promote goes on with it",
            what="former primary",
            where=store.url,
            accepted=moved.url,
        )


def root_id(store: Store) -> str | None:
    """Return a root's id, which its mirrors share; None if the root has none.

    Raises: NotARoot; FormatTooNew; StoreError.
    """
    try:
        return str(parse_marker(store, store.get(MARKER).data)["id"])
    except ObjectNotFound:
        return None


def check_root(store: Store) -> Mapping[str, Any]:
    """Return the marker. Raises: NotARoot; FormatTooNew."""
    try:
        return parse_marker(store, _read_marker(store))
    except (NotARoot, FormatTooNew):
        # A bit may have flipped on the way: read it once more.
        return parse_marker(store, _read_marker(store))


def check_root_twice(store: Store) -> Mapping[str, Any]:
    """Return the marker after two equal reads, for a caller that copies it: the copy would keep a flipped bit.

    Raises: Transient if the reads differ; as `check_root`.
    """
    first = check_root(store)
    second = check_root(store)
    if first != second:
        raise Transient(
            f"{store.url}/{MARKER} gave other bytes when it was read again; nothing was written: do the same again",
            what=MARKER,
            where=store.url,
            given="other bytes",
        )
    return second


def _read_marker(store: Store) -> bytes:
    """Return the marker's bytes. Raises: NotARoot, with the name of another object there."""
    try:
        return store.get(MARKER).data
    except ObjectNotFound:
        content = "nothing is there"
        for info in store.list(""):
            content = f"it holds other things ({info.key} ...)"
            break
        raise NotARoot(
            f"{store.url} is not a penstock root: it has no {MARKER}, {content}. Check the path; a root is made by the "
            "first root.write() into an empty place",
            what=MARKER,
            where=store.url,
            given=content,
        ) from None


def _format_number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise DamagedJson(str(error), what="format", value=value) from None


def parse_marker(store: Store, data: bytes) -> Mapping[str, Any]:
    """Return the marker in these bytes. Raises: NotARoot; FormatTooNew."""
    name = f"{store.url}/{MARKER}"
    try:
        marker = parse_json_object(data)
        format_number = _format_number(marker["format"])
    except DAMAGED as error:
        raise NotARoot(
            f"{name} is not a root's marker ({error}); it was damaged or is another program's file",
            where=name,
            **damage_fields(error, "marker"),
        ) from error
    if format_number > FORMAT:
        raise FormatTooNew(
            f"{name} has format {format_number}; this penstock reads up to {FORMAT}. "
            "Upgrade penstock-data (docs/install.md)",
            what="format",
            where=name,
            given=format_number,
            accepted=FORMAT,
        )
    return dict(marker)


def create_root(store: Store) -> Mapping[str, Any]:
    """Return the marker of a root; an empty location becomes one.

    Raises: NotARoot if the location holds other objects; FormatTooNew; InvalidStore if create-only writes overwrite
    objects.
    """
    marker = find_root(store)
    if marker is not None:
        return marker
    # 1. Prove what the whole log rests on. A failure leaves at most a probe, which does not make the location a root.
    prove_create_only(store)
    # 2. Create the marker, once: of several processes that create the root at once, all use the first one's id.
    marker = {
        "format": FORMAT,
        "id": secrets.token_hex(16),
        "created_us": time.time_ns() // 1000,
    }
    try:
        store.put_if_absent(MARKER, canonical(marker))
    except AlreadyExists:
        logger.debug("another process created the root %s", store.url)
    # 3. Read it back: the stored marker counts, not ours.
    return check_root(store)


def find_root(store: Store) -> Mapping[str, Any] | None:
    """Return the marker of a root; None for an empty location, which `create_root` makes a root.

    Raises: NotARoot if the location holds other objects; FormatTooNew; StoreError.
    """
    try:
        return check_root(store)
    except NotARoot:
        for info in store.list(""):
            if not info.key.startswith(BEFORE_A_ROOT):
                return check_root(store)  # another process may have created it just now
        return None


def create_root_if_empty(store: Store) -> None:
    """Make an empty location a root, before the first record of a training is written there.

    Otherwise the first checkpoint would find a location that is neither empty nor a root. A record may lie in any
    folder, so a location that holds other things stays as it is.

    Raises: FormatTooNew; InvalidStore if create-only writes overwrite objects; StoreError.
    """
    try:
        create_root(primary_store(store))
    except (NotARoot, Forbidden) as error:  # some jobs may create only their own objects
        logger.debug("%s does not become a root: %s", store.url, error)


def prove_create_only(store: Store) -> None:
    """Check that creating a key twice fails: otherwise history would be lost. Raises: InvalidStore."""
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
        "store with conditional creates (S3, GCS, Azure, Ceph, a POSIX disk)",
        what="create-only write",
        where=store.url,
        given="a replaced object",
    )
