"""Store the features of a part: a new shard with their fields, and one row per sample with their columns."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import loader
from loader.dataset.writing.part_extension import add_part_group
from loader.errors import FieldMismatch
from loader.storage import Store

from ..featurizers import Featurizer
from .compute import FeatureRow
from .names import FeatureNames


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFeatures:
    """Stored features of a batch."""

    shards: list[dict[str, Any]] = field(default_factory=list)
    """Written shards, as JSON."""
    table: list[dict[str, Any]] = field(default_factory=list)
    """One row per sample."""
    parts: list[list[Any]] = field(default_factory=list)
    """[part id, kind, number of rows in `table`] per part, in order."""
    model: dict[str, Any] = field(default_factory=dict)
    """Facts of model and machine; empty without a model."""

    @property
    def refused(self) -> int:
        return sum(1 for row in self.table if row["code"])

    @property
    def counts(self) -> dict[str, int]:
        """Counts for the stage record."""
        nbytes = sum(shard["nbytes"] for shard in self.shards)
        return {"samples": len(self.table), "refused": self.refused, "nbytes": nbytes}


def store_part(
    store: Store,
    featurizer: Featurizer,
    names: FeatureNames,
    kind: str,
    part: loader.Part,
    rows: Iterator[FeatureRow],
    stored: StoredFeatures,
    txn: str | None = None,
) -> None:
    """Write the part's new shard, and add each row's values to the table.

    Writes no shard if there are no fields or no samples, or if the part has this group.

    Raises: FieldMismatch if the output differs from its declaration; Conflict; StoreError.
    """
    n_rows_before = len(stored.table)
    recorded = _record_rows(featurizer, kind, rows, stored.table)
    has_group = any(shard.group == names.group for shard in part.shards)
    has_new_shard = bool(featurizer.outputs[kind]) and not has_group
    if has_new_shard:
        # A part without any features gets no shard of empty fields.
        first_rows = _read_to_features(recorded)
        if first_rows and first_rows[-1].features:
            all_rows = chain(first_rows, recorded)
            extended = add_part_group(
                store,
                part,
                names.group,
                _stored_fields(all_rows, featurizer.outputs[kind], names),
                txn=txn,
            )
            new_shard = extended.to_json()["shards"][-1]
            stored.shards.append(new_shard)
    # Reading a row records it: read the rest.
    for _ in recorded:
        pass
    stored.parts.append([part.id, kind, len(stored.table) - n_rows_before])


def _read_to_features(rows: Iterator[FeatureRow]) -> list[FeatureRow]:
    """Return the rows up to the first one with features, which is the last; all rows if none has any."""
    first_rows: list[FeatureRow] = []
    for row in rows:
        first_rows.append(row)
        if row.features:
            break
    return first_rows


def _stored_fields(
    rows: Iterable[FeatureRow],
    outputs: Iterable[str],
    names: FeatureNames,
) -> Iterator[dict[str, Any]]:
    """Yield each row's fields under their stored names. outputs: the featurizer's names of its fields."""
    # A refused sample has empty fields, so that rows of all shards of a part stay aligned.
    empty: dict[str, Any] = dict.fromkeys(outputs, b"")
    for row in rows:
        fields: Mapping[str, Any] = empty
        if row.features:
            fields = row.features.fields
        stored_fields = {}
        for name, value in fields.items():
            stored_name = names.fields[name]
            stored_fields[stored_name] = value
        yield stored_fields


def _record_rows(
    featurizer: Featurizer,
    kind: str,
    rows: Iterator[FeatureRow],
    table: list[dict[str, Any]],
) -> Iterator[FeatureRow]:
    """Yield the rows, and add each one to the table as it is read, except removed ones."""
    for row in rows:
        features = row.features
        if features is not None:
            maker = f"sample {row.key!r}: featurizer {featurizer.name!r}"
            _check_declared(maker, "fields", features.fields, featurizer.outputs[kind])
            _check_declared(maker, "columns", features.columns, featurizer.columns[kind])
        is_removed = features is None and not row.code
        if not is_removed:
            table.append(_table_row(row))
        yield row


def _check_declared(
    maker: str,
    what: str,
    names: Iterable[str],
    declared: Iterable[str],
) -> None:
    """Raise FieldMismatch if a featurizer's fields or columns are not the declared ones. maker: for the error."""
    if set(names) == set(declared):
        return
    raise FieldMismatch(
        f"{maker} made the {what} {sorted(names)} but declares {sorted(declared)}; declare all of its names"
    )


def _table_row(row: FeatureRow) -> dict[str, Any]:
    table_row: dict[str, Any] = {
        "key": row.key,
        "code": row.code,
        "reason": row.reason,
    }
    if row.features:
        table_row.update(row.features.columns)
    return table_row
