"""The journal of an export, in its target: what is exported, and which units are written.

- `.penstock/begun.json`: canonical JSON of the export's identity; created once, before anything else.
- `.penstock/units/<n>.json`: facts, n_samples, objects (nbytes, path, sha256) of a unit; put after its objects.
- `.penstock/export.json`: begun.json with counts, types of columns and facts; put last.
- `.penstock/copied.json`: the same, for registered objects that were copied unchanged.

Readers of the formats skip names that begin with a dot.
"""

from typing import Any

from loader.errors import AlreadyExists, Conflict, ObjectNotFound
from loader.json_text import DamagedJson, canonical_json, parse_json_object
from loader.storage import Store

FOLDER = ".penstock/"
_BEGUN, _DONE, _COPIED = (f"{FOLDER}{name}.json" for name in ("begun", "export", "copied"))


class ExportJournal:
    """Journal in one place; thread-safe."""

    def __init__(self, store: Store, of: dict[str, Any]) -> None:
        """Begin an export, or continue it. of: version, format and options, as a JSON object.

        Raises: Conflict if the place holds other objects, or another export; StoreError.
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
            except AlreadyExists:  # another export was quicker
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
        """Return the record of a unit whose objects all exist; else None. Raises: StoreError."""
        if (key := _unit(number)) not in self._there:
            return None
        try:
            note = parse_json_object(self._store.get(key).data)
        except (DamagedJson, ObjectNotFound):
            return None  # it is written again
        objects = note.get("objects", ())
        return note if all(self._there.get(one["path"]) == one["nbytes"] for one in objects) else None

    def add(self, number: int, note: dict[str, Any]) -> None:
        """Record a unit whose objects all exist. Raises: StoreError."""
        self._store.put(_unit(number), canonical_json(note))

    def finish(self, facts: dict[str, Any], *, is_ours: bool) -> None:
        """Record the end. is_ours: readers find columns as penstock exports them. Raises: StoreError."""
        self._store.put(_DONE if is_ours else _COPIED, canonical_json({**self._of, **facts}))

    def _other(self, what: str) -> Conflict:
        return Conflict(
            f"{self._store.url} holds an export of {what}; repeat that one, or export into an empty folder or prefix"
        )


def _unit(number: int) -> str:
    return f"{FOLDER}units/{number:06d}.json"
