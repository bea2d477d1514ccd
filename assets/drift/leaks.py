"""Raw objects and subjects on two sides of a split; and samples that lie in protected evaluation sets."""

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

import loader
from loader.dataset.tables.parquet import TableFile, get_table_bytes

from ..checks.near_duplicates import near_of
from .findings import Finding

if TYPE_CHECKING:
    import polars as pl

IDENTITIES = ("raw_sha256", "subject")


def split_leaks(batch: "pl.DataFrame", version: loader.Version | None) -> list[Finding]:
    """Find raw objects and subjects of the batch that are in several splits, within it or together with the version."""
    import polars as pl

    found = []
    for name in IDENTITIES:
        if not {name, "split"} <= set(batch.columns):
            continue
        mine = batch.select("key", name, pl.col("split").fill_null("")).drop_nulls(name)
        frames = [mine.select(name, "split")]
        if version is not None and len(mine):
            frames.append(same_as(version, name, mine[name].unique()).select(name, "split"))
        splits = pl.concat(frames).group_by(name).agg(pl.col("split").unique().sort())
        leaking = splits.filter(pl.col("split").list.len() > 1)
        if len(leaking):
            keys = tuple(mine.filter(pl.col(name).is_in(leaking[name].implode()))["key"].head(5))
            names = " and ".join(leaking["split"][0])
            words: Any = {
                "before": "one split each",
                "now": f"{len(leaking)} in several splits, e.g. {names}",
            }
            found.append(
                Finding(
                    what="leak across splits",
                    column=name,
                    **words,
                    effect=len(leaking),
                    certain=True,
                    keys=keys,
                )
            )
    return found


def contaminations(batch: "pl.DataFrame", protected: loader.Version, near_bits: int) -> list[Finding]:
    """Find samples of the batch whose raw object, subject or picture is in a version that must stay unseen."""
    import polars as pl

    found = []
    for name in IDENTITIES:
        if name not in batch.columns:
            continue
        values = batch[name].drop_nulls().unique()
        hits = same_as(protected, name, values)[name].unique() if len(values) else values
        if len(hits):
            keys = batch.filter(pl.col(name).is_in(hits.implode()))["key"]
            found.append(_contaminated(protected, name, keys, "the same"))
    if "phash" in batch.columns and "phash" in protected.manifest["columns"]:
        pairs = near_of(batch, protected.samples(), near_bits)
        if pairs:
            keys = pl.Series("key", sorted(pairs), dtype=pl.String)
            found.append(_contaminated(protected, "phash", keys, f"within {near_bits} bits"))
    return found


def _contaminated(protected: loader.Version, name: str, keys: "pl.Series", how: str) -> Finding:
    return Finding(
        what=f"in the protected {protected.name}",
        column=name,
        before="no sample of it",
        now=f"{len(keys)} samples ({how})",
        effect=len(keys),
        certain=True,
        keys=tuple(keys.head(5)),
    )


def same_as(version: loader.Version, name: str, values: "pl.Series") -> "pl.DataFrame":
    """Return part, row, split and the column `name` of the live samples that have one of these values.

    Each keys table is read once, of it these columns, one table in memory at a time.
    """
    import polars as pl

    empty = {"part": pl.String, "row": pl.Int64, name: pl.String, "split": pl.String}
    found = [pl.DataFrame(schema=empty)]
    for table in _keys_tables(version, name):
        split = pl.col("split") if "split" in table.columns else pl.lit(None, pl.String).alias("split")
        found.append(
            table.filter(pl.col(name).is_in(values.implode())).select(
                pl.col("part").cast(pl.String), pl.col("row").cast(pl.Int64), name, split.fill_null("")
            )
        )
    rows = pl.concat(found, how="vertical_relaxed")
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
    """Return of each row (part, row) whether the version has not left it out."""
    parts = version.parts
    positions = parts.positions(rows["part"].to_list())
    kept = np.ones(len(rows), np.bool_)
    numbers = rows["row"].to_numpy()
    for position in np.intersect1d(np.unique(positions), parts.with_exclusions):
        mine = positions == position
        kept[mine] = parts.live_members(int(position))[numbers[mine]]
    return kept
