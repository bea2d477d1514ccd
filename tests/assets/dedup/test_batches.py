"""Near-duplicates from landing to version: which copy is in a version, which is not, and what the accounts say."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from PIL import Image, ImageOps

import loader
from assets.checks import near_duplicates_across_splits
from assets.dedup.policy import EmbeddingMatch, NearDuplicates
from assets.gate_settings import Gate
from assets.release import version_asset as version
from assets.samples.assembly import candidate
from assets.spec import DatasetSpec, Feature, Filter
from loader.errors import Fenced, InvalidSpec, StageNotPublished
from tests.refusals import refusal

SPEC = DatasetSpec(
    name="photos",
    features=(Feature(name="phash"),),
    near_duplicates=NearDuplicates(max_distance=8),
    gate=Gate(suite=()),
)
SPLIT = replace(SPEC, splits={"train": 0.5, "validation": 0.5})
OfSplit = Callable[[DatasetSpec, Image.Image, str], bytes]


def test_copies_in_one_batch(dataset: Any, make: Any) -> None:
    original = make.scene(1)
    batch = dataset.batch(
        SPEC,
        {
            "small.jpg": make.jpeg(make.scaled(original, 0.5), 40),
            "original.jpg": make.jpeg(original),
            "mirrored.jpg": make.jpeg(ImageOps.mirror(make.scaled(original, 0.9)), 85),
            "other.jpg": make.jpeg(make.scene(2)),
        },
    )
    accounts, record = dataset.accounts(SPEC, batch), dataset.record(SPEC, batch)
    outcomes = {name: (row["outcome"], row["stage"], row["code"]) for name, row in accounts.items()}
    assert outcomes == {
        "small.jpg": ("dropped", "samples", "near_duplicate"),
        "original.jpg": ("used", "", ""),
        "mirrored.jpg": ("dropped", "samples", "near_duplicate"),
        "other.jpg": ("used", "", ""),
    }
    counts = record.counts
    assert counts["landed"] == counts["used"] + counts["rejected"] + counts["dropped"] == 4
    assert (counts["near_duplicates"], counts["left_out"], counts["samples"]) == (2, 2, 2)
    table = dataset.release(SPEC).version.samples().collect()
    assert set(table["raw_key"]) == {"original.jpg", "other.jpg"}
    (original_key,) = table.filter(pl.col("raw_key") == "original.jpg")["key"]
    assert accounts["small.jpg"]["reason"].startswith(f"near_duplicate of {original_key} (distance ")
    assert "the other has more pixels: 76800 against 19200)" in accounts["small.jpg"]["reason"]
    assert " mirrored, " in accounts["mirrored.jpg"]["reason"]
    rows = candidate(dataset.root, replace(record, body={**record.body, "exclude": {}}))
    told = rows.select("raw_key", "dup_of", "dup_by").rows_by_key("raw_key", unique=True)
    assert told["small.jpg"] == (original_key, "phash")
    assert told["mirrored.jpg"] == (original_key, "phash_mirrored")
    assert told["other.jpg"] == (None, None)


def test_better_copy_takes_the_place_of_a_published_one(dataset: Any, make: Any) -> None:
    original = make.scene(1)
    dataset.batch(
        SPEC, {"small.jpg": make.jpeg(make.scaled(original, 0.5)), "a.jpg": make.jpeg(make.scene(2))}
    )
    dataset.release(SPEC)
    batch = dataset.batch(SPEC, {"large.jpg": make.jpeg(original)})
    assert dataset.record(SPEC, batch).counts["superseded"] == 1
    dataset.release(SPEC)
    assert dataset.names("photos@1") == {"small.jpg", "a.jpg"}  # what was published stays
    assert dataset.names("photos@2") == {"large.jpg", "a.jpg"}
    (reason,) = dataset.record(SPEC, batch).body["supersede"].values()
    assert "the other has more pixels: 76800 against 19200" in reason

    # The small one comes again, and a smaller one: neither is new, and there is no version without anything new.
    worse = dataset.batch(
        SPEC,
        {
            "again.jpg": make.jpeg(make.scaled(original, 0.5)),
            "tiny.jpg": make.jpeg(make.scaled(original, 0.4)),
        },
    )
    record = dataset.record(SPEC, worse)
    assert (record.counts["dropped"], record.counts["samples"], record.body["parts"]) == (2, 0, [])
    assert {row["code"] for row in dataset.accounts(SPEC, worse).values()} == {"near_duplicate"}
    assert dataset.release(SPEC).version.name == "photos@2"
    assert dataset.root.state.txns[record.body["txn"]].status == "aborted"


def test_copy_saved_again_does_not_take_the_place(dataset: Any, make: Any) -> None:
    """A few more bytes are no reason: published samples would change for nothing."""
    picture = make.scene(1)
    first, again = make.jpeg(picture), make.jpeg(picture, comment=b"saved again")
    assert len(again) > len(first)
    dataset.batch(SPEC, {"first.jpg": first, "a.jpg": make.jpeg(make.scene(2))})
    dataset.release(SPEC)
    dataset.batch(SPEC, {"again.jpg": again, "b.jpg": make.jpeg(make.scene(3))})
    dataset.release(SPEC)
    assert dataset.names("photos@2") == {"first.jpg", "a.jpg", "b.jpg"}


def test_first_copy_stays_where_the_dataset_says_so(dataset: Any, make: Any) -> None:
    spec = replace(SPEC, near_duplicates=NearDuplicates(keep="first"))
    original = make.scene(1)
    files = {"1.jpg": make.jpeg(make.scaled(original, 0.5)), "2.jpg": make.jpeg(original)}
    batch = dataset.batch(spec, files)
    assert "first in landing order" in dataset.accounts(spec, batch)["2.jpg"]["reason"]
    dataset.release(spec)
    batch = dataset.batch(
        spec, {"3.jpg": make.jpeg(make.scaled(original, 2)), "4.jpg": make.jpeg(make.scene(4))}
    )
    assert "the other was published before" in dataset.accounts(spec, batch)["3.jpg"]["reason"]
    dataset.release(spec)
    assert dataset.names("photos@2") == {"1.jpg", "4.jpg"}


def test_batches_that_wait_together(dataset: Any, make: Any) -> None:
    """Put together before either was published: the release compares the second with what the first became."""
    original = make.scene(1)
    first = dataset.batch(
        SPEC, {"small.jpg": make.jpeg(make.scaled(original, 0.5)), "a.jpg": make.jpeg(make.scene(2))}
    )
    second = dataset.batch(SPEC, {"large.jpg": make.jpeg(original), "b.jpg": make.jpeg(make.scene(3))})
    third = dataset.batch(SPEC, {"tiny.jpg": make.jpeg(make.scaled(original, 0.4))})
    assert dataset.record(SPEC, second).counts["near_duplicates"] == 0
    release = dataset.release(SPEC)
    assert (release.published, release.held_back) == ((first, second), ())
    assert dataset.names("photos@1") == {"small.jpg", "a.jpg"}
    assert dataset.names("photos@2") == {"large.jpg", "a.jpg", "b.jpg"}
    assert dataset.accounts(SPEC, third)["tiny.jpg"]["code"] == "near_duplicate"
    record = dataset.record(SPEC, second)
    assert record.counts["superseded"] == 1
    assert dataset.root.open("photos@2").manifest["producer"]["stage_record"] == record.path
    before = {info.key for info in dataset.root.store.list()}
    dataset.release(SPEC)
    for batch in (first, second):
        dataset.ingest(SPEC, batch)
    assert {info.key for info in dataset.root.store.list()} == before


def test_published_batch_put_together_again_is_no_copy_of_itself(dataset: Any, make: Any) -> None:
    original = make.scene(1)
    files = {"small.jpg": make.jpeg(make.scaled(original, 0.5)), "a.jpg": make.jpeg(make.scene(2))}
    first = dataset.batch(SPEC, files)
    dataset.release(SPEC)
    other = replace(SPEC, filters=(Filter(column="width_px", minimum=1),))
    again = dataset.ingest(other, first)
    assert (again.counts["near_duplicates"], again.counts["samples"]) == (0, 2)
    dataset.batch(
        SPEC, {"large.jpg": make.jpeg(original), "large2.jpg": make.jpeg(make.scaled(make.scene(2), 2))}
    )
    dataset.release(SPEC)
    assert dataset.names("photos@2") == {"large.jpg", "large2.jpg"}
    dataset.ingest(SPEC, first, dataset.place / "1")  # all of it has better copies now
    assert dataset.release(SPEC).version.name == "photos@2"


def test_somebody_publishes_between_the_comparison_and_the_commit(
    dataset: Any, make: Any, publish_alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log takes no batch that was compared with another version than it is laid on: it is compared again."""
    original = make.scene(1)
    dataset.batch(
        SPEC, {"copy.jpg": make.jpeg(make.scaled(original, 0.8)), "b.jpg": make.jpeg(make.scene(2))}
    )
    theirs = dataset.record(SPEC, dataset.batch(SPEC, {"a.jpg": make.jpeg(original)}))
    real = version._publish

    def late(*args: Any) -> Any:
        monkeypatch.setattr(version, "_publish", real)
        publish_alone(dataset.root, theirs)
        return real(*args)

    monkeypatch.setattr(version, "_publish", late)
    dataset.release(SPEC)
    assert dataset.names("photos@1") == {"a.jpg"}
    assert dataset.names("photos@latest") == {"a.jpg", "b.jpg"}


