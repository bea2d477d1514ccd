"""Units and samples that exclusion records cover, with their reasons."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from loader.storage import Store
from penstock.exclusion_records import records, standing


def excluded_units(
    store: Store, dataset: str, rebuild_of: str, rows: Iterable[Mapping[str, Any]]
) -> dict[str, str]:
    """Return unit_id -> reason, for rows that an exclusion covers.

    rows: have `key`, `unit_id` and `raw_sha256`. An excluded raw object covers all its units, under any policy.
    rebuild_of: the original dataset, or "". Raises: Corrupt; StoreError.
    """
    reasons = _reasons(store, dataset)
    if rebuild_of:
        # The rebuild's own exclusion wins, since its reason is the newer one.
        reasons = _reasons(store, rebuild_of) | reasons
    excluded: dict[str, str] = {}
    if not reasons:
        return excluded
    for row in rows:
        for column in ("key", "unit_id", "raw_sha256"):
            reason = reasons.get((column, row[column]))
            if reason:
                excluded[row["unit_id"]] = reason
    return excluded


def excluded_by_reason(store: Store, dataset: str) -> Counter[tuple[str, str]]:
    """Return (person, reason) -> number of excluded keys. Raises: Corrupt; StoreError."""
    return Counter(
        (exclusion.by, exclusion.reason)
        for by_key in standing(records(store, dataset)).values()
        # The first exclusion took the key out; later ones of the same key remove nothing.
        for exclusion in by_key[:1]
    )


def _reasons(store: Store, dataset: str) -> dict[tuple[str, str], str]:
    """Return (column of the units, its value) -> reason of the exclusions in force."""
    stands = standing(records(store, dataset))
    # Keyed by path: an exclusion of many keys stands under each of them.
    exclusions = {exclusion.path: exclusion for of_key in stands.values() for exclusion in of_key}
    reasons: dict[tuple[str, str], str] = {}
    for exclusion in exclusions.values():
        reason = f"excluded by {exclusion.by}: {exclusion.reason}"
        # Withdrawing one sample from an exclusion frees its whole raw object.
        withdrawn = {
            sample.raw_sha256 for sample in exclusion.samples if exclusion not in stands.get(sample.key, ())
        }
        for sample in exclusion.samples:
            if exclusion not in stands.get(sample.key, ()):
                continue
            reasons.setdefault(("key", sample.key), reason)
            if sample.unit_id:
                reasons.setdefault(("unit_id", sample.unit_id), reason)
            if sample.whole_object and sample.raw_sha256 not in withdrawn:
                reasons.setdefault(("raw_sha256", sample.raw_sha256), reason)
    return reasons
