"""Find the units of a batch that people excluded, in its dataset or in the dataset that it rebuilds."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from loader.storage import Store
from penstock.upkeep.exclusion import records, standing


def excluded_units(
    store: Store, dataset: str, rebuild_of: str, rows: Iterable[Mapping[str, Any]]
) -> dict[str, str]:
    """Return unit_id -> reason, for rows that an exclusion covers.

    rows: have `key`, `unit_id` and `raw_sha256`. An excluded raw object covers all its units, under any policy.
    rebuild_of: the original dataset, or "".

    Raises: Corrupt; StoreError.
    """
    why = _reasons(store, dataset)
    if rebuild_of:
        why = _reasons(store, rebuild_of) | why
    excluded: dict[str, str] = {}
    for row in rows if why else ():
        for column in ("key", "unit_id", "raw_sha256"):
            if reason := why.get((column, row[column])):
                excluded[row["unit_id"]] = reason
    return excluded


def excluded_by_reason(store: Store, dataset: str) -> Counter[tuple[str, str]]:
    """Return (person, reason) -> number of excluded keys. Raises: Corrupt; StoreError."""
    return Counter(
        (exclusion.by, exclusion.reason)
        for by_key in standing(records(store, dataset)).values()
        for exclusion in by_key[:1]
    )


def _reasons(store: Store, dataset: str) -> dict[tuple[str, str], str]:
    # Withdrawing one sample from an exclusion frees its whole raw object.
    stands = standing(records(store, dataset))
    why: dict[tuple[str, str], str] = {}
    for exclusion in {
        exclusion.path: exclusion for exclusions in stands.values() for exclusion in exclusions
    }.values():
        reason = f"excluded by {exclusion.by}: {exclusion.reason}"
        withdrawn = {
            sample.raw_sha256 for sample in exclusion.samples if exclusion not in stands.get(sample.key, ())
        }
        for sample in exclusion.samples:
            if exclusion not in stands.get(sample.key, ()):
                continue
            why.setdefault(("key", sample.key), reason)
            if sample.unit_id:
                why.setdefault(("unit_id", sample.unit_id), reason)
            if sample.whole_object and sample.raw_sha256 not in withdrawn:
                why.setdefault(("raw_sha256", sample.raw_sha256), reason)
    return why
