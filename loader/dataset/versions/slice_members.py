"""Samples of a stored slice in any version of its dataset.

A list's sample is the live row of its part. If the version has no such row, it is the live sample with the same key:
it was written again. A sample without one is missing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...errors import Corrupt, InvalidName, InvalidPlan, SliceNotFound
from ...json_text import is_text
from ...order.sources.views import list_sha256
from ..shards.bitmap import Bools
from ..tables.parquet import Int64s, integers
from ..tables.slice_record import (
    MAX_NUMBER,
    SliceRecord,
    check_slice_name,
    read_slice,
    read_slice_table,
)
from ..tables.table_rows import distinct, run_codes
from .samples_table import check_names, live_ordinals, live_where

if TYPE_CHECKING:
    from ..reading.sample_places import VersionData

MISSING = -1
"""Ordinal of a sample that a version lacks."""
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceTerm:
    """A slice as a view has it: fixed for the view's version, whatever is saved or removed later."""

    name: str
    """Name of the slice in the view's dataset."""
    n: int
    """Number of the slice."""
    sha256: str
    """SHA-256 (hex) of the slice's ordinals in the view's version, as little-endian int64, ascending."""
    where: str = ""
    """SQL expression of a rule; "" for a list."""
    without: bool = False
    """True if the view has the samples outside of the slice."""

    @property
    def is_list(self) -> bool:
        return not self.where

    @property
    def selection(self) -> "SliceTerm":
        """The term without what its version decides."""
        return replace(self, sha256="")

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "name": self.name,
            "n": self.n,
            "sha256": self.sha256,
            "without": self.without,
        }
        if self.where:
            body["where"] = self.where
        return body

    @classmethod
    def from_json(cls, body: object) -> "SliceTerm":
        """Return the term that `to_json` wrote. Raises: InvalidPlan."""
        if not isinstance(body, Mapping):
            raise InvalidPlan(
                f"the plan's JSON is damaged: a slice is {body!r:.80}; save the plan again",
                what="slice",
                given=body,
            )
        n = body.get("n")
        sha256 = body.get("sha256")
        where = body.get("where", "")
        without = body.get("without")
        try:
            name = check_slice_name(body.get("name"))
        except InvalidName as error:
            raise InvalidPlan(
                f"the plan's JSON is damaged: {error}; save the plan again", what="slice", given=str(error)
            ) from None
        is_number = isinstance(n, int) and not isinstance(n, bool)
        is_digest = isinstance(sha256, str) and _SHA256.fullmatch(sha256)
        is_valid = is_number and is_digest and is_text(where) and isinstance(without, bool)
        if not is_valid or not 1 <= int(n or 0) <= MAX_NUMBER:
            raise InvalidPlan(
                f"the plan's JSON is damaged: the slice {name!r} is {dict(body)!r:.200}; save the plan again",
                what=f"slice {name}",
                given=dict(body),
            )
        return cls(
            name=name,
            n=int(n or 0),
            sha256=str(sha256),
            where=str(where),
            without=bool(without),
        )


def slice_term(
    version: "VersionData",
    name: str,
    n: int | None,
    *,
    without: bool,
) -> SliceTerm:
    """Return a slice as a view of a version has it. n: None is the newest number.

    Raises: SliceNotFound, also for a removed slice; Corrupt; FieldNotFound if a rule's expression does not fit.
    """
    record = read_slice(version.store, version.dataset, name, n)
    _check_not_removed(record)
    sha256 = record.sha256
    if record.kind == "rule" and record.version_id == version.id:
        # Its samples are compared with the digest when they are first needed.
        check_names(version, record.where)
    else:
        ordinals = slice_ordinals(version, record)
        sha256 = list_sha256(ordinals)
    return SliceTerm(
        name=record.name,
        n=record.n,
        sha256=sha256,
        where=record.where,
        without=without,
    )


def version_term(version: "VersionData", term: SliceTerm) -> SliceTerm:
    """Return the term of the same number in another version. Raises: as `slice_term`."""
    if term.is_list:
        ordinals = _list_ordinals(version, term)
    else:
        ordinals = np.flatnonzero(live_where(version, term.where))
    return replace(term, sha256=list_sha256(ordinals))


def _list_ordinals(version: "VersionData", term: SliceTerm) -> Int64s:
    """Return int64, ascending: live ordinals of the samples of a term's list."""
    record = read_slice(
        version.store,
        version.dataset,
        term.name,
        term.n,
    )
    return slice_ordinals(version, record)


def term_members(version: "VersionData", term: SliceTerm) -> Bools:
    """Return bool [len(version)]: True for live ordinals that the term selects. Raises: Corrupt; SliceNotFound."""
    if term.is_list:
        members = np.zeros(len(version), bool)
        members[_list_ordinals(version, term)] = True
    else:
        members = live_where(version, term.where)
    selected = members
    if term.without:
        selected = ~members
    check_term(version, term, selected, "the slice")
    return selected


def newest_slice(version: "VersionData", name: str) -> SliceRecord:
    """Return the newest number of a slice of the version's dataset. Writes nothing.

    Raises: SliceNotFound, also for a removed slice; InvalidName; Corrupt; FormatTooNew.
    """
    record = read_slice(version.store, version.dataset, name)
    _check_not_removed(record)
    return record


def _check_not_removed(record: SliceRecord) -> None:
    if record.removed:
        raise SliceNotFound(
            f"the slice {record.full_name} was removed by {record.by}: {record.why}. Pass n= of an earlier number "
            f"(penstock slice show {record.full_name}), or save the slice again",
            what="slice",
            where=record.full_name,
            given=record.why,
        )


