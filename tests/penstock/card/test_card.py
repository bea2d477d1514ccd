"""What a card counts is what the samples table holds; what it cannot know it says."""

import hashlib
import json
from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest
import yaml

import loader
from loader.errors import InvalidRuntime
from penstock.card.build import build_card, reason_class
from penstock.card.render import render_html, render_markdown
from penstock.card.value import card_document, render_json
from tests.refusals import refusal
from tests.servers.processes import python


@pytest.fixture(scope="module")
def newest_version(mixed_root):
    with loader.Root(mixed_root) as root:
        yield root, root.open("mixed@6")


@pytest.fixture(scope="module")
def card(newest_version):
    return build_card(*newest_version)


def count_rows(frame, *names):
    """Rows by the values of these columns, largest first."""
    return sorted(
        ((*row[:-1], row[-1]) for row in frame.group_by(names).len().iter_rows()),
        key=lambda row: (-row[-1], *row[:-1]),
    )


def test_every_count_is_that_of_the_live_samples(newest_version, card):
    frame = newest_version[1].samples().collect()
    assert card.samples == len(frame) == 38
    assert card.excluded_samples == 2
    assert [(kind.name, kind.samples) for kind in card.kinds] == count_rows(frame, "kind")
    for kind in card.kinds:
        mine = frame.filter(pl.col("kind") == kind.name)
        splits = mine.with_columns(pl.col("split").fill_null("(no split)"))
        assert sorted(kind.splits.items()) == sorted(count_rows(splits, "split"))
        seconds = mine["duration_s"].drop_nulls()
        assert sum(kind.seconds.values()) == pytest.approx(seconds.sum())
        assert kind.without_seconds == mine["duration_s"].null_count()
        known = mine.filter(pl.col("label").is_not_null())
        assert list(kind.labels.counts) == count_rows(known, "label")
        sizes = mine.filter(pl.col("width_px").is_not_null())
        named = sizes.with_columns(pl.format("{} x {}", "width_px", "height_px").alias("size"))
        assert list(kind.sizes.counts) == count_rows(named, "size")
    assert card.licences.counts == tuple(
        count_rows(
            frame.filter(pl.col("licence").is_not_null() & (pl.col("licence") != "unknown")), "licence"
        )
    )
    assert card.licences.unknown == len(frame) - card.licences.known == 16
    score = next(column for column in card.columns if column.name == "score").numbers
    assert (score.known, score.minimum, score.maximum) == (28, frame["score"].min(), frame["score"].max())
    assert score.mean == pytest.approx(frame["score"].mean())


def test_hours(card):
    assert card.hours("video") == pytest.approx(sum(1 + i / 25 for i in range(4)) / 3600)
    assert card.hours("audio") == pytest.approx(2.5 / 3600)
    assert card.sound_hours == pytest.approx(card.hours("video"))
    assert card.hours("image") is None


def test_raw_objects_sources_without_secrets(card, newest_version):
    frame = newest_version[1].samples().collect()
    assert card.raw_objects == frame["raw_uri"].drop_nulls().n_unique()
    assert {kind.name: kind.raw_objects for kind in card.kinds} == {
        "image": 15,
        "video": 4,
        "audio": None,
        "text": None,
    }
    assert card.sources.counts == (("s3://bucket/in", 32),)
    assert card.folders.counts == (("photos", 28),)
    assert "secret" not in render_json(card) + render_markdown(card) + render_html(card)


def test_excluded_samples_are_told_and_not_counted(card):
    assert card.excluded.counts == (("blurred", 2),)
    assert "2 samples, counted nowhere else" in render_html(card)
    assert "| blurred | 2 |" in render_markdown(card)


def test_samples_left_out_for_one_reason_are_counted_together(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        with root.write("d") as writer:
            for i in range(6):
                writer.add(f"k{i}", {"cls": i})
        root.exclude("d", ["k1", "k2"], reason="score = 0.1 is below 0.5")
        root.exclude("d", ["k3"], reason="score = 0.25 is below 0.5")
        card = build_card(root, root.open("d"), n_examples=0)
    assert card.excluded.counts == (("score below 0.5", 3),)
    assert (card.samples, card.excluded_samples) == (3, 3)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("sharpness = 3.1 is below 12", "sharpness below 12"),
        ("label = 'it is above 3' is not one of cat, dog", "label not one of cat, dog"),
        ("licence is unknown", "licence is unknown"),
        ("phash: blank: the frame 3 is blank", "phash: blank"),
        ("somebody's word = what", "somebody's word = what"),
        (
            "near_duplicate of image/ab (distance 3, the other more pixels: 9 against 4)",
            "near_duplicate by perceptual hash",
        ),
        ("near_duplicate of k (distance 3 mirrored, x)", "near_duplicate by perceptual hash, mirrored"),
        ("near_duplicate of k (distance 3, y) (cosine 0.9812, x)", "near_duplicate by embedding"),
    ],
)
def test_reasons_are_counted_without_the_samples_own_value(reason, told):
    assert reason_class(reason) == told


