"""Check that a run's record and checkpoints can be written, before anything starts."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from loader.dataset.log.marker import find_root
from loader.dataset.root import Root
from loader.errors import Forbidden, NotARoot
from loader.storage import Store
from loader.storage.mirror import primary_store

from ...checkpoints.marker import part_key
from ...places import local_folder
from ..launched import STEPS
from ..run_folder import FOLDER
from ..run_spec import RunSpec


def place_notes(spec: RunSpec) -> list[str]:
    """Return a line for each new place of a run: it may be misspelt. Raises: as `check_places`, and reads only."""
    notes = list[str]()
    record = Root(spec.record)
    with suppress(NotARoot):  # a record may lie in any folder
        if find_root(record.store) is None:
            notes.append(_new("record", record))
    saved = _checkpoints(spec)
    if saved is not None and find_root(primary_store(saved.store)) is None and saved.url != record.url:
        notes.append(_new("checkpoints", saved))
    return notes


def _new(key: str, root: Root) -> str:
    return f"{key}: {root.url} is new; if the run has begun before, {key} names another place than it did"


def check_places(spec: RunSpec) -> None:
    """Create and delete an object where the run keeps its record, and one where it saves.

    Raises: NotARoot for a place of checkpoints that holds other things; StoreError, such as Forbidden.
    """
    saved = _checkpoints(spec)
    if saved is not None:
        store = primary_store(saved.store)
        find_root(store)
        # Where the run will write: a policy may allow some prefixes only.
        _prove_writable(store, part_key(spec.run, 0, f"{secrets.token_hex(8)}-probe"))
    record = Root(spec.record)
    _prove_writable(record.store, f"{FOLDER}{spec.run}/probe-{secrets.token_hex(8)}")


def create_places(spec: RunSpec) -> None:
    """Make the place of a run's checkpoints a root; its record's place becomes one with the first object.

    Raises: as `check_places`; Conflict for a mirror.
    """
    saved = _checkpoints(spec)
    if saved is not None:
        saved.create()


def _checkpoints(spec: RunSpec) -> Root | None:
    """Return the root of a run's checkpoints; None for a replay, which saves none."""
    if STEPS in spec.env:
        return None
    return Root(spec.checkpoints or spec.record)


def _prove_writable(store: Store, key: str) -> None:
    with _without_new_folders(store, key):
        store.put_if_absent(key, b"")
        with suppress(Forbidden):  # a role that may not delete can train
            store.delete_many([key])


@contextmanager
def _without_new_folders(store: Store, key: str) -> Iterator[None]:
    """Remove on exit the folders that did not exist on entry: writing `key` to a local disk creates them."""
    base = local_folder(store)
    parents = [] if base is None else [*Path(base, key).parents]
    missing = [folder for folder in parents if not folder.exists()]  # the innermost first
    try:
        yield
    finally:
        for folder in missing:
            with suppress(OSError):  # another process has put something there
                folder.rmdir()
