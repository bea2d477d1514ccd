"""Replace or delete objects that no version protects, and record it first."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from loader.storage import Store

from ...denied.record import Place, add_to_record


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """Changes to objects that no version protects."""

    puts: Mapping[str, bytes] = field(default_factory=dict)
    """Path -> its new bytes."""
    deletes: tuple[str, ...] = ()
    """Paths to delete for ever."""
    remade: tuple[str, ...] = ()
    """Paths of views, packs and pages to delete, which may come again."""


def do(store: Store, n: int, dataset: str, edits: Edits) -> list[str]:
    """Record the edits, then make them. Returns the paths. Idempotent. Raises: StoreError."""
    places: list[Place] = [
        {"check": "replaced", "what": "an object without a name any more", "of": dataset, "path": path}
        for path in edits.puts
    ]
    places += [
        {"check": "absent", "what": "an object of no version", "of": dataset, "path": path}
        for path in edits.deletes
    ]
    places += [
        {
            "check": "remade",
            "what": "a view, pack or page, made again if asked for",
            "of": dataset,
            "path": path,
        }
        for path in edits.remade
    ]
    add_to_record(store, n, places)
    for path, data in edits.puts.items():
        store.put(path, data)
    # First what only plans name: killed before it deletes the plans, the next run finds the rest by them.
    for paths in (edits.remade, edits.deletes):
        if paths:
            store.delete_many(list(paths))
    return [*edits.puts, *edits.remade, *edits.deletes]
