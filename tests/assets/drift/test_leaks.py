"""Raw objects and subjects on two sides of a split, and samples of protected versions: looked up in real roots."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import loader
from assets.checks import CheckResult
from assets.drift import Thresholds
from assets.drift.compare import DRIFT_CHECKS, BatchFacts, GateInputs, recent_rows
from assets.drift.contamination import BatchTexts
from assets.drift.split_leaks import same_as
from loader.dataset.versions.samples_table import live_ordinals
from loader.errors import DecodeFailed
from penstock.search.overlap import protected_texts
from penstock.search.overlap.find_overlaps import find_overlaps
from penstock.search.overlap.protected_texts import distinct_shingles, protected_path
from penstock.search.overlap.sample_texts import SampleTexts
from tests.refusals import refusal

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
def test_sample_of_a_protected_version_is_named_and_only_a_likeness_is_approvable(
    root: loader.Root, planted: Mapping[str, str], column: str
) -> None:
    honest = [row(n) for n in range(20, 30)]
    assert judged(root, "protected", honest, "photos@1").passed
    found = judged(root, "protected", [*honest, row(30, **planted)], "photos@1")
    assert found.stops
    assert found.approvable == (column == "phash")
    (finding,) = found.findings
    version = root.open("photos@1")
    (ordinal,) = live_ordinals(version, ["photo/0003"])
    assert f"photo/0030 of photos@1[{ordinal}]" in finding["now"]
    assert f"photo/0030 of photos@1[{ordinal}]" in found.explanation
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


QUESTION = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May."
FILLER = "The committee met again on Tuesday to discuss the budget for the coming year without any result. "


def documents(root: loader.Root, texts: Mapping[str, bytes]) -> BatchTexts:
    """A part of an open transaction, as a batch has it before its gate."""
    txn = root.begin("docs")
    part = loader.write_part(root, txn, [(key, {"txt": text}) for key, text in texts.items()])
    return BatchTexts(reader=root.store, name="batch b1 of docs", parts=(part,))


def judged_texts(root: loader.Root, texts: Mapping[str, bytes], *refs: str) -> CheckResult:
    rows = [{"key": key, "raw_sha256": f"{n:064x}"} for n, key in enumerate(texts, 100) if key != "filtered"]
    compared = GateInputs(
        now=BatchFacts(samples=pl.DataFrame(rows), media=pl.DataFrame()),
        baseline=None,
        newest=None,
        protected=tuple(root.open(ref) for ref in refs),
        thresholds=Thresholds(),
        documents=documents(root, texts),
    )
    return DRIFT_CHECKS["protected"](compared)


def test_question_in_a_document_stops_a_batch_and_both_samples_are_named(root: loader.Root) -> None:
    with root.write("exam") as out:
        out.add("q-easy", {"question.txt": "Who wrote Faust in the year 1808 then?", "answer.txt": "Goethe"})
        out.add("q-clips", {"question.txt": QUESTION, "answer.txt": "72"})
    texts = {"a": FILLER.encode(), "b": b"72", "filtered": QUESTION.encode(), "empty": b""}
    clean = judged_texts(root, texts, "exam@1", "photos@1")
    assert clean.passed
    assert "against exam@1 (by texts), photos@1 (by raw_sha256, texts)" in clean.explanation
    result = judged_texts(root, {**texts, "poisoned": f"{FILLER * 3}{QUESTION.lower()}".encode()}, "exam@1")
    assert result.stops
    assert result.approvable
    (ordinal,) = live_ordinals(root.open("exam@1"), ["q-clips"])
    (finding,) = result.findings
    assert (finding["what"], finding["column"]) == ("in the protected exam@1", "texts")
    assert finding["now"] == f"1 sample (13 words in a row): poisoned of exam@1[{ordinal}]"
    assert finding["keys"] == ["poisoned"]
    # Takedowns search what is stored about docs for names of its own samples.
    assert "q-clips" not in str(result)


def test_gate_does_not_trust_the_stored_shingles(root: loader.Root) -> None:
    with root.write("exam") as out:
        out.add("q", {"txt": QUESTION})
    path = protected_path(root.open("exam@1").id)
    planted = {"poisoned": QUESTION.encode()}
    assert judged_texts(root, planted, "exam@1").stops
    whole = root.store.get(path).data
    # A valid table without the question, which only whoever may write to the root can put there.
    forged = distinct_shingles("exam@1", [SampleTexts(0, [FILLER])])
    root.store.put(path, protected_texts._table_bytes(forged, path, 1))
    assert not find_overlaps(root, "exam@1", ["exam@1"]).overlaps
    assert judged_texts(root, planted, "exam@1").stops
    assert root.store.get(path).data == whole


def test_text_that_cannot_be_read_names_sample_and_remedy(root: loader.Root) -> None:
    with root.write("exam") as out:
        out.add("q", {"txt": QUESTION})
    with refusal(DecodeFailed, what="txt", where="batch b1 of docs, sample 'bad'"):
        judged_texts(root, {"bad": b"\xff\xfe"}, "exam@1")


def clip(n: int, flipped_bits: int = 0) -> dict[str, Any]:
    frames = [flipped(row(n + offset)["phash"], flipped_bits) for offset in (0, 100, 200)]
    return row(n, key=f"clip/{n:04d}", kind="video", phash="-".join(frames))


def test_clip_of_a_protected_version_is_named(root: loader.Root) -> None:
    with root.write("clips") as out:
        for n in range(300, 304):
            body = clip(n)
            source = {name: body.pop(name) for name in ("raw_sha256", "subject", "split")}
            out.add(body.pop("key"), {"x.txt": b"x"}, metadata=body, source=source)
    other = {"raw_sha256": f"{999:064x}", "subject": "person-999", "key": "clip/new"}
    result = judged(root, "protected", [row(20), {**clip(302, 5), **other}], "clips@1")
    assert result.stops
    (finding,) = result.findings
    (ordinal,) = live_ordinals(root.open("clips@1"), ["clip/0302"])
    assert finding["now"] == f"1 sample (within 8 bits): clip/new of clips@1[{ordinal}]"
    assert judged(root, "protected", [row(20), {**clip(302, 12), **other}], "clips@1").passed
