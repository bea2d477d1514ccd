"""Descriptions of columns for Dagster's pages: of samples, and of the columns that a featurizer computes."""

import re
from collections.abc import Mapping
from inspect import cleandoc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..featurizers import Featurizer

MAX_CHARS = 400

SAMPLE_TEXTS: Mapping[str, str] = {
    "ordinal": "position in the version, from 0",
    "part": "part that holds the sample",
    "row": "row in its part, from 0",
    "key": "key of the sample, unique in the version",
    "source_key": "name of the raw object in its source",
    "unit_id": "SHA-256 of everything that the sample was cut from and by",
    "raw_start": "start in the raw object: ticks@numerator/denominator, empty for the whole object",
    "raw_end": "end in the raw object, exclusive, as raw_start",
    "split": "split, by the hash of the raw object or subject",
    "run_id": "Dagster run that cut the sample",
    "asset_key": "asset that cut the sample",
    "partition": "batch of the sample",
    "code_version": "version of the code that cut the sample",
    "width_px": "width as stored in the sample",
    "height_px": "height as stored in the sample",
    "aspect_ratio": "width against height",
    "bucket": "bucket of sizes; empty without buckets",
    "duration_s": "duration of the sample",
    "start_s": "start in the raw object",
    "sample_rate_hz": "samples per second and channel, as stored in the sample",
    "n_channels": "channels as stored in the sample",
    "n_frames": "frames of the clip",
    "n_chars": "characters of the text",
    "n_bytes": "bytes of the text in UTF-8",
    "shot": "number of the shot in the video, from 0",
    "downmix": "matrix by which channels were mixed; empty for none",
    "gain_db": "gain that was applied against clipping",
    "mono_cancels": "the channels added up go silent",
    "photo_mode": "canonical: encoded again; reference: the original bytes",
    "raw_mode": "mode of the raw image, as Pillow names it",
    "colour": "what named the colour space of the raw image",
    "alpha": "what became of transparency",
    "has_gps": "the stored photo tells where it was taken",
    "gps_stripped": "the place where the photo was taken was removed",
    "clip_mode": "canonical: encoded again; reference: packets of the original",
    "clip_mode_reason": "why the clip was encoded again, where the policy asks for the original packets",
    "psnr_db": "mean PSNR of the clip against its source; null where nothing was encoded",
    "worst_psnr_db": "PSNR of the worst frame against its source",
    "n_deinterlaced": "frames made of two fields",
    "colour_treatment": "how colours were converted",
    "colour_assumed": "no matrix was tagged: read as BT.601",
    "has_sound": "the clip has audio beside it",
    "sound_missing_s": "audio that its source lacks within the clip",
    "sound_downmix": "matrix by which the clip's audio was mixed; empty for none",
    "sound_gain_db": "gain of the clip's audio against clipping",
    "dup_of": "key of the better copy, of a near-duplicate",
    "dup_by": "what found the near-duplicate: phash or embedding",
    "dup_distance_bits": "bits in which its perceptual hash differs from the better copy's",
    "dup_cosine": "cosine of its embedding with the better copy's",
}
"""Column of the samples table -> what it holds, where neither its raw object, media nor a featurizer gives it."""


def feature_texts(featurizer: "Featurizer") -> dict[str, str]:
    """Return column -> its paragraph or list item in the docstring of the featurizer's class, else the first line."""
    doc = cleandoc(type(featurizer).__doc__ or "")
    blocks = [" ".join(block.split()) for block in re.split(r"\n\s*\n|\n(?=\s*- )|(?=Columns?:)", doc)]
    first = blocks[0] if blocks else ""
    names = sorted({name for columns in featurizer.columns.values() for name in columns})
    found = {
        name: next(
            (one for one in blocks if re.search(rf"(?<![\w`]){re.escape(name)}(?![\w.`])", one)), first
        )
        for name in names
    }
    return {
        name: _short(text.removeprefix("- ").removeprefix(f"{name}: "), featurizer.name)
        for name, text in found.items()
    }


def _short(text: str, featurizer: str) -> str:
    text = f"{text} (featurizer {featurizer})" if text else f"computed by the featurizer {featurizer}"
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 3]}..."


__all__ = ["SAMPLE_TEXTS", "feature_texts"]
