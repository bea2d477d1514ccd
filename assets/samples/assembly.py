"""Assemble samples from units and features: join scores, apply filters, account for every object."""

import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import loader
from loader.dataset.shards.part import ShardFile, part_rows
from loader.dataset.tables.parquet import get_table_bytes
from loader.dataset.writing.part_extension import add_part_columns
from loader.errors import Conflict
from loader.storage import Store
from penstock.stages import StageRecord

from ..dedup.near_duplicates import CODE as NEAR_DUPLICATE
from ..dedup.near_duplicates import NONE, BatchCopies
from ..ingest.limits import stop_reason
from ..pipeline.stages import require_read
from ..pipeline.tables import read_table
from ..spec import DatasetSpec

if TYPE_CHECKING:
    import polars as pl


Row = dict[str, Any]
FindCopies = Callable[[Sequence[Row], Sequence[loader.Part]], BatchCopies]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """An assembled batch, ready to be audited."""

    parts: tuple[loader.Part, ...]
    """Parts of the batch."""
    exclude: Mapping[str, str]
    """Key of a sample left out -> reason."""
    samples: tuple[Row, ...]
    """A row per sample, even if left out: its columns, `kind`, `left_out` (reason or ""), `is_known` (True if the
    reason is an exclusion or quarantine), and `dup_of` for a near-duplicate.
    """
    objects: tuple[Row, ...]
    """Row per landed object, with its outcome (used, or one of `OUTCOMES`) and reason."""
    copies: BatchCopies = NONE
    """Near-duplicates among the samples."""

    def outcomes(self) -> Counter[str]:
        """Count of objects by outcome."""
        return Counter(row["outcome"] for row in self.objects)

    def nothing_new(self) -> str:
        """Return why there is nothing to publish, or "".

        There is nothing if every sample is left out, and at least one of them is a near-duplicate or known. If filters
        left out all samples, the reason is "".
        """
        if any(not row["left_out"] for row in self.samples):
            return ""
        # Only a near-duplicate has the column "dup_of".
        n_known = sum("dup_of" in row or row["is_known"] for row in self.samples)
        if not n_known:  # filters left all samples out
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
    """Assemble a batch: join units and features, and decide which samples to leave out.

    landed: rows of raw_objects. refusals: rows of the stages media and units. find_copies: finds near-duplicates among
    the rest. left_out: unit_id -> why an exclusion or quarantine covers it.

    Raises: StageNotPublished if a feature was computed from other units; Conflict if a column has two owners.
    """
    for record in features:
        # Features of earlier units would be joined to other samples of the same key.
        require_read(record, units)
    scores = _scores(store, features)
    entries = [(entry["kind"], loader.Part.from_json(entry["part"])) for entry in units.body["parts"]]
    samples: list[Row] = []
    for kind, part in entries:
        for row in part_rows(store, part):
            whole = {**row, **scores.get(row["key"], {}), "kind": kind}
            exclusion = left_out.get(whole["unit_id"], "")
            reason = exclusion or _filter_reason(spec, whole)
            samples.append({**whole, "left_out": reason, "is_known": bool(exclusion)})
    # With the features' shards: near-duplicates may be compared by an embedding in one of them.
    whole_parts = [_complete_shards(part, features) for _, part in entries]
    # Copies are searched among the remaining samples only: a filtered sample must not push out its duplicate.
    copies = find_copies([row for row in samples if not row["left_out"]], whole_parts)
    _leave_out_copies(spec, samples, copies)
    # An iterator over all samples, of which each part takes its own rows in order.
    columns = iter(
        [_known_values(scores.get(row["key"], {})) | copies.columns(row["key"]) for row in samples]
    )
    parts = [_with_columns(store, part, list(islice(columns, part.n_rows))) for part in whole_parts]
    return Assembled(
        parts=tuple(parts),
        exclude={row["key"]: row["left_out"] for row in samples if row["left_out"]},
        samples=tuple(samples),
        objects=tuple(_accounts(landed, refusals, samples)),
        copies=copies,
    )


def _leave_out_copies(spec: DatasetSpec, samples: Sequence[Row], copies: BatchCopies) -> None:
    """Add the columns about near-duplicates to samples; leave the copies out if the policy drops them."""
    drops_copies = spec.near_duplicates is not None and spec.near_duplicates.action == "drop"
    for row in samples:
        row.update(copies.columns(row["key"]))
        if drops_copies and row["key"] in copies.of:
            row["left_out"] = copies.of[row["key"]].reason


