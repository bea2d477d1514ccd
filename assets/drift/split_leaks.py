"""Find raw objects and subjects in several splits."""

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from loader.dataset.tables.parquet import TableFile, get_table_bytes

from .findings import DriftFinding

if TYPE_CHECKING:
    import polars as pl

    import loader

IDENTITIES = ("raw_sha256", "subject")


def split_leaks(batch: "pl.DataFrame", version: "loader.Version | None") -> list[DriftFinding]:
    """Find raw objects and subjects in several splits, within the batch or between batch and version."""
    import polars as pl

    findings = []
    for name in IDENTITIES:
        if not {name, "split"} <= set(batch.columns):
            continue
        identities = batch.select("key", name, pl.col("split").fill_null("")).drop_nulls(name)
        frames = [identities.select(name, "split")]
        if version is not None and len(identities):
            published = same_as(version, name, identities[name].unique())
            frames.append(published.select(name, "split"))
        splits = pl.concat(frames).group_by(name).agg(pl.col("split").unique().sort())
        leaking = splits.filter(pl.col("split").list.len() > 1)
        if len(leaking):
            is_leaking = pl.col(name).is_in(leaking[name].implode())
            examples = identities.filter(is_leaking)["key"].head(5)
            names = " and ".join(leaking["split"][0])
            finding = DriftFinding(
                what="leak across splits",
                column=name,
                before="one split each",
                now=f"{len(leaking)} in several splits, e.g. {names}",
                effect=len(leaking),
                certain=True,
                keys=tuple(examples),
            )
            findings.append(finding)
    return findings


def same_as(version: "loader.Version", name: str, values: "pl.Series") -> "pl.DataFrame":
    """Return part, row, split and the column `name` of the live samples with one of these values.

    Reads these columns of each keys table, one in memory at a time.
    """
    import polars as pl

    empty = {"part": pl.String, "row": pl.Int64, name: pl.String, "split": pl.String}
    frames = [pl.DataFrame(schema=empty)]
    for table in _keys_tables(version, name):
        if "split" in table.columns:
            split = pl.col("split")
        else:
            split = pl.lit(None, pl.String).alias("split")
        has_value = pl.col(name).is_in(values.implode())
        part = pl.col("part").cast(pl.String)
        row = pl.col("row").cast(pl.Int64)
        frame = table.filter(has_value).select(part, row, name, split.fill_null(""))
        frames.append(frame)
    rows = pl.concat(frames, how="vertical_relaxed")
    if len(rows):
        return rows.filter(live(version, rows))
    return rows


def _keys_tables(version: "loader.Version", name: str) -> Iterator["pl.DataFrame"]:
    import polars as pl

    for entry in version.manifest["samples"]:
        if entry["group"] != "keys" or name not in entry["columns"]:
            continue
        columns = ["part", "row", name]
        if "split" in entry["columns"]:
            columns.append("split")
        file = TableFile.from_json(dict(entry))
        data = get_table_bytes(version.store, file)
        yield pl.read_parquet(io.BytesIO(data), columns=columns)


def live(version: "loader.Version", rows: "pl.DataFrame") -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a mask over (part, row): whether the version still has the sample."""
    parts = version.parts
    positions = parts.positions(rows["part"].to_list())
    is_live = np.ones(len(rows), np.bool_)
    numbers = rows["row"].to_numpy()
    for position in np.intersect1d(np.unique(positions), parts.with_exclusions):
        here = positions == position
        is_live[here] = parts.live_members(int(position))[numbers[here]]
    return is_live
