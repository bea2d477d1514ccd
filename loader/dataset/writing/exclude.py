"""Exclude samples from a version by one small table of bitmaps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ...errors import Conflict, EmptyVersion, InvalidKey, InvalidSample, SampleNotFound, VersionNotFound
from ...json_text import is_text
from ...storage import Store
from ..shards.bitmap import pack
from ..shards.parts_table import EXCLUSIONS_SCHEMA
from ..tables.manifest import Change
from ..tables.parquet import TableFile, put_named_table, put_table
from ..versions.samples_table import live_rows
from ..versions.version import Version


def require_parts(parent: Version | None, parts: Iterable[str]) -> Version:
    """Return the version if it still has all of these parts: a change to removed parts would have no effect.

    Raises: Conflict if a part, or the version, is missing.
    """
    if parent is None:
        raise Conflict(
            "every version of the dataset was retired meanwhile; begin again", what="parent", given="retired"
        )
    parent_parts = set(parent.parts.ids.to_pylist())
    for part in parts:
        if part not in parent_parts:
            raise Conflict(
                f"part {part} is no longer in {parent.name}, the newest version; begin again from it",
                what="part",
                where=parent.name,
                given=part,
            )
    return parent


RowsByPart = dict[str, list[int]]
"""Part id -> rows."""
RowsByReason = dict[tuple[str, str], list[int]]
"""(part id, reason) -> rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsToExclude:
    """Live samples of a version that its successor excludes."""

    rows: Mapping[tuple[str, str], Sequence[int]] = field(default_factory=dict)
    """(part id, reason) -> rows."""
    part_sizes: Mapping[str, int] = field(default_factory=dict)
    """Part id -> number of rows of the whole part."""

    @property
    def n_samples(self) -> int:
        return sum(len(rows) for rows in self.rows.values())

    def union(self, others: "RowsToExclude") -> "RowsToExclude":
        """Return these samples and the others. A sample that is in both keeps its reason here."""
        own_rows: dict[str, set[int]] = {}
        for (part, _), members in self.rows.items():
            own_rows.setdefault(part, set()).update(members)

        rows: RowsByReason = {name: list(members) for name, members in self.rows.items()}
        for (part, reason), members in others.rows.items():
            # A row with two reasons would be subtracted twice from the version's `n_live`.
            own_rows_of_part = own_rows.get(part, ())
            new_rows = [row for row in members if row not in own_rows_of_part]
            if new_rows:
                rows_of_reason = rows.setdefault((part, reason), [])
                rows_of_reason.extend(new_rows)
        part_sizes = {
            **others.part_sizes,
            **self.part_sizes,
        }
        return RowsToExclude(rows=rows, part_sizes=part_sizes)

    def still_live(self) -> "StillLive":
        """Return the check, for `commit`, that no other writer has excluded one of these samples."""
        rows_by_part: RowsByPart = {}
        for (part, _), rows in self.rows.items():
            rows_by_part.setdefault(part, []).extend(rows)
        return StillLive(rows_by_part)


NO_ROWS = RowsToExclude()


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingExclusion:
    """Decision that excludes a key from every later version."""

    reason: str
    """Person's reason."""
    record: str
    """Path of its record in the root."""


Exclusions = Mapping[str, StandingExclusion]
"""Key -> its standing exclusion."""
NO_EXCLUSIONS: Exclusions = {}


def find_samples_with_exclusion(
    version: Version | None,
    exclusions: Exclusions,
) -> tuple[RowsToExclude, frozenset[str]]:
    """Return the version's live samples that have a standing exclusion, and their keys.

    Costs a scan of the version's keys.
    """
    if version is None or not exclusions:
        return NO_ROWS, frozenset()
    # A key without a live sample is not an error: the decision also covers samples that may come later.
    live = live_rows(version, frozenset(exclusions))
    reasons = {}
    for key, exclusion in exclusions.items():
        reasons[key] = exclusion.reason
    rows = _with_reasons(
        version,
        live,
        reasons,
    )
    return rows, _collect_keys(live)


def check_reason(
    verb: str,
    target: str,
    reason: str,
) -> None:
    """Raise InvalidSample if the reason is blank or not UTF-8 text. verb, target: for the message."""
    if not is_text(reason) or not reason.strip():
        raise InvalidSample(
            f"{verb} gives no reason for {target}, got {reason!r}; "
            "a reader of the version will see it: pass UTF-8 text",
            what="reason",
            where=target,
            given=reason,
        )


def find_keys_to_exclude(
    version: Version,
    keys: Sequence[str],
    reason: str,
) -> RowsToExclude:
    """Return the samples with these keys, to exclude for one reason. Costs a scan of the version's keys.

    Raises: SampleNotFound if a key is not live; EmptyVersion if there are no keys; InvalidKey for an invalid key, or a
    str instead of a list.
    """
    if isinstance(keys, str):
        raise InvalidKey(f"exclude takes a list of keys, got the str {keys!r}; pass [{keys!r}]")
    keys = list(keys)
    if not keys:
        raise EmptyVersion("exclude was given no keys; name at least one")
    for key in keys:
        if not isinstance(key, str):
            raise InvalidKey(f"exclude takes keys as strings, got the {type(key).__name__} {key!r}")
    rows = _find_live(version, frozenset(keys))
    reasons = dict.fromkeys(keys, reason)
    return _with_reasons(
        version,
        rows,
        reasons,
    )


