"""Units of a batch that people excluded before, as samples of the dataset or of the one that it is a rebuild of."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from loader.storage import Store
from penstock.upkeep.exclusion import records, standing


def excluded_units(
    store: Store, dataset: str, rebuild_of: str, rows: Iterable[Mapping[str, Any]]
) -> dict[str, str]:
    """Return unit_id -> why, of the rows of units (`key`, `unit_id`, `raw_sha256`) that an exclusion is of.

    A sample's key and unit say raw object, stretch and policy. Where the raw object itself is excluded, every unit of
    it is left out, whatever the policy. rebuild_of: the other dataset; "" for none.

    Raises: as `records`.
    """
    why = _reasons(store, dataset)
    if rebuild_of:
        why = _reasons(store, rebuild_of) | why
    found: dict[str, str] = {}
    for row in rows if why else ():
        for column in ("key", "unit_id", "raw_sha256"):
            if reason := why.get((column, row[column])):
                found[row["unit_id"]] = reason
    return found


def excluded_by_reason(store: Store, dataset: str) -> Counter[tuple[str, str]]:
    """Return (person, reason) -> number of keys of which an exclusion stands. Raises: as `records`."""
    return Counter(
        (one.by, one.reason) for found in standing(records(store, dataset)).values() for one in found[:1]
    )


def _reasons(store: Store, dataset: str) -> dict[tuple[str, str], str]:
    """Return (column, value) -> why, for what exclusions that stand say of a unit.

    A raw object is excluded as long as nobody has withdrawn one of its samples from the same exclusion.
    """
    stands = standing(records(store, dataset))
    why: dict[tuple[str, str], str] = {}
    for one in {one.path: one for found in stands.values() for one in found}.values():
        reason = f"excluded by {one.by}: {one.reason}"
        taken_back = {sample.raw_sha256 for sample in one.samples if one not in stands.get(sample.key, ())}
        for sample in one.samples:
            if one not in stands.get(sample.key, ()):
                continue
            why.setdefault(("key", sample.key), reason)
            if sample.unit_id:
                why.setdefault(("unit_id", sample.unit_id), reason)
            if sample.whole_object and sample.raw_sha256 not in taken_back:
                why.setdefault(("raw_sha256", sample.raw_sha256), reason)
    return why
