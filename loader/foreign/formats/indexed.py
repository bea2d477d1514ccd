"""Rules that MDS and LitData share: an `index.json` in the place, offsets in front, names of fields and columns."""

import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from ...dataset.tables.columns import RESERVED_COLUMNS
from ...errors import Corrupt, InvalidSample, InvalidStore
from ...storage import Store
from .window import Window

Int64s = np.ndarray[Any, np.dtype[np.int64]]
INDEX = "index.json"
_NO_COLUMN = re.compile(r"[^A-Za-z0-9_]|^(?=\d)")


def has_index(store: Store, keys: Collection[str]) -> bool:
    """Return whether a place has an index. Raises: InvalidStore where there are indexes below it alone."""
    if INDEX in keys:
        return True
    if deeper := [key for key in keys if key.endswith(f"/{INDEX}")]:
        raise InvalidStore(
            f"{store.url} has no {INDEX}, and {deeper[0]} ({len(deeper)} such) below: register the folder of one"
        )
    return False


def offsets_in(window: Window, n_samples: int, noun: str) -> Int64s:
    """Return the first byte of each sample, and the end of the last, int64 [n_samples + 1]. Raises: Corrupt.

    noun: "shard" or "chunk", for errors.
    """
    head = 4 * (n_samples + 2)
    if head > window.nbytes:
        raise corrupt(window, 0, f"the {noun} is cut: {n_samples} samples have {head} bytes of offsets")
    table = np.frombuffer(window.read(0, head), "<u4").astype(np.int64)
    if table[0] != n_samples:
        raise corrupt(window, 0, f"the {noun} has {table[0]} samples, and its index says {n_samples}")
    offsets = table[1:]
    wrong = np.flatnonzero(np.diff(offsets, prepend=head) < 0)
    if len(wrong):
        at = int(wrong[0])
        raise corrupt(window, 4 * (at + 1), f"the offset {offsets[at]} lies in front of the one before")
    if offsets[-1] > window.nbytes:
        raise corrupt(
            window, head - 4, f"the last sample ends at {offsets[-1]}, and the object at {window.nbytes}"
        )
    return offsets


def field_name(name: str, word: str) -> str:
    """Return the field of a value: its name, and behind it the last word that says how its bytes are read."""
    return name if not word or name.rpartition(".")[2].lower() == word else f"{name}.{word}"


def column_name(name: str, prefix: str) -> str:
    """Return the metadata column of a value; a reserved name gets the prefix."""
    mine = _NO_COLUMN.sub("_", name)
    return f"{prefix}_{mine}" if mine in RESERVED_COLUMNS else mine


def check_apart(columns: Mapping[str, str], where: str) -> None:
    """Raise InvalidSample where two values would be one metadata column. columns: name of a value -> its column."""
    taken = dict[str, str]()
    for name, mine in columns.items():
        if mine in taken:
            raise InvalidSample(
                f"{where}: the columns {taken[mine]!r} and {name!r} would both be the metadata column "
                f"{mine!r}; write the dataset again with other names"
            )
        taken[mine] = name


def corrupt(window: Window, at: int, what: str) -> Corrupt:
    """Return the error of a damaged byte."""
    return Corrupt(f"{window.name}, byte {at}: {what}")
