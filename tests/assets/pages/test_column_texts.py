"""Descriptions of columns on Dagster's pages: every column of every table has one, and files have none."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import dagster as dg
import polars as pl
import pyarrow as pa
import pytest
from PIL import Image

from assets.featurizers import Features, Featurizer, make
from assets.media.image.cut import cut_image
from assets.media.policy import CutPolicy
from assets.pages.table_columns import (
    MAX_CHARS,
    SCHEMA,
    arrow_schema,
    feature_texts,
    sample_texts,
    samples_columns,
)
from assets.pipeline.tables import SCHEMAS, TEXTS
from assets.spec import DatasetSpec, Feature


@pytest.mark.parametrize("table", ["raw_objects", "media", "units"])
def test_table_has_a_description_of_every_column(table: str) -> None:
    schema = SCHEMAS[table]
    assert TEXTS[table].keys() == set(schema.names)
    assert all(len(text) > 3 for text in TEXTS[table].values())
    assert all(field.metadata is None for field in schema), "stored files stay as they are"
    shown = arrow_schema(schema, TEXTS[table])[SCHEMA].value
    assert isinstance(shown, dg.TableSchema)
    assert {column.name: column.description for column in shown.columns} == TEXTS[table]


def test_sample_columns_of_a_photo_are_described(tmp_path: Path) -> None:
    Image.new("RGB", (64, 48), "red").save(tmp_path / "raw", "JPEG")
    (unit,) = cut_image(str(tmp_path / "raw"), tmp_path, CutPolicy())
    assert unit.metadata.keys() <= sample_texts().keys()


@pytest.mark.parametrize("name", ["phash", "picture", "loudness", "tokens", "vad"])
def test_featurizer_s_docstring_describes_its_columns(name: str) -> None:
    featurizer = make(name)
    texts = feature_texts(featurizer)
    columns = {column for names in featurizer.columns.values() for column in names}
    assert texts.keys() == columns
    doc = " ".join((type(featurizer).__doc__ or "").split())
    for column, text in texts.items():
        words = text.removesuffix(f" (featurizer {name})").removesuffix("...")
        assert words in doc, column
        assert len(text) <= MAX_CHARS


def test_featurizer_describes_a_column_by_its_own_item() -> None:
    assert feature_texts(make("phash"))["phash_flat_mask"] == (
        "images for which phash_flat holds, bit i for the i-th. (featurizer phash)"
    )
    assert feature_texts(make("phash"))["phash"].startswith("the same in 16 hexadecimal digits each")


@dataclass(frozen=True, slots=True, kw_only=True)
class Undocumented(Featurizer):
    image: str | None = "jpg"
    name: ClassVar[str] = "undocumented"
    output_columns: ClassVar[tuple[str, ...]] = ("size_px",)

    def __call__(self, kind, sample):
        return Features(fields={}, columns={"size_px": 1})


Undocumented.__doc__ = None


def test_featurizer_without_a_docstring_describes_its_columns_by_its_name() -> None:
    assert feature_texts(Undocumented()) == {"size_px": "computed by the featurizer undocumented"}


def test_samples_table_shows_types_descriptions_and_origins() -> None:
    spec = DatasetSpec(name="birds", features=(Feature(name="phash"),))
    table = pl.DataFrame({"key": ["a"], "raw_uri": ["b"], "kind": ["image"], "phash": ["0"], "strange": [1]})
    shown = samples_columns(spec, table)[SCHEMA].value
    assert isinstance(shown, dg.TableSchema)
    texts = {column.name: column.description for column in shown.columns}
    assert texts["key"] == "key of the sample, unique in the version"
    assert texts["raw_uri"] == TEXTS["raw_objects"]["uri"]
    assert texts["kind"] == f"of the source: {TEXTS['media']['kind']}"
    assert texts["phash"] == feature_texts(make("phash"))["phash"]
    assert texts["strange"] is None
    assert {column.name: column.type for column in shown.columns}["strange"] == "Int64"


def test_schema_without_descriptions_shows_types() -> None:
    shown = arrow_schema(pa.schema([("a", pa.int64())]))[SCHEMA].value
    assert isinstance(shown, dg.TableSchema)
    assert [(column.name, column.type, column.description) for column in shown.columns] == [
        ("a", "int64", None)
    ]
