"""Columns on Dagster's pages: types, descriptions, and the columns that they derive from."""

import re
from collections.abc import Iterable, Mapping, Sequence
from inspect import cleandoc
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa

from ..pipeline.tables import TEXTS

if TYPE_CHECKING:
    import polars as pl

    from ..featurizers import Featurizer
    from ..spec import DatasetSpec


MAX_CHARS = 400

SAMPLE_TEXTS: Mapping[str, str] = {
    "ordinal": "position in the version, from 0",
    "part": "part that holds the sample",
    "row": "row in its part, from 0",
    "key": "key of the sample, unique in the version",
    "source_key": "name of the raw object in its source",
    "unit_id": "SHA-256 of the sample's raw object, range and policy",
    "raw_start": "start in the raw object: ticks@numerator/denominator, empty for the whole object",
    "raw_end": "end in the raw object, exclusive, as raw_start",
    "split": "split, by the hash of the raw object or subject",
    "run_id": "Dagster run that cut the sample",
    "asset_key": "asset that cut the sample",
    "partition": "batch of the sample",
    "code_version": "version of the code that cut the sample",
    "width_px": "width as stored in the sample",
    "height_px": "height as stored in the sample",
    "aspect_ratio": "width against height",
    "bucket": "bucket of sizes; empty without buckets",
    "duration_s": "duration of the sample",
    "start_s": "start in the raw object",
    "sample_rate_hz": "samples per second and channel, as stored in the sample",
    "n_channels": "channels as stored in the sample",
    "n_frames": "frames of the clip",
    "n_chars": "characters of the text",
    "n_bytes": "bytes of the text in UTF-8",
    "shot": "number of the shot in the video, from 0",
    "downmix": "matrix by which channels were mixed; empty for none",
    "gain_db": "gain that was applied against clipping",
    "mono_cancels": "the channels cancel out when mixed",
    "photo_mode": "canonical: encoded again; reference: the original bytes",
    "raw_mode": "mode of the raw image, as Pillow names it",
    "colour": "source of the raw image's colour space",
    "alpha": "treatment of transparency",
    "has_gps": "the stored photo has a location in its metadata",
    "gps_stripped": "the location was removed from the photo's metadata",
    "clip_mode": "canonical: encoded again; reference: packets of the original",
    "clip_mode_reason": "why the clip was encoded again, where the policy asks for the original packets",
    "psnr_db": "mean PSNR of the clip against its source; null where nothing was encoded",
    "worst_psnr_db": "PSNR of the worst frame against its source",
    "n_deinterlaced": "frames made of two fields",
    "colour_treatment": "how colours were converted",
    "colour_assumed": "no matrix was tagged: read as BT.601",
    "has_sound": "the clip has audio beside it",
    "sound_missing_s": "audio that its source lacks within the clip",
    "sound_downmix": "matrix by which the clip's audio was mixed; empty for none",
    "sound_gain_db": "gain of the clip's audio against clipping",
    "dup_of": "key of the better copy, of a near-duplicate",
    "dup_by": "method that matched the near-duplicate: phash, embedding or minhash",
    "dup_distance_bits": "bits in which its perceptual hash differs from the better copy's",
    "dup_cosine": "cosine of its embedding with the better copy's",
    "dup_similarity": "share of equal values of its signature and the original's",
}
"""Column of the samples table -> description, if no raw object, media or featurizer column has it."""


_BLOCK_START = re.compile(
    r"""
      \n\s*\n           # a blank line ends a paragraph
    | \n(?=\s*-\ )      # each list item is a block
    | (?=Columns?:)     # and so is a sentence that begins with "Columns:"
    """,
    re.VERBOSE,
)


def feature_texts(featurizer: "Featurizer") -> dict[str, str]:
    """Return column -> its paragraph or list item in the featurizer's docstring, or else the first paragraph."""
    doc = cleandoc(type(featurizer).__doc__ or "")
    blocks = []
    for block in _BLOCK_START.split(doc):
        one_line = " ".join(block.split())
        blocks.append(one_line)
    names = sorted({name for columns in featurizer.columns.values() for name in columns})
    texts = {}
    for name in names:
        block = _block_with(name, blocks)
        if block is None:
            block = blocks[0]
        text = block.removeprefix("- ").removeprefix(f"{name}: ")
        texts[name] = _short(text, featurizer.name)
    return texts


def _block_with(name: str, blocks: Sequence[str]) -> str | None:
    """Return the first block that names a column."""
    # Neither a longer name nor `name.npy`, which is a field.
    whole_name = re.compile(rf"(?<![\w`]){re.escape(name)}(?![\w.`])")
    for block in blocks:
        if whole_name.search(block):
            return block
    return None


