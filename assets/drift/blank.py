"""Find images, clips and audio that show or contain nothing: black, of one colour, or silent.

The check compares the share of such objects, per kind and source, with a fixed limit. It needs no history: the gate
stops even the first batch of a covered camera.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from ..checks.outcome import CheckResult
from .columns import with_source
from .findings import DriftFinding, as_check

if TYPE_CHECKING:
    import polars as pl

NAME = "blank"
TEXT = "Looks for black, single-coloured and silent objects. It needs no earlier batch."
MIN_BLANK = 5
"""Fewest blank objects that stop a batch: a few occur in healthy data."""
FRAMES = 0.98
"""Share of a video's frames that are black or flat."""
SILENT = 0.999
"""Share of an audio's windows below -60 dBFS."""
CONSTANT = 1e-6
"""Largest amplitude range of audio that has one value, such as a stuck converter's."""
DARK = 26
"""Mean luma, in levels of 255, below which a flat photo is called black."""

_COLUMNS_OF = {"image": "flat_ratio", "audio": "silence_ratio, amplitude_range"}
_COLUMNS = ("luma_mean", "black_ratio", "flat_ratio", "silence_ratio", "amplitude_range")


def blank_media(samples: "pl.DataFrame", media: "pl.DataFrame", limit: float) -> CheckResult:
    """Check the batch's photos, videos and audio for objects without content.

    - samples: rows of the samples table
    - media: rows of the media table
    - limit: share of a kind's or a source's objects from which blank objects stop the batch, above 0, at most 1

    Objects without a sample do not count, nor does the audio of videos, which is often silent. O(rows).
    """
    import polars as pl

    if "raw_key" not in samples.columns or not {"key", "kind"} <= set(media.columns):
        return CheckResult(
            name=NAME,
            passed=True,
            explanation="the batch has no images, videos or audio",
        )
    first_samples = samples.group_by("raw_key").agg(pl.col("key").first().alias("sample"))
    objects = with_source(media, "key").join(first_samples, left_on="key", right_on="raw_key")
    objects = _with_state(objects)
    findings = []
    for kind in ("image", "video", "audio"):
        of_kind = objects.filter(pl.col("kind") == kind)
        whole = _finding(kind, of_kind, limit)
        if whole is not None:
            findings.append(whole)
            continue  # its sources would repeat it
        for source in sorted(of_kind["source"].drop_nulls().unique()):
            of_source = of_kind.filter(pl.col("source") == source)
            finding = _finding(f"{kind}, source {source!r}", of_source, limit)
            if finding is not None:
                findings.append(finding)
    check = as_check(NAME, findings, f"{len(objects)} objects")
    if not findings:
        return check
    sentences = "; ".join(_sentence(one) for one in findings)
    remedy = f"Gate(blank={limit:g}) stops a batch from a share of {limit:.0%}; None allows such data"
    return replace(check, explanation=f"{sentences}. {remedy}")


def _sentence(finding: DriftFinding) -> str:
    samples = ", ".join(finding.keys)
    return f"{finding.now} are {finding.what} ({finding.of}), e.g. samples {samples}"


def _with_state(objects: "pl.DataFrame") -> "pl.DataFrame":
    """Return the table with a column `state`: black, flat, silent or constant; null for an object with content."""
    import polars as pl

    # Tables of earlier releases lack some columns: the objects then count as objects with content.
    absent = [pl.lit(None, pl.Float64).alias(name) for name in _COLUMNS if name not in objects.columns]
    objects = objects.with_columns(absent)
    is_flat = pl.col("flat_ratio") >= FRAMES
    is_black = (pl.col("black_ratio") >= FRAMES) | (is_flat & (pl.col("luma_mean") < DARK))
    is_silent = pl.col("silence_ratio") >= SILENT
    is_constant = pl.col("amplitude_range") <= CONSTANT
    of_audio = pl.when(is_silent).then(pl.lit("silent")).when(is_constant).then(pl.lit("constant"))
    of_images = pl.when(is_black).then(pl.lit("black")).when(is_flat).then(pl.lit("flat"))
    state = pl.when(pl.col("kind") == "audio").then(of_audio).otherwise(of_images)
    return objects.with_columns(state.alias("state"))


def _finding(objects_of: str, objects: "pl.DataFrame", limit: float) -> DriftFinding | None:
    """Return the finding of a kind or source, or None below the limit."""
    blank = objects.drop_nulls("state")
    if len(blank) < MIN_BLANK or len(blank) < limit * len(objects):
        return None
    share = len(blank) / len(objects)
    states = sorted(blank["state"].unique())
    columns = _COLUMNS_OF.get(objects["kind"][0], "flat_ratio, black_ratio")
    return DriftFinding(
        what=" or ".join(states),
        column=columns,
        of=objects_of,
        before=f"below {limit:.0%}",
        now=f"{len(blank)} of {len(objects)} objects",
        effect=share,
        limit=limit,
        certain=True,
        keys=tuple(blank["sample"].head(5)),
    )
