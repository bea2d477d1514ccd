"""Findings that need no statistics: leaks, samples that contradict their media, and changed featurizers."""

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import loader
from loader.dataset.tables.parquet import TableFile, get_table_bytes

from ..checks.near_duplicates import near_of
from .findings import DriftFinding

if TYPE_CHECKING:
    import polars as pl

if TYPE_CHECKING:
    import polars as pl

IDENTITIES = ("raw_sha256", "subject")


def split_leaks(batch: "pl.DataFrame", version: loader.Version | None) -> list[DriftFinding]:
    """Find raw objects and subjects in several splits, within the batch or between batch and version."""
    import polars as pl

    findings = []
    for name in IDENTITIES:
        if not {name, "split"} <= set(batch.columns):
            continue
        identities = batch.select("key", name, pl.col("split").fill_null("")).drop_nulls(name)
        frames = [identities.select(name, "split")]
        if version is not None and len(identities):
            frames.append(same_as(version, name, identities[name].unique()).select(name, "split"))
        splits = pl.concat(frames).group_by(name).agg(pl.col("split").unique().sort())
        leaking = splits.filter(pl.col("split").list.len() > 1)
        if len(leaking):
            keys = tuple(identities.filter(pl.col(name).is_in(leaking[name].implode()))["key"].head(5))
            names = " and ".join(leaking["split"][0])
            words: Any = {
                "before": "one split each",
                "now": f"{len(leaking)} in several splits, e.g. {names}",
            }
            findings.append(
                DriftFinding(
                    what="leak across splits",
                    column=name,
                    **words,
                    effect=len(leaking),
                    certain=True,
                    keys=keys,
                )
            )
    return findings


def contaminations(batch: "pl.DataFrame", protected: loader.Version, near_bits: int) -> list[DriftFinding]:
    """Find samples of the batch whose raw object, subject or image is in a protected version."""
    import polars as pl

    findings = []
    for name in IDENTITIES:
        if name not in batch.columns:
            continue
        values = batch[name].drop_nulls().unique()
        hits = same_as(protected, name, values)[name].unique() if len(values) else values
        if len(hits):
            keys = batch.filter(pl.col(name).is_in(hits.implode()))["key"]
            findings.append(_contaminated(protected, name, keys, "the same"))
    if "phash" in batch.columns and "phash" in protected.manifest["columns"]:
        pairs = near_of(batch, protected.samples(), near_bits)
        if pairs:
            keys = pl.Series("key", sorted(pairs), dtype=pl.String)
            findings.append(_contaminated(protected, "phash", keys, f"within {near_bits} bits"))
    return findings


def _contaminated(protected: loader.Version, name: str, keys: "pl.Series", how: str) -> DriftFinding:
    return DriftFinding(
        what=f"in the protected {protected.name}",
        column=name,
        before="no sample of it",
        now=f"{len(keys)} samples ({how})",
        effect=len(keys),
        certain=True,
        keys=tuple(keys.head(5)),
    )


def same_as(version: loader.Version, name: str, values: "pl.Series") -> "pl.DataFrame":
    """Return part, row, split and the column `name` of the live samples whose value is one of these.

    Reads these columns of each keys table once, with one table in memory at a time.
    """
    import polars as pl

    empty = {"part": pl.String, "row": pl.Int64, name: pl.String, "split": pl.String}
    frames = [pl.DataFrame(schema=empty)]
    for table in _keys_tables(version, name):
        split = pl.col("split") if "split" in table.columns else pl.lit(None, pl.String).alias("split")
        frames.append(
            table.filter(pl.col(name).is_in(values.implode())).select(
                pl.col("part").cast(pl.String), pl.col("row").cast(pl.Int64), name, split.fill_null("")
            )
        )
    rows = pl.concat(frames, how="vertical_relaxed")
    return rows.filter(live(version, rows)) if len(rows) else rows


def _keys_tables(version: loader.Version, name: str) -> Iterator["pl.DataFrame"]:
    import polars as pl

    for entry in version.manifest["samples"]:
        if entry["group"] != "keys" or name not in entry["columns"]:
            continue
        columns = [one for one in ("part", "row", name, "split") if one in ("part", "row", *entry["columns"])]
        file = TableFile.from_json(dict(entry))
        yield pl.read_parquet(io.BytesIO(get_table_bytes(version.store, file)), columns=columns)


