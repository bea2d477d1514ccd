"""A made-up feed of photos, speech and driving clips: batches that differ as honest ones do, from fixed seeds.

Sources deliver more or less each time, cameras drift a little, samples of one object are alike, a few objects are
damaged.
"""

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from assets.drift.captions import object_texts
from assets.drift.compare import BatchFacts
from assets.drift.yields import Outcomes

Row = dict[str, Any]
SOURCES = {"studio": "image", "street": "image", "calls": "audio", "cars": "video"}
LABELS = ("bicycle", "bridge", "church", "dog", "garden", "harbour", "market", "tram")
LICENCES = ("cc-by-4.0", "cc0-1.0", "cc-by-sa-4.0", "own")
SPLITS = ("train", "train", "train", "train", "train", "train", "train", "train", "validation", "test")
OBJECTS = 1_500


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """One delivery, as tables. objects: rows of raw_objects with what the media table says of them; samples: rows of
    the samples table; rejected: objects that gave nothing; features: what records say of featurizers."""

    objects: list[Row]
    samples: list[Row]
    rejected: int = 0
    features: dict[str, Row] = field(default_factory=dict)

    def facts(self) -> BatchFacts:
        """As the gate reads it."""
        media = [{name: value for name, value in row.items() if name not in _RAW} for row in self.objects]
        durations = {row["key"]: row["duration_s"] for row in self.objects if row["duration_s"]}
        samples = pl.DataFrame(self.samples, infer_schema_length=None)
        used = samples["raw_key"].n_unique()
        landed = len(self.objects) + self.rejected
        return BatchFacts(
            samples=samples,
            media=pl.DataFrame(media, infer_schema_length=None),
            outcomes=Outcomes(landed=landed, used=used, rejected=self.rejected),
            texts=object_texts(self.objects, durations),
            features=self.features,
            features_now=self.features,
        )

    def with_samples(self, change: Any) -> "Feed":
        """Every sample as `change` of it, left out where that is None."""
        changed = [change(i, dict(row)) for i, row in enumerate(self.samples)]
        return replace(self, samples=[row for row in changed if row is not None])

    def with_objects(self, change: Any) -> "Feed":
        """The same of objects; samples of those that are left out go too."""
        changed = [change(i, dict(row)) for i, row in enumerate(self.objects)]
        kept = [row for row in changed if row is not None]
        keys = {row["key"] for row in kept}
        return replace(self, objects=kept, samples=[row for row in self.samples if row["raw_key"] in keys])


_RAW = ("text", "title", "label", "licence")


def delivery(seed: int, n_objects: int = OBJECTS) -> Feed:
    """One honest batch. What differs between batches: shares of sources and licences (by a fifth or so), the light."""
    draw = np.random.default_rng(seed)
    shares = np.array([0.35, 0.25, 0.25, 0.15]) * np.exp(draw.normal(0, 0.15, 4))
    licences = np.array([0.5, 0.3, 0.15, 0.05]) * np.exp(draw.normal(0, 0.1, 4))
    light = draw.normal(0, 0.004)
    objects, samples = [], []
    for number in range(n_objects):
        source = str(draw.choice(list(SOURCES), p=shares / shares.sum()))
        licence = str(draw.choice(LICENCES, p=licences / licences.sum()))
        one = _object(draw, source, f"{seed:06d}-{number:05d}", licence, light)
        objects.append(one)
        samples += _samples(draw, one)
    features: dict[str, Row] = {
        "picture": {"version": "1-5d1c2a40"},
        "embedding": {
            "version": "2-8be1f03c",
            "weights_sha256": "a" * 64,
            "torch": "2.13.0",
            "processor": "AVX512",
        },
    }
    rejected = int(draw.binomial(n_objects, 0.01))
    return Feed(objects=objects, samples=samples, rejected=rejected, features=features)


