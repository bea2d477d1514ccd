"""Storage of a featurizer's rows: one shard per part for its fields, and a table of its columns."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import loader
from loader.dataset.writing.part_extension import add_part_group
from loader.errors import FieldMismatch, ModelFailed
from loader.storage import Store
from penstock.compute.pool import Compute
from penstock.compute.pool.environment import store_variables

from ..featurizers import Featurizer
from ..featurizers.models import ModelFeaturizer, machine_facts
from .compute import Row, gpus_of
from .names import Names


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Everything that a stage keeps of a batch."""

    shards: list[dict[str, Any]] = field(default_factory=list)
    """Shards as JSON."""
    table: list[dict[str, Any]] = field(default_factory=list)
    """A row per sample."""
    taken: list[list[Any]] = field(default_factory=list)
    """[part id, kind, number of rows of `table`] of each part, in the table's order."""
    model: dict[str, Any] = field(default_factory=dict)
    """Facts of a model and its machine; empty for other featurizers."""

    @property
    def refused(self) -> int:
        """Number of samples that the featurizer refused."""
        return sum(1 for row in self.table if row["code"])

    @property
    def counts(self) -> dict[str, int]:
        """Counts for the stage's record."""
        nbytes = sum(shard["nbytes"] for shard in self.shards)
        return {"samples": len(self.table), "refused": self.refused, "nbytes": nbytes}


def store_part(
    store: Store,
    featurizer: Featurizer,
    names: Names,
    kind: str,
    part: loader.Part,
    rows: Iterator[Row],
    stored: Stored,
    txn: str | None = None,
) -> None:
    """Write the part's new shard, and note each row's values in the table.

    No shard is written for a featurizer that gives columns only, or takes no sample, nor where the part has these very
    fields. Rows are written as they come: the fields of one are in memory. txn: see `add_part_group`.

    Raises: FieldMismatch when the featurizer makes other names than it declares; Conflict; StoreError.
    """
    before = len(stored.table)
    told = _told(featurizer, kind, rows, stored.table)
    wanted = bool(featurizer.outputs[kind]) and all(shard.group != names.group for shard in part.shards)
    first: list[Row] = []
    for row in told:
        if wanted:
            first.append(row)
        if row.features and wanted:
            empty: dict[str, Any] = dict.fromkeys(featurizer.outputs[kind], b"")
            made = (one.features.fields if one.features else empty for one in chain(first, told))
            values = ({names.fields[name]: value for name, value in fields.items()} for fields in made)
            extended = add_part_group(store, part, names.group, values, txn=txn)
            stored.shards.append(extended.to_json()["shards"][-1])
    stored.taken.append([part.id, kind, len(stored.table) - before])


def model_here(compute: Compute, featurizer: ModelFeaturizer, timeout_s: float) -> dict[str, str | int]:
    """Return the facts of this machine, once a worker has loaded a model. Raises: ModelFailed when it cannot."""
    variables = store_variables(featurizer.weights)
    (outcome,) = compute.map(
        machine_facts, [featurizer], timeout_s=timeout_s, variables=variables, gpus=gpus_of(featurizer)
    )
    if outcome.value is None:
        reason = outcome.error.summary if outcome.error else ""
        raise ModelFailed(f"featurizer {featurizer.name!r} cannot be loaded: {reason}")
    return outcome.value


def _told(
    featurizer: Featurizer, kind: str, rows: Iterator[Row], table: list[dict[str, Any]]
) -> Iterator[Row]:
    """Yield the rows as they are, noted in the table. Raises: FieldMismatch when one has other names than declared."""
    for row in rows:
        if row.features is not None:
            for what, made, declared in (
                ("fields", row.features.fields, featurizer.outputs[kind]),
                ("columns", row.features.columns, featurizer.columns[kind]),
            ):
                if set(made) != set(declared):
                    raise FieldMismatch(
                        f"sample {row.key!r}: featurizer {featurizer.name!r} made the {what} {sorted(made)} and "
                        f"declares {sorted(declared)}; make it declare what it makes"
                    )
        if row.features is not None or row.code:
            table.append(_table_row(row))
        yield row


def _table_row(row: Row) -> dict[str, Any]:
    columns = dict(row.features.columns) if row.features else {}
    return {"key": row.key, "code": row.code, "reason": row.reason, **columns}