def test_without_the_spec_a_batch_compared_with_an_older_version_is_held_back(
    dataset: Any, make: Any
) -> None:
    dataset.batch(SPEC, {"a.jpg": make.jpeg(make.scene(1))})
    second = dataset.batch(SPEC, {"b.jpg": make.jpeg(make.scene(2))})
    release = version.publish_batches(dataset.root, "photos", "r", SPEC.gate)
    assert release.held_back == (second,)
    with pytest.raises(
        StageNotPublished, match=r"compared for near-duplicates; materialize .photos, samples. again"
    ):
        version.publish_batches(dataset.root, "photos", "r", SPEC.gate)
    assert dataset.release(SPEC).published == (second,)


def test_copy_that_a_filter_drops_costs_no_other(dataset: Any, make: Any) -> None:
    """The larger copy is left out for its size, so the smaller one stays."""
    spec = replace(SPEC, filters=(Filter(column="source_nbytes", maximum=30_000),))
    original = make.scene(1, 640, 480)
    large = make.jpeg(original, 97)
    assert len(large) > 30_000
    batch = dataset.batch(spec, {"large.jpg": large, "small.jpg": make.jpeg(make.scaled(original, 0.4))})
    accounts = dataset.accounts(spec, batch)
    assert (accounts["large.jpg"]["code"], accounts["small.jpg"]["outcome"]) == ("filtered", "used")


