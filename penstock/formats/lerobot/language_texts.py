"""Read LeRobot's language columns: each episode's texts.

A column repeats an episode's texts in each row: a few bytes of Parquet decode to all of them times all rows. So some
rows are decoded at a time, and runs of equal rows are kept. Rejected: one read of the whole column.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from loader.errors import Corrupt
from loader.modalities.language import MAX_BYTES, MAX_LINES

EPISODE = "episode_index"
"""LeRobot's column with each row's episode."""
ROWS_AT_ONCE = 32
"""Rows decoded at a time."""
OBJECT_BYTES = 2**28
"""Approximate limit on the bytes kept of an object's texts, over all episodes."""
_STRUCT_BYTES = 64  # memory per text besides its characters; nulls too


class TextRun(NamedTuple):
    """Consecutive rows with equal texts."""

    first: int
    """First row."""
    stop: int
    """Row after the last."""
    structs: list[Any]
    """Mappings, None for null; at most `MAX_LINES` + 1."""


class EpisodeTexts:
    """One column of one episode."""

    def __init__(self) -> None:
        self.runs: list[TextRun] = []
        self.n_rows = 0
        self.fault: Corrupt | None = None
        """Why it cannot be read."""
        self._nbytes = 0

    def add(
        self,
        values: Any,
        n_rows: int,
        room: int,
    ) -> int:
        """Append rows with equal texts; return about the bytes that they take.

        values: Arrow structs. room: most bytes to keep. Keeps nothing beyond it and the limits of language.
        """
        first = self.n_rows
        self.n_rows += n_rows
        if self.fault is not None:
            return 0
        # One more than the limit, so that the caller notices what it lacks.
        most_structs = MAX_LINES + 1
        structs = values.slice(0, most_structs).to_pylist()
        if self.runs:
            last = self.runs[-1]
            if last.structs == structs:
                self.runs[-1] = last._replace(stop=self.n_rows)
                return 0
        structs_nbytes = _STRUCT_BYTES * len(structs)
        nbytes = int(values.nbytes) + structs_nbytes
        self._nbytes += nbytes
        if self._nbytes > MAX_BYTES:
            self.fault = Corrupt(
                f"row {first}: more than {MAX_BYTES} bytes of texts; leave the column out",
                what="texts of a column",
                given=first,
                accepted=MAX_BYTES,
            )
            return 0
        if nbytes > room:
            self.fault = Corrupt(
                f"row {first}: the episodes of its object have more than {OBJECT_BYTES} bytes of texts; leave the "
                "column out, or write fewer episodes into an object",
                what="texts of an object",
                given=first,
                accepted=OBJECT_BYTES,
            )
            return 0
        self.runs.append(TextRun(first, self.n_rows, structs))
        return nbytes

    def checked(self) -> list[TextRun]:
        """Return the runs. Raises: Corrupt if the column cannot be read."""
        if self.fault is not None:
            raise self.fault
        return self.runs


Texts = dict[str, dict[int, EpisodeTexts]]
"""Column -> episode -> its texts."""


def read_texts(parquet: Any, columns: Collection[str]) -> Texts:
    """Return the language columns of an open Parquet file."""
    column_names = parquet.schema_arrow.names
    names = [name for name in column_names if name in columns]
    texts: Texts = {name: {} for name in names}
    if not names or EPISODE not in column_names:
        return texts
    room = OBJECT_BYTES
    batches = parquet.iter_batches(
        ROWS_AT_ONCE,
        columns=[EPISODE, *names],
        use_threads=False,
    )
    for batch in batches:
        episodes = batch.column(EPISODE).to_pylist()
        for name in names:
            column = batch.column(name)
            room -= _add(
                texts[name],
                episodes,
                column,
                room,
            )
    return texts


def _add(
    texts: dict[int, EpisodeTexts],
    episodes: list[Any],
    column: Any,
    room: int,
) -> int:
    """Add some rows of a column; return the bytes of its texts, at most `room`."""
    import pyarrow as pa

    present = set(episodes)
    for episode in present:
        texts.setdefault(episode, EpisodeTexts())
    if pa.types.is_null(column.type):
        any_structs = pa.list_(pa.struct([]))
        column = column.cast(any_structs)
    if not _holds_structs(column.type):
        fault = Corrupt(
            f"it is {column.type}; lists of structs are needed",
            what="type",
            given=str(column.type),
            accepted="lists of structs",
        )
        for episode in present:
            texts[episode].fault = fault
        return 0
    lists = _lists(column)
    starts = []
    for row, texts_of_row in enumerate(lists):
        if row == 0:
            starts.append(row)
            continue
        before = row - 1
        is_next = episodes[row] == episodes[before]
        if not is_next or not texts_of_row.equals(lists[before]):
            starts.append(row)
    stops = [*starts[1:], len(lists)]
    free = room
    for start, stop in zip(starts, stops, strict=True):
        n_rows = stop - start
        episode_texts = texts[episodes[start]]
        free -= episode_texts.add(
            lists[start],
            n_rows,
            free,
        )
    return room - free


def _holds_structs(kind: Any) -> bool:
    import pyarrow as pa

    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list:
        return False
    value_type = kind.value_type
    if pa.types.is_null(value_type):
        return True
    return bool(pa.types.is_struct(value_type))


def _lists(column: Any) -> list[Any]:
    """Return each row's values as an Arrow array; a null has none."""
    offsets = column.offsets.to_pylist()  # [rows + 1]
    is_valid = np.asarray(column.is_valid())
    lists = []
    for row in range(len(column)):
        begin = offsets[row]
        end = offsets[row + 1]
        n_values = end - begin
        if not is_valid[row]:
            n_values = 0  # Arrow allows values where an entry is null
        values = column.values.slice(begin, n_values)
        lists.append(values)
    return lists
