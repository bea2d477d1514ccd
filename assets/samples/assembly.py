"""From units and features to samples: score columns joined, filters applied, every object accounted for."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import Any

import loader
from loader.dataset.shards.part import ShardFile, part_rows
from loader.dataset.writing.part_extension import add_part_columns
from loader.errors import Conflict
from loader.storage import Store
from penstock.stages import StageRecord

from ..ingest.limits import stop_reason
from ..spec import DatasetSpec
from ..stages import require_read
from ..tables import read_table
from .near_duplicates import CODE as NEAR_DUPLICATE
from .near_duplicates import NONE, Copies

Row = dict[str, Any]
FindCopies = Callable[[Sequence[Row], Sequence[loader.Part]], Copies]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """A batch ready to be published."""

    parts: tuple[loader.Part, ...]
    """Parts of the batch."""
    exclude: Mapping[str, str]
    """Sample key -> reason."""
    samples: tuple[Row, ...]
    """Row per sample, left out or not, with all columns."""
    objects: tuple[Row, ...]
    """Row per landed object with its outcome (used, or one of `OUTCOMES`) and the reason."""
    copies: Copies = NONE
    """Findings of near-duplicates."""

    def outcomes(self) -> Counter[str]:
        """Count the objects by outcome."""
        return Counter(row["outcome"] for row in self.objects)

    def nothing_new(self) -> str:
        """Return why there is nothing to publish, "" when there is.

        There is nothing where every sample is left out, and one is a copy or was left out of the dataset before. A
        batch that filters leave nothing of is not meant: that is for a check to find.
        """
        n_known = sum("dup_of" in row or row["is_known"] for row in self.samples)
        if not n_known or any(not row["left_out"] for row in self.samples):
            return ""
        return (
            f"the batch holds nothing new: {n_known} of {len(self.samples)} samples are near-duplicates, or were left "
            "out of the dataset before"
        )


def assemble(
    store: Store,
    spec: DatasetSpec,
    *,
    landed: Sequence[Row],
    refusals: Sequence[Row],
    units: StageRecord,
    features: Sequence[StageRecord],
    find_copies: FindCopies = lambda samples, parts: NONE,
    left_out: Mapping[str, str] = MappingProxyType({}),
) -> Assembled:
    """Put a batch together.

    landed: rows of raw_objects.
    refusals: objects that media or units refused.
    find_copies: of the samples that nothing else leaves out.
    left_out: unit_id -> why, of units that were left out of the dataset before.

    Raises: StageNotPublished when a feature was computed of other units than these; Conflict when two of them, or a
    feature and the units, have the same column.
    """
    for record in features:
        require_read(record, units)
    scores = _scores(store, features)
    entries = [(entry["kind"], loader.Part.from_json(entry["part"])) for entry in units.body["parts"]]
    samples: list[Row] = []
    for kind, part in entries:
        for row in part_rows(store, part):
            whole = {**row, **scores.get(row["key"], {}), "kind": kind}
            known = left_out.get(whole["unit_id"], "")
            samples.append({**whole, "left_out": known or _left_out(spec, whole), "is_known": bool(known)})
    whole_parts = [_complete_shards(part, features) for _, part in entries]
    copies = find_copies([row for row in samples if not row["left_out"]], whole_parts)
    _leave_out_copies(spec, samples, copies)
    columns = iter([_told(scores.get(row["key"], {})) | copies.columns(row["key"]) for row in samples])
    parts = [_with_columns(store, part, list(islice(columns, part.n_rows))) for part in whole_parts]
    return Assembled(
        parts=tuple(parts),
        exclude={row["key"]: row["left_out"] for row in samples if row["left_out"]},
        samples=tuple(samples),
        objects=tuple(_accounts(landed, refusals, samples)),
        copies=copies,
    )


def _leave_out_copies(spec: DatasetSpec, samples: Sequence[Row], copies: Copies) -> None:
    """Write into the rows the originals that they copy, and leave copies out where the dataset drops them."""
    dropped = spec.near_duplicates is not None and spec.near_duplicates.action == "drop"
    for row in samples:
        row.update(copies.columns(row["key"]))
        if dropped and row["key"] in copies.of:
            row["left_out"] = copies.of[row["key"]].reason


def _scores(store: Store, features: Sequence[StageRecord]) -> dict[str, Row]:
    """Return key -> columns of every featurizer, with `refused` where one would not take the sample.

    Raises: Conflict for a column of two featurizers: records may be of other parameters than the dataset has now.
    """
    scores: dict[str, Row] = {}
    owners: dict[str, str] = {}
    for record in features:
        featurizer = record.body["featurizer"]
        for row in read_table(store, record.files[record.stage]):
            mine = scores.setdefault(row["key"], {})
            if row["code"]:
                mine["refused"] = f"{featurizer}: {row['code']}: {row['reason']}"
            told = {name: value for name, value in row.items() if name not in ("key", "code", "reason")}
            for name in told:
                if owners.setdefault(name, featurizer) != featurizer:
                    raise Conflict(
                        f"column {name!r} comes from two featurizers, {owners[name]!r} and {featurizer!r}; give "
                        "one of them another name, or leave one out of the dataset"
                    )
            mine.update(told)
    return scores


def _told(columns: Row) -> Row:
    return {name: value for name, value in columns.items() if name != "refused" and value is not None}


def _left_out(spec: DatasetSpec, row: Row) -> str:
    """Return why the sample is left out, or ""."""
    if row.get("refused"):
        return str(row["refused"])
    for one in spec.filters:
        if reason := one.reason(row.get(one.column)):
            return reason
    return ""


def _complete_shards(part: loader.Part, features: Sequence[StageRecord]) -> loader.Part:
    """Return the part with every featurizer's shard."""
    added = [
        ShardFile(**shard)
        for record in features
        for shard in record.body["shards"]
        if shard["part"] == part.id
    ]
    return replace(part, shards=(*part.shards, *added))