def live(version: loader.Version, rows: "pl.DataFrame") -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a mask over (part, row): whether the version still has the sample."""
    parts = version.parts
    positions = parts.positions(rows["part"].to_list())
    is_live = np.ones(len(rows), np.bool_)
    numbers = rows["row"].to_numpy()
    for position in np.intersect1d(np.unique(positions), parts.with_exclusions):
        here = positions == position
        is_live[here] = parts.live_members(int(position))[numbers[here]]
    return is_live


_SQUARE = 1.05
"""Largest ratio of the sides at which an image counts as square."""
_IDENTITY = ("version", "weights_sha256", "device", "dtype", "torch", "processor")
"""Facts in a featurizer's record that identify its computation."""


def turned_findings(samples: "pl.DataFrame", media: "pl.DataFrame") -> list[DriftFinding]:
    """Find images turned against their object: a rotation was ignored, or applied twice."""
    import polars as pl

    sizes, upright = ["width_px", "height_px"], ["upright_width_px", "upright_height_px"]
    if not {*sizes, "raw_key"} <= set(samples.columns) or not {*upright, "key"} <= set(media.columns):
        return []
    if not all(samples[name].dtype.is_numeric() for name in sizes):
        return []  # `schema_findings` reports the changed type
    both = samples.select("key", "raw_key", *sizes).join(
        media.select(pl.col("key").alias("raw_key"), *upright), on="raw_key"
    )
    sample_ratio = pl.col("width_px") / pl.col("height_px")
    object_ratio = pl.col("upright_width_px") / pl.col("upright_height_px")
    clear = both.filter(
        (object_ratio > _SQUARE) | (object_ratio < 1 / _SQUARE),
        (sample_ratio > _SQUARE) | (sample_ratio < 1 / _SQUARE),
    )
    turned = clear.filter((sample_ratio > 1) != (object_ratio > 1))
    if not len(turned):
        return []
    words: Any = {
        "before": "as its object",
        "now": f"{len(turned)} of {len(clear)} samples turned by 90 degrees",
    }
    keys = tuple(turned["key"].head(5))
    effect = len(turned) / len(clear)
    return [
        DriftFinding(
            what="turned", column="width_px, height_px", **words, effect=effect, certain=True, keys=keys
        )
    ]


def featurizer_findings(
    now: Mapping[str, Mapping[str, Any]],
    before: Mapping[str, Mapping[str, Any]],
    again: Mapping[str, Mapping[str, Any]],
) -> list[DriftFinding]:
    """Find featurizers that computed the batch differently than the newest published batch.

    Arguments: featurizer -> facts of its record (version, weights_sha256, torch ...). again: the facts of the published
    batch's newest recomputation.

    A raised code number announces a change; recomputing the published batch settles it. A change of parameters,
    weights, processor or library under the same number is silent.
    """
    findings = []
    for name in sorted(set(now) & set(before)):
        current, published = now[name], before[name]
        changed = _changed(current, published)
        if not changed or not _changed(current, again.get(name, published)):
            continue
        announced = _code(current) != _code(published)
        words: Any = {
            "before": ", ".join(f"{one} {published.get(one, 'unknown')}" for one in changed)[:200],
            "now": ", ".join(f"{one} {current.get(one, 'unknown')}" for one in changed)[:200],
        }
        what = "featurizer changed" if announced else "featurizer silently changed"
        findings.append(DriftFinding(what=what, column=name, **words, certain=not announced))
    return findings


def _changed(current: Mapping[str, Any], published: Mapping[str, Any]) -> list[str]:
    return [
        one for one in _IDENTITY if one in current and one in published and current[one] != published[one]
    ]


def _code(facts: Mapping[str, Any]) -> str:
    return str(facts.get("version", "")).partition("-")[0]


def schema_findings(now: Mapping[str, str], before: Mapping[str, str]) -> list[DriftFinding]:
    """Find columns whose type changed. now, before: column -> Arrow type, "null" for a column without values."""
    findings = []
    for name in sorted(set(now) & set(before)):
        current, published = now[name], before[name]
        if (
            "null" in (current, published)
            or current == published
            or {current, published} == {"int64", "double"}
        ):
            continue
        words: Any = {"before": published, "now": current}
        findings.append(DriftFinding(what="another type", column=name, **words, certain=True))
    return findings


def non_finite_findings(samples: "pl.DataFrame", known: Sequence[str]) -> list[DriftFinding]:
    """Find infinities in numeric columns that had none."""
    findings = []
    for name in samples.columns:
        if samples[name].dtype.is_float() and name in known:
            n = int(samples[name].is_infinite().sum() or 0)
            if n:
                words: Any = {"before": "finite numbers", "now": f"{n} infinite"}
                findings.append(DriftFinding(what="infinite", column=name, **words, certain=True))
    return findings
