"""Findings without statistics: samples that contradict their media, and featurizers that changed."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .findings import Finding

if TYPE_CHECKING:
    import polars as pl

_SQUARE = 1.05
"""Width over height, or height over width, up to which a picture has no side that is clearly the longer."""
_IDENTITY = ("version", "weights_sha256", "device", "dtype", "torch", "processor")
"""Facts in a featurizer's record about its computation, beside its version."""


def turned_findings(samples: "pl.DataFrame", media: "pl.DataFrame") -> list[Finding]:
    """Find pictures that lie where their object stands, or stand where it lies: a rotation ignored, or made twice."""
    import polars as pl

    sizes, upright = ["width_px", "height_px"], ["upright_width_px", "upright_height_px"]
    if not {*sizes, "raw_key"} <= set(samples.columns) or not {*upright, "key"} <= set(media.columns):
        return []
    if not all(samples[name].dtype.is_numeric() for name in sizes):
        return []  # another type: for `schema_findings`
    both = samples.select("key", "raw_key", *sizes).join(
        media.select(pl.col("key").alias("raw_key"), *upright), on="raw_key"
    )
    mine = pl.col("width_px") / pl.col("height_px")
    theirs = pl.col("upright_width_px") / pl.col("upright_height_px")
    clear = both.filter((theirs > _SQUARE) | (theirs < 1 / _SQUARE), (mine > _SQUARE) | (mine < 1 / _SQUARE))
    turned = clear.filter((mine > 1) != (theirs > 1))
    if not len(turned):
        return []
    words: Any = {
        "before": "as its object",
        "now": f"{len(turned)} of {len(clear)} samples turned by 90 degrees",
    }
    keys = tuple(turned["key"].head(5))
    effect = len(turned) / len(clear)
    return [
        Finding(what="turned", column="width_px, height_px", **words, effect=effect, certain=True, keys=keys)
    ]


def featurizer_findings(
    now: Mapping[str, Mapping[str, Any]],
    before: Mapping[str, Mapping[str, Any]],
    again: Mapping[str, Mapping[str, Any]],
) -> list[Finding]:
    """Find featurizers that computed the batch in another way than the newest published one.

    Each argument is featurizer -> facts of its record (version, weights_sha256, torch ...); again: of the published
    batch's features as they were made last.

    A raised code number announces a change, and features of the published batch that were made again in the new way
    settle it. Other parameters, weights, processor or library under the same number are a silent change.
    """
    found = []
    for name in sorted(set(now) & set(before)):
        mine, theirs = now[name], before[name]
        changed = _changed(mine, theirs)
        if not changed or not _changed(mine, again.get(name, theirs)):
            continue
        announced = _code(mine) != _code(theirs)
        words: Any = {
            "before": ", ".join(f"{one} {theirs.get(one, 'unknown')}" for one in changed)[:200],
            "now": ", ".join(f"{one} {mine.get(one, 'unknown')}" for one in changed)[:200],
        }
        what = "featurizer changed" if announced else "featurizer silently changed"
        found.append(Finding(what=what, column=name, **words, certain=not announced))
    return found


def _changed(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    return [one for one in _IDENTITY if one in mine and one in theirs and mine[one] != theirs[one]]


def _code(facts: Mapping[str, Any]) -> str:
    return str(facts.get("version", "")).partition("-")[0]


def schema_findings(now: Mapping[str, str], before: Mapping[str, str]) -> list[Finding]:
    """Find columns whose type is another. now, before: column -> Arrow type; "null" for a column without values."""
    found = []
    for name in sorted(set(now) & set(before)):
        mine, theirs = now[name], before[name]
        if "null" in (mine, theirs) or mine == theirs or {mine, theirs} == {"int64", "double"}:
            continue
        words: Any = {"before": theirs, "now": mine}
        found.append(Finding(what="another type", column=name, **words, certain=True))
    return found


def non_finite_findings(samples: "pl.DataFrame", known: Sequence[str]) -> list[Finding]:
    """Find infinities in columns of numbers that had none."""
    found = []
    for name in samples.columns:
        if samples[name].dtype.is_float() and name in known:
            n = int(samples[name].is_infinite().sum() or 0)
            if n:
                words: Any = {"before": "finite numbers", "now": f"{n} infinite"}
                found.append(Finding(what="infinite", column=name, **words, certain=True))
    return found
