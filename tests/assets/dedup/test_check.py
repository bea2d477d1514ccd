"""Copies in two splits are found whatever the dataset does with near-duplicates, and named."""

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.checks import near_duplicates_across_splits

Row = dict[str, Any]


def row(key: str, hash: int, split: str, **told: Any) -> Row:
    facts = {"kind": "image", "phash": f"{hash:016x}", "phash_mirrored": f"{hash ^ (2**64 - 1):016x}"}
    return {"key": key, "split": split, **facts, "phash_flat": False, "phash_flat_mask": 0, **told}


def table(rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, infer_schema_length=None)


def test_copy_in_another_split_is_named() -> None:
    found = near_duplicates_across_splits(
        table([row("a", 5, "train"), row("b", 7, "validation"), row("c", 2**40 - 1, "train")]), None
    )
    assert (found.stops, found.name, found.value) == (True, "near_duplicates_across_splits", 2.0)
    assert found.explanation == (
        "2 of 3 samples have a near-duplicate in another split: 'a' (train) and 'b' (validation); "
        "'b' (validation) and 'a' (train)"
    )
    assert "| a | train | b | validation | 1 |" in found.table_markdown


def test_copies_in_one_split_pass() -> None:
    rows = [row("a", 5, "train"), row("b", 5, "train"), row("c", 2**40 - 1, "validation")]
    assert near_duplicates_across_splits(table(rows), None).passed


def test_copy_of_what_is_published_is_named() -> None:
    """With columns that the published version has not, and a mirrored one."""
    published = table([row("p", 5, "validation")]).drop("phash_mirrored", "phash_flat_mask")
    batch = table([row("a", 5 ^ (2**64 - 1), "train"), row("b", 2**40 - 1, "train")])
    found = near_duplicates_across_splits(batch, published.lazy())
    assert "1 of 2 samples have a near-duplicate in another split: 'a' (train) and 'p'" in found.explanation
    assert near_duplicates_across_splits(batch, published.lazy(), mirrored=False).passed


def test_distance_is_the_datasets_own() -> None:
    batch = table([row("a", 0, "train"), row("b", 2**9 - 1, "validation")])
    assert near_duplicates_across_splits(batch, None).passed
    assert not near_duplicates_across_splits(batch, None, max_distance=9).passed


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"key": "a", "kind": "image", "split": "train"}], "no column 'phash'"),
        ([{"key": "a", "split": "train", "phash": "5"}], "no column 'kind'"),
        ([row("a", 5, "train"), row("b", 5, "train", phash=None)], "1 of 2 samples have no perceptual hash"),
    ],
)
def test_nothing_passes_by_being_absent(rows: list[Row], words: str) -> None:
    found = near_duplicates_across_splits(table(rows), None)
    assert found.stops
    assert words in found.explanation


def test_kinds_without_pictures_need_none() -> None:
    assert near_duplicates_across_splits(
        table([{"key": "a", "kind": "audio", "split": "train"}]), None
    ).passed
    assert near_duplicates_across_splits(pl.DataFrame(), None).passed
    videos = table([row("a", 5, "train"), row("v", 5, "validation", kind="video", phash=None)])
    assert near_duplicates_across_splits(videos, None, kinds=("image",)).passed


@st.composite
def samples(draw: st.DrawFn, name: str) -> list[Row]:
    near = st.builds(
        lambda bits: sum(1 << bit for bit in bits), st.frozensets(st.integers(0, 15), max_size=7)
    )
    splits = st.sampled_from(["train", "train", "validation", "test"])
    return [row(f"{name}{n}", draw(near), draw(splits)) for n in range(draw(st.integers(0, 9)))]


@settings(derandomize=True, max_examples=60, deadline=None)
@given(samples("n"), samples("p"))
def test_it_counts_what_comparing_all_with_all_counts(new: list[Row], published: list[Row]) -> None:
    def leaks(one: Row, other: Row) -> bool:
        bits = (int(one["phash"], 16) ^ int(other["phash"], 16)).bit_count()
        return one["split"] != other["split"] and bits <= 3

    expected = sum(any(leaks(one, other) for other in [*new, *published]) for one in new)
    baseline = table(published).lazy() if published else None
    assert near_duplicates_across_splits(table(new), baseline, max_distance=3).value == expected


def text(key: str, split: str, dup_of: str | None = None) -> Row:
    return {"key": key, "kind": "text", "split": split, "dup_of": dup_of}


def test_document_that_copies_one_in_another_split_is_named() -> None:
    """Of the batch, or published. A copy in the original's split passes, and so does one whose original left."""
    batch = [
        text("a", "train"),
        text("b", "validation", "a"),
        text("c", "train", "a"),
        text("d", "test", "p"),
        text("e", "train", "left"),
    ]
    published = pl.DataFrame([{"key": "p", "split": "train"}]).lazy()
    result = near_duplicates_across_splits(table(batch), published)
    assert result.stops
    assert result.value == 2
    assert "2 documents are near-duplicates of one in another split: 'b' (validation) and 'a' (train)" in (
        result.explanation
    )
    assert "| d | test | p | train |" in result.table_markdown
    assert near_duplicates_across_splits(table([batch[0], batch[2]]), None).passed
