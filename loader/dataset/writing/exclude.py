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


def still_there(parent: Version | None, parts: Iterable[str]) -> Version:
    """Return the version if it still has all of these parts: a change to removed parts would have no effect.

    Raises: Conflict if a part, or the version, is missing.
    """
    if parent is None:
        raise Conflict("every version of the dataset was retired meanwhile; begin again")
    there = set(parent.parts.ids.to_pylist())
    for part in parts:
        if part not in there:
            raise Conflict(
                f"part {part} is no longer in {parent.name}, the newest version; begin again from it"
            )
    return parent


Rows = dict[str, list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """Live samples of a version that its successor replaces."""

    rows: Mapping[tuple[str, str], Sequence[int]] = field(default_factory=dict)
    """(part id, reason) -> rows."""
    n_rows: Mapping[str, int] = field(default_factory=dict)
    """Part id -> number of rows."""

    @property
    def n_samples(self) -> int:
        return sum(len(rows) for rows in self.rows.values())

    def joined(self, others: "Superseded") -> "Superseded":
        """Return these samples and the others. A sample that is in both keeps its reason here."""
        own: dict[str, set[int]] = {}
        for (part, _), members in self.rows.items():
            own.setdefault(part, set()).update(members)
        rows = {name: list(members) for name, members in self.rows.items()}
        for (part, reason), members in others.rows.items():
            new = [row for row in members if row not in own.get(part, ())]
            if new:
                rows.setdefault((part, reason), []).extend(new)
        return Superseded(rows=rows, n_rows={**others.n_rows, **self.n_rows})

    def still_live(self) -> "StillLive":
        by_part: Rows = {}
        for (part, _), rows in self.rows.items():
            by_part.setdefault(part, []).extend(rows)
        return StillLive(by_part)


NOTHING_SUPERSEDED = Superseded()


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingExclusion:
    """Decision that leaves a key out of every later version."""

    reason: str
    """Person's reason."""
    record: str
    """Path of its record in the root."""


Standing = Mapping[str, StandingExclusion]
"""Key -> its exclusion that stands."""
NOTHING_STANDS: Standing = {}


def find_standing(version: Version | None, standing: Standing) -> tuple[Superseded, frozenset[str]]:
    """Return the live samples that an exclusion covers, and their keys. Costs a scan of the version's keys."""
    if version is None or not standing:
        return NOTHING_SUPERSEDED, frozenset()
    live = live_rows(version, frozenset(standing))
    reasons = {key: one.reason for key, one in standing.items()}
    keys = frozenset(key for members in live.values() for key in members.values())
    return _with_reasons(version, live, reasons), keys


def check_reason(verb: str, of: str, reason: str) -> None:
    """Raise InvalidSample if the reason is blank or not UTF-8 text."""
    if not is_text(reason) or not reason.strip():
        raise InvalidSample(
            f"{verb} gives no reason for {of}, got {reason!r}; a reader of the version will see it: pass UTF-8 text"
        )


def find_excluded(version: Version, keys: Sequence[str], reason: str) -> Superseded:
    """Return the samples with these keys, to exclude for one reason. Costs a scan of the version's keys.

    Raises: SampleNotFound if a key is not live; EmptyVersion if there are no keys; InvalidKey for an invalid key, or a
    str instead of a list.
    """
    if isinstance(keys, str):
        raise InvalidKey(f"exclude takes a list of keys, got the str {keys!r}; pass [{keys!r}]")
    keys = list(keys)
    if not keys:
        raise EmptyVersion("exclude was given no keys; name at least one")
    if strange := [key for key in keys if not isinstance(key, str)]:
        raise InvalidKey(
            f"exclude takes keys, which are text, got the {type(strange[0]).__name__} {strange[0]!r}"
        )
    return _with_reasons(version, _find(version, frozenset(keys)), dict.fromkeys(keys, reason))


def exclusion_change(store: Store, prefix: str, left_out: Superseded) -> Change:
    """Upload the bitmaps of these samples; return the change that excludes them."""
    file = put_exclusions(store, prefix, left_out.rows, left_out.n_rows)
    return Change(exclusions=file, n_excluded=left_out.n_samples)


def find_superseded(version: Version | None, reasons: Mapping[str, str]) -> Superseded:
    """Return the samples with these keys. reasons: key -> reason. Costs a scan of the version's keys.

    Raises: SampleNotFound if a key is not live; InvalidSample if a reason is missing.
    """
    if version is None:
        raise VersionNotFound(
            f"there is no version yet, so nothing in it to supersede: {sorted(reasons)[0]!r}"
        )
    for key, reason in sorted(reasons.items()):
        check_reason("supersede", repr(key), reason)
    return _with_reasons(version, _find(version, frozenset(reasons)), reasons)


def _with_reasons(
    version: Version, members: Mapping[str, Mapping[int, str]], reasons: Mapping[str, str]
) -> Superseded:
    rows: dict[tuple[str, str], list[int]] = {}
    for part, keys in members.items():
        for row, key in keys.items():
            rows.setdefault((part, reasons[key]), []).append(row)
    n_rows = {part: int(version.parts.n_rows[version.parts.position(part)]) for part in members}
    return Superseded(rows=rows, n_rows=n_rows)


def put_exclusions(
    store: Store,
    prefix: str,
    rows: Mapping[tuple[str, str], Sequence[int]],
    n_rows: Mapping[str, int],
    *,
    by_content: bool = False,
) -> TableFile:
    """Write the exclusions table under `prefix`.

    rows: (part id, reason) -> rows. n_rows: part id -> number of rows.
    by_content: name the table for its content, if another run with the same prefix may exclude other samples.
    """
    table = []
    for (part, reason), members in sorted(rows.items()):
        excluded = np.zeros(n_rows[part], bool)
        excluded[list(members)] = True
        table.append({"part": part, "bitmap": pack(excluded), "n_rows": len(excluded), "reason": reason})
    content = pa.Table.from_pylist(table, schema=EXCLUSIONS_SCHEMA)
    if by_content:
        return put_named_table(store, prefix, content, "exclusions")
    return put_table(store, f"{prefix}/exclusions.parquet", content, "exclusions")


def _find(version: Version, keys: frozenset[str]) -> dict[str, dict[int, str]]:
    rows = live_rows(version, keys)
    keys_excluded = {key for members in rows.values() for key in members.values()}
    if missing := sorted(keys - keys_excluded):
        raise SampleNotFound(
            f"{version.name} has no live sample {missing[0]!r}"
            + (f" (nor {len(missing) - 1} others of these keys)" if len(missing) > 1 else "")
            + "; nothing was excluded. List keys with version.samples()"
        )
    return rows


class StillLive:
    """Checks that the rows to exclude are still live in the newest version."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __call__(self, parent: Version | None) -> None:
        """Check the newest version. Raises: Conflict."""
        parent = still_there(parent, self._rows)
        for part, rows in self._rows.items():
            live = parent.parts.live_members(parent.parts.position(part))
            if not live[rows].all():
                raise Conflict(
                    f"a sample of part {part} was excluded by another writer in {parent.name}; open it and retry"
                )
