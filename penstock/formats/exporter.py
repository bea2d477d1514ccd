"""Define the exporter interface, and an export's outbox and journal.

The journal is a folder in the target, which readers skip:

- `.penstock/begun.json`: canonical JSON of the export's identity; written first.
- `.penstock/units/<n>.json`: a unit's facts, n_samples and objects; written after its objects.
- `.penstock/export.json`: begun.json plus counts, column types and facts; written last.
- `.penstock/copied.json`: written instead if registered objects were copied unchanged.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple, Protocol

from loader.errors import AlreadyExists, Conflict, LossyExport, ObjectNotFound
from loader.json_text import DamagedJson, canonical_json, parse_json_object
from loader.storage import Store
from loader.storage.disk.scratch import held_file, held_folder, on_scratch

from .export_selection import ExportSelection, WorkUnit

FOLDER = ".penstock/"
_BEGUN, _DONE, _COPIED = (f"{FOLDER}{name}.json" for name in ("begun", "export", "copied"))


class HashedFile:
    """A file that is hashed as it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._sha256, self.nbytes = file, hashlib.sha256(), 0

    def write(self, data: bytes | memoryview) -> int:
        self._file.write(data)
        self._sha256.update(data)
        self.nbytes += len(data)
        return len(data)

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of the bytes written so far."""
        return self._sha256.hexdigest()


class Outbox:
    """Writes objects to the target, and lists what it wrote. Not thread-safe."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.objects: list[dict[str, Any]] = []

    def put(self, key: str, data: bytes) -> None:
        self.store.put(key, data)
        self._note(key, len(data), hashlib.sha256(data).hexdigest())

    @contextmanager
    def file(self, key: str) -> Iterator[HashedFile]:
        """Write an object from the bytes written in the block; write nothing if the block raises."""
        with (
            on_scratch(
                None,
                f"when {key} was written; what was exported before is there",
                room_for="the objects that are written at once",
                again="run the same command again",
            ),
            held_file("export") as raw,
        ):
            file = HashedFile(raw)
            yield file
            raw.flush()
            self.store.put_file(key, raw.name)
        self._note(key, file.nbytes, file.sha256)

    @contextmanager
    def path(self, key: str) -> Iterator[str]:
        """Write an object from the file at the yielded path; write nothing if the block raises."""
        with self.file(key) as file, held_folder("export") as folder:
            path = os.path.join(folder, "file")
            yield path
            with open(path, "rb") as written:
                while piece := written.read(2**20):
                    file.write(piece)

    def _note(self, key: str, nbytes: int, sha256: str) -> None:
        self.objects.append({"path": key, "nbytes": nbytes, "sha256": sha256})


class ExportJournal:
    """One target's export journal; thread-safe."""

    def __init__(self, store: Store, of: dict[str, Any]) -> None:
        """Start or resume an export. of: the export's identity, as a JSON object.

        Raises: Conflict if the target has other objects or another export.
        """
        self._store, self._of = store, of
        self._there: dict[str, int] = {}
        try:
            begun = parse_json_object(store.get(_BEGUN).data)
        except ObjectNotFound:
            begun = None
            if (other := next(store.list(), None)) is not None:
                raise Conflict(
                    f"{store.url} is not empty: it has {other.key!r}; export into an empty folder or prefix"
                ) from None
            try:
                store.put_if_absent(_BEGUN, canonical_json(of))
            except AlreadyExists:  # another export created it first
                begun = parse_json_object(store.get(_BEGUN).data)
        except DamagedJson as error:
            raise self._other("something damaged") from error
        if begun is not None and begun != of:
            differs = sorted(name for name in {*begun, *of} if begun.get(name) != of.get(name))
            raise self._other(
                ", ".join(f"{name} {begun.get(name)!r} (now {of.get(name)!r})" for name in differs)
            )
        if begun is not None:
            self._there = {info.key: info.nbytes for info in store.list()}

    def find(self, number: int) -> dict[str, Any] | None:
        """Return a unit's record if all its objects exist, otherwise None."""
        if (key := _unit(number)) not in self._there:
            return None
        try:
            note = parse_json_object(self._store.get(key).data)
        except (DamagedJson, ObjectNotFound):
            return None  # the unit is exported again
        objects = note.get("objects", ())
        return note if all(self._there.get(one["path"]) == one["nbytes"] for one in objects) else None

    def add(self, number: int, note: dict[str, Any]) -> None:
        """Record a unit, after its objects are written."""
        self._store.put(_unit(number), canonical_json(note))

    def finish(self, facts: dict[str, Any], *, is_ours: bool) -> None:
        """Record that the export is complete. is_ours: True if an import can restore the columns."""
        self._store.put(_DONE if is_ours else _COPIED, canonical_json({**self._of, **facts}))

    def _other(self, what: str) -> Conflict:
        return Conflict(
            f"{self._store.url} holds an export of {what}; repeat that one, or export into an empty folder or prefix"
        )


def _unit(number: int) -> str:
    return f"{FOLDER}units/{number:06d}.json"


class Loss(NamedTuple):
    """Something that a format cannot represent."""

    name: str
    """Such as "field 'Jpg'"."""
    why: str
    """Reason, and what the export does instead."""


class Exporter(Protocol):
    """A module that exports a format."""

    def losses(self, selection: ExportSelection) -> list[Loss]:
        """Return everything that the format cannot represent."""

    def units(self, selection: ExportSelection) -> list[WorkUnit]:
        """Return the units, each of which is written as whole objects; deterministic."""

    def write(self, selection: ExportSelection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
        """Write a unit's objects; return facts for `finish`. Raises: Corrupt."""

    def finish(self, selection: ExportSelection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
        """Write the objects that describe the whole export. facts: one mapping per unit, in order."""


def refuse(format: str, name: str, losses: Sequence[Loss]) -> None:
    """Raise LossyExport if there are losses, and name each. name: version name."""
    if losses:
        lines = [f"  {loss.name}: {loss.why}" for loss in losses]
        raise LossyExport(
            "\n".join(
                [
                    f"{format} cannot hold all of {name}:",
                    *lines,
                    "leave it out with --without NAME, or accept the loss with --lossy",
                ]
            )
        )
