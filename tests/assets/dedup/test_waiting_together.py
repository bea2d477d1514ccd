"""Batches that wait together: each is judged against what the one before it has become."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image

import loader
from assets.checks import near_duplicates_across_splits
from assets.drift import Thresholds
from assets.gate_settings import Gate
from assets.release import version_asset as version
from assets.release.version_asset import audit_waiting
from assets.spec import DatasetSpec, Feature
from loader.errors import Conflict, Fenced, StageNotPublished
from penstock.stages import StageRecord, current_record
from tests.refusals import refusal

SPEC = DatasetSpec(
    name="photos",
    features=(Feature(name="phash"),),
    splits={"train": 0.5, "validation": 0.5},
    gate=Gate(suite=(), thresholds=None, checks={"across": near_duplicates_across_splits}),
)
OfSplit = Callable[[DatasetSpec, Image.Image, str], bytes]


def version_record(root: loader.Root, batch: str) -> StageRecord:
    found = current_record(root.store, "photos", "version", batch)
    assert found is not None
    return found


def by_hand(root: loader.Root, record: StageRecord) -> loader.Version:
    """Published past the gate."""
    return loader.Root(root.url).publish(
        "photos", [loader.Part.from_json(part) for part in record.body["parts"]]
    )


def test_near_duplicates_across_splits_in_two_batches(dataset: Any, make: Any, of_split: OfSplit) -> None:
    picture = make.scene(1)
    seen = dataset.batch(SPEC, {"t.jpg": of_split(SPEC, picture, "train")})
    leaking = dataset.batch(SPEC, {"v.jpg": of_split(SPEC, make.scaled(picture, 0.5), "validation")})
    other = dataset.batch(SPEC, {"o.jpg": make.jpeg(make.scene(2))})
    assert all(audit.passed for audit in audit_waiting(dataset.root, "photos", "r", SPEC.gate))
    release = dataset.release(SPEC)
    assert (release.published, release.held_back) == ((seen, other), (leaking,))
    assert dataset.names("photos@latest") == {"t.jpg", "o.jpg"}
    verdict = version_record(dataset.root, leaking)
    assert (verdict.verdict, verdict.body["against"]) == ("failed", [release.versions[0].id])
    assert "across: 1 of 1 samples" in verdict.reason
    assert version_record(dataset.root, other).body["against"] == [release.versions[0].id]
    with pytest.raises(Fenced):
        by_hand(dataset.root, dataset.record(SPEC, leaking))
    with refusal(StageNotPublished, what="gate", where="photos", given=["across"]):
        dataset.release(SPEC)


def test_same_bytes_in_two_batches(dataset: Any, make: Any) -> None:
    data = make.jpeg(make.scene(1))
    first, second = (dataset.batch(SPEC, {name: data}) for name in ("a.jpg", "b.jpg"))
    release = dataset.release(SPEC)
    assert (release.published, release.held_back) == ((first,), (second,))
    dataset.ingest(SPEC, second)  # as it is told to be made again
    assert dataset.release(SPEC).published == ()
    assert dataset.names("photos@latest") == {"a.jpg"}


def test_somebody_publishes_a_leak_after_the_verdict(
    dataset: Any, make: Any, of_split: OfSplit, publish_alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log refuses the batch that was judged before, and the gate stops it then."""
    picture = make.scene(1)
    mine = dataset.batch(SPEC, {"v.jpg": of_split(SPEC, make.scaled(picture, 0.5), "validation")})
    theirs = dataset.record(SPEC, dataset.batch(SPEC, {"t.jpg": of_split(SPEC, picture, "train")}))
    real = version._publish

    def late(*args: Any) -> Any:
        monkeypatch.setattr(version, "_publish", real)
        publish_alone(dataset.root, theirs)
        return real(*args)

    monkeypatch.setattr(version, "_publish", late)
    assert dataset.release(SPEC).held_back == (mine,)
    assert dataset.names("photos@latest") == {"t.jpg"}
    assert version_record(dataset.root, mine).verdict == "failed"


def test_release_goes_on_where_another_was_killed(
    dataset: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No batch is judged again before it is its turn: each verdict is followed by its version."""
    batches = [dataset.batch(SPEC, {f"{n}.jpg": make.jpeg(make.scene(n))}) for n in (1, 2, 3)]
    real, verdicts = version._publish, list[list[int]]()

    def then_killed(*args: Any) -> Any:
        real(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(version, "_publish", then_killed)
    with pytest.raises(KeyboardInterrupt):
        dataset.release(SPEC)

    def record_verdicts(*args: Any) -> Any:
        verdicts.append([version_record(dataset.root, batch).r for batch in batches])
        return real(*args)

    monkeypatch.setattr(version, "_publish", record_verdicts)
    assert dataset.release(SPEC).published == tuple(batches[1:])
    assert verdicts == [[1, 2, 1], [1, 2, 2]]


def test_protected_version_that_grew_after_the_verdict(dataset: Any, make: Any) -> None:
    gate = Gate(suite=(), thresholds=Thresholds(), protected=("eval@latest",))
    spec = replace(SPEC, gate=gate)
    batch = dataset.batch(spec, {"a.jpg": make.jpeg(make.scene(1))})
    (sha256,) = {row["sha256"] for row in dataset.accounts(spec, batch).values()}
    for number, held_out in enumerate(("0" * 64, sha256)):
        assert all(audit.passed for audit in audit_waiting(dataset.root, "photos", "r", gate)) == (number > 0)
        with dataset.root.write("eval") as out:
            out.add(f"e/{number}", {"x.txt": b"x"}, source={"raw_sha256": held_out})
    with pytest.raises(StageNotPublished, match="protected: 1 samples against eval@2"):
        dataset.release(spec)


def test_whoever_publishes_without_end_is_named(
    dataset: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset.batch(SPEC, {"a.jpg": make.jpeg(make.scene(1))})
    real, count = version._publish, iter(range(100))

    def late(*args: Any) -> Any:
        with dataset.root.write("photos") as out:
            number = next(count)
            raw = {"raw_sha256": f"{number:064x}", "raw_key": f"{number}.txt", "split": "train"}
            out.add(f"other/{number}", {"x.txt": b"x"}, metadata={"kind": "text"}, source=raw)
        return real(*args)

    monkeypatch.setattr(version, "_publish", late)
    monkeypatch.setattr(version, "ATTEMPTS", 3)
    with refusal(Conflict, what="parts") as late_parts:
        dataset.release(SPEC)
    assert str(late_parts.value.accepted).startswith("photos@3 ")
    monkeypatch.setattr(version, "_publish", real)
    assert dataset.release(SPEC).version.name == "photos@4"
