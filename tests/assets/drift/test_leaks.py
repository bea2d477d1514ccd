"""Raw objects and subjects on two sides of a split, and samples of protected versions: looked up in real roots."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import loader
from assets.drift import Thresholds
from assets.drift.compare import DRIFT_CHECKS, BatchFacts, GateInputs, recent_rows
from assets.drift.findings import same_as

HASH = "0123456789abcdef"


def row(n: int, **columns: Any) -> dict[str, Any]:
    told = {"raw_sha256": f"{n:064x}", "subject": f"person-{n}", "split": "train", "kind": "image"}
    looks = {"phash": f"{n * 0x9E3779B97F4A7C15 % 2**64:016x}", "phash_flat": False, "phash_flat_mask": 0}
    return {"key": f"photo/{n:04d}", **told, **looks, **columns}


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    made = loader.Root(tmp_path / "root")
    made.create()
    for first in (0, 10):
        with made.write("photos") as out:
            for n in range(first, first + 10):
                body = row(n)
                source = {name: body.pop(name) for name in ("raw_sha256", "subject", "split")}
                out.add(body.pop("key"), {"x.txt": b"x"}, metadata=body, source=source)
    return made


def judged(root: loader.Root, name: str, rows: list[dict[str, Any]], *refs: str) -> Any:
    newest = root.open("photos@latest")
    compared = GateInputs(
        now=BatchFacts(samples=pl.DataFrame(rows), media=pl.DataFrame()),
        baseline=None,
        newest=newest,
        protected=tuple(root.open(ref) for ref in refs),
        thresholds=Thresholds(),
    )
    return DRIFT_CHECKS[name](compared)


@pytest.mark.parametrize(
    ("planted", "column"),
    [
        ({"raw_sha256": f"{3:064x}", "split": "validation"}, "raw_sha256"),  # a duplicate of a published one
        ({"raw_sha256": f"{21:064x}", "split": "validation"}, "raw_sha256"),  # of one of the batch
        ({"subject": "person-13", "split": "test"}, "subject"),
    ],
)
def test_one_thing_in_two_splits_stops_a_batch(
    root: loader.Root, planted: Mapping[str, str], column: str
) -> None:
    honest = [row(n) for n in range(20, 30)]
    assert judged(root, "splits", honest).passed
    found = judged(root, "splits", [*honest, row(30, **planted)])
    assert found.stops
    assert [(one["what"], one["column"]) for one in found.findings] == [("leak across splits", column)]
    assert "photo/0030" in found.findings[0]["keys"]
    assert judged(root, "splits", [*honest, row(30, **{**planted, "split": "train"})]).passed


def test_sample_that_the_version_leaves_out_leaks_nowhere(root: loader.Root) -> None:
    planted = [row(30, raw_sha256=f"{3:064x}", split="validation")]
    assert judged(root, "splits", planted).stops
    root.exclude("photos@latest", ["photo/0003"], reason="a copy")
    assert judged(root, "splits", planted).passed


def flipped(phash: str, bits: int) -> str:
    return f"{int(phash, 16) ^ ((1 << bits) - 1):016x}"


@pytest.mark.parametrize(
    ("planted", "column"),
    [
        ({"raw_sha256": f"{3:064x}"}, "raw_sha256"),
        ({"subject": "person-3"}, "subject"),
        ({"phash": flipped(row(3)["phash"], 5)}, "phash"),
    ],
)
def test_what_lies_in_a_protected_version_cannot_be_approved(
    root: loader.Root, planted: Mapping[str, str], column: str
) -> None:
    honest = [row(n) for n in range(20, 30)]
    assert judged(root, "protected", honest, "photos@1").passed
    found = judged(root, "protected", [*honest, row(30, **planted)], "photos@1")
    assert found.stops
    assert not found.approvable
    (finding,) = found.findings
    assert (finding["column"], finding["keys"]) == (column, ["photo/0030"])
    assert finding["what"] == "in the protected photos@1"
    assert judged(root, "protected", [*honest, row(30, **planted)]).passed  # nothing is protected


def test_picture_farther_than_the_limit_is_another_one(root: loader.Root) -> None:
    far = [row(30, phash=flipped(row(3)["phash"], 9))]
    assert judged(root, "protected", far, "photos@1").passed


def test_only_the_tables_at_the_end_are_read_for_recent_rows(root: loader.Root) -> None:
    version = root.open("photos@latest")
    whole = recent_rows(version, 100)
    assert len(whole) == 20
    few = recent_rows(version, 10)
    assert set(few["key"]) <= set(whole["key"])
    assert 10 <= len(few) <= 20
    assert few["phash"].null_count() == 0
    keys = same_as(version, "subject", pl.Series(["person-3", "person-15", "nobody"]))
    assert sorted(keys["subject"]) == ["person-15", "person-3"]
