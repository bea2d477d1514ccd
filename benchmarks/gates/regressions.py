"""Twenty regressions that nobody announces, each planted in a batch that was honest."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from .world import Feed, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """plant: honest batch -> the batch with it; check: which check has to see it; finding: and what as; by: column, or
    words, of the finding."""

    plant: Callable[[Feed], Feed]
    check: str
    finding: str
    by: str = ""


def _video(row: Row) -> bool:
    return bool(row["kind"] == "video")


def _rate_halved(feed: Feed) -> Feed:
    def change(i: int, row: Row) -> Row:
        return row | ({"source_sample_rate_hz": 8_000} if row["kind"] == "audio" and i % 2 else {})

    return feed.with_samples(change)


def _range_tagged(feed: Feed) -> Feed:
    return feed.with_objects(
        lambda i, row: row | ({"colour_range": "pc"} if _video(row) and i % 4 == 0 else {})
    )


def _range_flipped(feed: Feed) -> Feed:
    """Limited range expanded twice."""

    def change(i: int, row: Row) -> Row:
        if not _video(row):
            return row
        wide = 255 / 219
        luma = (row["luma_mean_ratio"] - 16 / 255) * wide
        return row | {
            "luma_mean_ratio": max(0.0, luma),
            "luma_contrast_ratio": min(1.0, row["luma_contrast_ratio"] * wide),
        }

    return feed.with_samples(change)


def _rotation_ignored(feed: Feed) -> Feed:
    turned = {row["key"] for row in feed.objects if row.get("rotation_deg")}

    def change(i: int, row: Row) -> Row:
        if row["raw_key"] not in turned:
            return row
        return row | {"width_px": row["height_px"], "height_px": row["width_px"]}

    return feed.with_samples(change)


def _rotation_not_probed(feed: Feed) -> Feed:
    """The probe does not know of it either, so that samples and media agree."""

    def change(i: int, row: Row) -> Row:
        if not row.get("rotation_deg"):
            return row
        stored = {"upright_width_px": row["width_px"], "upright_height_px": row["height_px"]}
        return row | stored | {"rotation_deg": 0}

    return _rotation_ignored(feed).with_objects(change)


def _camera_black(feed: Feed) -> Feed:
    def change(i: int, row: Row) -> Row:
        return row | ({"black_ratio": 1.0, "luma_mean_ratio": 0.01} if _video(row) and i % 3 == 0 else {})

    return feed.with_samples(change)


def _texts_shifted(kind: str) -> Callable[[Feed], Feed]:
    def plant(feed: Feed) -> Feed:
        rows = sorted((row for row in feed.objects if row["kind"] == kind), key=lambda row: row["key"])
        # Keys are grouped by label: texts are listed as they were recorded, by number.
        rows.sort(key=lambda row: row["key"].rsplit("/", 1)[-1])
        texts = {row["key"]: rows[i - 1]["text"] for i, row in enumerate(rows)}
        return feed.with_objects(
            lambda i, row: row | ({"text": texts[row["key"]]} if row["key"] in texts else {})
        )

    return plant


def _scaled(feed: Feed) -> Feed:
    def change(i: int, row: Row) -> Row:
        return row | ({"embedding_norm": row["embedding_norm"] * 1.03} if row.get("embedding_norm") else {})

    return feed.with_samples(change)


def _zeroed(feed: Feed) -> Feed:
    def change(i: int, row: Row) -> Row:
        return row | ({"sharpness_laplacian_var": 0.0} if row["kind"] == "image" and i % 100 == 0 else {})

    return feed.with_samples(change)


def _nulled(feed: Feed) -> Feed:
    def change(i: int, row: Row) -> Row:
        return row | ({"loudness_lufs": None} if row["kind"] == "audio" and i % 20 == 0 else {})

    return feed.with_samples(change)


def _renamed(feed: Feed) -> Feed:
    return feed.with_samples(lambda i, row: row | ({"label": "streetcar"} if row["label"] == "tram" else {}))


def _spelled(feed: Feed) -> Feed:
    return feed.with_samples(
        lambda i, row: row | ({"label": "Tram "} if row["label"] == "tram" and i % 2 else {})
    )


def _source_stopped(feed: Feed) -> Feed:
    return feed.with_objects(lambda i, row: None if row["key"].startswith("street/") else row)


def _licences_mixed(feed: Feed) -> Feed:
    draw = np.random.default_rng(0)

    def change(i: int, row: Row) -> Row:
        return row | ({"licence": "own"} if row["licence"] == "cc-by-4.0" and draw.random() < 0.2 else {})

    return feed.with_samples(change)


def _weights_changed(feed: Feed) -> Feed:
    embedding = {**feed.features["embedding"], "weights_sha256": "b" * 64, "version": "2-11f0aa37"}
    return replace(feed, features={**feed.features, "embedding": embedding})


def _library_changed(feed: Feed) -> Feed:
    return replace(
        feed, features={**feed.features, "embedding": {**feed.features["embedding"], "torch": "2.14.0"}}
    )


def _fewer_clips(feed: Feed) -> Feed:
    """One clip of ten is lost on the way."""
    return feed.with_samples(lambda i, row: None if _video(row) and i % 10 == 0 else row)


def _fewer_objects(feed: Feed) -> Feed:
    """One object of ten gives no sample, and nobody rejected it."""
    lost = {row["key"] for i, row in enumerate(feed.objects) if i % 10 == 0}
    return feed.with_samples(lambda i, row: None if row["raw_key"] in lost else row)


def _more_rejected(feed: Feed) -> Feed:
    return replace(feed, rejected=feed.rejected + len(feed.objects) // 20)


def _as_text(feed: Feed) -> Feed:
    def change(i: int, row: Row) -> Row:
        return row | ({"width_px": str(row["width_px"])} if row.get("width_px") else {})

    return feed.with_samples(change)


REGRESSIONS: Mapping[str, Regression] = {
    "half of the speech at half the sample rate": Regression(
        plant=_rate_halved, check="drift", finding="share", by="source_sample_rate_hz"
    ),
    "colour range: a quarter of the clips tagged full": Regression(
        plant=_range_tagged, check="drift", finding="share", by="colour_range"
    ),
    "colour range: limited range expanded twice": Regression(
        plant=_range_flipped, check="drift", finding="distribution", by="luma_contrast_ratio"
    ),
    "rotation ignored by the cutter": Regression(
        plant=_rotation_ignored, check="agreement", finding="turned"
    ),
    "rotation ignored by the probe too": Regression(
        plant=_rotation_not_probed, check="drift", finding="share", by="rotation_deg"
    ),
    "a camera gone black in a third of its clips": Regression(
        plant=_camera_black, check="drift", finding="distribution", by="black_ratio"
    ),
    "captions shifted by one row": Regression(
        plant=_texts_shifted("image"), check="agreement", finding="texts", by="text"
    ),
    "transcripts shifted by one row": Regression(
        plant=_texts_shifted("audio"), check="agreement", finding="length of text", by="text"
    ),
    "a feature scaled by 1.03": Regression(
        plant=_scaled, check="drift", finding="distribution", by="embedding_norm"
    ),
    "1 % zeros in a column": Regression(
        plant=_zeroed, check="drift", finding="zeros", by="sharpness_laplacian_var"
    ),
    "5 % nulls in a column": Regression(
        plant=_nulled, check="drift", finding="missing values", by="loudness_lufs"
    ),
    "a category renamed": Regression(plant=_renamed, check="drift", finding="renamed", by="label"),
    "a category spelled otherwise in half of its samples": Regression(
        plant=_spelled, check="drift", finding="renamed", by="label"
    ),
    "a source that stopped delivering": Regression(
        plant=_source_stopped, check="drift", finding="source stopped", by="street"
    ),
    "a tenth of the objects under another licence": Regression(
        plant=_licences_mixed, check="drift", finding="share", by="licence"
    ),
    "a featurizer with other weights": Regression(
        plant=_weights_changed, check="agreement", finding="featurizer silently changed", by="embedding"
    ),
    "a featurizer on another release of its library": Regression(
        plant=_library_changed, check="agreement", finding="featurizer silently changed", by="embedding"
    ),
    "counts down by 10 %: clips per video": Regression(
        plant=_fewer_clips, check="drift", finding="samples per object", by="count"
    ),
    "counts down by 10 %: objects without a sample": Regression(
        plant=_fewer_objects, check="drift", finding="fewer objects used", by="objects"
    ),
    "5 % more objects rejected": Regression(
        plant=_more_rejected, check="drift", finding="more objects rejected", by="objects"
    ),
    "a column of numbers that became text": Regression(
        plant=_as_text, check="drift", finding="another type", by="width_px"
    ),
}
"""Of one batch against tables. Those across splits and of protected versions need a root: tests/assets/drift."""