def _short(text: str, featurizer: str) -> str:
    if text:
        text = f"{text} (featurizer {featurizer})"
    else:
        text = f"computed by the featurizer {featurizer}"
    if len(text) <= MAX_CHARS:
        return text
    return f"{text[: MAX_CHARS - 3]}..."


Metadata = dict[str, dg.MetadataValue[Any]]
_NO_TEXTS: Mapping[str, str] = MappingProxyType({})
SCHEMA, LINEAGE = "dagster/column_schema", "dagster/column_lineage"
"""Metadata names that Dagster's pages read."""

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
"""Column of a sample -> column of raw_objects that it copies."""
FROM_MEDIA = {
    "kind": "kind",
    "source_sample_rate_hz": "sample_rate_hz",
    "source_width_px": "upright_width_px",
    "source_height_px": "upright_height_px",
    "source_duration_s": "duration_s",
}
"""Column of a sample -> column of media that it copies."""
FROM_SAMPLES = frozenset({"dup_of", "dup_by", "dup_distance_bits", "dup_cosine", "dup_similarity"})
"""Columns computed from the hashes of a whole batch."""


def schema_metadata(columns: Mapping[str, str], texts: Mapping[str, str] = _NO_TEXTS) -> Metadata:
    """Return Dagster's schema. columns: name -> type; texts: name -> description."""
    typed = [dg.TableColumn(name, kind, texts.get(name)) for name, kind in columns.items()]
    return {SCHEMA: dg.MetadataValue.table_schema(dg.TableSchema(columns=typed))}


def arrow_schema(schema: pa.Schema, texts: Mapping[str, str] = _NO_TEXTS) -> Metadata:
    """Return Dagster's schema for a lifecycle table."""
    return schema_metadata({item.name: str(item.type) for item in schema}, texts)


def lineage_metadata(dataset: str, deps: Mapping[str, Iterable[tuple[str, str]]]) -> Metadata:
    """Return Dagster's column lineage. deps: column -> (asset, column) pairs in the same dataset."""
    lineage = dg.TableColumnLineage(
        {
            name: [dg.TableColumnDep(dg.AssetKey([dataset, asset]), column) for asset, column in sources]
            for name, sources in deps.items()
        }
    )
    return {LINEAGE: dg.MetadataValue.column_lineage(lineage)}


def samples_columns(spec: "DatasetSpec", table: "pl.DataFrame") -> Metadata:
    """Return the schema and lineage of a batch's rows in the samples table."""
    scored = {
        name: feature.stage for feature in spec.features for name in _featurizer_columns(feature.build())
    }
    deps: dict[str, list[tuple[str, str]]] = {}
    for name in table.columns:
        if name in FROM_RAW_OBJECTS:
            deps[name] = [("raw_objects", FROM_RAW_OBJECTS[name])]
        elif name in FROM_MEDIA:
            deps[name] = [("media", FROM_MEDIA[name])]
        elif name in scored:
            deps[name] = [(scored[name], name)]
        # Other columns come from the units, which may have them from the source.
        elif name not in FROM_SAMPLES:
            deps[name] = [("units", name)]
    types = {name: str(kind) for name, kind in table.schema.items()}
    return schema_metadata(types, sample_texts(spec)) | lineage_metadata(spec.name, deps)


def sample_texts(spec: "DatasetSpec | None" = None) -> dict[str, str]:
    """Return column of the samples table -> description. spec: for its featurizers' columns."""
    texts = dict(SAMPLE_TEXTS)
    texts |= {name: TEXTS["raw_objects"][column] for name, column in FROM_RAW_OBJECTS.items()}
    texts |= {name: f"of the source: {TEXTS['media'][column]}" for name, column in FROM_MEDIA.items()}
    for feature in spec.features if spec else ():
        texts |= feature_texts(feature.build())
    return texts


def version_columns(dataset: str, table: "pl.LazyFrame", spec: "DatasetSpec | None" = None) -> Metadata:
    """Return the schema and lineage of a version's samples table."""
    schema = table.collect_schema()
    types = schema_metadata({name: str(kind) for name, kind in schema.items()}, sample_texts(spec))
    # The version numbers its samples; every other column is the batches'.
    own = [name for name in schema.names() if name != "ordinal"]
    return types | lineage_metadata(dataset, {name: [("samples", name)] for name in own})


def _featurizer_columns(featurizer: Any) -> set[str]:
    return {name for names in featurizer.columns.values() for name in names}
