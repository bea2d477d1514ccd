"""Columns of tables on Dagster's pages: their types, and the columns of assets that they were made of."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa

from ..tables import TEXTS
from .column_texts import SAMPLE_TEXTS, feature_texts

if TYPE_CHECKING:
    import polars as pl

    from ..spec import DatasetSpec

Metadata = dict[str, dg.MetadataValue[Any]]
_NO_TEXTS: Mapping[str, str] = MappingProxyType({})
SCHEMA, LINEAGE = "dagster/column_schema", "dagster/column_lineage"
"""Names that Dagster's pages look for."""

FROM_RAW_OBJECTS = {
    "raw_uri": "uri",
    "raw_key": "key",
    "raw_etag": "etag",
    "raw_sha256": "sha256",
    "label": "label",
    "licence": "licence",
    "mime": "mime",
    "source_nbytes": "nbytes",
}
"""Column of a sample -> column of raw_objects."""
FROM_MEDIA = {
    "kind": "kind",
    "source_sample_rate_hz": "sample_rate_hz",
    "source_width_px": "upright_width_px",
    "source_height_px": "upright_height_px",
    "source_duration_s": "duration_s",
}
"""Column of a sample -> column of media."""
FROM_SAMPLES = frozenset({"dup_of", "dup_by", "dup_distance_bits", "dup_cosine"})
"""Columns made when the batch is put together, of the hashes of all."""


def schema_metadata(columns: Mapping[str, str], texts: Mapping[str, str] = _NO_TEXTS) -> Metadata:
    """Return column -> type, as Dagster shows it. texts: column -> description."""
    made = [dg.TableColumn(name, kind, texts.get(name)) for name, kind in columns.items()]
    return {SCHEMA: dg.MetadataValue.table_schema(dg.TableSchema(columns=made))}


def arrow_schema(schema: pa.Schema, texts: Mapping[str, str] = _NO_TEXTS) -> Metadata:
    """Return types and descriptions of the columns of a lifecycle table."""
    return schema_metadata({item.name: str(item.type) for item in schema}, texts)


def lineage_metadata(dataset: str, deps: Mapping[str, Iterable[tuple[str, str]]]) -> Metadata:
    """Return column -> [(asset, column)] of the same dataset, as Dagster shows it."""
    made = dg.TableColumnLineage(
        {
            name: [dg.TableColumnDep(dg.AssetKey([dataset, asset]), column) for asset, column in sources]
            for name, sources in deps.items()
        }
    )
    return {LINEAGE: dg.MetadataValue.column_lineage(made)}


def samples_columns(spec: "DatasetSpec", table: "pl.DataFrame") -> Metadata:
    """Return types and origin of a batch's columns in the samples table: each from its stage."""
    scored = {name: feature.stage for feature in spec.features for name in _columns_of(feature.build())}
    deps: dict[str, list[tuple[str, str]]] = {}
    for name in table.columns:
        if name in FROM_RAW_OBJECTS:
            deps[name] = [("raw_objects", FROM_RAW_OBJECTS[name])]
        elif name in FROM_MEDIA:
            deps[name] = [("media", FROM_MEDIA[name])]
        elif name in scored:
            deps[name] = [(scored[name], name)]
        elif name not in FROM_SAMPLES:
            deps[name] = [("units", name)]
    types = {name: str(kind) for name, kind in table.schema.items()}
    return schema_metadata(types, sample_texts(spec)) | lineage_metadata(spec.name, deps)


def sample_texts(spec: "DatasetSpec | None" = None) -> dict[str, str]:
    """Return column of the samples table -> what it holds. spec: the dataset, whose featurizers describe theirs."""
    texts = dict(SAMPLE_TEXTS)
    texts |= {name: TEXTS["raw_objects"][column] for name, column in FROM_RAW_OBJECTS.items()}
    texts |= {name: f"of the source: {TEXTS['media'][column]}" for name, column in FROM_MEDIA.items()}
    for feature in spec.features if spec else ():
        texts |= feature_texts(feature.build())
    return texts


def version_columns(dataset: str, table: "pl.LazyFrame", spec: "DatasetSpec | None" = None) -> Metadata:
    """Return types, descriptions and origin of the columns of a version's samples table: all are the batches'."""
    schema = table.collect_schema()
    told = schema_metadata({name: str(kind) for name, kind in schema.items()}, sample_texts(spec))
    own = [name for name in schema.names() if name != "ordinal"]
    return told | lineage_metadata(dataset, {name: [("samples", name)] for name in own})


def _columns_of(featurizer: Any) -> set[str]:
    return {name for names in featurizer.columns.values() for name in names}
