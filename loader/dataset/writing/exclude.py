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
from ..tables.parquet import TableFile, put_table
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

    def still_live(self) -> "StillLive":
        by_part: Rows = {}
        for (part, _), rows in self.rows.items():
            by_part.setdefault(part, []).extend(rows)
        return StillLive(by_part)


NOTHING_SUPERSEDED = Superseded()


def check_reason(verb: str, of: str, reason: str) -> None:
    """Raise InvalidSample if the reason is blank or not UTF-8 text."""
    if not is_text(reason) or not reason.strip():
        raise InvalidSample(
            f"{verb} gives no reason for {of}, got {reason!r}; a reader of the version will see it: pass UTF-8 text"
        )


def write_exclusions(version: Version, prefix: str, keys: Sequence[str], reason: str) -> tuple[Change, Rows]:
    """Upload exclusion bitmaps for these keys. Returns (change, rows).

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
    rows = {part: list(members) for part, members in _find(version, frozenset(keys)).items()}
    n_rows = {part: int(version.parts.n_rows[version.parts.position(part)]) for part in rows}
    file = put_exclusions(version.store, prefix, {(part, reason): rows[part] for part in rows}, n_rows)
    return Change(exclusions=file, n_excluded=sum(len(members) for members in rows.values())), rows


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
    rows: dict[tuple[str, str], list[int]] = {}
    for part, members in _find(version, frozenset(reasons)).items():
        for row, key in members.items():
            rows.setdefault((part, reasons[key]), []).append(row)
    n_rows = {part: int(version.parts.n_rows[version.parts.position(part)]) for part, _ in rows}
    return Superseded(rows=rows, n_rows=n_rows)


def put_exclusions(
    store: Store, prefix: str, rows: Mapping[tuple[str, str], Sequence[int]], n_rows: Mapping[str, int]
) -> TableFile:
    """Write the exclusions table under `prefix`. rows: (part id, reason) -> rows. n_rows: part id -> number of rows."""
    table = []
    for (part, reason), members in sorted(rows.items()):
        excluded = np.zeros(n_rows[part], bool)
        excluded[list(members)] = True
        table.append({"part": part, "bitmap": pack(excluded), "n_rows": len(excluded), "reason": reason})
    content = pa.Table.from_pylist(table, schema=EXCLUSIONS_SCHEMA)
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
