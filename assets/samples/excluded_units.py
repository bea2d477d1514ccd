"""Units and samples that exclusion records cover, with their reasons."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from loader.storage import Store
from penstock.exclusion_records import ExcludedSample, Exclusion, records, standing

Reasons = dict[tuple[str, str], str]
"""(column of the units, its value) -> reason of an exclusion."""


def excluded_units(
    store: Store,
    dataset: str,
    rebuild_of: str,
    rows: Iterable[Mapping[str, Any]],
) -> dict[str, str]:
    """Return unit_id -> reason, for rows that an exclusion covers.

    rows: have `key`, `unit_id` and `raw_sha256`. An excluded raw object covers all its units, under any policy.
    rebuild_of: the original dataset, or "". Raises: Corrupt; StoreError.
    """
    reasons = _reasons(store, dataset)
    if rebuild_of:
        # The rebuild's own exclusion wins, since its reason is the newer one.
        of_original = _reasons(store, rebuild_of)
        reasons = of_original | reasons
    excluded: dict[str, str] = {}
    if not reasons:
        return excluded
    for row in rows:
        unit_id = row["unit_id"]
        for column in ("key", "unit_id", "raw_sha256"):
            value = row[column]
            reason = reasons.get((column, value))
            if reason:
                excluded[unit_id] = reason
    return excluded


def excluded_by_reason(store: Store, dataset: str) -> Counter[tuple[str, str]]:
    """Return (person, reason) -> number of excluded keys. Raises: Corrupt; StoreError."""
    counts = Counter[tuple[str, str]]()
    in_force = standing(records(store, dataset))
    for exclusions in in_force.values():
        # The first exclusion took the key out; later ones of the same key remove nothing.
        first = exclusions[0]
        person_and_reason = (first.by, first.reason)
        counts[person_and_reason] += 1
    return counts


def _reasons(store: Store, dataset: str) -> Reasons:
    """Return the reasons of the exclusions in force."""
    in_force = standing(records(store, dataset))  # key -> exclusions
    # By path, since an exclusion of many keys stands under each of them.
    exclusions: dict[str, Exclusion] = {}
    for of_key in in_force.values():
        exclusions.update((exclusion.path, exclusion) for exclusion in of_key)
    reasons: Reasons = {}
    for exclusion in exclusions.values():
        reason = f"excluded by {exclusion.by}: {exclusion.reason}"
        excluded = list[ExcludedSample]()
        withdrawn = set[str]()  # SHA-256 of raw objects
        for sample in exclusion.samples:
            of_key = in_force.get(sample.key, ())
            if exclusion in of_key:
                excluded.append(sample)
            else:
                withdrawn.add(sample.raw_sha256)
        for sample in excluded:
            reasons.setdefault(("key", sample.key), reason)
            if sample.unit_id:
                reasons.setdefault(("unit_id", sample.unit_id), reason)
            # Withdrawing one sample from an exclusion frees its whole raw object.
            is_object_excluded = sample.whole_object and sample.raw_sha256 not in withdrawn
            if is_object_excluded:
                reasons.setdefault(("raw_sha256", sample.raw_sha256), reason)
    return reasons