def test_unknown_licence_is_told_loudly(card, blank):
    (first, second) = card.warnings
    assert first.startswith("The licence of 16 of 38 samples is unknown")
    assert second == "The licence of 4 samples allows no commercial use (NC)."
    page = render_html(card)
    assert page.index("The licence of 16 of 38") < page.index("<h2>Samples")
    assert "> **Warning.** The licence of 16 of 38" in render_markdown(card)


def test_what_nobody_recorded_is_said(tmp_path):
    """A dataset as `root.write` leaves it, without one column of the pipeline's."""
    with loader.Root(tmp_path / "root") as root:
        with root.write("bare") as writer:
            for i in range(5):
                writer.add(f"k{i}", {"x.npy": np.full(3, i)})
        card = build_card(root, root.open("bare"))
    assert [(kind.name, kind.modality, kind.samples) for kind in card.kinds] == [("other", "other", 5)]
    assert card.raw_objects is None
    assert card.licences.unknown == 5
    assert card.warnings[0].startswith("The licence of any of the samples is unknown")
    said = " ".join(card.unknown)
    for part in ("no column `licence`", "in no splits", "name no raw objects", "not made by the pipeline"):
        assert part in said
        assert part in render_html(card)
    assert len(card.examples) == 5
    json.loads(render_json(card))


def test_media_without_columns_are_known_by_their_fields(tmp_path, media):
    with loader.Root(tmp_path / "root") as root:
        with root.write("bare") as writer:
            writer.add("a", {"mp4": media.mp4(3), "caption.txt": "short"})
        card = build_card(root, root.open("bare"))
    (kind,), (example,) = card.kinds, card.examples
    assert (kind.name, kind.modality) == ("video", "video")
    assert "The length of any of the 1 video samples is not recorded" in " ".join(card.unknown)
    assert example.alt == "3 of 3 frames, 64 x 48 px"
    assert example.caption == "short"


def test_examples_are_the_same_as_long_as_they_are_there(newest_version, card):
    """By the hash of the key, of different raw objects: a version with more samples changes what it must."""
    root = newest_version[0]
    keys = [example.key for example in card.examples if example.kind == "image"]
    frame = newest_version[1].samples().filter(pl.col("kind") == "image").collect()
    ordered = sorted(
        frame.rows(named=True),
        key=lambda row: hashlib.blake2b(row["key"].encode(), digest_size=16).digest()[:8][::-1],
    )
    firsts = {}
    for row in ordered[:24]:
        firsts.setdefault(row["raw_key"], row["key"])
    assert keys == list(firsts.values())[:6]
    before = build_card(root, root.open("mixed@5"))
    earlier = [example.key for example in before.examples if example.kind == "image"]
    assert [key for key in keys if int(key[1:]) < 20] == earlier[: sum(int(key[1:]) < 20 for key in keys)]
    assert {example.kind for example in card.examples} == {"image", "video", "audio", "text"}


def test_examples_show_their_sample(card):
    by_kind = {
        kind: [one for one in card.examples if one.kind == kind]
        for kind in ("image", "video", "audio", "text")
    }
    assert [len(found) for found in by_kind.values()] == [6, 4, 3, 3]
    for one in by_kind["image"]:
        assert one.caption == f"photo {one.key[1:]}"
        assert one.picture.startswith(b"\xff\xd8")
    for one in by_kind["video"]:
        assert one.alt == f"6 of {25 + int(one.key[1:])} frames, 64 x 48 px"
    for one in by_kind["audio"]:
        assert one.picture.startswith(b"\x89PNG")
    assert sorted(one.caption for one in by_kind["text"]) == [f"A document, number {i}." for i in range(3)]
    assert all(not one.trouble for one in card.examples)