def _with_columns(store: Store, part: loader.Part, columns: Sequence[Row]) -> loader.Part:
    return add_part_columns(store, part, columns) if any(columns) else part


def _accounts(landed: Sequence[Row], refusals: Sequence[Row], samples: Sequence[Row]) -> list[Row]:
    """Return one row per landed object: used or refused, and why."""
    refused = {row["key"]: row for row in refusals}
    of_object: dict[str, list[Row]] = {}
    for sample in samples:
        of_object.setdefault(sample["raw_key"], []).append(sample)
    accounts = []
    for row in landed:
        mine = of_object.get(row["key"], [])
        filtered = [sample for sample in mine if sample["left_out"] and "dup_of" not in sample]
        told = {"key": row["key"], "sha256": row["sha256"]}
        if any(not sample["left_out"] for sample in mine):
            accounts.append(told | {"outcome": "used", "stage": "", "code": "", "reason": ""})
        elif row["key"] in refused:
            accounts.append(
                {**told, **{n: refused[row["key"]][n] for n in ("outcome", "stage", "code", "reason")}}
            )
        elif mine:
            accounts.append(
                told
                | {
                    "outcome": "dropped",
                    "stage": "samples",
                    "code": "filtered" if filtered else NEAR_DUPLICATE,
                    "reason": (filtered or mine)[0]["left_out"],
                }
            )
        else:
            accounts.append(
                told | {"outcome": "lost", "stage": "samples", "code": "lost", "reason": "no row anywhere"}
            )
    return accounts


def audit(spec: DatasetSpec, assembled: Assembled) -> str:
    """Return why the batch may not be published, or "" when it may, by the accounting equation and the limits."""
    landed = len(assembled.objects)
    lost = [row["key"] for row in assembled.objects if row["outcome"] == "lost"]
    if lost:
        return (
            f"{len(lost)} of {landed} landed objects are neither used nor refused with a reason: {lost[:3]}"
        )
    return stop_reason(assembled.objects, landed, spec)
