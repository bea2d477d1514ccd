"""The rows that a batch would add to the samples table of its dataset."""

import io
from typing import TYPE_CHECKING

import loader
from loader.dataset.tables.parquet import get_table_bytes
from penstock.stages import StageRecord

if TYPE_CHECKING:
    import polars as pl


def candidate(root: loader.Root, samples: StageRecord) -> "pl.DataFrame":
    """Return the rows that a batch would add to the samples table. Raises: Corrupt; ObjectNotFound."""
    import polars as pl

    files = [loader.Part.from_json(body).samples for body in samples.body["parts"]]
    frames = [pl.read_parquet(io.BytesIO(get_table_bytes(root.store, file))) for file in files if file]
    if not frames:
        return pl.DataFrame()
    left_out = list(samples.body["exclude"])
    return pl.concat(frames, how="diagonal_relaxed").filter(~pl.col("key").is_in(left_out))