def _object(draw: np.random.Generator, source: str, number: str, licence: str, light: float) -> Row:
    kind = SOURCES[source]
    label = str(draw.choice(LABELS, p=_falling(len(LABELS))))
    row: Row = {
        "key": f"{source}/{label}/{number}",
        "kind": kind,
        "label": label,
        "licence": licence,
        "sha256": hashlib.sha256(number.encode()).hexdigest(),
        "duration_s": None,
        "text": "",
        "codec": {"image": "jpeg", "audio": "pcm_s16le", "video": "h264"}[kind],
        "subject": f"person-{draw.integers(10**9)}" if kind == "audio" else None,
    }
    if kind == "audio":
        seconds = float(draw.gamma(4, 2) + 0.5)
        row |= {"duration_s": seconds, "sample_rate_hz": int(draw.choice([16_000, 48_000], p=[0.9, 0.1]))}
        row |= {
            "loudness_lufs": float(draw.normal(-23, 4)),
            "text": "words " * max(1, round(seconds * draw.normal(2.5, 0.4))),
        }
        return row
    turned = bool(draw.random() < (0.3 if kind == "image" else 0.05))
    wide = (4000, 3000) if kind == "image" else (1280, 720)
    row |= {"width_px": wide[0], "height_px": wide[1], "rotation_deg": 90 if turned else 0}
    row |= dict(zip(("upright_width_px", "upright_height_px"), wide[::-1] if turned else wide, strict=True))
    row |= {"luma_mean": 255 * float(np.clip(draw.beta(5, 6) + light, 0, 1)), "black_ratio": 0.0}
    if kind == "image":
        verb = draw.choice(["seen", "taken", "found"])
        named = label if draw.random() < 0.8 else "something"
        row["text"] = f"a {named} {verb} on a {draw.choice(['sunny', 'rainy', 'grey'])} day"
    else:
        row |= {
            "duration_s": float(draw.uniform(4, 60)),
            "colour_range": "tv" if draw.random() < 0.98 else "pc",
        }
        row["black_ratio"] = float(max(0, draw.normal(-0.2, 0.1)))
    return row


def _samples(draw: np.random.Generator, one: Row) -> list[Row]:
    told = {
        "kind": one["kind"],
        "raw_key": one["key"],
        "raw_sha256": one["sha256"],
        "subject": one["subject"],
        "split": split_of(one["subject"] or one["sha256"]),
        "label": one["label"],
        "licence": one["licence"],
    }
    if one["kind"] == "audio":
        mine = {
            "duration_s": one["duration_s"],
            "source_sample_rate_hz": one["sample_rate_hz"],
            "n_channels": 1,
        }
        quiet = {"loudness_lufs": one["loudness_lufs"], "speech_ratio": float(draw.beta(8, 2))}
        return [{"key": f"{one['key']}/0", **told, **mine, **quiet}]
    n = 1 if one["kind"] == "image" else min(8, max(1, int(one["duration_s"] // 5)))
    wide = (one["upright_width_px"], one["upright_height_px"])
    scale = 256 / min(wide)
    luma, contrast = one["luma_mean"] / 255, float(draw.normal(0.55, 0.07))
    return [
        {
            "key": f"{one['key']}/{clip}",
            **told,
            "width_px": round(wide[0] * scale),
            "height_px": round(wide[1] * scale),
            "luma_mean_ratio": float(np.clip(luma + draw.normal(0, 0.02), 0, 1)),
            "luma_contrast_ratio": float(np.clip(contrast + draw.normal(0, 0.01), 0, 1)),
            "sharpness_laplacian_var": float(draw.lognormal(5, 0.8)),
            "embedding_norm": float(draw.normal(10, 1)),
            "black_ratio": one["black_ratio"] if one["kind"] == "video" else None,
        }
        for clip in range(n)
    ]


def split_of(identity: str) -> str:
    """By a hash, as a dataset's spec has it."""
    return SPLITS[int(hashlib.sha256(identity.encode()).hexdigest(), 16) % len(SPLITS)]


def _falling(n: int) -> Any:
    weights = 1 / np.arange(1, n + 1)
    return weights / weights.sum()
