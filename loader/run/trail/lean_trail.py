"""Read a run log for the page of the whole run: numbers of all steps, and the samples with the largest values.

A log of 1e6 steps may have 1.6e7 samples, and a checksum per field and step: neither fits a page. `lean_rows` leaves
them out. `stored_rows` reads the rows of single steps whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...dataset.root import Root
from ...errors import ObjectNotFound
from ...storage.mirror import primary_store
from ...storage.threads import Together
from .lean_rows import candidates, lean_rows, no_rows_without_samples, no_samples
from .read_trail import RunTrail, arrange_rows, list_log, log_starts
from .row_objects import RowObjects, StoredRows, parse_object_name, rows_frame
from .trail import trail_folder

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeanTrail(RunTrail):
    """A run log whose `steps` lack `largest` and checksums."""

    largest: "pl.DataFrame"
    """Candidates for each metric's largest samples: step, rank, at_us, note, slot, value. Also superseded ones."""
    step_ranges: Mapping[str, tuple[int, int]] = field(repr=False)
    """Object -> its first and its last step."""


def read_lean_trail(
    root: Root,
    run: str,
    known: LeanTrail | None = None,
) -> LeanTrail:
    """Return the run log of a run. Costs, raises, and uses `known`, as `read_trail`."""
    store = primary_store(root.store)
    listed = list_log(store, run, known)
    if known is not None and listed.objects == known.objects:
        return known
    base = known
    if base is None or not listed.is_grown:
        base = no_lean_trail(run)
    objects = RowObjects(store, trail_folder(run))
    new = lean_rows(objects.object_groups(listed.new))
    starts = log_starts(
        store,
        run,
        new.starts,
        listed,
        known,
    )
    return LeanTrail(
        run=run,
        starts=starts,
        steps=arrange_rows([base.steps], new.frames),
        objects=listed.objects,
        largest=candidates([base.largest, *new.largest]),
        step_ranges={**base.step_ranges, **new.step_ranges},
    )


def no_lean_trail(run: str) -> LeanTrail:
    """Return a run log without steps."""
    return LeanTrail(
        run=run,
        starts=(),
        steps=no_rows_without_samples(),
        objects=frozenset(),
        largest=no_samples(),
        step_ranges={},
    )


def read_step_rows(
    root: Root,
    trail: LeanTrail,
    step: int,
) -> "pl.DataFrame":
    """Return the rows of a step with all columns, as `RunTrail.steps` has them.

    Costs a read per object that has the step. An object that was deleted since has no rows. Raises: as `read_trail`.
    """
    folder = trail_folder(trail.run)
    store = primary_store(root.store)
    names = []
    for name, (first, last) in trail.step_ranges.items():
        if first <= step <= last:
            names.append(name)
    objects = list[StoredRows]()
    keys = [folder + name for name in names]
    with Together(store, keys) as coming:
        for name, key in zip(names, keys, strict=True):
            try:
                blob = coming.get(key)
            except ObjectNotFound:
                continue
            stored = parse_object_name(
                store,
                folder,
                name,
                blob,
            )
            objects.append(stored)
    if not objects:
        return trail.steps.clear()
    frame = rows_frame(objects)
    rows = arrange_rows([], [frame])
    return rows.filter(rows["step"] == step)