def test_damaged_example_says_so_and_the_others_are_shown(tmp_path, media):
    with loader.Root(tmp_path / "root") as root:
        with root.write("d") as writer:
            for i in range(6):
                data = media.jpeg(32, 32, "red")
                writer.add(f"k{i}", {"jpg": data[: len(data) // 2] if i == 3 else data})
        card = build_card(root, root.open("d"))
    wrong = [example for example in card.examples if example.trouble]
    assert [(example.key, example.picture) for example in wrong] == [("k3", b"")]
    assert sum(bool(example.picture) for example in card.examples) == 5
    assert "Not shown: jpg: " in render_html(card)
    assert "not shown: jpg: " in render_markdown(card)


def test_field_that_is_too_large_is_not_read(tmp_path, media, monkeypatch):
    from penstock.card import examples

    monkeypatch.setattr(examples, "MAX_FIELD_BYTES", 100)
    with loader.Root(tmp_path / "root") as root:
        with root.write("d") as writer:
            writer.add("k", {"jpg": media.jpeg(64, 64, "red")})
        (example,) = build_card(root, root.open("d")).examples
    assert "too large to be drawn here" in example.trouble


@pytest.mark.parametrize("wanted", [-1, 25])
def test_number_of_examples_out_of_range(newest_version, wanted):
    with refusal(InvalidRuntime, what="examples", given=wanted, accepted="0 to 24"):
        build_card(*newest_version, n_examples=wanted)


def test_without_examples(newest_version):
    card = build_card(*newest_version, n_examples=0)
    assert card.examples == ()
    assert "<h2>Examples" not in render_html(card)


def test_same_version_gives_the_same_bytes_in_any_process(mixed_root, card):
    code = (
        "import loader, sys, hashlib\n"
        "from penstock.card.build import build_card\n"
        "from penstock.card.build import card_files\n"
        f"root = loader.Root({mixed_root!r})\n"
        "for name, data in card_files(build_card(root, root.open('mixed@6'))).items():\n"
        "    print(name, hashlib.sha256(data).hexdigest())\n"
    )
    from penstock.card.build import card_files

    here = [f"{name} {hashlib.sha256(data).hexdigest()}" for name, data in card_files(card).items()]
    run = python("-c", code, check=True, env={"PYTHONHASHSEED": "7"})
    assert run.stdout.splitlines() == here
    assert len(here) == 6


def test_kinds_and_splits_of_any_number_are_bounded(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        with root.write("d") as writer:
            for i in range(200):
                writer.add(
                    f"k{i}", {"cls": i}, metadata={"kind": f"kind {i}"}, source={"split": f"split {i}"}
                )
        card = build_card(root, root.open("d"))
    assert len(card.kinds) <= 60
    assert len(card.splits) <= 60
    assert sum(kind.samples for kind in card.kinds) == sum(card.splits.values()) == 200
    assert card.kinds[0].name == "(others)"
    assert len({example.kind for example in card.examples}) <= 8


def test_whole_numbers_in_a_float_column(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        for values in ((0.5, 2.25), (1, 2)):
            with root.write("d") as writer:
                for value in values:
                    writer.add(f"k{value}".replace(".", "_"), {"cls": 1}, metadata={"score": value})
        card = build_card(root, root.open("d"), n_examples=0)
    (column,) = [column for column in card.columns if column.name == "score"]
    assert (column.numbers.known, column.numbers.minimum, column.numbers.maximum) == (4, 0.5, 2.25)
    assert len(column.numbers.counts) > 4


def test_hubs_metadata(card):
    head = yaml.safe_load(render_markdown(card).split("---\n")[1])
    assert head == {
        "pretty_name": "mixed",
        "license": ["cc-by-4.0", "cc-by-nc-4.0", "cc0-1.0", "unknown"],
        "language": ["en", "pt"],
        "size_categories": ["n<1K"],
        "task_categories": ["image-classification", "image-to-text", "text-generation"],
        "tags": ["audio", "image", "text", "video", "webdataset", "penstock"],
    }


def test_document_is_complete(card):
    body = card_document(card)
    assert body["card"] == 1
    assert body["samples"] == 38
    assert body["version"] == card.id
    assert [example["key"] for example in body["examples"]] == [example.key for example in card.examples]
    assert body["hub"]["license"][-1] == "unknown"
    assert json.loads(render_json(card)) == json.loads(json.dumps(body))


def test_columns_of_other_types_than_their_names_promise(tmp_path):
    """A dataset of somebody's own may call anything kind, label, licence or width."""
    odd = {
        "kind": [["a"], ["b"]],
        "licence": [3, 4],
        "label": [True, None],
        "language": [1.5, None],
        "width_px": ["wide", "wide"],
        "height_px": [1, -1],
        "duration_s": ["long", None],
        "when": [datetime(2026, 1, 1, tzinfo=UTC), None],
        "list": [[1, 2], None],
    }
    with loader.Root(tmp_path / "root") as root:
        with root.write("d") as writer:
            for i in range(2):
                writer.add(f"k{i}", {"cls": i}, metadata={name: values[i] for name, values in odd.items()})
        card = build_card(root, root.open("d"))
    (kind,) = card.kinds
    assert (kind.name, kind.samples, kind.seconds, kind.short_sides) == ("other", 2, {}, {})
    assert card.licences.counts == (("3", 1), ("4", 1))
    assert kind.labels.counts == (("true", 1),)
    notes = {column.name: column.note for column in card.columns}
    assert notes["when"] == "2026-01-01 00:00 to 2026-01-01 00:00"
    assert notes["list"] == ""
    for render in (render_json, render_markdown, render_html):
        assert render(card)
