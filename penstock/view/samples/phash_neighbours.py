"""Neighbours of a sample by perceptual hash: the samples of its version whose pictures differ in the fewest bits."""

from dataclasses import dataclass

import numpy as np

import loader
from loader.dataset.versions.samples_table import scan_samples

from ..json_record import Record

COLUMN = "phash"
"""Column with 16 hexadecimal digits a picture, joined by `-`."""
FLAT = "phash_flat"
"""Column that is True where a hash says nothing."""
MOST = 12
"""Neighbours that are listed."""
MAX_DISTANCE = 16
"""Bits of 64; beyond it every other picture is near."""
_FORM = "^[0-9a-f]{16}(-[0-9a-f]{16})*$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour(Record):
    """A sample that looks like another."""

    ordinal: int
    """Number of the sample in the version."""
    key: str
    """Key of the sample."""
    distance: int
    """Bits in which the hashes differ, at the picture where they differ most."""


def phash_neighbours(version: loader.Version, ordinal: int) -> tuple[Neighbour, ...]:
    """Return up to 12 neighbours within 16 bits, the nearest first; none without a column `phash`.

    Costs that column of the samples table, and a comparison with each row. Samples of as many pictures are compared.
    """
    import polars as pl

    columns = version.manifest["columns"]
    if COLUMN not in columns:
        return ()
    flat = pl.col(FLAT).fill_null(False) if FLAT in columns else pl.lit(False)
    names = [name for name in (COLUMN, FLAT) if name in columns]
    table = scan_samples(version, names).select("ordinal", COLUMN, flat.alias(FLAT)).collect()
    if table.schema[COLUMN] != pl.String:
        return ()
    table = table.filter(~table[FLAT] & table[COLUMN].str.contains(_FORM).fill_null(False))
    own = table.filter(table["ordinal"] == ordinal)
    if not len(own):
        return ()
    n_digits = len(own[COLUMN][0])
    table = table.filter(table[COLUMN].str.len_chars() == n_digits)
    text = "".join(table[COLUMN].to_list()).replace("-", "")
    hashes = np.frombuffer(bytes.fromhex(text), ">u8").reshape(len(table), -1)
    ordinals = table["ordinal"].to_numpy()
    mine = hashes[np.flatnonzero(ordinals == ordinal)]
    distances = np.bitwise_count(hashes ^ mine).max(axis=1).astype(np.int64)
    order = np.argsort(distances, kind="stable")
    near = order[(distances[order] <= MAX_DISTANCE) & (ordinals[order] != ordinal)][:MOST]
    keys = version.keys(ordinals[near]) if len(near) else []
    return tuple(
        Neighbour(ordinal=int(ordinals[row]), key=key, distance=int(distances[row]))
        for row, key in zip(near.tolist(), keys, strict=True)
    )