def exclusion_change(
    store: Store,
    prefix: str,
    to_exclude: RowsToExclude,
) -> Change:
    """Upload the bitmaps of these samples; return the change that excludes them."""
    file = put_exclusions(
        store,
        prefix,
        to_exclude.rows,
        to_exclude.part_sizes,
    )
    return Change(exclusions=file, n_excluded=to_exclude.n_samples)


def find_superseded(version: Version | None, reasons: Mapping[str, str]) -> RowsToExclude:
    """Return the samples that a new version supersedes. reasons: key -> reason. Costs a scan of the version's keys.

    Raises: SampleNotFound if a key is not live; InvalidSample if a reason is missing.
    """
    if version is None:
        first_key = min(reasons)
        raise VersionNotFound(
            f"there is no version yet, so nothing in it to supersede: {first_key!r}",
            what="supersede",
            given=first_key,
        )
    # Sorted: the error names the same key whatever the order of the caller's mapping.
    for key, reason in sorted(reasons.items()):
        check_reason("supersede", repr(key), reason)
    rows = _find_live(version, frozenset(reasons))
    return _with_reasons(
        version,
        rows,
        reasons,
    )


def _with_reasons(
    version: Version,
    live: Mapping[str, Mapping[int, str]],
    reasons: Mapping[str, str],
) -> RowsToExclude:
    """Return these samples grouped by reason. live: part id -> row -> key. reasons: key -> reason."""
    rows: RowsByReason = {}
    part_sizes: dict[str, int] = {}
    for part, keys in live.items():
        position = version.parts.position(part)
        part_sizes[part] = int(version.parts.n_rows[position])
        for row, key in keys.items():
            reason = reasons[key]
            rows_of_reason = rows.setdefault((part, reason), [])
            rows_of_reason.append(row)
    return RowsToExclude(rows=rows, part_sizes=part_sizes)


def put_exclusions(
    store: Store,
    prefix: str,
    rows: Mapping[tuple[str, str], Sequence[int]],
    part_sizes: Mapping[str, int],
    *,
    by_content: bool = False,
) -> TableFile:
    """Write the exclusions table under `prefix`: one bitmap for each part and reason.

    rows: (part id, reason) -> rows. part_sizes: part id -> number of rows of the whole part.
    by_content: name the table for its content, if another run with the same prefix may exclude other samples.
    """
    bitmaps = []
    # In this order whatever the caller's: the same exclusions give the same bytes.
    for (part, reason), members in sorted(rows.items()):
        is_excluded = np.zeros(part_sizes[part], bool)
        is_excluded[list(members)] = True
        bitmaps.append(
            {
                "part": part,
                "bitmap": pack(is_excluded),
                "n_rows": len(is_excluded),
                "reason": reason,
            }
        )
    table = pa.Table.from_pylist(bitmaps, schema=EXCLUSIONS_SCHEMA)
    if by_content:
        return put_named_table(
            store,
            prefix,
            table,
            "exclusions",
        )
    return put_table(
        store,
        f"{prefix}/exclusions.parquet",
        table,
        "exclusions",
    )


def _find_live(version: Version, keys: frozenset[str]) -> dict[str, dict[int, str]]:
    """Return part id -> row -> key of the live samples with these keys. Raises: SampleNotFound if one is missing."""
    rows = live_rows(version, keys)
    missing = sorted(keys - _collect_keys(rows))
    if missing:
        others = ""
        if len(missing) > 1:
            others = f" (nor {len(missing) - 1} others of these keys)"
        raise SampleNotFound(
            f"{version.name} has no live sample {missing[0]!r}{others}; "
            "nothing was excluded. List keys with version.samples()",
            what="key",
            where=version.name,
            given=missing[0],
        )
    return rows


def _collect_keys(rows: Mapping[str, Mapping[int, str]]) -> frozenset[str]:
    keys: set[str] = set()
    for members in rows.values():
        keys.update(members.values())
    return frozenset(keys)


class StillLive:
    """Checks that the rows to exclude are still live in the newest version."""

    def __init__(self, rows: RowsByPart) -> None:
        self._rows = rows

    def __call__(self, newest: Version | None) -> None:
        """Check the newest version, which becomes the parent. Raises: Conflict."""
        parent = require_parts(newest, self._rows)
        for part, rows in self._rows.items():
            is_live = parent.parts.live_members(parent.parts.position(part))
            # Excluded twice, a sample would be subtracted twice from the version's `n_live`.
            if not is_live[rows].all():
                raise Conflict(
                    f"a sample of part {part} was excluded by another writer in {parent.name}; open it and retry",
                    what="exclusion",
                    where=parent.name,
                    given=part,
                )
