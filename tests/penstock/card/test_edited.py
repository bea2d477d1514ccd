"""A card counts what annotations left of the samples table."""

import polars as pl
import pytest

import loader
from penstock.card import scan
from penstock.card.build import build_card
from penstock.card.scan import AnnotatedCells


@pytest.fixture
def root(tmp_path):
    """Six photos with labels and sides, then three without a label; k1 is left out."""
    with loader.Root(tmp_path / "root") as root:
        for numbers, label in ((range(6), {"label": "cat"}), (range(6, 9), {})):
            with root.write("d", part_samples=2) as writer:
                for i in numbers:
                    metadata = {"kind": "image", "width_px": 64, "height_px": 48 + i, **label}
                    writer.add(f"k{i}", {"cls": i}, metadata=metadata)
        root.exclude("d", ["k1"], reason="blurred")
        yield root


ROWS = {
    "k0": {"label": "dog", "width_px": 128, "mood": "calm"},
    "k3": {"label": None, "mood": "wild"},
    "k7": {"label": "dog", "mood": "calm"},
    "k8": {"mood": None, "score": 0.5},
}


def agrees(root):
    version = root.open("d")
    card, frame = build_card(root, version), version.samples().collect()
    (kind,) = card.kinds

    def value_counts(name):
        return dict(frame[name].drop_nulls().value_counts().iter_rows())

    assert dict(kind.labels.counts) == value_counts("label")
    assert kind.labels.unknown == frame["label"].null_count()
    size = pl.format("{} x {}", "width_px", "height_px").alias("size")
    assert dict(kind.sizes.counts) == dict(frame.select(size.value_counts()).unnest("size").iter_rows())
    columns = {column.name: column for column in card.columns}
    assert dict(columns["mood"].counts.counts) == value_counts("mood")
    assert columns["score"].numbers.known == frame["score"].len() - frame["score"].null_count()
    assert columns["width_px"].numbers.maximum == frame["width_px"].max()


def test_every_count_is_that_of_the_live_samples(root):
    root.annotate("d", "labels", ROWS, author="ann", nulls="remove")
    root.annotate("d", "labels", {"k0": {"label": "fox"}, "k2": {"mood": "calm"}}, author="ben")
    agrees(root)


def test_card_that_lays_nothing_over_is_found(root, monkeypatch):
    root.annotate("d", "labels", ROWS, author="ann", nulls="remove")
    agrees(root)
    monkeypatch.setattr(AnnotatedCells, "overlay", lambda self, rows, batch: batch)
    with pytest.raises(AssertionError):
        agrees(root)


def test_card_that_takes_annotations_for_samples_is_found(root, monkeypatch):
    root.annotate("d", "labels", ROWS, author="ann", nulls="remove")
    monkeypatch.setattr(scan, "select_files", lambda entries, names, annotations: entries)
    with pytest.raises(AssertionError):
        agrees(root)


def test_kind_that_came_later_is_a_kind(tmp_path):
    """Also of samples whose files have no such column."""
    with loader.Root(tmp_path / "root") as root:
        with root.write("d") as writer:
            for i in range(6):
                writer.add(f"k{i}", {"cls": i})
        root.annotate("d", "kinds", {f"k{i}": {"kind": "drawing"} for i in range(3)}, author="ann")
        card = build_card(root, root.open("d"))
    assert [(kind.name, kind.samples) for kind in card.kinds] == [("drawing", 3), ("other", 3)]
