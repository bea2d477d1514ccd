"""Read LeRobot's language columns in bounded memory.

A column repeats an episode's texts in each row: a few bytes of Parquet decode to all of them times all rows. So some
rows are decoded at a time, and runs of equal rows are kept. Rejected: one read of the whole column.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from loader.json_text import DamagedJson
from loader.modalities.language import MAX_BYTES, MAX_LINES

ROWS_AT_ONCE = 32
"""Rows decoded at a time."""
OBJECT_BYTES = 2**28
"""About the most bytes kept of all episodes' texts of an object."""
_STRUCT_BYTES = 64  # of a text in memory without its characters, nulls too


class TextRun(NamedTuple):
    """Consecutive rows with equal texts."""

    first: int
    """First row."""
    stop: int
    """After the last."""
    structs: list[Any]
    """Mappings, None for null; at most `MAX_LINES` + 1."""


class EpisodeTexts:
    """One column of one episode."""

    def __init__(self) -> None:
        self.runs: list[TextRun] = []
        self.n_rows = 0
        self.trouble = ""
        """Why it cannot be read, or ""."""
        self._nbytes = 0

    def add(self, values: Any, n_rows: int, room: int) -> int:
        """Append rows with equal texts; return about the bytes that they take.

        values: Arrow structs. room: most bytes to keep. Keeps nothing beyond it and the limits of language.
        """
        first, self.n_rows = self.n_rows, self.n_rows + n_rows
        if self.trouble:
            return 0
        structs = values.slice(0, MAX_LINES + 1).to_pylist()
        if self.runs and self.runs[-1].structs == structs:
            self.runs[-1] = self.runs[-1]._replace(stop=self.n_rows)
            return 0
        nbytes = int(values.nbytes) + _STRUCT_BYTES * len(structs)
        self._nbytes += nbytes
        if self._nbytes > MAX_BYTES:
            self.trouble = f"row {first}: more than {MAX_BYTES} bytes of texts; leave the column out"
            return 0
        if nbytes > room:
            self.trouble = (
                f"row {first}: the episodes of its object have more than {OBJECT_BYTES} bytes of texts; leave the "
                "column out, or write fewer episodes into an object"
            )
            return 0
        self.runs.append(TextRun(first, self.n_rows, structs))
        return nbytes

    def checked(self) -> list[TextRun]:
        """Raise DamagedJson for a column that cannot be read."""
        if self.trouble:
            raise DamagedJson(self.trouble)
        return self.runs


Texts = dict[str, dict[int, EpisodeTexts]]
"""Column -> episode -> its texts."""


def read_texts(parquet: Any, columns: Collection[str]) -> Texts:
    """Return the language columns of an open Parquet file."""
    there = [name for name in parquet.schema_arrow.names if name in columns]
    texts: Texts = {name: {} for name in there}
    room = OBJECT_BYTES
    if not there or "episode_index" not in parquet.schema_arrow.names:
        return texts
    for batch in parquet.iter_batches(ROWS_AT_ONCE, columns=["episode_index", *there], use_threads=False):
        episodes = batch.column("episode_index").to_pylist()
        for name in there:
            room -= _add(texts[name], episodes, batch.column(name), room)
    return texts


def _add(texts: dict[int, EpisodeTexts], episodes: list[Any], column: Any, room: int) -> int:
    """Add some rows of a column; return the bytes of its texts, at most `room`."""
    import pyarrow as pa

    for episode in set(episodes):
        texts.setdefault(episode, EpisodeTexts())
    if pa.types.is_null(column.type):
        column = column.cast(pa.list_(pa.struct([])))
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    kind = column.type.value_type if is_list else column.type
    if not is_list or not (pa.types.is_struct(kind) or pa.types.is_null(kind)):
        for episode in set(episodes):
            texts[episode].trouble = f"it is {column.type}; lists of structs are needed"
        return 0
    lists = _lists(column)
    starts = [
        row
        for row in range(len(lists))
        if not row or episodes[row] != episodes[row - 1] or not lists[row].equals(lists[row - 1])
    ]
    free = room
    for start, stop in zip(starts, [*starts[1:], len(lists)], strict=True):
        free -= texts[episodes[start]].add(lists[start], stop - start, free)
    return room - free


def _lists(column: Any) -> list[Any]:
    offsets, values = column.offsets.to_pylist(), column.values
    valid = np.asarray(column.is_valid())
    return [
        values.slice(offsets[row], (offsets[row + 1] - offsets[row]) * bool(valid[row]))
        for row in range(len(column))
    ]