def _scores(store: Store, features: Sequence[StageRecord]) -> dict[str, Row]:
    """Return sample key -> columns of all featurizers; `refused` has the reason of one that rejected the sample."""
    scores: dict[str, Row] = {}
    owners: dict[str, str] = {}
    for record in features:
        featurizer = record.body["featurizer"]
        for row in read_table(store, record.files[record.stage]):
            columns = scores.setdefault(row["key"], {})
            if row["code"]:
                columns["refused"] = f"{featurizer}: {row['code']}: {row['reason']}"
            values = {name: value for name, value in row.items() if name not in ("key", "code", "reason")}
            for name in values:
                if owners.setdefault(name, featurizer) != featurizer:
                    raise Conflict(
                        f"column {name!r} comes from two featurizers, {owners[name]!r} and {featurizer!r}; give "
                        "one of them another name, or leave one out of the dataset",
                        what=name,
                        given=[owners[name], featurizer],
                    )
            columns.update(values)
    return scores


def _known_values(columns: Row) -> Row:
    # Nulls are absent cells, so a column that no sample has gets no type.
    return {name: value for name, value in columns.items() if name != "refused" and value is not None}


def _filter_reason(spec: DatasetSpec, row: Row) -> str:
    """Return why a featurizer or a filter rejects a sample, or ""."""
    if row.get("refused"):
        return str(row["refused"])
    for rule in spec.filters:
        if reason := rule.reason(row.get(rule.column)):
            return reason
    return ""


def _complete_shards(part: loader.Part, features: Sequence[StageRecord]) -> loader.Part:
    """Return a part of the units with the shards that features added to it."""
    added = [
        ShardFile(**shard)
        for record in features
        for shard in record.body["shards"]
        if shard["part"] == part.id
    ]
    return replace(part, shards=(*part.shards, *added))


def _with_columns(store: Store, part: loader.Part, columns: Sequence[Row]) -> loader.Part:
    """Return a part with more columns in its samples table. columns: of each sample, in order."""
    if any(columns):
        return add_part_columns(store, part, columns)
    return part


def _accounts(landed: Sequence[Row], refusals: Sequence[Row], samples: Sequence[Row]) -> list[Row]:
    """Return a row per landed object with its outcome; see `Assembled.objects`."""
    refused = {row["key"]: row for row in refusals}
    of_object: dict[str, list[Row]] = {}
    for sample in samples:
        of_object.setdefault(sample["raw_key"], []).append(sample)
    accounts = []
    for row in landed:
        cut_samples = of_object.get(row["key"], [])
        # A filter is the stronger reason: it holds even after the other copy is gone.
        filtered = [sample for sample in cut_samples if sample["left_out"] and "dup_of" not in sample]
        identity = {"key": row["key"], "sha256": row["sha256"]}
        if any(not sample["left_out"] for sample in cut_samples):
            # One remaining sample makes its object used, even if others of it were refused.
            accounts.append(identity | {"outcome": "used", "stage": "", "code": "", "reason": ""})
        elif row["key"] in refused:
            accounts.append(
                {**identity, **{n: refused[row["key"]][n] for n in ("outcome", "stage", "code", "reason")}}
            )
        elif cut_samples:
            accounts.append(
                identity
                | {
                    "outcome": "dropped",
                    "stage": "samples",
                    "code": "filtered" if filtered else NEAR_DUPLICATE,
                    "reason": (filtered or cut_samples)[0]["left_out"],
                }
            )
        else:
            accounts.append(
                identity
                | {"outcome": "lost", "stage": "samples", "code": "lost", "reason": "no row anywhere"}
            )
    return accounts


def audit(spec: DatasetSpec, assembled: Assembled) -> str:
    """Return why the batch may not be published, or "": every object is accounted for, within the limits."""
    landed = len(assembled.objects)
    lost = [row["key"] for row in assembled.objects if row["outcome"] == "lost"]
    if lost:
        return (
            f"{len(lost)} of {landed} landed objects are neither used nor refused with a reason: {lost[:3]}"
        )
    return stop_reason(assembled.objects, landed, spec)


def candidate(root: loader.Root, samples: StageRecord) -> "pl.DataFrame":
    """Return the rows that a batch would add to the samples table. Raises: Corrupt; ObjectNotFound."""
    import polars as pl

    files = [loader.Part.from_json(body).samples for body in samples.body["parts"]]
    frames = [pl.read_parquet(io.BytesIO(get_table_bytes(root.store, file))) for file in files if file]
    if not frames:
        return pl.DataFrame()
    left_out = list(samples.body["exclude"])
    return pl.concat(frames, how="diagonal_relaxed").filter(~pl.col("key").is_in(left_out))