def check_term(
    version: "VersionData",
    term: SliceTerm,
    selected: Bools,
    what: str,
) -> None:
    """Raise Corrupt unless a term selects these samples. selected: bool [len(version)]. what: their source."""
    # The digest is of the slice's samples, also in a view that has the others.
    is_in_slice = selected
    if term.without:
        is_in_slice = ~selected
    ordinals = np.flatnonzero(is_in_slice)
    sha256 = list_sha256(ordinals)
    if sha256 != term.sha256:
        raise Corrupt(
            f"{what} {version.dataset}/{term.name}, number {term.n}, has other samples of {version.name} than when the "
            f"view was made: the sha256 of its ordinals is {sha256}, it was {term.sha256}. It was changed: restore it "
            "from a mirror, or make a new plan",
            what="sha256",
            where=f"{version.dataset}/{term.name}",
            given=sha256,
            accepted=term.sha256,
        )


def slice_ordinals(version: "VersionData", record: SliceRecord) -> Int64s:
    """Return the int64 live ordinals of a slice's samples in a version, ascending. Raises: Corrupt; FieldNotFound."""
    if record.kind == "rule":
        members = live_where(version, record.where)
        ordinals = np.flatnonzero(members)
        is_own_version = record.version_id == version.id
        if is_own_version and list_sha256(ordinals) != record.sha256:
            raise Corrupt(
                f"{record.path}: its expression selects other samples of {version.name} than when it was saved; it was "
                "changed. Restore it from a mirror, or save the slice again",
                what="expression",
                where=record.path,
                given="other samples",
            )
        return ordinals
    located = locate_list(version, record)
    is_live = located != MISSING
    return distinct(located[is_live])


def missing_keys(version: "VersionData", record: SliceRecord) -> list[str]:
    """Return the keys of a list's samples that a version lacks, sorted; a rule has none."""
    if record.kind == "rule":
        return []
    located = locate_list(version, record)
    is_missing = pa.array(located == MISSING)
    table = read_slice_table(version.store, record, ["key"])
    keys: list[str] = table["key"].filter(is_missing).to_pylist()
    return sorted(keys)


def locate_list(version: "VersionData", record: SliceRecord) -> Int64s:
    """Return int64 [n_samples]: the live ordinal of each row of a list, or MISSING.

    Costs the table; if rows of it are no longer live, also a scan of the version's keys. Raises: Corrupt by the table's
    path.
    """
    if record.dataset != version.dataset:
        raise Corrupt(
            f"{record.path} is a slice of {record.dataset}, not of {version.dataset}",
            what="dataset",
            where=record.path,
            given=record.dataset,
            accepted=version.dataset,
        )
    table = read_slice_table(version.store, record, ["ordinal", "part", "row"])
    part_names, part_code = run_codes(table["part"])
    known_parts = _positions(version, part_names)  # [runs of a part], MISSING for parts of other versions
    position = known_parts[part_code]  # [n]
    row = integers(table["row"])
    ordinals = _live_ordinals(version, record, position, row)
    if record.version_id == version.id:
        stored = integers(table["ordinal"])
        if not np.array_equal(ordinals, stored):
            differs = ordinals != stored
            first = int(np.argmax(differs))
            raise Corrupt(
                f"{record.table_path}: sample {first} is stated as ordinal {stored[first]} of {version.name}, which is "
                "no live sample of its part and row. It was changed: restore it from a mirror, or save the slice again",
                what="ordinal",
                where=record.table_path,
                given=int(stored[first]),
            )
        return ordinals

    is_missing = ordinals == MISSING
    if is_missing.any():
        keys = read_slice_table(version.store, record, ["key"])["key"]
        needed = pa.array(is_missing)
        keys_of_missing: list[str] = keys.filter(needed).to_pylist()
        ordinals[is_missing] = live_ordinals(version, keys_of_missing)
    return ordinals


def _positions(version: "VersionData", part_names: pa.Array) -> Int64s:
    """Return int64 [parts]: position of each part in the version, or MISSING."""
    import pyarrow.compute as pc  # 40 ms, saved at startup

    index = pc.index_in(part_names, value_set=version.parts.ids)
    return integers(pc.fill_null(index, MISSING))


def _live_ordinals(
    version: "VersionData",
    record: SliceRecord,
    position: Int64s,
    row: Int64s,
) -> Int64s:
    """Return int64 [n]: live ordinals of rows of parts, MISSING for unknown parts and excluded rows.

    position, row: int64 [n]. Raises: Corrupt for a row that its part does not have.
    """
    parts = version.parts
    is_known = position != MISSING
    n_rows = parts.n_rows[position]  # [n]; of the last part where the part is unknown
    is_above = is_known & (row >= n_rows)
    is_outside = is_above | (row < 0)
    if is_outside.any():
        first = int(np.argmax(is_outside))
        raise Corrupt(
            f"{record.table_path}: sample {first} is stated as row {row[first]} of a part with {n_rows[first]} rows. "
            "It was changed: restore it from a mirror, or save the slice again",
            what="row",
            where=record.table_path,
            given=int(row[first]),
            accepted=int(n_rows[first]),
        )
    ordinals = np.full(len(position), MISSING, np.int64)
    ordinals[is_known] = parts.live_ordinals(position[is_known], row[is_known])
    return ordinals