def test_pictures_without_content_are_not_copies_of_each_other(dataset: Any, make: Any) -> None:
    files = {
        f"{level}.jpg": make.jpeg(Image.new("RGB", (320, 240), (level,) * 3)) for level in (10, 120, 250)
    }
    half = Image.linear_gradient("L").resize((320, 240)).convert("RGB")
    files |= {
        "down.jpg": make.jpeg(half),
        "bright.jpg": make.jpeg(half.point(lambda level: 127 + level // 2)),
    }
    batch = dataset.batch(SPEC, files)
    assert {row["outcome"] for row in dataset.accounts(SPEC, batch).values()} == {"used"}


def test_clips(dataset: Any, make: Any, tmp_path: Path) -> None:
    """A video again, coarser and mirrored, goes; one of the same pictures in another order stays."""
    pictures = [make.scene(seed, 192, 144) for seed in (1, 2, 3)]
    make.mp4(tmp_path / "original.mp4", pictures)
    make.mp4(tmp_path / "coarse.mp4", [make.scaled(picture, 0.5) for picture in pictures], crf=30)
    make.mp4(tmp_path / "mirrored.mp4", [ImageOps.mirror(picture) for picture in pictures], crf=24)
    make.mp4(tmp_path / "backwards.mp4", pictures[::-1])
    names = ("original.mp4", "coarse.mp4", "mirrored.mp4", "backwards.mp4")
    batch = dataset.batch(SPEC, {name: tmp_path / name for name in names})
    accounts = dataset.accounts(SPEC, batch)
    used = {name for name, row in accounts.items() if row["outcome"] == "used"}
    assert used == {"original.mp4", "backwards.mp4"}, accounts
    assert "the other has more pixels" in accounts["coarse.mp4"]["reason"]


def test_no_copies_on_two_sides_of_a_split(dataset: Any, make: Any, of_split: OfSplit) -> None:
    """A published sample keeps its split: a better copy of the other one does not take its place."""
    original = make.scene(1)
    small, large = make.scaled(original, 0.5), make.scaled(original, 2)
    spec = replace(SPLIT, gate=Gate(suite=(), checks={"across": near_duplicates_across_splits}))
    dataset.batch(
        spec,
        {"t.jpg": of_split(spec, original, "train"), "v.jpg": of_split(spec, small, "validation")},
    )
    dataset.release(spec)
    assert dataset.names("photos@1") == {"t.jpg"}
    batch = dataset.batch(
        spec,
        {"large.jpg": of_split(spec, large, "validation"), "b.jpg": make.jpeg(make.scene(2))},
    )
    reason = dataset.accounts(spec, batch)["large.jpg"]["reason"]
    assert "the other was published before as train, which it stays" in reason
    dataset.release(spec)
    assert dataset.names("photos@2") == {"t.jpg", "b.jpg"}
    dataset.batch(spec, {"larger.jpg": of_split(spec, make.scaled(original, 3), "train")})
    dataset.release(spec)
    assert dataset.names("photos@3") == {"larger.jpg", "b.jpg"}


@pytest.mark.parametrize("policy", [None, NearDuplicates(action="mark")])
def test_dataset_that_keeps_copies_is_stopped_where_they_leak(
    dataset: Any, make: Any, of_split: OfSplit, policy: NearDuplicates | None
) -> None:
    original = make.scene(1)
    gate = Gate(suite=(), checks={"near_duplicates_across_splits": near_duplicates_across_splits})
    spec = replace(SPLIT, near_duplicates=policy, gate=gate)
    dataset.batch(
        spec,
        {
            "t.jpg": of_split(spec, original, "train"),
            "t2.jpg": of_split(spec, make.scaled(original, 0.7), "train"),
        },
    )
    dataset.release(spec)  # copies in one split leak nothing
    assert len(dataset.root.open("photos@1")) == 2
    batch = dataset.batch(
        spec, {"v.jpg": of_split(spec, ImageOps.mirror(make.scaled(original, 0.6)), "validation")}
    )
    with refusal(StageNotPublished, what="gate", where="photos", given=["near_duplicates_across_splits"]):
        dataset.release(spec)
    record = dataset.record(spec, batch)
    with pytest.raises(Fenced):
        dataset.root.publish("photos", [loader.Part.from_json(part) for part in record.body["parts"]])
    assert len(dataset.root.state.versions("photos")) == 1


def test_marked_copies_can_be_requested(dataset: Any, make: Any) -> None:
    spec = replace(SPEC, near_duplicates=NearDuplicates(action="mark"))
    original = make.scene(1)
    dataset.batch(
        spec, {"small.jpg": make.jpeg(make.scaled(original, 0.5)), "a.jpg": make.jpeg(make.scene(2))}
    )
    dataset.release(spec)
    dataset.batch(spec, {"large.jpg": make.jpeg(original)})
    version = dataset.release(spec).version
    table = version.samples().collect()
    assert set(table["raw_key"]) == {"small.jpg", "a.jpg", "large.jpg"}
    told = table.select("raw_key", "key", "dup_of").rows_by_key("raw_key", unique=True)
    assert told["large.jpg"][1] == told["small.jpg"][0]
    assert len(version.where("dup_of IS NULL")) == 2


def test_crops_are_found_by_an_embedding(dataset: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the colours and edges of the whole picture, which a crop of three quarters shares; its hash is another."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "featurizers"))
    feature = Feature(name="tests_embedding:Colours")
    by_hash = replace(SPEC, features=(*SPEC.features, feature))
    policy = NearDuplicates(embedding=EmbeddingMatch(field="colours.npy", min_cosine=0.97))
    spec = replace(by_hash, name="crops", near_duplicates=policy)
    pictures = [make.scene(seed) for seed in range(8)]
    files = {f"{seed}.jpg": make.jpeg(picture) for seed, picture in enumerate(pictures)}
    crops = {f"crop{seed}.jpg": make.jpeg(make.cropped(pictures[seed], 0.15)) for seed in (0, 1)}
    batch = dataset.batch(by_hash, files | crops)
    assert {row["outcome"] for row in dataset.accounts(by_hash, batch).values()} == {"used"}

    batch = dataset.batch(spec, files | crops)
    accounts = dataset.accounts(spec, batch)
    assert {name for name, row in accounts.items() if row["outcome"] == "dropped"} == set(crops)
    assert "(cosine 0.9" in accounts["crop0.jpg"]["reason"]
    dataset.release(spec)
    later = {"crop2.jpg": make.jpeg(make.cropped(pictures[2], 0.15)), "8.jpg": make.jpeg(make.scene(8))}
    batch = dataset.batch(spec, later)
    assert dataset.accounts(spec, batch)["crop2.jpg"]["code"] == "near_duplicate"
    dataset.release(spec)
    assert dataset.names("crops@2") == {*files, "8.jpg"}


def test_published_samples_without_a_hash_are_counted(dataset: Any, make: Any) -> None:
    before = replace(SPEC, features=(), near_duplicates=None)
    dataset.batch(before, {"a.jpg": make.jpeg(make.scene(1))})
    dataset.release(before)
    batch = dataset.batch(SPEC, {"copy.jpg": make.jpeg(make.scaled(make.scene(1), 0.9))})
    counts = dataset.record(SPEC, batch).counts
    assert (counts["compared_with"], counts["published_without_hash"], counts["samples"]) == (1, 1, 1)


@pytest.mark.parametrize(
    ("features", "policy", "fault"),
    [
        ((), NearDuplicates(), {"what": "near_duplicates", "accepted": "the column 'phash'"}),
        (
            (Feature(name="phash"),),
            NearDuplicates(embedding=EmbeddingMatch(min_cosine=0.9)),
            {"what": "embedding", "where": "near_duplicates", "given": "embedding.npy"},
        ),
    ],
)
def test_dataset_without_columns_to_compare(
    features: tuple[Feature, ...], policy: NearDuplicates, fault: dict[str, object]
) -> None:
    with refusal(InvalidSpec, **fault):
        DatasetSpec(name="photos", features=features, near_duplicates=policy)


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        (lambda: NearDuplicates(max_distance=17), {"what": "max_distance", "given": 17}),
        (lambda: NearDuplicates(keep="best"), {"what": "keep", "given": "best"}),  # type: ignore[arg-type]
        (lambda: NearDuplicates(action="hide"), {"what": "action", "given": "hide"}),  # type: ignore[arg-type]
        (lambda: EmbeddingMatch(min_cosine=0.0), {"what": "min_cosine", "given": 0.0}),
    ],
)
def test_policy_that_makes_no_sense(made: Callable[[], object], fault: dict[str, object]) -> None:
    with refusal(InvalidSpec, **fault):
        made()
