"""Tables of columns side by side: rows belong together by part and row, in whatever order they lie."""

import polars as pl
import pytest

import loader
from loader.dataset.tables import parquet
from loader.dataset.versions.sample_rows import live_row
from loader.dataset.versions.samples_table import join_group
from loader.dataset.writing import run_samples
from loader.errors import Corrupt, InvalidRuntime
from tests.refusals import refusal

KEYS = pl.DataFrame({"part": ["a", "a", "b", "b"], "row": [0, 1, 0, 1], "key": list("wxyz")})
SCORES = pl.DataFrame({"part": ["a", "a", "b", "b"], "row": [0, 1, 0, 1], "score": [1.0, 2.0, 3.0, 4.0]})


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 3, 0, 1], [1, 0, 3, 2]])
def test_columns_follow_their_rows(order):
    found = join_group(KEYS, SCORES[order])
    assert found.columns == ["part", "row", "key", "score"]
    assert found["key"].to_list() == list("wxyz")
    assert found["score"].to_list() == [1.0, 2.0, 3.0, 4.0]


def test_rows_without_a_value_are_null():
    assert join_group(KEYS, SCORES[[3, 1]])["score"].to_list() == [None, 2.0, None, 4.0]
    other = SCORES.with_columns(part=pl.Series(["a", "a", "c", "c"]))
    assert join_group(KEYS, other)["score"].to_list() == [1.0, 2.0, None, None]


@pytest.fixture
def version(tmp_path, monkeypatch):
    """Samples in several parts and row groups, of which one is excluded; one column annotated twice, one only there."""
    defaults = parquet.table_bytes.__kwdefaults__
    monkeypatch.setattr(parquet.table_bytes, "__kwdefaults__", {**defaults, "row_group_rows": 4})
    monkeypatch.setattr(parquet.put_table, "__defaults__", (4,))
    monkeypatch.setattr(run_samples.put_rows, "__defaults__", (4,))
    root = loader.Root(tmp_path / "root")
    with root.write("d", part_samples=7) as writer:
        for i in range(30):
            source = {"raw_uri": f"s3://raw/{i}"}
            writer.add(f"k{i}", {"cls": i}, metadata={"width": i, "label": "a"}, source=source)
    root.annotate("d", "labels", {"k3": {"label": "b"}, "k4": {"label": "b"}}, author="ann")
    root.annotate("d", "labels", {"k4": {"label": "c", "score": 0.5}}, author="ben")
    yield root.exclude("d@latest", ["k9"], reason="blurred")
    root.close()


def test_one_row_is_that_of_the_whole_table(version):
    rows = version.samples().collect().to_dicts()
    assert len(rows) == 29
    assert {row["label"] for row in rows} == {"a", "b", "c"}
    assert [live_row(version, ordinal) for ordinal in range(29)] == rows
    with refusal(InvalidRuntime, what="ordinal", given=29, accepted=[0, 28]):
        live_row(version, 29)


def test_row_that_is_not_there_is_told(version, monkeypatch):
    monkeypatch.setattr(
        type(version.parts), "locate", lambda self, ordinals: (ordinals * 0, ordinals * 0 + 99)
    )
    with refusal(Corrupt, what="sample 3", where="d@4", given=0):
        live_row(version, 3)
